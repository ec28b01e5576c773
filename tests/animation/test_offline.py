"""Tests of ``vitascope animate`` from file to file, with real drivers made from an animated portrait."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import av
import cv2
import numpy as np
import pytest
from faces import two_people

import vitascope
from clips import write_clip
from left_over import left_by
from vitascope.animation import offline
from vitascope.animation.face import BLENDSHAPE_INDEX, FaceMotion, rotation_from_degrees
from vitascope.animation.mesh.animator import MeshAnimator
from vitascope.animation.motion_file import MotionReader, MotionWriter, write_motion
from vitascope.cli import main
from vitascope.config import load_settings
from vitascope.errors import ConfigError, InputError, OutputError, UsageError
from vitascope.frames import PIXEL_FORMATS
from vitascope.gpu.kernels.rgb import planes_from_rgb
from vitascope.media.planes import RGB_VIDEO_COLOR, planes_of

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def run(capsys, monkeypatch, face_model):
    """Return a function that runs ``animate``, and returns exit code, stdout and stderr.

    Calibration takes longer than most of these runs, so it is off unless a test requests it.
    """
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("VITASCOPE_HOME", str(face_model.parents[1]))

    def runner(*words, calibrated=False):
        settings = () if calibrated else ("--set", "animation.calibrate=false")
        with pytest.raises(SystemExit) as ended:
            main(["animate", *map(str, words), *settings])
        captured = capsys.readouterr()
        return ended.value.code, captured.out, captured.err

    return runner


@pytest.fixture(scope="module")
def motion_file(tmp_path_factory):
    """Write ten moments in which the head turns and the mouth opens."""
    path = tmp_path_factory.mktemp("motion") / "nod.motion"
    motions = []
    for index in range(10):
        weights = np.zeros(52, np.float32)
        weights[BLENDSHAPE_INDEX["jawOpen"]] = index / 10
        motions.append(
            FaceMotion(
                rotation=rotation_from_degrees(1.5 * index, 0, 0),
                blendshapes=weights,
                pts_seconds=5 + index / 25,
            )
        )
    write_motion(path, motions, frame_rate=25)
    return path


@pytest.mark.parametrize("words", [(), ("-n",)])
def test_nothing_that_is_there_is_replaced_unasked(run, tmp_path, motion_file, words):
    out = tmp_path / "out.mp4"
    out.write_bytes(b"mine")
    portrait = EXAMPLES / "astronaut.jpg"
    code, _, err = run(portrait, "--driver", motion_file, "-o", out, *words)
    assert (code, out.read_bytes()) == (4, b"mine")
    assert err == f"vitascope: {out} already exists; -y replaces it\n"
    assert run(portrait, "--driver", motion_file, "-o", out, "-y")[0] == 0
    assert out.read_bytes() != b"mine"


@pytest.fixture(scope="module")
def driver(tmp_path_factory, mesh, astronaut, astronaut_face):
    """Write a driver who turns her head, opens her mouth, is absent for a while, and returns; sound, uneven times."""
    with MeshAnimator(mesh) as animator:
        animator.set_portrait(astronaut, face=astronaut_face)
        pictures = []
        for index in range(24):
            weights = np.zeros(52, np.float32)
            weights[BLENDSHAPE_INDEX["jawOpen"]] = 0.9 * (index % 12) / 12
            motion = FaceMotion(rotation=rotation_from_degrees(index % 12, 0, 0), blendshapes=weights)
            pictures.append(animator.animate(motion)[:320, 60:380].copy())
    for index in range(14, 18):
        pictures[index][...] = 128
    return write_clip(
        tmp_path_factory.mktemp("driver") / "talk.mp4",
        width=320,
        height=320,
        frame_count=24,
        frame_rate=Fraction(25),
        pts=[index * 4 + index % 3 for index in range(24)],
        time_base=Fraction(1, 100),
        audio="aac",
        paint=lambda n: pictures[n],
    )


def decode(path):
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        frames = [
            (frame.pts * stream.time_base, frame.to_ndarray(format="rgb24"))
            for frame in container.decode(video=0)
        ]
        return frames, {stream.type: stream.codec_context.name for stream in container.streams}


def test_motion_that_cannot_be_recorded_in_the_end_leaves_the_video_and_says_so(
    run, tmp_path, motion_file, monkeypatch
):
    out, record = tmp_path / "a.mp4", tmp_path / "a.motion"

    def fail(writer):
        writer.discard()
        raise OutputError(f"{record}: cannot be written (No space left on device)")

    monkeypatch.setattr(MotionWriter, "finish", fail)
    code, _, err = run(EXAMPLES / "astronaut.jpg", "--driver", motion_file, "-o", out, "--record", record)
    assert (code, err) == (
        4,
        f"vitascope: {record}: cannot be written (No space left on device); these files are finished: {out}\n",
    )
    assert len(decode(out)[0]) == 10
    assert not record.exists()


def test_a_file_that_went_away_behind_the_video_leaves_it_and_says_so(
    run, tmp_path, motion_file, monkeypatch
):
    out, record = tmp_path / "a.mp4", tmp_path / "a.motion"
    finish = MotionWriter.finish

    def lose(writer):
        finish(writer)
        record.unlink()

    monkeypatch.setattr(MotionWriter, "finish", lose)
    code, _, err = run(EXAMPLES / "astronaut.jpg", "--driver", motion_file, "-o", out, "--record", record)
    assert (code, err) == (
        4,
        f"vitascope: {record}: cannot read its size: No such file or directory; these files are finished: {out}\n",
    )
    assert len(decode(out)[0]) == 10


def test_motion_moves_the_portrait(run, tmp_path, motion_file, astronaut):
    out = tmp_path / "a.mp4"
    code, printed, err = run(EXAMPLES / "astronaut.jpg", "--driver", motion_file, "-o", out, calibrated=True)
    assert (code, err) == (0, "")
    assert "a.mp4  h264" in printed and "10 frames" in printed and "mesh at 512x512" in printed
    frames, streams = decode(out)
    assert [round(float(seconds) * 25) for seconds, _ in frames] == list(range(10))
    assert streams == {"video": "h264"}
    first, last = frames[0][1].astype(int), frames[-1][1].astype(int)
    assert np.abs(first - astronaut).mean() < 4  # after encoding and decoding
    assert np.abs(last[60:220, 180:280] - first[60:220, 180:280]).mean() > 8
    assert np.abs(last[400:, :] - first[400:, :]).mean() < 2


def test_sound_and_times_of_the_driver_are_kept_and_lost_faces_are_counted(run, tmp_path, driver):
    out, motion = tmp_path / "b.mp4", tmp_path / "b.motion"
    portrait = EXAMPLES / "astronaut.jpg"
    code, printed, _ = run(
        portrait, "--driver", driver, "-o", out, "--record", motion, "--json", calibrated=True
    )
    assert code == 0
    report = json.loads(printed)
    assert report["frame_count"] == 24
    assert 3 <= report["lost_count"] <= 6
    assert [Path(file["path"]).name for file in report["files"]] == ["b.mp4", "b.motion"]
    frames, streams = decode(out)
    given, _ = decode(driver)
    assert streams == {"video": "h264", "audio": "aac"}
    assert [seconds for seconds, _ in frames] == [seconds for seconds, _ in given]
    with MotionReader(motion) as reader:
        rows = list(reader)
    assert len(rows) == 24
    assert rows[0].vertices is not None
    turned = [row.angles_degrees[0] for row in rows]
    assert turned[10] - turned[1] > 3
    replayed = tmp_path / "c.mp4"
    assert run(portrait, "--driver", motion, "-o", replayed, calibrated=True)[0] == 0
    for (_, once), (_, again) in zip(frames, decode(replayed)[0], strict=True):
        assert np.abs(once.astype(int) - again).mean() < 1.5


@pytest.mark.parametrize("damage", ["noise", "times"])
def test_damaged_sound_of_the_driver_costs_no_picture(run, tmp_path, driver, damage):
    broken = tmp_path / "broken.mkv"
    with av.open(str(driver)) as source, av.open(str(broken), "w") as target:
        into = {stream: target.add_stream_from_template(stream) for stream in source.streams}
        for index, packet in enumerate(source.demux()):
            if not packet.size:
                continue
            stream, given = packet.stream, packet
            if stream.type == "audio" and damage == "noise":
                given = av.Packet(bytes((7 * index + at * at) % 256 for at in range(packet.size)))
                given.pts, given.dts, given.time_base = packet.pts, packet.dts, packet.time_base
            elif stream.type == "audio" and index % 3 == 0:
                given.pts = given.dts = packet.pts // 2  # times run backwards
            given.stream = into[stream]
            with suppress(av.FFmpegError):  # a muxer may refuse such times
                target.mux(given)
    out = tmp_path / "a.mp4"
    code, printed, err = run(EXAMPLES / "astronaut.jpg", "-d", broken, "-o", out)
    assert (code, err) == (0, "")
    assert "24 frames" in printed
    with av.open(str(out)) as container:
        assert sum(1 for _ in container.decode(video=0)) == 24
        assert [stream.type for stream in container.streams] == ["video", "audio"]


def test_damaged_pictures_of_the_driver_are_counted(run, tmp_path, astronaut):
    folder = tmp_path / "driver"
    folder.mkdir()
    for index in range(4):
        assert cv2.imwrite(str(folder / f"{index:02}.jpg"), astronaut[:320, 60:380, ::-1])
    (folder / "02.jpg").write_bytes((folder / "02.jpg").read_bytes()[:200])
    code, printed, err = run(EXAMPLES / "astronaut.jpg", "--driver", folder, "-o", tmp_path / "a.mp4")
    assert (code, err) == (0, "")
    assert "3 frames" in printed
    assert "note: frames of the driver that were damaged or missing: 1" in printed


def test_whose_face_of_several_was_followed_is_told(run, tmp_path, astronaut):
    driver = tmp_path / "both.png"
    for picture, note in (
        (two_people(astronaut), f"note: {driver}: 2 faces; the largest is followed (another one: "
         "tracking.max_num_faces=2 and tracking.follow=0, 1 … from the left)"),
        (astronaut, None),
    ):  # fmt: skip
        assert cv2.imwrite(str(driver), picture[..., ::-1])
        words = (EXAMPLES / "astronaut.jpg", "-d", driver, "-o", tmp_path / "a.mp4", "-y")
        code, printed, err = run(*words)
        assert (code, err) == (0, "")
        assert [line for line in printed.splitlines() if "faces" in line] == ([note] if note else [])
    assert cv2.imwrite(str(driver), two_people(astronaut)[..., ::-1])
    told = run(*words, "--set", "tracking.max_num_faces=2", "--set", "tracking.follow=0")
    assert told[::2] == (0, "") and "faces" not in told[1]


def test_a_still_picture_as_a_driver_is_told(run, tmp_path, astronaut):
    random = np.random.default_rng(0)
    folder = tmp_path / "driver"
    folder.mkdir()
    words = (EXAMPLES / "astronaut.jpg", "-d", folder, "-o", tmp_path / "a.mp4", "-y")
    eyes = np.s_[100:112, 190:262]
    for blinks in (False, True):
        for number in range(4):
            rgb = astronaut + random.normal(0, 3, astronaut.shape)  # a camera's noise
            rgb[eyes] = rgb[95, 226] if blinks and number == 2 else rgb[eyes]
            name = str(folder / f"{number}.png")
            assert cv2.imwrite(name, np.clip(rgb, 0, 255).astype(np.uint8)[..., ::-1])
        code, printed, err = run(*words)
        assert (code, err) == (0, "")
        assert (f"note: {folder}: a still picture has no motion to follow" in printed.splitlines()) != blinks


def test_settings_act(run, tmp_path, motion_file):
    still = tmp_path / "still.mp4"
    code, *_ = run(
        EXAMPLES / "astronaut.jpg", "-d", motion_file, "-o", still,
        "--expression", "0", "--pose", "0", "--set", "animation.max_side=256", "--quiet",
    )  # fmt: skip
    assert code == 0
    frames, _ = decode(still)
    assert frames[0][1].shape == (256, 256, 3)
    assert np.abs(frames[-1][1].astype(int) - frames[0][1]).mean() < 1.5
    sides = []
    for name, flags in (("plain", ()), ("mirror", ("--mirror",))):
        out = tmp_path / f"{name}.mp4"
        assert run(EXAMPLES / "astronaut.jpg", "-d", motion_file, "-o", out, *flags)[0] == 0
        sides.append(decode(out)[0][-1][1].astype(int))
    assert np.abs(sides[0] - sides[1])[60:220, 180:280].mean() > 5


def test_settings_of_live_runs_are_said_to_do_nothing(run, tmp_path, motion_file):
    keys = ("target_fps=5", "max_latency_ms=9", "frame_skip_enabled=true", "frame_skip_threshold=0.5")
    keys += ("use_async_capture=false", "use_async_output=false")
    words = [word for key in keys for word in ("--set", f"performance.{key}")]
    _, printed, _ = run(EXAMPLES / "astronaut.jpg", "-d", motion_file, "-o", tmp_path / "a.mp4", *words)
    assert "10 frames" in printed
    said = [line for line in printed.splitlines() if "has no effect on a file" in line]
    assert [line.split()[1] for line in said] == [f"performance.{key.partition('=')[0]}" for key in keys]
    _, printed, _ = run(
        EXAMPLES / "astronaut.jpg", "-d", motion_file, "-o", tmp_path / "a.mp4", "--profile", "animator"
    )
    assert "has no effect" not in printed  # a profile is for both


def test_a_stretch_of_the_driver(run, tmp_path, motion_file):
    out = tmp_path / "part.mp4"
    code, *_ = run(EXAMPLES / "astronaut.jpg", "-d", motion_file, "-o", out, "--start", "0.1", "--end", "0.3")
    assert code == 0
    frames, _ = decode(out)
    assert len(frames) == 5 and frames[0][0] == 0


def test_pictures_can_be_written(run, tmp_path, motion_file):
    assert run(EXAMPLES / "astronaut.jpg", "-d", motion_file, "-o", tmp_path / "frames")[0] == 0
    assert len(list((tmp_path / "frames").glob("*.png"))) == 10


def test_the_shipped_files_are_found_from_anywhere(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, *_ = run("examples/astronaut.jpg", "-d", "examples/talk.motion", "-o", "out.mp4", "--end", "0.2")
    assert code == 0
    assert (tmp_path / "out.mp4").is_file()


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("missing.jpg", "-d", "{motion}", "-o", "o.mp4"), 3, "missing.jpg: cannot be read"),
        (("{portrait}", "-d", "missing.mp4", "-o", "o.mp4"), 3, "missing.mp4"),
        (("{portrait}", "-d", "missing.motion", "-o", "o.mp4"), 3, "missing.motion: cannot be read"),
        (("{portrait}", "-d", "0", "-o", "o.mp4"), 2, "camera"),
        (("{portrait}", "-d", "{motion}", "-o", "o.mp4", "--face", "3"), 3, "there is no face 3, only 1 (counted"),
        (("{portrait}", "-d", "{motion}", "-o", "o.mp4", "--face", "left"), 2, "--face"),
        (("{portrait}", "-d", "{motion}", "-o", "o.mp4", "--record", "o.txt"), 2, ".motion"),
        (("{portrait}", "-d", "{motion}", "-o", "o.mp4", "--gpu-ids", "0,1", "--gpu-id", "1"), 2, "leave one of"),
        (("{portrait}", "-d", "{motion}", "-o", "{motion}"), 2, "the output is the driver"),
        (("{portrait}", "-d", "{motion}", "-o", "o.xyz"), 4, "o.xyz"),
        (("{portrait}", "-d", "{motion}", "-o", "o.mp4", "--start", "30"), 3, "no picture between 30 s and its end"),
        (("{portrait}", "-d", "{portrait_twin}", "-o", "o.mp4"), 3, "no face in it, so nothing would move"),
    ],
)  # fmt: skip
def test_bad_input_gets_one_line(run, tmp_path, monkeypatch, motion_file, words, code, message):
    monkeypatch.chdir(tmp_path)
    cv2.imwrite("blank.png", np.full((64, 64, 3), 99, np.uint8))
    names = {"motion": motion_file, "portrait": EXAMPLES / "astronaut.jpg", "portrait_twin": "blank.png"}
    ended, printed, err = run(*(word.format(**names) for word in words))
    assert ended == code, err
    assert printed == ""
    assert err.count("\n") == 1 and message in err
    assert not list(tmp_path.glob("o.*"))


def test_damaged_motion_leaves_nothing_behind(run, tmp_path, motion_file):
    broken = tmp_path / "broken.motion"
    broken.write_bytes(motion_file.read_bytes()[:-9])
    code, _, err = run(EXAMPLES / "astronaut.jpg", "-d", broken, "-o", tmp_path / "o.mp4")
    assert code == 3 and "cut off in row 9" in err
    assert [path.name for path in tmp_path.iterdir()] == ["broken.motion"]


@pytest.mark.parametrize("size", [(64, 48), (33, 47)])
def test_planes_are_those_of_the_reference(size):
    rgb = np.random.default_rng(0).integers(0, 256, (*size, 3), np.uint8)
    reference = planes_from_rgb(
        np.moveaxis(rgb, 2, 0).astype(np.float32) / 255, fmt=PIXEL_FORMATS["yuv420p"], color=RGB_VIDEO_COLOR
    )
    for made, expected in zip(planes_of(rgb), reference, strict=True):
        assert made.shape == expected.shape
        inner = np.s_[: made.shape[0] - size[0] % 2, : made.shape[1] - size[1] % 2]
        assert np.abs(made[inner].astype(int) - expected[inner]).max() <= 1


@pytest.mark.skipif(os.name != "posix", reason="sends SIGINT")
def test_in_python(tmp_path, motion_file, face_model, monkeypatch):
    monkeypatch.setenv("VITASCOPE_HOME", str(face_model.parents[1]))
    report = vitascope.animate(
        (EXAMPLES / "astronaut.jpg").as_uri(),
        motion_file,
        (tmp_path / "out.mp4").as_uri(),
        settings={"animation.calibrate": False, "animation.max_side": 256, "video.end_seconds": 0.2},
        record=tmp_path / "part.motion",
    )
    frames, _ = decode(tmp_path / "out.mp4")
    assert 0 < len(frames) == report.frame_count < 10
    assert max(frames[0][1].shape[:2]) == 256
    assert (tmp_path / "part.motion").exists()
    with pytest.raises(ConfigError, match="expression"):
        vitascope.animate("a.jpg", motion_file, tmp_path / "o.mp4", settings={"animation.expression": "much"})
    with pytest.raises(UsageError, match=r"^s3://films/o.mp4: only `vitascope segment`"):
        vitascope.animate("a.jpg", motion_file, "s3://films/o.mp4")


def test_the_rate_of_a_film_is_that_of_its_batches(motion_file, model_store, monkeypatch):
    called = []

    def open_animator(*_, **more):
        opened = real(*_, **more)

        def slow(motions):
            called.append(len(motions))
            clock[0] += 0.05
            return [None] * len(motions)

        return replace(opened, animate_batch=slow, batch_size=4)

    clock = [0.0]
    monkeypatch.setattr(offline, "perf_counter", lambda: clock[0])
    real = offline.open_animator
    monkeypatch.setattr(offline, "open_animator", open_animator)
    loaded = load_settings(assignments=["animation.animator=mesh"])
    rate = offline.measure_film(
        EXAMPLES / "astronaut.jpg", motion_file, loaded=loaded, store=model_store, seconds=0.3
    )
    assert rate == pytest.approx(80)
    assert set(called) == {4} and len(called) >= 4
    late = load_settings(assignments=["animation.animator=mesh", "video.start_seconds=9"])
    with pytest.raises(InputError, match="no picture between 9 s and its end"):
        offline.measure_film(
            EXAMPLES / "astronaut.jpg", motion_file, loaded=late, store=model_store, seconds=0.1
        )


def test_ctrl_c_keeps_what_was_written_and_names_it(tmp_path, face_model):
    folder = tmp_path / "out"
    folder.mkdir()
    process = subprocess.Popen(
        [
            sys.executable, "-m", "vitascope", "animate", EXAMPLES / "astronaut.jpg",
            "--driver", EXAMPLES / "talk.motion", "-o", folder / "out.mp4", "--quiet",
            # At a high rate the file grows during the run.
            "--set", "output.crf=1", "--set", "animation.calibrate=false",
        ],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "VITASCOPE_HOME": str(face_model.parents[1])},
    )  # fmt: skip
    deadline = time.monotonic() + 60
    while not any(part.stat().st_size > 1000 for part in folder.glob(".out.*.part.mp4")):
        assert time.monotonic() < deadline
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert err == f"vitascope: interrupted; kept what was written: {folder / 'out.mp4.part'}\n"
    (part,) = folder.iterdir()
    with av.open(str(part), format="mp4") as container:
        assert sum(1 for _ in container.decode(video=0)) > 0


@pytest.mark.parametrize("kind", ["motion", "video"])
def test_an_animation_that_is_done_leaves_nothing_in_memory(
    kind, motion_file, face_model, tmp_path, monkeypatch, request
):
    monkeypatch.setenv("VITASCOPE_HOME", str(face_model.parents[1]))
    driver = motion_file if kind == "motion" else request.getfixturevalue("driver")
    out = tmp_path / "out.mp4"
    settings = {"animation.calibrate": False}
    assert not left_by(lambda: vitascope.animate(EXAMPLES / "astronaut.jpg", driver, out, settings=settings))


@pytest.mark.parametrize(("yaw", "eased"), [(15.0, 0), (45.0, 3)])
def test_a_head_that_turns_too_far_is_said(tmp_path, yaw, eased):
    turned = [
        FaceMotion.authored(pts_seconds=step / 25, yaw_degrees=yaw if 2 <= step < 5 else 0.0)
        for step in range(6)
    ]
    write_motion(tmp_path / "turn.motion", turned, frame_rate=25)
    report = vitascope.animate(
        EXAMPLES / "astronaut.jpg", tmp_path / "turn.motion", tmp_path / "out.mp4", profile="fast"
    )
    said = [note for note in report.notes if "farther than the portrait can show" in note]
    assert [note.partition(";")[0] for note in said] == (
        [f"in {eased} of 6 frames the head turned farther than the portrait can show"] if eased else []
    )
