"""Tests of ``vitascope segment --camera``: a page that is read, complete files, and one line for each failure."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from fractions import Fraction

import av
import cv2
import numpy as np
import pytest

from clips import write_clip
from free_ports import free_port
from left_threads import left_threads
from photographs import astronaut
from vitascope.errors import OutputError
from vitascope.media.sinks.streams import UdpSink
from vitascope.observe import progress

KEY = np.array((120, 255, 155))


def person(_: int) -> np.ndarray:
    return np.ascontiguousarray(astronaut()[:192, 60:316])


@pytest.fixture(scope="module")
def film(tmp_path_factory):
    """Write a video of a person who stands still for 1.5 seconds: 256 x 192."""
    return write_clip(
        tmp_path_factory.mktemp("live") / "talk.mp4", width=256, height=192, frame_count=36, paint=person
    )


@pytest.fixture
def run(run, monkeypatch, tmp_path):
    """Return a function that runs a command line in an empty folder, and returns exit code, stdout and stderr."""
    monkeypatch.chdir(tmp_path)

    def runner(*words):
        result = run("segment", *words)
        assert not left_threads("vitascope")
        return result

    return runner


def pictures_of(port: int, count: int) -> list[np.ndarray]:
    """Return the first pictures on the page of a live run, BGR; wait for the page to exist."""
    deadline = time.monotonic() + 60
    while True:
        try:
            stream = urllib.request.urlopen(f"http://127.0.0.1:{port}/stream.mjpg", timeout=10)
            break
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    found = []
    with stream:
        while len(found) < count:
            line = stream.readline()
            assert line, "the stream ended"
            if line.startswith(b"Content-Length"):
                stream.readline()
                jpeg = stream.read(int(line.split(b":")[1]))
                found.append(cv2.imdecode(np.frombuffer(jpeg, np.uint8), cv2.IMREAD_COLOR))
    return found


def test_a_browser_sees_the_person_on_the_key_colour(run, tmp_path):
    film = write_clip(tmp_path / "talk.mp4", width=256, height=192, frame_count=96, paint=person)
    port, seen = free_port(), []
    reader = threading.Thread(target=lambda: seen.extend(pictures_of(port, 2)))
    reader.start()
    code, out, err = run(
        *("--camera", film, "--sink", f"mjpeg:{port}", "--profile", "fast", "--set", "gpu.device=cpu")
    )
    reader.join()
    assert (code, err) == (0, "")
    rgb = seen[-1][..., ::-1].astype(int)
    original = person(0).astype(int)
    assert rgb.shape == original.shape
    assert np.abs(rgb[20, 30] - KEY).max() <= 12, "behind her"
    face = (slice(40, 60), slice(150, 175))
    assert np.abs(rgb[face] - original[face]).mean() < 8, "herself"
    assert re.search(r"\d+ pictures in \d+\.\d s: [\d.]+ fps; key at 256x192 on CPU", out)
    assert re.search(
        r"latency [\d.]+ ms p50, [\d.]+ p95, [\d.]+ p99, from capture to the sinks; \d+ of 96", out
    )


def test_a_file_a_mask_and_json(run, film, tmp_path):
    code, out, err = run("--camera", film, "-o", "mask.mp4", "--type", "mask", "--json", "--device", "cpu")
    assert code == 0
    assert (
        err
        == "note: live on the CPU: profile fast; --profile balanced has finer mattes, and drops more frames\n"
    )
    report = json.loads(out)
    assert (report["kind"], report["profile"], report["model"]) == ("mask", "fast", "selfie")
    assert report["captured"] == report["shown"] + report["dropped"] == 36
    with av.open(str(tmp_path / "mask.mp4")) as container:
        frames = [frame.to_ndarray(format="gray") for frame in container.decode(video=0)]
    assert len(frames) == report["sinks"][0]["sent"]
    assert frames[-1][50, 160] > 240 and frames[-1][20, 30] < 20


def test_how_fast_it_is_is_told_now_and_then(run, film, monkeypatch):
    monkeypatch.setattr(progress, "_SECONDS_BETWEEN_LINES", 0.5)
    _, _, err = run("--camera", film, "--sink", "null", "--profile", "fast")
    assert re.search(r"talk\.mp4: \d+ frames, [\d.]+ fps, \d+ ms p50 \d+ p95, \d+ dropped\n", err)


def test_a_file_that_is_there_is_not_replaced_unasked(run, film, tmp_path):
    (tmp_path / "out.mp4").write_text("mine")
    for words in (("-o", "out.mp4"), ("--sink", "file:out.mp4")):
        code, _, err = run("--camera", film, *words)
        assert (code, err) == (4, "vitascope: out.mp4 already exists; -y replaces it\n")
    assert (tmp_path / "out.mp4").read_text() == "mine"
    assert run("--camera", film, "-o", "out.mp4", "-y", "--duration", "0.5", "-q") == (0, "", "")
    with av.open(str(tmp_path / "out.mp4")) as container:
        assert next(container.decode(video=0)).width == 256


@pytest.mark.parametrize("sink", [("-o",), ("--sink", "file:")], ids=["out", "sink"])
def test_a_live_file_never_takes_the_place_of_what_is_read(run, film, tmp_path, sink):
    for name in ("mine.mp4", "beach.mp4"):
        (tmp_path / name).write_bytes(film.read_bytes())
    (tmp_path / "link.mp4").symlink_to("mine.mp4")
    replacing = ("--type", "replace", "--background", "beach.mp4")
    for name, words, what in (
        ("mine.mp4", (), "input"),
        ("link.mp4", (), "input"),
        ("beach.mp4", replacing, "background"),
    ):
        to = (*sink[:-1], f"{sink[-1]}{name}") if len(sink) > 1 else (*sink, name)
        code, _, err = run("--camera", "mine.mp4", *words, *to, "-y", "--duration", "0.5", "-q")
        assert (code, err) == (2, f"vitascope: {name}: the output is the {what}; choose another file\n")
    for name in ("mine.mp4", "beach.mp4"):
        assert (tmp_path / name).read_bytes() == film.read_bytes()


def test_a_live_run_does_not_write_over_its_settings_file(run, film, tmp_path):
    mine = tmp_path / "mine.mp4"  # with any name
    mine.write_text("profile: fast\n")
    code, _, err = run("--camera", film, "-c", mine, "-o", mine, "-y", "--duration", "0.5")
    assert (code, err) == (2, f"vitascope: {mine}: the output is the settings file; choose another file\n")
    assert mine.read_text() == "profile: fast\n"


def test_a_sink_that_is_lost_leaves_the_others_and_an_exit_code(run, film, monkeypatch):
    def send(self, picture):
        raise OutputError("the cable was pulled")

    monkeypatch.setattr(UdpSink, "send", send)
    udp = "udp:127.0.0.1:5004"
    code, out, err = run("--camera", film, "--sink", "null", "--sink", udp, "--profile", "fast")
    assert code == 4
    assert err == f"{udp} stopped: the cable was pulled\nvitascope: {udp}: the cable was pulled\n"
    assert "null: " in out and "; closed" in out
    code, out, _ = run("--camera", film, "--sink", udp)
    assert (code, out) == (4, "")


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["--camera", "99"], 3, "camera 99 cannot be opened: it does not exist"),
        (["--camera", "rtsp://127.0.0.1:9/x", "--sink", "null"], 3, "rtsp://127.0.0.1:9/x cannot be opened"),
        (["--camera", "none.mp4", "--sink", "null"], 3, "none.mp4"),
        (
            ["--camera", "99", "in.mp4", "out.mp4"],
            2,
            "--camera is the input; give the file to write with -o",
        ),
        (["--camera", "99", "--resume"], 2, "--resume is for files"),
        (["--camera", "99", "--recursive"], 2, "--recursive is for files"),
        (["--camera", "99", "--preview", "a.png"], 2, "--preview is for files"),
        (["--camera", "99", "--keep-partial"], 2, "--keep-partial is for files"),
        (["--camera", "99", "--dry-run"], 2, "--dry-run"),
        (["--camera", "99", "--gpu-ids", "0,1"], 2, "--gpu-ids is for files"),
        (["--camera", "99", "--mode", "throughput"], 2, "--mode is for files"),
        (["--camera", "99", "-v"], 2, "--verbose is for files"),
        (["--camera", "99", "--start", "7"], 2, "a camera has no start and end"),
        (["--camera", "99", "--end", "7"], 2, "a camera has no start and end"),
        (["--camera", "99", "--camera-size", "big"], 2, "expected WIDTHxHEIGHT"),
        (["--camera", "99", "--camera-size", "0x5"], 2, "expected WIDTHxHEIGHT"),
        (["--camera", "FILM", "--camera-size", "64x64"], 2, "the camera size is for cameras"),
        (["--camera", "99", "--type", "mask,key"], 2, "not mask and key; --type mask is one"),
        (["--camera", "99", "--sink", "hologram"], 2, "unknown sink 'hologram'"),
        (["--camera", "99", "--sink", "mjpeg", "--type", "alpha"], 2, "cannot show transparency"),
        (["--camera", "99", "--duration", "nan"], 2, "above 0 seconds"),
        (["--camera", "99", "-o", "noending"], 2, "give the file a suffix"),
        (["--camera", "FILM", "-o", "out.mp4", "--type", "alpha"], 4, "alpha"),
        (["--camera", "FILM", "-o", "out.xyz"], 4, "'.xyz'"),
        (
            ["--camera", "FILM", "--set", "processing.use_multiprocessing=true", "--sink", "null"],
            2,
            "use one process",
        ),
        (["--sink", "window", "a.mp4", "b.mp4"], 2, "--sink is for live runs"),
        (["--duration", "5", "a.mp4", "b.mp4"], 2, "--duration is for live runs"),
        ([], 2, "no input given"),
    ],
)
def test_wishes_that_cannot_be_met(run, film, tmp_path, words, code, says):
    got, out, err = run(*(film if word == "FILM" else word for word in words), "--set", "gpu.device=cpu")
    assert (got, out) == (code, "")
    assert err.startswith("vitascope: ") and err.count("\n") == 1, err
    assert says in err
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have a screen")
def test_a_window_without_a_screen(run, film, monkeypatch):
    monkeypatch.setenv("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    pytest.importorskip("pygame")
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER", "SDL_VIDEO_DRIVER", "XDG_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)
    code, out, err = run("--camera", film)
    assert (code, out, err.count("\n")) == (4, "", 1)
    assert "--sink mjpeg shows a page instead" in err


@pytest.mark.skipif(sys.platform == "win32", reason="Windows sends Ctrl-C another way")
def test_ctrl_c_ends_it_and_completes_the_file(tmp_path):
    # Fifty seconds at its own pace, but few frames.
    write_clip(
        tmp_path / "long.mp4",
        width=256,
        height=192,
        frame_count=100,
        frame_rate=Fraction(2),
        paint=person,
        codec_options={"preset": "ultrafast"},
    )
    port = free_port()
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "vitascope", "segment", "--camera", "long.mp4", "--profile", "fast"),
            *("-o", "out.mp4", "--sink", f"mjpeg:{port}", "--device", "cpu"),
        ],
        cwd=tmp_path,
        env={**os.environ, "COLUMNS": "200"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        pictures_of(port, 2)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert (process.returncode, err) == (0, "")
    sent = int(re.search(r"file:out\.mp4: (\d+) sent", out)[1])
    with av.open(str(tmp_path / "out.mp4")) as container:
        assert len(list(container.decode(video=0))) == sent > 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["long.mp4", "out.mp4"]
