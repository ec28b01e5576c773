"""Check that a second cut only remakes the stretches that a correction affects, and equals a new run."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from swaying_clip import packets, swaying_clip

from brightness_file import brightness_settings
from clips import write_clip
from makers_here import crew_here
from scripted import BrightnessNetwork
from two_people import two_people
from vitascope.errors import ModelUnavailableError, OutputError
from vitascope.models.rvm import near_people
from vitascope.models.selfie import presence
from vitascope.models.store.store import ModelStore
from vitascope.segmentation import film_run
from vitascope.segmentation.matting import cached_film
from vitascope.segmentation.matting.cached_film import clear_cache
from vitascope.segmentation.matting.networks import ChosenNetwork
from vitascope.segmentation.processes import film_joiner
from vitascope.segmentation.processes.stretch_file import KeptStretches, kept_stretch_files
from vitascope.segmentation.segmenter import Segmenter

FLAGS = {
    "gpu.device": "cpu",
    "processing.chunk_size": 12,
    "processing.overlap_frames": 4,
    # There are none; moving people in such small pictures would be checked for one at each step.
    "video.scene_cut_threshold": 0,
}
LOSSLESS = {"output.codec": "ffv1"}  # x264 sometimes packs equal pictures differently
PEOPLE = "people:\n  - exclude: 1\n    from: 1.55\n    to: 1.65\n"
OF_NOBODY = PEOPLE.replace("exclude: 1", "exclude: 2")
"""Stretches begin at 0, .25, .75, 1.25 and 1.75 s; person 2 is absent from 1 to 2.1 s; looks are 3 frames apart."""


def painted(n):
    picture = two_people(abs(n % 24 - 12) // 6)  # slow, as fast motion is checked for cuts
    if 24 <= n < 51:
        picture[:, 48:] = picture[0, 0]
    return picture


@pytest.fixture
def networks(tmp_path, monkeypatch):
    """Fetch nothing, compute mattes with a scripted network, and return all networks that were opened."""
    opened = []

    def refuse(_, name, **__):
        raise ModelUnavailableError(f"model {name!r} could not be fetched (offline)")

    def open_network(*_, **__):
        opened.append(BrightnessNetwork())
        opened[-1].name = "selfie"  # stretches are told apart by the network's catalogue entry
        return ChosenNetwork(opened[-1], "selfie", None)

    monkeypatch.setenv("VITASCOPE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(ModelStore, "pull", refuse)
    monkeypatch.setattr(film_run, "open_network", open_network)
    return opened


@pytest.fixture
def clip(networks, tmp_path):
    return write_clip(
        tmp_path / "in.mp4", width=96, height=64, frame_count=60, paint=painted, codec_options={"g": "12"}
    )


@pytest.fixture
def cut(clip, tmp_path):
    """Return a function that cuts the clip with hints, and returns the number of remade stretches and the packets."""

    def run(text, name="out.mkv", *, kind="key", **settings):
        hints = tmp_path / "in.hints.yaml"
        hints.write_text(text, encoding="utf-8")
        values = (
            FLAGS
            | LOSSLESS
            | {"people.hints": hints}
            | {k.replace("__", "."): v for k, v in settings.items()}
        )
        with Segmenter(settings=values) as segmenter:
            report = segmenter.write(clip, [(kind, tmp_path / name)])
        assert report.frame_count == 60
        if any(note.startswith("nothing was made again") for note in report.notes):
            return 0, packets(tmp_path / name)
        said = [note.split() for note in report.notes if "stretches w" in note]
        made, of, count = (said[0][0], said[0][1], said[0][2]) if said else ("5", "of", "5")
        assert (of, count) == ("of", "5")
        return int(made), packets(tmp_path / name)

    return run


def whole(cut, text, **settings):
    """Return the packets of a run without stored stretches."""
    for file in kept_stretch_files():
        file.unlink()
    made, content = cut(text, "whole.mkv", **settings)
    assert made == 5
    return content


NEVER = "never:\n  - polygon: [[0, 0.5], [1, 0.5], [1, 1], [0, 1]]\n    from: {}\n    to: {}\n"
STROKES = (
    "marks:\n"
    "  - {{at: 0.2, stroke: [[0.3, 0.3], [0.3, 0.6]], radius: 0.05, do: remove}}\n"
    "  - {{at: {}, stroke: [[0.3, 0.3], [0.3, 0.6]], radius: 0.05, do: {}, to: 1.1}}\n"
)


@pytest.mark.parametrize(
    ("first", "second", "made"),
    [
        ("{}\n", NEVER.format(0.85, 1.1), 1),
        (NEVER.format(0.85, 1.1), NEVER.format(0.85, 1.4), 2),
        (NEVER.format(0.0, 0.85), NEVER.format(0.0, 1.0), 1),
        (
            NEVER.format(0.85, 1.1),
            NEVER.format(0.85, 1.1) + PEOPLE.replace("exclude: 1", "exclude: 2"),
            0,
        ),  # this person is absent
        (PEOPLE, PEOPLE.replace("1.55", "1.4"), 1),
        (PEOPLE, OF_NOBODY, 1),
        (PEOPLE, "people:\n  - keep: 2\n    from: 1.55\n    to: 1.65\n", 1),
        # The same choice in other words.
        ("people:\n  - exclude: 1\n", "marks:\n  - {at: 0.1, click: [0.3, 0.5], do: remove}\n", 0),
        # The second stroke is carried back half-way to the first, and ends in the third stretch.
        (STROKES.format(0.9, "keep"), STROKES.format(0.9, "remove"), 2),
        (STROKES.format(0.4, "keep"), STROKES.format(0.3, "keep"), 3),
        ("{}\n", "edges:\n  feather_px: 2\n", 5),
    ],
)
def test_what_a_correction_touches_is_made_anew_and_nothing_else(cut, first, second, made):
    assert cut(first)[0] == 5
    again, content = cut(second)
    assert again == made
    assert content == whole(cut, second)


def test_what_is_taken_back_is_there_and_other_names_make_no_difference(cut, tmp_path):
    _, before = cut(NEVER.format(0.85, 1.1))
    assert cut("{}\n")[0] == 1
    made, again = cut(NEVER.format(0.85, 1.1), "other.mkv")
    assert (made, again) == (0, before)
    assert cut("{}\n", "mask.mkv", kind="mask")[0] == 5
    assert sorted(path.name for path in tmp_path.glob("*.stretches")) == []


def test_stretches_that_other_rules_of_matting_made_are_made_anew(cut, monkeypatch):
    assert cut("{}\n")[0] == 5
    assert cut("{}\n")[0] == 0
    for module, name in (
        (near_people, "NEAR_RULES"),
        (presence, "PRESENCE_RULES"),
        (cached_film, "CLOSE_UP_RULES"),
        (cached_film, "RIM_RULES"),
        (cached_film, "SETTLING_SIDE"),
        (cached_film, "LOOK_AHEAD_SIDE"),
    ):
        with monkeypatch.context() as others:
            others.setattr(module, name, 7)
            assert cut("{}\n")[0] == 5, name
    assert cut("{}\n")[0] == 0  # those made by today's rules are still stored


def test_smoothing_carries_a_correction_into_what_follows(cut):
    smoothed = {"edges__temporal_smoothing": 0.5}
    cut("{}\n", **smoothed)
    made, content = cut(NEVER.format(0.9, 1.1), **smoothed)
    assert made == 2
    assert content == whole(cut, NEVER.format(0.9, 1.1), **smoothed)


def test_kept_mattes_serve_the_stretches_that_are_made_anew(cut, networks):
    caching = {"processing__enable_caching": True}
    cut("{}\n", **caching)
    made, content = cut(NEVER.format(0.85, 1.1), **caching)
    assert made == 1
    assert [len(network.calls) > 0 for network in networks] == [True, False]
    clear_cache()
    assert content == whole(cut, NEVER.format(0.85, 1.1), **caching)


@pytest.mark.parametrize(("bright_from", "shows"), [(60, False), (55, True)])
def test_a_video_is_of_nobody_when_all_its_stretches_are(networks, tmp_path, bright_from, shows):
    def paint(n):
        return np.full((64, 96, 3), 240 if n >= bright_from else 20, np.uint8)

    clip = write_clip(
        tmp_path / "in.mp4", width=96, height=64, frame_count=60, paint=paint, codec_options={"g": "12"}
    )
    hints = tmp_path / "in.hints.yaml"
    hints.write_text("{}\n")
    with Segmenter(settings=FLAGS | {"people.hints": hints}) as segmenter:
        for name, made_before in (("a.mp4", 0), ("b.mp4", 5)):  # made now, then reused
            report = segmenter.write(clip, [("key", tmp_path / name)])
            assert report.shows_people == shows
            assert sum("was found in any frame" in note for note in report.notes) == (not shows)
            assert any("nothing was made again" in note for note in report.notes) == bool(made_before)


def test_a_run_that_fails_at_its_end_leaves_its_stretches(cut, tmp_path, monkeypatch):
    def fail(_):
        raise OutputError("the disk is full")

    with monkeypatch.context() as patch, pytest.raises(OutputError, match="full"):
        patch.setattr(film_joiner, "finish_files", fail)
        cut("{}\n")
    shutil.rmtree(tmp_path / ".out.mkv.stretches")
    assert cut(NEVER.format(0.85, 1.1))[0] == 1


def test_processes_that_share_a_video_keep_its_stretches_too(tmp_path, monkeypatch):
    monkeypatch.setenv("VITASCOPE_HOME", str(tmp_path / "home"))
    clip, hints, notes = swaying_clip(tmp_path, frame_count=48), tmp_path / "in.hints.yaml", []
    flags = FLAGS | brightness_settings() | {"processing.use_multiprocessing": True, "people.hints": hints}
    # It does not matter who makes the stretches of the first run; in the second, a process remakes one.
    for name, text, shared in (("one", "{}\n", crew_here), ("two", NEVER.format(0.05, 0.1), Segmenter)):
        hints.write_text(text)
        with shared(profile="fast", settings=flags) as segmenter:
            notes.append(segmenter.write(clip, [("key", tmp_path / f"{name}.mp4")]).notes)
    assert not any("anew" in note for note in notes[0])
    assert "1 of 4 stretches was made again; the others were there from an earlier run" in notes[1]
    # One process makes the same.
    shutil.rmtree(tmp_path / "home")
    flags["processing.use_multiprocessing"] = False
    with Segmenter(profile="fast", settings=flags) as segmenter:
        segmenter.write(clip, [("key", tmp_path / "alone.mp4")])
    assert packets(tmp_path / "alone.mp4") == packets(tmp_path / "two.mp4")


def test_what_is_kept_has_a_bound_and_the_oldest_goes(tmp_path, monkeypatch):
    monkeypatch.setenv("VITASCOPE_HOME", str(tmp_path / "home"))
    kept, target = KeptStretches(250), tmp_path / "target"

    def keep(n, size):
        (tmp_path / str(n)).write_bytes(bytes(size))
        kept.keep({"n": n}, tmp_path / str(n))

    keep(1, 100)
    keep(2, 100)
    assert kept.take({"n": 1}, target)
    keep(3, 100)
    assert [kept.take({"n": n}, target) for n in (1, 2, 3)] == [True, False, True]
    keep(4, 300)
    assert not kept.take({"n": 4}, target)
    assert len(kept_stretch_files()) == 2
    assert target.read_bytes() == bytes(100)
