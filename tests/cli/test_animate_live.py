"""Tests of live ``vitascope animate`` from the command line: small inputs, keys, and sinks that need no device."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import socket
import subprocess
import sys
import termios
import threading
import time
import types
import urllib.request
from pathlib import Path

import av
import numpy as np
import pytest

from clips import write_clip
from free_ports import free_port
from left_threads import left_threads
from vitascope.animation.face import BLENDSHAPE_INDEX, FaceMotion
from vitascope.animation.motion_file import MotionReader, write_motion

PORTRAIT = Path(__file__).parents[2] / "examples" / "astronaut.jpg"


@pytest.fixture
def run(run, monkeypatch, tmp_path, face_model):
    """Return a function that runs a command line in an empty folder; it returns exit code, stdout and stderr.

    Calibration takes longer than most of these runs, so it is off unless a test requests it.
    """
    monkeypatch.setenv("VITASCOPE_HOME", str(face_model.parents[1]))
    monkeypatch.chdir(tmp_path)

    def runner(*words, calibrated=False):
        settings = () if calibrated else ("--set", "animation.calibrate=false")
        code, out, err = run("animate", PORTRAIT, *words, *settings)
        kept = f"the face comes from {PORTRAIT}.landmarks; no network was needed\n"
        return code, out, err.removeprefix(kept)

    return runner


def write_rows(path: Path, *, count: int) -> Path:
    weights = np.zeros(52, np.float32)
    weights[BLENDSHAPE_INDEX["jawOpen"]] = 0.8
    rows = [FaceMotion(blendshapes=weights * (index % 2), pts_seconds=index / 25) for index in range(count)]
    write_motion(path, rows, frame_rate=25)
    return path


@pytest.fixture(scope="module")
def motion_file(tmp_path_factory):
    """Write half a second of motion."""
    return write_rows(tmp_path_factory.mktemp("live") / "nod.motion", count=13)


@pytest.fixture(scope="module")
def film(tmp_path_factory):
    """Write a video of a still portrait, half a second long."""
    with av.open(str(PORTRAIT)) as container:
        still = next(container.decode(video=0)).to_ndarray(format="rgb24")[:256, 96:352].copy()
    path = tmp_path_factory.mktemp("live") / "still.mp4"
    return write_clip(path, width=256, height=256, frame_count=13, paint=lambda _: still)


def test_a_recording_goes_to_several_sinks(run, motion_file, tmp_path):
    mjpeg = f"mjpeg:{free_port()}"
    code, out, err = run(
        *("--driver", motion_file, "--sink", "file:out.mp4", "--sink", "null"),
        *("--sink", mjpeg, "--sink", f"udp:127.0.0.1:{free_port()}"),
        calibrated=True,
    )
    assert (code, err) == (0, "")
    assert "mesh at 512x512" in out
    assert out.count("; closed") == 4
    with av.open(str(tmp_path / "out.mp4")) as container:
        stream = container.streams.video[0]
        times = [float(frame.pts * stream.time_base) for frame in container.decode(video=0)]
    assert 1 <= len(times) <= 13
    assert times[-1] <= 0.5


def test_a_film_is_followed_and_recorded(run, film, tmp_path):
    code, out, _ = run(
        *("--driver", film, "--sink", "null", "--record", "kept.motion", "--json"), calibrated=True
    )
    assert code == 0
    report = json.loads(out)
    assert report["shown"] >= 1
    assert report["lost"] == 0
    with MotionReader(tmp_path / "kept.motion") as recorded:
        rows = list(recorded)
    assert len(rows) >= report["shown"]
    assert rows[0].pts_seconds == pytest.approx(0, abs=1e-6)


def test_a_part_of_a_driver(run, motion_file, film):
    for driver in (motion_file, film):
        code, out, _ = run("--driver", driver, "--sink", "null", "--start", "0.1", "--end", "0.3", "--json")
        assert code == 0
        assert json.loads(out)["captured"] in (4, 5, 6)  # of 13; videos have 25 or 30 frames a second


def test_a_run_ends_after_its_duration(run, tmp_path):
    write_rows(tmp_path / "long.motion", count=2500)
    code, out, _ = run("--driver", "long.motion", "--sink", "null", "--duration", "0.3", "--json")
    assert code == 0
    assert json.loads(out)["captured"] < 100


def test_the_encoder_is_the_one_asked_for(run, motion_file, tmp_path):
    code, _, _ = run("-d", motion_file, "--sink", "file:out.mkv", "--codec", "ffv1", "--quiet")
    assert code == 0
    with av.open(str(tmp_path / "out.mkv")) as container:
        assert container.streams.video[0].codec_context.name == "ffv1"


def test_a_file_that_is_there_is_not_replaced_unasked(run, motion_file, tmp_path):
    (tmp_path / "out.mp4").write_text("mine")
    words = ("-d", motion_file, "--sink", "file:out.mp4", "--duration", "0.3", "-q")
    assert run(*words) == (4, "", "vitascope: out.mp4 already exists; -y replaces it\n")
    url = (tmp_path / "out.mp4").as_uri()
    assert run(*words[:3], f"file:{url}")[::2] == (
        4,
        f"vitascope: {tmp_path}/out.mp4 already exists; -y replaces it\n",
    )
    assert (tmp_path / "out.mp4").read_text() == "mine"
    assert run(*words, "-y")[0] == 0
    with av.open(str(tmp_path / "out.mp4")) as container:
        assert container.streams.video


def test_a_live_file_never_takes_the_place_of_the_driver(run, film, tmp_path):
    (tmp_path / "mine.mp4").write_bytes(film.read_bytes())
    (tmp_path / "link.mp4").symlink_to("mine.mp4")
    for name in ("mine.mp4", "link.mp4"):
        code, _, err = run("-d", "mine.mp4", "--sink", f"file:{name}", "-y", "-q")
        assert (code, err) == (2, f"vitascope: {name}: the output is the driver; choose another file\n")
    assert (tmp_path / "mine.mp4").read_bytes() == film.read_bytes()


def test_two_sinks_do_not_write_one_file(run, motion_file, tmp_path):
    url = f"file:{(tmp_path / 'a.mp4').as_uri()}"
    for name in ("file:a.mp4", f"file:{tmp_path}/a.mp4", url):
        code, _, err = run(
            "-d", motion_file, "--sink", "file:a.mp4", "--sink", name, "--duration", "0.3", "-q"
        )
        assert (code, err.endswith("a.mp4: two sinks cannot write the same file\n")) == (2, True), err
    assert not (tmp_path / "a.mp4").exists()


def test_a_setting_that_the_mesh_does_not_have_is_said(run, motion_file):
    code, _, err = run("-d", motion_file, "--sink", "null", "--animator", "mesh", "--fp16")
    assert code == 0
    assert "animation.use_half_precision has no effect on the mesh animator" in err


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["--sink", "hologram"], 2, "unknown sink 'hologram'; known are window"),
        (["--sink", "file"], 2, "write file:PATH"),
        (["--sink", "file:noending"], 2, "give the file a suffix"),
        (["--sink", "mjpeg:0"], 2, "from 1 to 65535"),
        (["--sink", "udp:5000"], 2, "write HOST:PORT"),
        (["--sink", "null:5"], 2, "write null"),
        (["--sink", "null", "-o", "out.mp4"], 2, "for both, use --sink file:PATH"),
        (["--sink", "null", "--duration", "-1"], 2, "must be above 0 s"),
        (["--sink", "null", "--duration", "nan"], 2, "must be above 0 s"),
        (["--sink", "null", "--record", "x.motion"], 2, "motion is recorded from a camera or a video"),
        (["--sink", "null", "--start", "7"], 3, "no motion between --start and --end"),
        (["--sink", "null", "-d", "99"], 3, "camera 99 cannot be opened"),
        (["--sink", "null", "-d", "99", "--start", "7"], 2, "a camera has no start and end"),
        (["-o", "out.mp4", "-d", "99"], 2, "a camera has no end"),
        (["-o", "out.mp4", "--duration", "3"], 2, "--duration is for live runs"),
        ([], 2, "nothing to make"),
        (["--sink", "null", "-d", "none.mp4"], 3, "none.mp4"),
        (["--sink", "null", "--sink", "file:out.xyz"], 4, "'.xyz'"),
        (["--sink", "null", "--sink", "file:/dev/null/out.mp4"], 4, "/dev/null/out.mp4"),
    ],
)
def test_wishes_that_cannot_be_met(run, motion_file, tmp_path, words, code, says):
    driver = [] if "-d" in words else ["-d", motion_file]
    got, out, err = run(*driver, *words)
    assert (got, out) == (code, "")
    assert err.startswith("vitascope: ") and err.count("\n") == 1, err
    assert says in err
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.parametrize("data", [b"", b"this is no film\n" * 99, b"VITASCOPE-MOTION 1\n{", b"\0" * 5000])
@pytest.mark.parametrize("suffix", [".mp4", ".motion"])
def test_damaged_drivers(run, tmp_path, data, suffix):
    path = tmp_path / f"driver{suffix}"
    path.write_bytes(data)
    code, out, err = run("-d", path, "--sink", "null")
    assert (code, out) == (3, "")
    assert path.name in err and err.count("\n") == 1


def test_a_port_in_use_ends_it_before_it_begins(run, motion_file):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        code, out, err = run("-d", motion_file, "--sink", f"mjpeg:{taken.getsockname()[1]}", "--sink", "null")
    assert (code, out) == (4, "")
    assert err.count("\n") == 1


def test_a_window_without_a_screen(run, motion_file, monkeypatch):
    monkeypatch.setenv("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    pytest.importorskip("pygame")
    if sys.platform != "linux":
        pytest.skip("other systems have a screen")
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER", "SDL_VIDEO_DRIVER", "XDG_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)
    code, out, err = run("-d", motion_file, "--sink", "window")
    assert (code, out, err.count("\n")) == (4, "", 1)
    assert "--sink mjpeg shows a page instead" in err


@pytest.mark.parametrize(("problem", "code"), [(None, 5), (RuntimeError("no device\nnot one"), 4)])
def test_a_virtual_camera_that_cannot_be_had(run, motion_file, monkeypatch, problem, code):
    def refuse(*_, **__):
        raise problem

    fake = types.SimpleNamespace(Camera=refuse, PixelFormat=types.SimpleNamespace(RGB="RGB"))
    monkeypatch.setitem(sys.modules, "pyvirtualcam", None if problem is None else fake)
    got, out, err = run("-d", motion_file, "--sink", "null", "--sink", "virtualcam")
    assert (got, out) == (code, "")
    assert err.startswith("vitascope: ") and err.count("\n") == 1
    assert "virtual" in err
    assert not left_threads("vitascope")


def test_the_key_t_starts_a_failed_sink_again(run, tmp_path, monkeypatch):
    from vitascope.animation.live.controls import Controls
    from vitascope.errors import OutputError
    from vitascope.media.sinks.streams import UdpSink

    sent, send = [], UdpSink.send

    def fail_once(self, picture):
        sent.append(picture.index)
        if len(sent) == 1:
            raise OutputError("the cable was pulled")
        send(self, picture)

    def press_t(self, wanted, *, take=Controls.take):
        return take(self, wanted) or (wanted == "restart" and len(sent) == 1)

    monkeypatch.setattr(UdpSink, "send", fail_once)
    monkeypatch.setattr(Controls, "take", press_t)
    write_rows(tmp_path / "two_seconds.motion", count=50)
    code, out, err = run(
        "-d", "two_seconds.motion", "--sink", "null", "--sink", f"udp:127.0.0.1:{free_port()}"
    )
    assert code == 0, err
    assert "stopped: the cable was pulled" in err and "started again: udp:" in err
    assert "; closed; started again once, after: the cable was pulled" in out
    assert len(sent) > 1


def test_a_sink_that_is_lost_leaves_the_others_and_an_exit_code(run, motion_file, monkeypatch):
    from vitascope.errors import OutputError
    from vitascope.media.sinks.streams import UdpSink

    def send(self, picture):
        raise OutputError("the cable was pulled")

    monkeypatch.setattr(UdpSink, "send", send)
    code, out, err = run("-d", motion_file, "--sink", "null", "--sink", "udp:127.0.0.1:5004")
    assert code == 4
    assert "udp:127.0.0.1:5004 stopped: the cable was pulled" in err
    assert "null: " in out and "; closed" in out
    code, out, err = run("-d", motion_file, "--sink", "udp:127.0.0.1:5004")
    assert (code, out) == (4, "")


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no pseudo-terminals")
class TestTerminal:
    """Tests in a separate process with its own terminal."""

    @pytest.fixture
    def start(self, tmp_path, face_model):
        """Return a function that starts a long run with a terminal, and returns the process and both ends."""
        write_rows(tmp_path / "long.motion", count=2500)
        ends, processes = [], []

        def starter(*words):
            ours, theirs = pty.openpty()
            process = subprocess.Popen(
                [sys.executable, "-m", "vitascope", "animate", str(PORTRAIT), "-d", "long.motion", *words],
                cwd=tmp_path,
                env={**os.environ, "VITASCOPE_HOME": str(face_model.parents[1]), "COLUMNS": "200"},
                stdin=theirs,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            ends.extend((ours, theirs))
            processes.append(process)
            deadline = time.monotonic() + 60
            while termios.tcgetattr(theirs)[3] & termios.ICANON:  # until it reads single keys
                assert time.monotonic() < deadline and process.poll() is None
                time.sleep(0.02)
            return process, ours, theirs

        yield starter
        for process in processes:
            process.kill()
            process.communicate()
        for end in ends:
            os.close(end)

    def test_keys(self, start, tmp_path):
        process, terminal, theirs = start("--sink", "null")
        os.write(terminal, b"m+s")
        deadline = time.monotonic() + 30
        while not list(tmp_path.glob("portrait-*.png")):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        os.write(terminal, b"zQ")
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0
        assert "keys: ? lists them, Q quits\n" in err
        assert "mirror on" in err and "strength 1.10" in err and "snapshot: portrait-" in err
        assert "pictures in" in out
        assert termios.tcgetattr(theirs)[3] & termios.ICANON  # the terminal is restored

    def test_ctrl_c_completes_the_file(self, start, tmp_path):
        process, terminal, _ = start("--sink", "file:out.mp4")
        os.write(terminal, b"s")
        deadline = time.monotonic() + 30
        while not list(tmp_path.glob("portrait-*.png")):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
        assert process.returncode == 0
        with av.open(str(tmp_path / "out.mp4")) as container:
            assert next(container.decode(video=0)).width == 512


@pytest.mark.parametrize("asked", [(), ("--enable-metrics",)], ids=["port alone", "both"])
def test_metrics_are_served_while_it_runs(run, tmp_path, asked):
    pytest.importorskip("prometheus_client")
    port, seen, is_over = free_port(), set(), threading.Event()

    def look() -> None:
        """Poll until two counts are seen; the metrics keep what earlier runs in this process counted."""
        deadline = time.monotonic() + 50
        while len(seen) < 2 and not is_over.is_set() and time.monotonic() < deadline:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as page:
                    text = page.read().decode()
            except OSError:
                text = ""
            seen.update(re.findall(r'^vitascope_stage_items_total\{stage="animate"\} .*', text, re.MULTILINE))
            time.sleep(0.05)
        if not is_over.is_set():
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)  # two counts are enough

    long = write_rows(tmp_path / "long.motion", count=2500)
    looking = threading.Thread(target=look)
    looking.start()
    words = (*asked, "--metrics-port", str(port), "--duration", "60")
    run("--driver", str(long), "--sink", "null", *words)
    is_over.set()
    looking.join()
    assert len(seen) >= 2


@pytest.mark.parametrize("words", [("--enable-metrics",), ("--metrics-port", "0")])
def test_metrics_are_for_live_runs(run, motion_file, tmp_path, words):
    code, _, err = run("--driver", str(motion_file), "-o", str(tmp_path / "a.mp4"), *words)
    assert code == 2
    assert f"{words[0]} is for live runs" in err
