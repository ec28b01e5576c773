"""Tests of the command line in this process: its output and exit codes."""

from __future__ import annotations

import json
import os
import re
import tempfile

import cv2
import numpy as np
import pytest

from clips import write_clip
from photographs import astronaut
from vitascope import __version__
from vitascope.device import Gpu, probe_gpus
from vitascope.media.writing import nvenc
from vitascope.models.store.store import ModelStore
from vitascope.segmentation import batch, capacity


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    return write_clip(
        tmp_path_factory.mktemp("cli") / "in.mp4",
        width=128,
        height=96,
        frame_count=6,
        audio="aac",
        paint=lambda _: np.ascontiguousarray(astronaut()[:192:2, 60:316:2]),
    )


def test_version_and_help(run):
    assert run("--version")[1].strip() == __version__
    code, out, _ = run("--help")
    assert code == 0
    assert all(command in out for command in ("segment", "models", "doctor", "config", "--debug"))
    assert "Cut every person out of videos" in run("segment", "--help")[1]


def test_segment_writes_and_sums_up(run, clip, tmp_path):
    out = tmp_path / "out.mp4"
    code, printed, complained = run("segment", clip, "-o", out, "--profile", "fast")
    assert (code, complained) == (0, "")
    assert out.exists()
    assert "6 frames" in printed
    assert "p50" in printed
    assert "p95" in printed
    assert "p99" in printed
    assert "selfie" in printed
    assert "onnxruntime" in printed
    assert "bottleneck" in printed


def test_a_video_of_nobody_is_told_beside_the_summary(run, clip, tmp_path):
    wall = write_clip(
        tmp_path / "wall.mp4", frame_count=3, paint=lambda _: np.full((64, 96, 3), 90, np.uint8)
    )
    note = "nobody was found in any frame, so the output shows only background"
    words = ("segment", wall, tmp_path / "o.mp4", "--profile", "fast", "-y")
    code, out, err = run(*words)
    assert (code, err) == (0, f"note: wall.mp4: {note}\n")
    assert note not in out
    code, out, err = run(*words, "--json")
    (report,) = json.loads(out)
    assert (code, err) == (0, f"note: wall.mp4: {note}\n")
    assert note in report["notes"]
    assert report["shows_people"] is False
    assert run(*words, "--quiet") == (0, "", "")
    (report,) = json.loads(run("segment", clip, tmp_path / "p.mp4", "--profile", "fast", "--json")[1])
    assert report["shows_people"] is True
    cached = (*words, "--set", "processing.enable_caching=true")
    for _ in range(2):  # the second run uses the cache of the first
        code, out, err = run(*cached)
        assert (code, err) == (0, f"note: wall.mp4: {note}\n")
    assert "mattes from the cache" in out


def test_resuming_with_other_settings_says_that_the_file_was_made_with_others(run, clip, tmp_path):
    out = tmp_path / "o.mp4"
    words = ("segment", clip, out, "--profile", "fast", "--resume")
    run(*words)
    assert run(*words)[2] == ""
    before = out.read_bytes()
    code, printed, told = run(*words, "--type", "mask", "--feather", 2)
    assert (code, "done already" in printed, out.read_bytes()) == (0, True, before)
    assert told == (
        f"note: {out} was made with other settings (edges.feather_px 0.0, now 2.0; type key, now mask); "
        "-y without --resume makes it again\n"
    )
    assert f"note: {out} was made" in run(*words, "--type", "mask", "--dry-run")[1]
    (report,) = json.loads(run(*words, "--feather", 2, "--json")[1])
    assert (report["status"], len(report["notes"])) == ("skipped", 1)
    unknown = f"{clip}: done already; its settings are unknown\n"
    assert unknown not in run(*words)[1]
    run(*words[:-1], "-y")  # a whole video without --resume is not remembered
    assert run(*words)[1] == unknown


def test_resuming_replaces_no_picture_unasked(run, clip, tmp_path):
    sheet = tmp_path / "sheet.png"
    sheet.write_bytes(b"mine")
    words = ("segment", clip, tmp_path / "o.mp4", "--profile", "fast", "--resume", "--preview", sheet)
    assert run(*words) == (4, "", f"vitascope: {sheet} already exists; -y replaces it\n")
    assert sheet.read_bytes() == b"mine"
    assert run(*words, "-y")[0] == 0
    made = sheet.read_bytes()
    assert made != b"mine"
    code, out, _ = run(*words)  # nothing is left to do, so nothing is replaced
    assert (code, "done already" in out, sheet.read_bytes()) == (0, True, made)


@pytest.mark.parametrize("more", [(), ("--dry-run",), ("--hints",)])
def test_a_contact_sheet_that_cannot_be_written_is_told_before_the_work(run, clip, tmp_path, more):
    (tmp_path / "file").touch()
    (tmp_path / "hints.yaml").write_text("version: 1\n")
    out, sheet = tmp_path / "o.mp4", tmp_path / "file" / "sheet.png"
    words = (*more, tmp_path / "hints.yaml") if "--hints" in more else more
    code, printed, err = run("segment", clip, out, "--profile", "fast", "--preview", sheet, *words)
    assert (code, printed) == (4, "")
    assert err.startswith(f"vitascope: {sheet}: cannot create its folder")
    assert not out.exists()


def test_without_a_home_that_can_be_written_people_are_found_and_kept(run, clip, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    (tmp_path / "temporary").mkdir()
    home = tmp_path / "file" / "home"
    monkeypatch.setenv("VITASCOPE_HOME", str(home))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    kept = tmp_path / "temporary" / f"vitascope-{os.getuid()}"
    note = f"note: {home} cannot be written: results from videos are stored in {kept} instead"
    code, out, err = run("people", clip, "--set", "model.name=selfie")
    assert (code, out.split()[0]) == (0, "1")
    assert note in err.splitlines()
    code, out, _ = run("segment", clip, tmp_path / "o.mp4", "--profile", "fast", "--keep", 1)
    assert code == 0
    assert note in out.splitlines()
    assert kept.stat().st_mode & 0o077 == 0
    other = os.getuid() + 1
    monkeypatch.setattr(os, "getuid", lambda: other)
    kept.rename(kept.with_name(f"vitascope-{os.getuid()}"))
    code, _, err = run("people", clip, "--set", "model.name=selfie")
    assert code == 4
    assert "not a folder of yours; set VITASCOPE_HOME" in err


def test_people_takes_a_video_and_a_sheet_by_their_urls_as_segment_does(run, clip, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = {path for path in tmp_path.rglob("*") if path.is_dir()}
    named = f"file://{clip}", "-o", f"file://{tmp_path}/a%20sheet.png"
    code, out, _ = run("people", *named, "--set", "model.name=selfie")
    assert (code, out.split()[0]) == (0, "1")
    assert (tmp_path / "a sheet.png").is_file()
    assert {path for path in tmp_path.rglob("*") if path.is_dir()} == before  # no folder named "file:"


def test_quiet_says_nothing_and_json_says_it_to_machines(run, clip, tmp_path):
    assert run("segment", clip, "-o", tmp_path / "q.mp4", "--profile", "fast", "-q") == (0, "", "")
    code, out, err = run("segment", clip, "-o", tmp_path / "j.mp4", "--profile", "fast", "--json")
    (report,) = json.loads(out)
    assert (code, err) == (0, "")
    assert (report["input"], report["status"]) == (str(clip), "done")
    assert report["frame_count"] == 6
    assert report["pipeline"]["bottleneck"]["stage"]


def test_several_outputs_and_a_preview(run, clip, tmp_path):
    words = (
        "segment",
        clip,
        "-o",
        tmp_path / "o.mp4",
        "--profile",
        "fast",
        "--output",
        "mask",
        "--output",
        "key",
    )
    assert run(*words, "--preview", tmp_path / "sheet.png")[0] == 0
    assert {path.name for path in tmp_path.iterdir()} == {"o_mask.mp4", "o_key.mp4", "sheet.png"}


def test_folders_mirror_and_resume(run, clip, tmp_path):
    source = tmp_path / "clips" / "day"
    source.mkdir(parents=True)
    for folder, name in ((source.parent, "a.mp4"), (source, "b.mp4")):
        (folder / name).write_bytes(clip.read_bytes())
    words = ("segment", source.parent, "-o", tmp_path / "cut", "--recursive", "--resume", "--profile", "fast")
    assert run(*words)[0] == 0
    assert {str(p.relative_to(tmp_path / "cut")) for p in (tmp_path / "cut").rglob("*.mp4")} == {
        "a.mp4",
        "day/b.mp4",
    }
    stamp = (tmp_path / "cut" / "a.mp4").stat().st_mtime_ns
    code, out, _ = run(*words)
    assert (code, out.count("done already")) == (0, 2)
    assert (tmp_path / "cut" / "a.mp4").stat().st_mtime_ns == stamp


def test_one_bad_file_among_several_is_named_and_the_rest_is_done(run, clip, tmp_path):
    bad = tmp_path / "bad.mp4"
    bad.write_text("this is text")
    code, _, err = run("segment", bad, clip, "-o", tmp_path / "cut", "--profile", "fast")
    assert code == 3
    assert err.count("\n") == 1
    assert "bad.mp4" in err
    assert (tmp_path / "cut" / "in.mp4").exists()


def test_a_folder_job_does_not_write_over_its_inputs(run, clip, tmp_path):
    folder = tmp_path / "clips"
    folder.mkdir()
    for name in ("x.avi", "x.mp4"):
        (folder / name).write_bytes(clip.read_bytes())
    code, out, err = run("segment", folder, "-o", f"{folder}/", "--profile", "fast")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "the output is the input" in err
    assert (folder / "x.mp4").read_bytes() == clip.read_bytes()
    assert {path.name for path in folder.iterdir()} == {"x.avi", "x.mp4"}


def test_results_below_the_input_are_not_taken_for_inputs(run, clip, tmp_path):
    folder = tmp_path / "clips"
    folder.mkdir()
    (folder / "a.mp4").write_bytes(clip.read_bytes())
    words = ("segment", folder, "-o", folder / "cut", "--recursive", "--profile", "fast", "--json")
    for resume, status in ((), "done"), (("--resume",), "skipped"):
        (item,) = json.loads(run(*words, *resume)[1])
        assert (item["input"], item["status"]) == (str(folder / "a.mp4"), status)


def test_a_folder_of_pictures_can_be_made_again_and_resumed(run, clip, tmp_path):
    words = ("segment", clip, "-o", tmp_path / "frames", "--profile", "fast")
    assert run(*words)[0] == run(*words, "-y")[0] == 0
    stamp = (tmp_path / "frames").stat().st_mtime_ns
    assert "done already" in run(*words, "--resume")[1]
    assert (tmp_path / "frames").stat().st_mtime_ns == stamp
    assert {path.name for path in (tmp_path / "frames").iterdir()} == {f"{n:06d}.png" for n in range(6)}
    kinds = ("segment", clip, "-o", tmp_path / "q" / "f_%03d.png", "--output", "mask", "--output", "key")
    assert run(*kinds, "--profile", "fast")[0] == 0
    assert {path.name for path in tmp_path.iterdir()} == {"frames", "q_mask", "q_key"}
    assert "done already" in run(*kinds, "--profile", "fast", "--resume")[1]


def test_machines_are_told_of_every_input_also_of_those_that_fail(run, clip, tmp_path):
    bad = tmp_path / "bad.mp4"
    bad.write_text("this is text")
    (tmp_path / "cut").mkdir()
    (tmp_path / "cut" / "done.mp4").write_bytes(clip.read_bytes())
    done = tmp_path / "done.mp4"
    done.write_bytes(clip.read_bytes())
    words = ("segment", bad, clip, done, "-o", f"{tmp_path}/cut/", "--profile", "fast", "--resume", "--json")
    code, out, err = run(*words)
    items = json.loads(out)
    assert (code, err.count("\n")) == (3, 1)
    assert [(item["input"], item["status"]) for item in items] == [
        (str(bad), "failed"), (str(clip), "done"), (str(done), "skipped"),
    ]  # fmt: skip
    assert "bad.mp4" in items[0]["error"]
    assert items[1]["frame_count"] == 6


@pytest.mark.parametrize(
    ("name", "words", "code"),
    [
        ("bad.mp4", (), 3),
        ("gone.mp4", (), 3),
        ("bad.mp4", ("--dry-run",), 3),
        ("bad.mp4", ("--model", "resnet"), 5),
        ("bad.mp4", ("--device", "cuda"), 5),
    ],
)
def test_machines_are_told_of_a_single_failure(run, tmp_path, name, words, code):
    (tmp_path / "bad.mp4").write_text("this is text")
    model = () if "--model" in words else ("--profile", "fast")
    got, out, err = run("segment", tmp_path / name, "-o", tmp_path / "o.mp4", "--json", *model, *words)
    (item,) = json.loads(out)
    assert (got, err.count("\n"), item["status"]) == (code, 1, "failed")
    assert item["input"] == str(tmp_path / name)
    assert err == f"vitascope: {item['error']}\n"


@pytest.fixture
def folder(clip, tmp_path):
    """Create a folder with two videos, a broken one, a photograph, and a subfolder with one more."""
    place = tmp_path / "films"
    (place / "later").mkdir(parents=True)
    for name in ("a.mp4", "b.mp4", "later/c.mp4"):
        (place / name).write_bytes(clip.read_bytes())
    (place / "bad.mp4").write_text("no video")
    cv2.imwrite(str(place / "photo.png"), astronaut()[:96, :128])
    return place


def test_a_folder_left_out_is_said_in_one_line(run, folder, tmp_path):
    words = ("segment", folder, "-o", tmp_path / "cut", "--profile", "fast", "--dry-run")
    said = run(*words)[2]
    (note,) = [line for line in said.splitlines() if "left out" in line]
    assert note == f"note: {folder}: a folder in it is left out (later); --recursive includes them"
    assert "left out" not in run(*words, "--recursive")[2]
    assert "left out" not in run(*words, "--quiet")[2]


def test_a_dry_run_of_fast_names_the_network_of_its_device(run, clip, tmp_path, monkeypatch):
    words = ("segment", clip, "-o", tmp_path / "out.mp4", "--profile", "fast", "--dry-run")
    assert "selfie (here)" in run(*words)[1]
    monkeypatch.setattr(
        capacity, "suited_to_device", lambda loaded, _: loaded.with_values({"model.name": "rvm"})
    )
    assert "rvm (" in run(*words)[1]


@pytest.mark.parametrize(
    "given", [("mask", "--type", "mask"), ("2", "--keep", "1,2"), ("key", "--type=mask,key")]
)
def test_an_output_may_have_the_name_of_what_it_shows(run, clip, given):
    """Check words that the flag has a value for already, so they are not meant for it."""
    code, printed, _ = run("segment", clip, *given, "--profile", "fast", "--dry-run")
    assert code == 0
    assert f"-> {given[0]}" in printed


def test_dry_run_of_a_folder_ends_with_a_total(run, folder, tmp_path):
    words = ("segment", folder, "-o", tmp_path / "cut", "--profile", "fast")
    _, printed, _ = run(*words, "--dry-run")
    last = printed.splitlines()[-1]
    assert last.startswith("3 of 4 inputs would be done, 0:00:00 of video, about 0:00:")
    assert last.endswith(" for 2 of them, 1 would fail")
    run("segment", folder / "a.mp4", "-o", tmp_path / "cut" / "a.mp4", "--profile", "fast")
    last = run(*words, "--dry-run", "--resume")[1].splitlines()[-1]
    assert last.startswith("2 of 4 inputs would be done, ")
    assert last.endswith(" for 1 of them, 1 done already, 1 would fail")
    assert "would be done" not in run("segment", folder / "a.mp4", tmp_path / "o.mp4", "--dry-run")[1]


@pytest.mark.parametrize("more", [(), ("--dry-run",)])
def test_a_folder_that_nothing_can_be_written_to_is_one_error(run, folder, tmp_path, more):
    (tmp_path / "text").write_text("no folder")
    code, printed, complained = run(
        "segment", folder, "-o", tmp_path / "text" / "cut", "--profile", "fast", *more
    )
    assert (code, printed) == (4, "")
    (line,) = complained.splitlines()
    assert line.startswith(f"vitascope: {tmp_path / 'text' / 'cut' / 'a.mp4'}: cannot create its folder")
    assert line.endswith("; this applies to all 4 outputs")


def test_a_folder_that_is_interrupted_says_how_to_go_on(run, folder, tmp_path, monkeypatch):
    whole = batch.segment_all

    def interrupted(segmenter, planned, **options):
        yield next(iter(whole(segmenter, planned, **options)))
        raise KeyboardInterrupt

    monkeypatch.setattr(batch, "segment_all", interrupted)
    words = ("segment", folder, "-o", tmp_path / "cut", "--profile", "fast")
    code, _, said = run(*words)
    assert code == 130
    assert "note: 1 of 4 inputs are done; --resume continues with the others" in said
    monkeypatch.undo()
    code, printed, _ = run(*words, "--resume")
    assert code == 3
    assert f"{folder / 'a.mp4'}: done already" in printed
    assert printed.splitlines()[-1] == f"3 of 4 inputs done, 1 failed: {folder / 'bad.mp4'}"


def test_a_photograph_has_no_pace(run, folder, tmp_path):
    words = ("segment", folder / "photo.png", tmp_path / "cut.png", "--profile", "fast")
    assert " fps" not in run(*words, "--dry-run")[1]
    printed = run(*words)[1]
    assert "1 frame in " in printed
    assert "bottleneck" not in printed


def test_dry_run_lists_the_good_beside_the_bad(run, clip, tmp_path):
    bad = tmp_path / "bad.mp4"
    bad.write_text("this is text")
    words = ("segment", bad, clip, "-o", tmp_path / "cut", "--profile", "fast", "--dry-run")
    code, out, err = run(*words)
    assert (code, err.count("\n")) == (3, 1)
    assert "bad.mp4" in err
    assert f"key -> {tmp_path / 'cut' / 'in.mp4'}" in out
    assert [item["status"] for item in json.loads(run(*words, "--json")[1])] == ["failed", "planned"]


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["--model", "resnet"], 5, "resnet"),
        (["--device", "cuda"], 5, "GPU"),
        (["--output", "replace", "--background", "gone.jpg"], 3, "gone.jpg"),
        (["--start", "500"], 3, "no frame between"),
    ],
)
@pytest.mark.parametrize("dry", [True, False], ids=["dry", "real"])
def test_dry_run_fails_as_the_real_run_does(run, clip, tmp_path, dry, words, code, says):
    model = () if "--model" in words else ("--profile", "fast")
    dry_run = ("--dry-run",) if dry else ()
    got, out, err = run("segment", clip, "-o", tmp_path / "o.mp4", *model, *words, *dry_run)
    assert (got, out, err.count("\n")) == (code, "", 1)
    assert says in err


@pytest.mark.parametrize("live", [False, True], ids=["file", "live"])
@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--background", "beach.jpg"), "--background is for --type replace; here the type is key"),
        (("--key-color", "red", "--type", "mask"), "--key-color is for --type key; here the type is mask"),
        (
            ("--player", "moon", "--type", "mask"),
            "--player moon: no VR player can show mask; leave --type out, or --player",
        ),
    ],
)
def test_a_flag_of_another_type_is_not_ignored(run, clip, tmp_path, words, says, live):
    given = ("--camera", clip, "--sink", "null") if live else (clip, "-o", tmp_path / "o.mp4")
    code, _, err = run("segment", *given, "--profile", "fast", *words)
    assert (code, err) == (2, f"vitascope: {says}\n")
    waits = tmp_path / "later.yaml"  # a type may come later than a settings file's options
    waits.write_text("output: {background: beach.jpg, key_color: red}")
    if not live:
        more = ("-c", waits, "--type", "mask", "--end", "0.1")
        assert run("segment", *given, "--profile", "fast", *more)[0] == 0


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--background", "beach.jpg"), "--background is for --type replace; {} sets output.kinds: mask"),
        (
            ("--player", "moon"),
            "--player moon: no VR player can show mask; take output.kinds out of {}, or --player",
        ),
    ],
)
def test_a_flag_is_refused_with_where_the_type_stands(run, clip, tmp_path, words, says):
    """Check the advice for a type that was not set by --type."""
    mine = tmp_path / "mine.yaml"
    mine.write_text("output:\n  kinds: [mask]")
    given = ("segment", clip, "-o", tmp_path / "o.mp4", "--profile", "fast", *words)
    assert run(*given, "-c", mine)[::2] == (2, f"vitascope: {says.format(f'{mine}:2')}\n")
    assert run(*given, "--set", "output.kinds=[mask]")[::2] == (2, f"vitascope: {says.format('--set')}\n")


def test_previews_of_several_inputs_are_kept_apart(run, clip, tmp_path):
    for name in ("d1", "d2"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.mp4").write_bytes(clip.read_bytes())
    words = ("--profile", "fast", "--preview", tmp_path / "sheet.png", "-o", tmp_path / "cut")
    assert run("segment", tmp_path / "d1/a.mp4", tmp_path / "d2/a.mp4", *words)[0] == 0
    assert {path.name for path in (tmp_path / "cut").iterdir()} == {"a.mp4", "a_2.mp4"}
    assert {path.name for path in tmp_path.glob("*.png")} == {"sheet_a.png", "sheet_a_2.png"}


def test_a_picture_that_is_there_is_not_replaced_by_a_contact_sheet(run, clip, tmp_path):
    mine = tmp_path / "mine.png"
    mine.write_text("mine")
    words = ("segment", clip, "-o", tmp_path / "o.mp4", "--profile", "fast", "--preview", mine)
    assert run(*words)[::2] == (
        4,
        f"vitascope: {mine} already exists; -y replaces it, --resume skips finished inputs\n",
    )
    assert mine.read_text() == "mine"
    assert run(*words, "-y")[0] == 0
    assert mine.read_bytes().startswith(b"\x89PNG")


def test_tables_do_not_fold_in_a_pipe(run, monkeypatch, tmp_path):
    monkeypatch.setenv("COLUMNS", "80")
    value = "x" * 150
    _, out, _ = run("config", "show", "--set", f"output.background={value}.png")
    assert any(line.startswith("output.background") and f"{value}.png" in line for line in out.splitlines())
    assert len({line.split()[0] for line in out.splitlines()}) == len(out.splitlines())
    networks = json.loads(run("models", "list", "--json")[1])
    rows = run("models", "list")[1].splitlines()
    assert len(rows) == 1 + len(networks)
    assert all(row.endswith(entry["purpose"]) for row, entry in zip(rows[1:], networks, strict=True))
    assert any(len(line) > 80 for line in run("doctor")[1].splitlines())


def test_doctor_shows_the_verdicts_on_the_gpus_encoder(run, monkeypatch):
    assert "not used: there is no NVIDIA GPU here" in run("doctor", "--json")[1] or probe_gpus()
    fails = {"av1_nvenc": "av1_nvenc spoils pictures", "hevc_nvenc": None, "h264_nvenc": None}
    monkeypatch.setattr(nvenc, "why_nvenc_fails", lambda encoder, _, **__: fails[encoder])
    assert json.loads(run("doctor", "--json")[1])["NVENC"] == (
        "works, and is used automatically: h264_nvenc (nv12), hevc_nvenc (nv12), hevc_nvenc (p010le); "
        "not used: av1_nvenc spoils pictures"
    )


def test_dry_run_explains_and_writes_nothing(run, clip, tmp_path):
    code, out, err = run("segment", clip, "-o", tmp_path / "o.mov", "--output", "alpha", "--dry-run")
    assert (code, err) == (0, "")
    assert "128x96" in out
    assert "prores_ks" in out
    assert list(tmp_path.iterdir()) == []
    planned = json.loads(run("segment", clip, "-o", tmp_path / "o.mp4", "--dry-run", "--json")[1])
    assert planned[0]["outputs"][0]["encoder"] == "libx264"


def test_flags_beat_set_beats_file_beats_profile(run, clip, tmp_path):
    settings = tmp_path / "my.yaml"
    settings.write_text("output:\n  codec: h265\n  crf: 40\n")
    words = ("segment", clip, tmp_path / "o.mkv", "-y", "--profile", "fast", "-c", settings, "--json")

    def codec(*more):
        (report,) = json.loads(run(*words, *more)[1])
        return report["outputs"][0]["codec"]

    assert codec() == "h265"
    assert codec("--set", "output.codec=av1") == "av1"
    assert codec("--set", "output.codec=av1", "--codec", "h264") == "h264"


def test_models_commands(run, tmp_path, monkeypatch):
    monkeypatch.setenv("VITASCOPE_HOME", str(tmp_path))
    code, out, _ = run("models", "list")
    assert code == 0
    assert all(name in out for name in ("selfie", "rvm", "Apache-2.0", "GPL-3.0-only", "bundled", "absent"))
    assert json.loads(run("models", "list", "--json")[1])[0]["name"] == "selfie"
    assert run("models", "where")[1].strip() == str(ModelStore(tmp_path).where())
    code, out, _ = run("models", "verify")
    assert code == 0
    assert "selfie: verified" in out
    assert run("models", "verify", "nonsense")[0] == 5
    assert run("models", "remove", "rvm")[1].strip() == "rvm: was not here"


def test_a_damaged_network_is_noticed_and_refused(run, clip, tmp_path, monkeypatch, rvm_model_path):
    home = tmp_path / "home"
    monkeypatch.setenv("VITASCOPE_HOME", str(home))
    store = ModelStore(home)
    store.where().mkdir(parents=True)
    content = bytearray(rvm_model_path.read_bytes())
    content[5000] ^= 0xFF
    (store.where() / rvm_model_path.name).write_bytes(content)
    code, out, err = run("models", "verify", "rvm")
    assert (code, out) == (5, "rvm: corrupt\n")
    assert err.count("\n") == 1
    assert "vitascope models pull rvm" in err
    code, _, err = run("segment", clip, "-o", tmp_path / "o.mp4", "--model", "rvm")
    assert code == 5
    assert err.count("\n") == 1
    assert "vitascope models pull rvm" in err
    assert not (tmp_path / "o.mp4").exists()


def test_without_rvm_auto_says_so_and_goes_on_with_selfie(run, clip, tmp_path, monkeypatch):
    from vitascope.errors import ModelUnavailableError

    def offline(self, name, *, progress=None):
        raise ModelUnavailableError(
            f"{name} could not be fetched: no network; run: vitascope models pull {name}"
        )

    monkeypatch.setenv("VITASCOPE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(ModelStore, "pull", offline)
    code, out, err = run("segment", clip, "-o", tmp_path / "o.mp4")
    assert code == 0
    assert err.count("\n") == 1
    assert "vitascope models pull rvm" in err
    assert "selfie" in out
    (report,) = json.loads(run("segment", clip, "-o", tmp_path / "j.mp4", "--json")[1])
    assert (report["model"], report["model_requested"]) == ("selfie", "auto")
    assert "using selfie instead" in report["model_note"]
    assert run("segment", clip, "-o", tmp_path / "r.mp4", "--model", "rvm")[0] == 5


def test_config_show(run, tmp_path):
    settings = tmp_path / "my.yaml"
    settings.write_text("edges:\n  grow_px: 2\n")
    code, out, _ = run(
        "config", "show", "--profile", "fast", "-c", settings, "--set", "model.batch_size=8-16"
    )
    assert code == 0
    rows = {line.split()[0]: line for line in out.splitlines() if line.strip()}
    assert "my.yaml:2" in rows["edges.grow_px"]
    assert "profile fast" in rows["model.name"]
    assert "8-16" in rows["model.batch_size"]
    values = {
        row["key"]: row["value"] for row in json.loads(run("config", "show", "-c", settings, "--json")[1])
    }
    assert (values["edges.grow_px"], values["video.end_seconds"]) == (2, None)
    assert (values["output.kinds"], values["model.name"]) == (["key"], "auto")
    yaml = tmp_path / "again.yaml"
    yaml.write_text(run("config", "show", "--profile", "fast", "-c", settings, "--yaml")[1])
    assert "grow_px" in yaml.read_text()
    assert run("config", "show", "-c", yaml)[0] == 0


def test_doctor(run):
    code, out, _ = run("doctor")
    assert code == 0
    assert all(
        word in out for word in ("processor", "SIMD", "GPU", "h264", "ONNX Runtime", "selfie (bundled)")
    )
    findings = json.loads(run("doctor", "--json")[1])
    assert "rvm" in findings["networks"]


@pytest.mark.parametrize("gpus", [(), (Gpu("GPU", "1", 1 << 30),)], ids=["no GPU", "GPU"])
def test_doctor_advises_what_this_machine_can_use(run, monkeypatch, gpus):
    monkeypatch.setattr("vitascope.device.probe_gpus", lambda: gpus)
    monkeypatch.setattr("vitascope.cli.doctor.find_spec", lambda _: None)
    advised = json.loads(run("doctor", "--json")[1])["can be installed"]
    extras = [extra for extra in ("torch", "cuda", "animate", "metrics", "bench") if f"[{extra}]" in advised]
    assert extras == ["torch", *(["cuda"] if gpus else []), "animate", "metrics", "bench"]


def test_a_folder_ends_with_a_tally_and_resume_redoes_what_is_too_short(run, clip, tmp_path):
    folder = tmp_path / "clips"
    folder.mkdir()
    long = write_clip(folder / "long.mp4", width=96, height=64, frame_count=48)
    (folder / "bad.mp4").write_text("text")
    words = ("segment", folder, "-o", tmp_path / "cut", "--profile", "fast")
    code, out, _ = run(*words, "--end", "0.3")
    assert code == 3
    assert out.splitlines()[-1] == f"1 of 2 inputs done, 1 failed: {folder / 'bad.mp4'}"
    (folder / "bad.mp4").unlink()
    # A try with --end does not count as the finished video.
    assert "done already" not in run(*words, "--resume")[1]
    assert "done already" in run(*words, "--resume")[1]
    assert long.exists()


def test_what_was_replaced_is_said(run, clip, tmp_path):
    words = ("segment", clip, "-o", tmp_path / "o.mp4", "--profile", "fast")
    assert "took the place" not in run(*words)[1]
    assert "o.mp4 replaced an earlier file" in run(*words, "-y")[1]


@pytest.mark.parametrize("more", [(), ("-n",), ("--no-overwrite",)])
def test_nothing_is_replaced_unasked(run, clip, tmp_path, more):
    target = tmp_path / "o.mp4"
    target.write_text("dear")
    code, _, err = run("segment", clip, target, "--profile", "fast", *more)
    assert (code, err) == (
        4,
        f"vitascope: {target} already exists; -y replaces it, --resume skips finished inputs\n",
    )
    assert target.read_text() == "dear"


def test_the_last_word_says_where(run, clip, tmp_path):
    assert run("segment", clip, tmp_path / "a.mp4", "--profile", "fast")[0] == 0
    assert run("segment", clip, clip, tmp_path / "both", "--profile", "fast", "-q")[0] == 0
    assert run("segment", clip, tmp_path / "c.mp4", "--type", "mask,key", "--profile", "fast")[0] == 0
    assert run("segment", clip, "--out", tmp_path / "d.mp4", "--output", "mask", "--profile", "fast")[0] == 0
    assert run("segment", clip, "--profile", "fast", tmp_path / "e.mp4", "-q")[0] == 0
    made = {path.name for path in tmp_path.iterdir()}
    assert {"a.mp4", "both", "c_mask.mp4", "c_key.mp4", "d.mp4", "e.mp4"} <= made


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "no output given: try vitascope segment {clip} out.mp4"),
        (
            ("--output", "o.mp4"),
            "no output given: try vitascope segment {clip} o.mp4 "
            "(--output is the old name of --type, the kind of output)",
        ),
        (
            ("o.mp4", "--type", "masks"),
            "--type masks: expected one of mask, key, cutout, alpha, blur, replace, overlay, packed-alpha; "
            "did you mean mask?",
        ),
        (
            ("o.mp4", "--type", "o.mov"),
            "--type o.mov: expected one of mask, key, cutout, alpha, blur, replace, overlay, packed-alpha; "
            "the output path goes to --out",
        ),
    ],
)
def test_what_was_meant(run, clip, words, said):
    code, _, err = run("segment", clip, *words)
    assert (code, err) == (2, f"vitascope: {said.format(clip=clip)}\n")


def test_edges_are_flags_and_v_tells_of_stages(run, clip, tmp_path):
    edges = (
        "--threshold",
        "0.1,0.9",
        "--grow",
        "-1",
        "--feather",
        "2",
        "--smoothing",
        "0.3",
        "--no-decontaminate",
    )
    code, out, _ = run("segment", clip, tmp_path / "o.mp4", "--profile", "fast", "-v", *edges)
    assert code == 0
    assert re.search(r"stage infer: busy \d+%", out)
    assert run("-V")[1].strip() == __version__
