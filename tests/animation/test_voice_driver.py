"""Tests of a voice as a driver, from file to file, and of sound that is no voice."""

from __future__ import annotations

import itertools
import json
import shutil
import sys
from pathlib import Path

import av
import numpy as np
import pytest

from clips import write_clip
from vitascope.animation.face import BLENDSHAPE_INDEX
from vitascope.animation.motion_file import MotionReader
from vitascope.cli import main
from voices import RATE, silence, talk, write_sound

EXAMPLES = Path(__file__).parents[2] / "examples"
PORTRAIT = EXAMPLES / "astronaut.jpg"


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    """Return a function that runs ``animate`` on the shipped portrait; it returns exit code, stdout and stderr."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("VITASCOPE_HOME", str(tmp_path / "home"))

    def runner(*words):
        with pytest.raises(SystemExit) as ended:
            main(["animate", str(PORTRAIT), *map(str, words)])
        captured = capsys.readouterr()
        return ended.value.code, captured.out, captured.err

    return runner


@pytest.fixture(scope="module")
def speech(tmp_path_factory):
    return write_sound(tmp_path_factory.mktemp("voice") / "speech.wav", [talk(seconds=1.5)])


def opened(path):
    with av.open(str(path)) as container:
        frames = sum(1 for _ in container.decode(video=0))
        return frames, {stream.type: stream for stream in container.streams}


def jaws_of(path):
    with MotionReader(path) as reader:
        return np.array([row.blendshapes[BLENDSHAPE_INDEX["jawOpen"]] for row in reader]), reader.header


def test_a_voice_makes_a_film_with_its_sound(run, speech, tmp_path):
    out, record = tmp_path / "out.mp4", tmp_path / "talk.motion"
    code, text, err = run("--driver", speech, "-o", out, "--record", record)
    assert (code, err) == (0, ""), err
    frames, streams = opened(out)
    assert frames == 45 and set(streams) == {"video", "audio"}
    with av.open(str(out)) as container:
        sound = np.concatenate([frame.to_ndarray().ravel() for frame in container.decode(audio=0)])
    assert len(sound) / streams["audio"].rate == pytest.approx(1.5, abs=0.1)
    jaws, header = jaws_of(record)
    assert len(jaws) == 45 and header.frame_rate == 30 and not header.has_vertices
    assert jaws.max() > 0.08 and jaws[:6].max() < 0.03
    assert "hear" in text
    assert "audio (pcm_s16le) re-encoded to aac: " in text
    again = tmp_path / "again.mp4"
    code, _, err = run("--driver", record, "-o", again)
    assert code == 0, err
    code, text, _ = run("--driver", record, "-o", tmp_path / "one.mp4", "--end", "0.01")
    assert (code, "1 frame in" in text) == (0, True)
    pictures = []
    for path in (out, again):
        with av.open(str(path)) as container:
            pictures.append([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])
    for one, other in zip(*pictures, strict=True):
        assert np.abs(one.astype(int) - other).mean() < 0.5


def test_a_stretch_at_another_rate(run, speech, tmp_path):
    out = tmp_path / "out.mkv"
    code, _, err = run(
        "--driver", speech, "-o", out, "--start", "0.5", "--end", "1", "--set", "voice.frame_rate=24"
    )
    assert code == 0, err
    frames, streams = opened(out)
    assert frames == 12 and float(streams["video"].average_rate) == pytest.approx(24)
    with av.open(str(out)) as container:
        first = next(container.decode(audio=0)).time
    assert abs(first) < 0.05


def test_the_voice_of_a_video(run, tmp_path):
    film = write_clip(tmp_path / "film.mp4", frame_count=24, audio="aac")
    out = tmp_path / "out.mp4"
    code, text, err = run("--driver", film, "-o", out, "--voice")
    assert code == 0, err
    frames, streams = opened(out)
    assert frames == pytest.approx(30, abs=2) and "audio" in streams
    assert "hardly any speech" in text  # its sound is a tone


@pytest.mark.parametrize(("seed", "same"), [(0, True), (1, False)])
def test_the_seed_decides(run, speech, tmp_path, seed, same):
    rows = []
    for number, chosen in enumerate((0, seed)):
        record = tmp_path / f"{number}.motion"
        words = (
            "--record",
            record,
            "--set",
            f"voice.seed={chosen}",
            "--set",
            "animation.max_side=256",
            "--end",
            "1",
        )
        assert run("--driver", speech, "-o", tmp_path / f"{number}.mp4", *words)[0] == 0
        with MotionReader(record) as reader:
            rows.append([motion.rotation for motion in reader])
    assert np.allclose(*rows) == same


def test_a_recording_that_was_cut_off_is_said(run, speech, tmp_path):
    content = speech.read_bytes()
    (tmp_path / "cut.wav").write_bytes(content[: len(content) // 3])
    code, text, _ = run("--driver", tmp_path / "cut.wav", "-o", tmp_path / "o.mp4")
    assert code == 0
    assert "note: cut.wav was cut off: 1.0 s of the sound announced in its header is missing" in text
    assert "cut off" not in run("--driver", speech, "-o", tmp_path / "p.mp4")[1]


def test_silence_is_said(run, tmp_path):
    path = write_sound(tmp_path / "nothing.wav", [silence(1)])
    code, text, err = run("--driver", path, "-o", tmp_path / "out.mp4")
    assert code == 0, err
    assert "note: the sound is silent: the portrait breathes, blinks and looks about" in text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--driver", "mic", "-o", "out.mp4"), "a microphone has no end; show it with --sink"),
        (("--driver", "mic", "--sink", "null", "--start", "2"), "mic: a microphone has no start and end"),
        (("--driver", "mic", "--sink", "null", "--text", "hello"), "a text needs a whole file and --out"),
        (
            ("--driver", "0", "--sink", "null", "--voice"),
            "0: a camera is followed by its picture; for a voice use --driver mic",
        ),
        (("--driver", "mute.mp4", "-o", "out.mp4", "--voice"), "mute.mp4: it has no sound"),
        (
            ("--driver", "mute.mp4", "-o", "out.mp4", "--text", "hello"),
            "mute.mp4: voice.text is for a voice",
        ),
        (("--driver", "talk.motion", "-o", "out.mp4", "--text", "hello"), "voice.text is for a voice"),
        (("--driver", "talk.motion", "-o", "out.mp4", "--voice"), "talk.motion: a .motion file has no sound"),
        (
            ("--driver", "talk.motion", "--sink", "null", "--voice"),
            "talk.motion: a .motion file has no sound",
        ),
        (
            ("--driver", "speech.wav", "-o", "out.mp4", "--start", "9"),
            "speech.wav: no sound between 9 s and its end",
        ),
        (("--driver", "speech.wav", "-o", "speech.wav"), "speech.wav: the output is the driver"),
        (("--driver", "broken.wav", "-o", "out.mp4"), "broken.wav"),
    ],
)
def test_bad_input_is_one_clear_line(run, speech, tmp_path, monkeypatch, words, said):
    monkeypatch.chdir(tmp_path)
    shutil.copy(speech, "speech.wav")
    shutil.copy(EXAMPLES / "talk.motion", "talk.motion")
    write_clip(tmp_path / "mute.mp4", frame_count=3)
    Path("broken.wav").write_bytes(b"RIFF\0\0\0\0WAVEjunk" + bytes(50))
    before = sorted(path.name for path in tmp_path.iterdir())
    code, _, err = run(*words)
    assert code not in (0, 1) and said in err
    assert len(err.strip().splitlines()) == 1
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "home") == before


def test_a_text_without_its_aligner(run, speech, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pocketsphinx", None)
    code, _, err = run("--driver", speech, "-o", tmp_path / "out.mp4", "--text", "hello")
    assert code and "--text needs PocketSphinx" in err and len(err.strip().splitlines()) == 1


def test_a_text_closes_the_lips_where_it_says(run, tmp_path):
    pytest.importorskip("pocketsphinx", reason="PocketSphinx is not installed")
    record, said = tmp_path / "said.motion", tmp_path / "said.txt"
    said.write_text("Hello! My name is Pamm.", encoding="utf-8")
    code, text, err = run(
        *("--driver", EXAMPLES / "voice.ogg", "-o", tmp_path / "out.mp4", "--end", "2.2", "--record", record),
        *("--text", said, "--set", "animation.max_side=256"),
    )
    assert code == 0, err
    assert "note: not in the dictionary, so spelled letter by letter: pamm" in text
    with MotionReader(record) as reader:
        # Pressed lips: they are closed in pauses, too.
        closed = [row.blendshapes[BLENDSHAPE_INDEX["mouthPressLeft"]] > 0.27 for row in reader]
    closings = sum(1 for before, now in itertools.pairwise(closed) if now and not before)
    assert closings == 4  # m, m, p, m


def test_a_voice_that_is_played_live(run, speech, tmp_path):
    record = tmp_path / "live.motion"
    words = ("--driver", speech, "--sink", "null", "--record", record, "--set", "animation.max_side=256")
    code, text, err = run(*words, "--json")
    assert code == 0, err
    report, (jaws, header) = json.loads(text), jaws_of(record)
    # The number depends on the machine: a busy one drops some before they are recorded, and some after.
    assert report["shown"] <= len(jaws) <= report["captured"]
    assert len(jaws) > 3 and jaws.max() > 0.05 and not header.has_vertices
    assert "mesh" in text


def test_the_rate_of_sound_does_not_matter(run, tmp_path):
    samples = talk(seconds=1.0)
    telephone = samples[::2]
    path = write_sound(tmp_path / "telephone.wav", [telephone], rate=RATE // 2)
    record = tmp_path / "t.motion"
    words = ("--record", record, "--set", "animation.max_side=256")
    code, _, err = run("--driver", path, "-o", tmp_path / "out.mp4", *words)
    assert code == 0, err
    jaws, _ = jaws_of(record)
    assert len(jaws) == 30 and jaws.max() > 0.05
