"""Check that every failure prints one line with the file's name, has the right exit code, and leaves no half file."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

from brightness_file import brightness_settings
from clips import write_clip
from photographs import astronaut
from vitascope.animation.motion_file import MotionReader
from vitascope.cli import main
from vitascope.errors import InputError
from vitascope.segmentation import film_run

BRIGHTNESS = brightness_settings()
LIGHT = ("--profile", "fast", "--model", BRIGHTNESS["model.name"], "--kind", BRIGHTNESS["model.kind"])
"""Options for a trivial network, where the mattes do not matter."""


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    return write_clip(
        tmp_path_factory.mktemp("bad") / "in.mp4",
        width=128,
        height=96,
        frame_count=6,
        paint=lambda _: np.ascontiguousarray(astronaut()[:192:2, 60:316:2]),
    )


@pytest.fixture
def fails(capsys, tmp_path):
    """Return a function that runs a failing command, checks its one line, and returns code and message."""

    def runner(*words, leaves=()):
        before = set(tmp_path.rglob("*"))
        with pytest.raises(SystemExit) as ended:
            main([str(word) for word in words])
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.count("\n") == 1, captured.err
        assert captured.err.startswith("vitascope: ")
        assert "Traceback" not in captured.err
        left = {path.name for path in set(tmp_path.rglob("*")) - before}
        assert left == set(leaves)
        return ended.value.code, captured.err

    return runner


def empty(path: Path) -> None:
    path.write_bytes(b"")


def text(path: Path) -> None:
    path.write_text("this is no video\n" * 50)


def noise(path: Path) -> None:
    path.write_bytes(np.random.default_rng(0).bytes(50_000))


def without_index(path: Path) -> None:
    whole = write_clip(path.with_name("whole.mp4"), frame_count=24)
    path.write_bytes(whole.read_bytes()[: whole.stat().st_size // 2])
    whole.unlink()


def sound_only(path: Path) -> None:
    both = write_clip(path.with_name("both.mp4"), audio="aac")
    import av

    with av.open(str(both)) as source, av.open(str(path), "w") as target:
        stream = target.add_stream_from_template(source.streams.audio[0])
        for packet in source.demux(source.streams.audio[0]):
            if packet.dts is not None:
                packet.stream = stream
                target.mux(packet)
    both.unlink()


@pytest.mark.parametrize(
    "make", [empty, text, noise, without_index, sound_only], ids=lambda make: make.__name__
)
def test_files_that_are_no_video(fails, tmp_path, make):
    source = tmp_path / "holiday.mp4"
    make(source)
    code, message = fails("segment", source, "-o", tmp_path / "out.mp4", "--profile", "fast")
    assert code == 3
    assert "holiday.mp4" in message


def test_missing_file_and_folder_without_videos(fails, tmp_path):
    code, message = fails("segment", tmp_path / "nowhere.mp4", "-o", tmp_path / "out.mp4")
    assert (code, "nowhere.mp4" in message) == (3, True)
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "readme.txt").write_text("hello")
    code, message = fails("segment", tmp_path / "notes", "-o", tmp_path / "cut/")
    assert (code, "notes" in message) == (3, True)


def test_a_file_whose_name_begins_with_a_dash_is_no_option(fails, tmp_path, clip, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "-dance.mp4").write_bytes(clip.read_bytes())
    code, message = fails("segment", "-dance.mp4", "o.mp4")
    assert code == 2
    assert (
        "-dance.mp4 begins with a dash, like an option; for a file of that name, write ./-dance.mp4"
        in message
    )
    code, message = fails("segment", "-", "o.mp4")
    assert (code, "name a file" in message) == (2, True)
    code, message = fails("segment", "-dance2.mp4", "o.mp4")
    assert (code, "Unknown option: -dance2.mp4" in message) == (2, True)


def test_output_equal_to_input(fails, tmp_path, clip):
    copy = tmp_path / "in.mp4"
    copy.write_bytes(clip.read_bytes())
    code, message = fails("segment", copy, "-o", copy, "--profile", "fast")
    assert (code, "in.mp4" in message) == (2, True)
    assert copy.read_bytes() == clip.read_bytes()


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["--codec", "divx"], 2, "divx"),
        (["--output", "hologram"], 2, "hologram"),
        (["--profile", "ultra"], 2, "ultra"),
        (["--set", "model.batchsize=4"], 2, "model.batch_size"),
        (["--set", "model.batch_size=many"], 2, "model.batch_size"),
        (["--crf", "99"], 2, "99"),
        (["--start", "soon"], 2, "soon"),
        (["--start", "5", "--end", "2"], 2, "end"),
        (["--output", "replace"], 2, "background"),
        (["--device", "cuda"], 5, "GPU"),
        (["--no-such-flag"], 2, "--no-such-flag"),
        (["--model", "resnet"], 5, "resnet"),
        (["--model", "own.onnx"], 2, "--kind"),
        (["--kind", "matte"], 2, "kind"),
        (["--model", "missing.onnx", "--kind", "matte"], 5, "missing.onnx"),
        (["-c", "missing.yaml"], 2, "missing.yaml"),
        (["--start", "500"], 3, "in.mp4"),
    ],
)
def test_wishes_that_cannot_be_met(fails, tmp_path, clip, words, code, says):
    profile = [] if "--profile" in words or "--model" in words else ["--profile", "fast"]
    got, message = fails("segment", clip, "-o", tmp_path / "out.mp4", *profile, *words)
    assert got == code
    assert says in message


@pytest.mark.parametrize(("name", "says"), [("out.xyz", ".xyz"), ("out.mp4", "alpha")])
def test_containers_that_do_not_fit(fails, tmp_path, clip, name, says):
    code, message = fails("segment", clip, "-o", tmp_path / name, "--profile", "fast", "--output", "alpha")
    assert (code, says in message) == (4, True)


def test_an_onnx_of_the_wrong_kind(fails, tmp_path, clip):
    node = helper.make_node("Relu", ["x"], ["y"])
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 7]) for name in "xy"]
    path = tmp_path / "own.onnx"
    graph = helper.make_graph([node], "own", values[:1], values[1:])
    path.write_bytes(
        helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8
        ).SerializeToString()
    )
    code, message = fails("segment", clip, "-o", tmp_path / "o.mp4", "--model", path, "--kind", "matte")
    assert (code, "own.onnx" in message) == (5, True)


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="needs a user whom permissions bind")
@pytest.mark.parametrize("more", [(), ("--dry-run",)])
def test_a_read_only_folder(fails, tmp_path, clip, more):
    folder = tmp_path / "locked"
    folder.mkdir(mode=0o555)
    code, message = fails("segment", clip, "-o", folder / "out.mp4", "--profile", "fast", *more)
    assert (code, "out.mp4" in message) == (4, True)


@pytest.mark.parametrize(
    ("name", "code"), [("file/out.mp4", 4), ("file/frames/%03d.png", 4), ("frames/%03d.png", 2)]
)
def test_an_output_that_cannot_be_made(fails, tmp_path, clip, name, code):
    (tmp_path / "file").write_text("")
    (tmp_path / "frames").mkdir()
    (tmp_path / "frames" / "notes.txt").write_text("")
    words = ("segment", clip, "-o", tmp_path / name, "--profile", "fast")
    said, message = fails(*words)
    assert (said, str(tmp_path / name.split("/")[0]) in message) == (code, True)
    assert fails(*words, "--dry-run") == (code, message)


def command(*words):
    return [sys.executable, "-m", "vitascope", *map(str, words)]


@pytest.mark.skipif(os.name != "posix", reason="file size limits are POSIX")
def test_a_full_disk(tmp_path, clip):
    """Check with a limit on file size, which makes the write fail in the same place as a full disk."""
    import resource

    answer = subprocess.run(
        command("segment", clip, "-o", tmp_path / "out.mkv", *LIGHT, "--codec", "ffv1"),
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: (
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN),
            resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000)),
        ),
    )
    assert answer.returncode == 4, answer.stderr
    assert answer.stderr.count("\n") == 1
    assert "out.mkv" in answer.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def long(tmp_path_factory):
    """Write a video that takes some seconds to process."""
    path = tmp_path_factory.mktemp("long") / "long.mp4"
    return write_clip(path, width=640, height=360, frame_count=400, codec_options={"preset": "ultrafast"})


@pytest.mark.skipif(os.name != "posix", reason="sends signals")
@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_batch_keeps_and_records_what_is_done(tmp_path, clip, long, ending):
    """Check Ctrl-C, a kill and a closed terminal; the last two also if a script starts it in the background."""
    out = tmp_path / "out"
    # A tinted picture at a high rate makes the file grow during the run, so that a part is visible.
    words = command(
        "segment", clip, long, clip.with_name("none.mp4"), "-o", out, *LIGHT, "--output", "overlay",
        "--set", "output.crf=3", "--json",
    )  # fmt: skip
    clip.with_name("none.mp4").write_bytes(clip.read_bytes())

    def as_in_the_background() -> None:
        signal.signal(ending, signal.SIG_DFL)  # even if the tests run under nohup, which ignores it
        if ending != signal.SIGINT:
            signal.signal(signal.SIGINT, signal.SIG_IGN)

    process = subprocess.Popen(
        words, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, preexec_fn=as_in_the_background
    )
    deadline = time.monotonic() + 60
    while not any(part.stat().st_size > 1000 for part in out.glob(".long.*.part.mp4")):
        assert time.monotonic() < deadline, "nothing was written"
        time.sleep(0.02)
    process.send_signal(ending)
    told, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert err.count("\n") == 1
    assert "interrupted" in err
    assert sorted(path.name for path in out.iterdir()) == [clip.name, "long.mp4.part"]
    assert "long.mp4.part" in err
    states = [(Path(item["input"]).name, item["status"]) for item in json.loads(told)]
    assert states == [(clip.name, "done"), ("long.mp4", "interrupted"), ("none.mp4", "interrupted")]
    import av

    with av.open(str(out / "long.mp4.part"), format="mp4") as container:
        assert 0 < sum(1 for _ in container.decode(video=0)) < 400


def test_a_wrong_setting_is_recorded_for_machines(capsys, clip, tmp_path):
    with pytest.raises(SystemExit) as ended:
        main(["segment", str(clip), "-o", str(tmp_path / "o.mp4"), "--set", "edges.nope=1", "--json"])
    told, err = capsys.readouterr()
    (item,) = json.loads(told)
    assert (ended.value.code, item["input"], item["status"]) == (2, str(clip), "failed")
    assert item["error"] in err


@pytest.mark.skipif(os.name != "posix", reason="closes a pipe")
def test_a_reader_that_leaves_does_not_end_a_batch(clip, tmp_path):
    second = tmp_path / "second.mp4"
    second.write_bytes(clip.read_bytes())
    process = subprocess.Popen(
        command("segment", clip, second, "-o", tmp_path / "out", *LIGHT),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    process.stdout.close()
    with process:
        assert process.wait(60) == 0
        assert process.stderr.read() == b""
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted([clip.name, "second.mp4"])


def test_debug_shows_where_it_came_from(capsys, tmp_path):
    with pytest.raises(SystemExit):
        main(["segment", str(tmp_path / "nowhere.mp4"), "-o", "out.mp4", "--debug"])
    assert "Traceback" in capsys.readouterr().err


def test_a_reader_that_leaves_is_no_error():
    answer = subprocess.run(
        f"{sys.executable} -m vitascope config show | head -1",
        shell=True,
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.stderr == ""


@pytest.mark.parametrize("words", [("segment", "", "-o", "o.mp4"), ("segment", "in.mp4", "-o", "")])
def test_an_empty_word_is_not_the_current_folder(fails, words):
    code, message = fails(*words)
    assert code == 2
    assert message == "vitascope: an argument is empty; is a shell variable not set?\n"


def test_a_name_that_is_too_long_is_one_line(fails, tmp_path):
    code, message = fails("segment", tmp_path / f"{'n' * 300}.mp4", "-o", tmp_path / "o.mp4")
    assert code == 3
    assert message.endswith("File name too long\n")


def test_an_output_whose_name_is_too_long_is_no_fault_of_the_program(fails, tmp_path, clip):
    code, message = fails("segment", clip, "-o", tmp_path / f"{'n' * 300}.mp4", "--profile", "fast")
    assert code == 2
    assert message.endswith("File name too long\n")


def test_no_memory_for_anything_is_one_line(fails, tmp_path, clip, monkeypatch):
    def starved(*_, **__):
        raise MemoryError("Unable to allocate 445 KiB")

    monkeypatch.setattr(film_run, "open_network", starved)
    code, message = fails("segment", clip, "-o", tmp_path / "o.mp4")
    assert code == 1
    assert message.startswith("vitascope: out of memory: Unable to allocate 445 KiB")


@pytest.mark.parametrize(
    ("reason", "advice"),
    [
        ("libx.so.1: failed to map segment from shared object", "out of memory; free some"),
        ("No module named 'x'", "install Vitascope again"),
    ],
)
def test_a_library_that_cannot_be_loaded_is_one_line(fails, tmp_path, clip, monkeypatch, reason, advice):
    def broken(*_, **__):
        raise ImportError("Cannot import module 'y'") from ImportError(reason)

    monkeypatch.setattr(film_run, "open_network", broken)
    code, message = fails("segment", clip, "-o", tmp_path / "o.mp4")
    assert code == 1
    assert message.startswith(f"vitascope: a library cannot be loaded: {reason}: {advice}")


def test_ctrl_c_that_a_library_takes_for_a_reason_not_to_load_is_ctrl_c(fails, tmp_path, clip, monkeypatch):
    def broken(*_, **__):
        raise ImportError("Cannot import module 'y'") from KeyboardInterrupt()

    monkeypatch.setattr(film_run, "open_network", broken)
    assert fails("segment", clip, "-o", tmp_path / "o.mp4") == (130, "vitascope: interrupted\n")


def test_a_name_that_stdout_cannot_show_ends_nothing(clip, tmp_path):
    answer = subprocess.run(
        [sys.executable, "-m", "vitascope", "segment", clip, "-o", tmp_path / "ü.mp4", *LIGHT],
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    assert b"\\xfc.mp4" in answer.stdout


def in_a_shell(line, *words, **options):
    """Run a shell line in which ``"$@"`` is vitascope with these words; returns its exit code and stderr."""
    command = [sys.executable, "-m", "vitascope", *map(str, words)]
    answer = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {line}", "bash", *command],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        **options,
    )
    return answer.returncode, answer.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_behind_stdout_is_one_line():
    full = "vitascope: standard output cannot be written: No space left on device\n"
    assert in_a_shell('"$@" >/dev/full', "config", "show") == (4, full)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("stderr", ["2>/dev/full", "2>&-", "2>&1 | true"])
def test_an_exit_code_does_not_depend_on_stderr(stderr, tmp_path):
    code, _ = in_a_shell(f'"$@" {stderr}', "segment", tmp_path / "none.mp4", tmp_path / "o.mp4")
    assert code == 3


@pytest.mark.skipif(os.name != "posix", reason="needs a shell")
@pytest.mark.parametrize("closed", [">&-", "<&- >&- 2>&-", "| true"])
@pytest.mark.parametrize("words", [(), ("--json",)])
def test_a_video_is_made_for_nobody_who_reads_along(closed, words, clip, tmp_path):
    out = tmp_path / "o.mp4"
    assert in_a_shell(f'"$@" {closed}', "segment", clip, out, *LIGHT, *words) == (0, "")
    assert out.stat().st_size > 0


@pytest.mark.skipif(os.name != "posix", reason="needs a shell")
def test_a_failure_is_one_though_nobody_reads_the_report(tmp_path):
    code, said = in_a_shell('"$@" | true', "segment", tmp_path / "none.mp4", tmp_path / "o.mp4", "--json")
    assert (code, said) == (3, f"vitascope: {tmp_path / 'none.mp4'}: no such file or folder\n")


@pytest.mark.skipif(os.name != "posix", reason="an open folder cannot be removed elsewhere")
@pytest.mark.parametrize("where", ["o.mp4", "cut/"])
def test_a_working_folder_that_is_gone(clip, tmp_path, where):
    gone = tmp_path / "gone"
    gone.mkdir()
    code, said = in_a_shell('rmdir "$PWD"; "$@"', "segment", clip, where, *LIGHT, cwd=gone)
    assert (code, said) == (2, "vitascope: the working folder no longer exists: cd to one that does\n")


@pytest.mark.skipif(os.name != "posix", reason="needs pipes that have names")
def test_a_pipe_is_refused_where_a_file_is_wanted(fails, clip, tmp_path):
    """Check the refusal, as opening a pipe would wait for a writer, and not react to Ctrl-C."""
    pipes = {name: tmp_path / name for name in ("in.mp4", "net.onnx", "talk.motion", "me.png")}
    for pipe in pipes.values():
        os.mkfifo(pipe)
    out = tmp_path / "o.mp4"
    is_pipe = "it is a pipe or a device; save the video to a file first"
    assert fails("segment", pipes["in.mp4"], out) == (3, f"vitascope: {pipes['in.mp4']}: {is_pipe}\n")
    for background in (pipes["in.mp4"], pipes["me.png"]):
        replaced = fails(
            "segment", clip, out, "--type", "replace", "--background", background, "--profile", "fast"
        )
        assert replaced == (3, f"vitascope: {background}: {is_pipe}\n")
    code, said = fails("segment", clip, out, "--model", pipes["net.onnx"], "--kind", "matte")
    assert (code, "net.onnx: it is no file" in said) == (5, True)
    with pytest.raises(
        InputError, match=r"talk\.motion: recorded motion must be a file, not a folder, a pipe"
    ):
        MotionReader(pipes["talk.motion"])


def test_usage_errors_speak_of_words_not_types(fails, tmp_path, clip):
    _, message = fails("segment", clip, "-o", tmp_path / "o.mp4", "--codec", "divx")
    assert message == "vitascope: --codec: 'divx' is none of auto, h264, h265, av1, prores, vp9, ffv1, png\n"
    _, message = fails("segment", clip, tmp_path / "o.mp4", "--player", "herespher")
    assert message.endswith("quest, visionpro; did you mean heresphere?\n")
    _, message = fails("segment", clip, tmp_path / "o.mp4", "--type", "key,masks")
    assert message.endswith("packed-alpha; did you mean mask?\n")
    _, message = fails("segment", clip, tmp_path / "o.mp4", "-y", "-n")
    assert message == "vitascope: -y replaces existing outputs, -n refuses to; give only one of them\n"
    _, message = fails("segment", clip)
    assert message == f"vitascope: no output given: try vitascope segment {clip} out.mp4\n"
    for flag, list_, word in (
        ("--keep", "1,2", "2"),
        ("--exclude", "1,2", "largest"),
        ("--type", "mask,key", "key"),
        ("--gpu-ids", "0,1", "1"),
    ):
        first = list_.partition(",")[0]
        for words in ((tmp_path / "o.mp4", flag, first, word), (flag, first, word, "-o", tmp_path / "o.mp4")):
            _, message = fails("segment", clip, *words)
            assert message == (
                f"vitascope: {word}: separate the values of {flag} with commas: {flag} {list_}; a file or folder of "
                f"that name is ./{word}\n"
            )
    _, message = fails("models", "pull")
    assert message == "vitascope: models pull: NAMES is missing; see vitascope models pull --help\n"
    _, message = fails("models", "where", "rvm")
    assert (
        message == "vitascope: models where: unexpected argument 'rvm'; see vitascope models where --help\n"
    )
    _, message = fails("cache", "info", "--films")
    assert message == "vitascope: cache info: Unknown option: --films; see vitascope cache info --help\n"
    _, message = fails("segment", clip, "--oot", tmp_path)
    assert message == "vitascope: Unknown option: --oot. Did you mean --out?\n"
    _, message = fails("modles", "list")
    assert message == "vitascope: there is no command 'modles'; did you mean models?\n"
    _, message = fails("models", "fetch")
    assert (
        message
        == "vitascope: there is no command 'fetch'; the commands are list, pull, where, verify, remove, export\n"
    )
