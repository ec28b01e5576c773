"""Tests of whole jobs with the matte cache: the same pictures, without the network."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
from fractions import Fraction

import av
import numpy as np
import pytest

from clips import moving_disc, write_clip
from lever_network import TrailNetwork
from vitascope.config import load_settings
from vitascope.errors import ModelError, OutputError
from vitascope.gpu.memory.disk_cache import CacheManager
from vitascope.segmentation import film_run
from vitascope.segmentation.matting.cached_film import (
    cache_contents,
    cache_folder,
    clear_cache,
    notes_on_cache,
    rules_of_mattes,
)
from vitascope.segmentation.matting.levers.bidirectional import BIDIRECTIONAL_RULES
from vitascope.segmentation.matting.levers.missed_on_the_way import ON_THE_WAY_RULES
from vitascope.segmentation.matting.levers.motion_smoothing import SMOOTHING_RULES
from vitascope.segmentation.matting.levers.scenery import SCENERY_RULES
from vitascope.segmentation.matting.levers.smaller_people import SMALLER_PEOPLE_RULES
from vitascope.segmentation.matting.networks import ChosenNetwork
from vitascope.segmentation.matting.stereo_agreement import AGREEMENT_RULES
from vitascope.segmentation.segmenter import Segmenter

FRAMES = 70


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    disc = moving_disc(96, 64)

    def paint(n):
        return disc(n) if n < 50 else 255 - disc(n)  # another shot

    return write_clip(
        tmp_path_factory.mktemp("cached") / "in.mp4",
        width=96,
        height=64,
        frame_count=FRAMES,
        frame_rate=Fraction(24),
        paint=paint,
    )


@pytest.fixture
def network(monkeypatch, tmp_path):
    """Use a scripted network in all runs, with the name of a real one, whose file is part of the cache's key."""
    monkeypatch.setenv("VITASCOPE_HOME", str(tmp_path / "home"))
    made = TrailNetwork()
    made.name = "selfie"
    made.opened = 0

    def open_network(*_, **__):
        made.opened += 1
        return ChosenNetwork(made, "selfie", None, ("one reason",))

    monkeypatch.setattr(film_run, "open_network", open_network)
    return made


def run(clip, out, kind="mask", **settings):
    flags = {
        "model.name": "selfie",
        "output.codec": "ffv1",
        "processing.enable_caching": True,
        **{key.replace("__", "."): value for key, value in settings.items()},
    }
    with Segmenter(settings=flags) as segmenter:
        return segmenter.write(clip, [(kind, out)])


def pictures(path):
    with av.open(str(path)) as film:
        return np.stack([frame.to_ndarray(format="yuv444p") for frame in film.decode(video=0)])


@pytest.fixture(scope="module")
def kept_plain(tmp_path_factory):
    """Return a folder, shared by the tests, for the result without the cache."""
    return tmp_path_factory.mktemp("plain")


@pytest.fixture
def plain(clip, network, kept_plain):
    """Return the pictures of a run without the cache, as a mask."""
    out = kept_plain / "plain.mkv"
    if not out.exists():
        run(clip, out, processing__enable_caching=False)
        network.opened = 0
        network.calls.clear()
    return pictures(out)


def test_a_second_run_needs_no_network_and_gives_the_same(clip, tmp_path, network):
    first = run(clip, tmp_path / "first.mkv", "overlay")
    assert first.levers.cached_frames == 0
    assert first.engine_reasons == ("one reason",)
    for kind in ("mask", "key", "alpha"):
        plain = run(clip, tmp_path / f"plain_{kind}.mkv", kind, processing__enable_caching=False)
        opened, calls = network.opened, len(network.calls)
        second = run(clip, tmp_path / f"second_{kind}.mkv", kind)
        assert (network.opened, len(network.calls)) == (opened, calls)
        assert second.engine == "no engine: mattes from the cache"
        assert second.model == "selfie"
        assert second.levers.cached_frames == FRAMES
        assert second.levers.network_share == 0
        assert second.levers.lines(FRAMES) == [f"{FRAMES} of {FRAMES} frames came from the cache"]
        assert second.scene_cut_count == first.scene_cut_count == plain.scene_cut_count == 1
        assert second.network_size == first.network_size
        assert np.array_equal(
            pictures(tmp_path / f"plain_{kind}.mkv"), pictures(tmp_path / f"second_{kind}.mkv")
        )


def test_after_ten_seconds_the_film_goes_on_from_there(clip, tmp_path, network, plain):
    run(clip, tmp_path / "try.mkv", video__end_seconds=1.0)
    network.calls.clear()
    whole = run(clip, tmp_path / "whole.mkv")
    assert whole.levers.cached_frames == 24
    assert sum(shape[0] for shape in network.calls) == FRAMES - 24 + 3 + 8  # at the cut only
    assert np.array_equal(plain, pictures(tmp_path / "whole.mkv"))


def test_a_shot_that_a_run_ended_in_is_begun_again_by_a_longer_one(clip, tmp_path, network, plain):
    """Check a run that ended within a shot: its first frames were run together, as far as they had been read."""
    run(clip, tmp_path / "try.mkv", video__end_seconds=2.25)
    again = run(clip, tmp_path / "again.mkv", video__end_seconds=2.25)
    assert again.levers.cached_frames == 54
    whole = run(clip, tmp_path / "whole.mkv")
    assert whole.levers.cached_frames == 50
    assert np.array_equal(plain, pictures(tmp_path / "whole.mkv"))
    assert np.array_equal(pictures(tmp_path / "try.mkv"), pictures(tmp_path / "again.mkv"))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("video__start_seconds", 0.5),
        ("video__scene_cut_threshold", 0.0),
        ("video__stereo", "sbs"),
        ("model__warm_up_frames", 1),
        ("model__look_ahead_frames", 4),
        ("model__input_size", 64),
        ("inference__skip_static", 0.5),
        ("inference__stereo_agreement", False),
        ("inference__missed_people", False),
    ],
)
def test_what_changes_mattes_is_another_entry(clip, tmp_path, network, key, value):
    run(clip, tmp_path / "first.mkv", video__end_seconds=0.3)
    other = run(
        clip,
        tmp_path / "other.mkv",
        **{"video__end_seconds": 0.3 + (key == "video__start_seconds"), key: value},
    )
    assert other.levers.cached_frames == 0


@pytest.mark.parametrize(
    ("key", "value"),
    [("edges__feather_px", 2.0), ("edges__temporal_smoothing", 0.5), ("model__batch_size", 3)],
)
def test_what_does_not_is_not(clip, tmp_path, network, key, value):
    run(clip, tmp_path / "first.mkv", video__end_seconds=0.3)
    other = run(clip, tmp_path / "other.mkv", **{"video__end_seconds": 0.3, key: value})
    assert other.levers.cached_frames == 8


def test_mattes_that_vanish_meanwhile_are_made_again(clip, tmp_path, network, plain):
    run(clip, tmp_path / "first.mkv")
    folder = cache_contents().folder
    largest = sorted(folder.glob("*/*.vsarray"), key=lambda path: path.stat().st_mtime_ns)
    largest[2].unlink()  # written: record, manifest, record, ...: this is not the first record
    again = run(clip, tmp_path / "again.mkv")
    assert 0 < again.levers.cached_frames < FRAMES
    error = np.abs(plain.astype(int) - pictures(tmp_path / "again.mkv"))
    assert error.mean() < 1


def test_a_stream_uses_and_fills_the_cache(clip, network):
    flags = {"model.name": "selfie", "processing.enable_caching": True}

    def alphas():
        with Segmenter(settings=flags) as segmenter:
            return np.stack([step.alpha for step in segmenter.stream(clip)])

    first = alphas()
    calls = len(network.calls)
    assert np.array_equal(first, alphas())
    assert len(network.calls) == calls


def test_a_network_that_cannot_be_had_is_told_before_a_frame_is_read(clip, tmp_path, network, monkeypatch):
    def fail(*_, **__):
        raise ModelError("damaged")

    monkeypatch.setattr(film_run, "open_network", fail)
    with pytest.raises(ModelError, match="damaged"):
        run(clip, tmp_path / "out.mkv")
    assert not list(tmp_path.glob("out*"))


def test_the_size_of_the_cache_is_kept(clip, tmp_path, network):
    report = run(clip, tmp_path / "out.mkv", processing__cache_size_gb=1e-5)
    assert any("the cache is full" in note for note in report.notes)
    assert cache_contents().size_bytes <= 1e4


def test_the_cache_is_emptied(clip, tmp_path, network):
    assert cache_contents().entries == 0
    run(clip, tmp_path / "out.mkv", video__end_seconds=0.3)
    contents = cache_contents()
    assert contents.folder == tmp_path / "home" / "mattes"
    assert contents.entries == 3  # mattes, memory and manifest
    assert clear_cache() == contents
    assert cache_contents().entries == 0
    assert run(clip, tmp_path / "out.mkv", video__end_seconds=0.3).levers.cached_frames == 0


def test_without_the_setting_nothing_is_kept(clip, tmp_path, network):
    run(clip, tmp_path / "out.mkv", processing__enable_caching=False)
    assert cache_contents().entries == 0
    assert not load_settings().settings.processing.enable_caching


@pytest.mark.skipif(os.name == "nt", reason="a folder for temporary files is the user's own")
def test_where_the_home_cannot_be_written_mattes_are_kept_where_nobody_else_looks(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("VITASCOPE_HOME", str(tmp_path / "file" / "home"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    meanwhile = tmp_path / f"vitascope-{os.getuid()}"
    meanwhile.mkdir()
    meanwhile.chmod(0o777)
    assert cache_folder() == meanwhile / "mattes"
    assert stat.S_IMODE(meanwhile.stat().st_mode) == 0o700
    (note,) = notes_on_cache()
    assert str(meanwhile) in note
    with CacheManager(disk_cache_gb=1, folder=cache_folder()) as entries:
        entries.put("key", np.zeros(9, np.float32))
    assert cache_contents().entries == 1
    assert clear_cache().entries == 1
    assert cache_contents().entries == 0
    meanwhile.rename(tmp_path / "other")
    meanwhile.symlink_to(tmp_path / "other")
    with pytest.raises(OutputError, match="not a folder of yours"):
        cache_folder()


def test_looking_for_a_home_makes_none(tmp_path, monkeypatch):
    home = tmp_path / "new" / "home"
    monkeypatch.setenv("VITASCOPE_HOME", str(home))
    assert cache_folder() == home / "mattes"
    assert notes_on_cache() == ()
    assert not home.parent.exists()


@pytest.mark.parametrize(
    "rules",
    [
        AGREEMENT_RULES,
        BIDIRECTIONAL_RULES,
        ON_THE_WAY_RULES,
        SMALLER_PEOPLE_RULES,
        SCENERY_RULES,
        SMOOTHING_RULES,
    ],
)
def test_mattes_of_other_rules_are_not_used_again(rules):
    assert rules in rules_of_mattes("cpu")


_PRESSED_WHILE_IMPORTING = """
import os, signal, sys

class Pressed:
    def find_spec(self, name, path=None, target=None):
        if name == "vitascope.models.rvm.near_people":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Pressed())
from vitascope.segmentation.matting.cached_film import rules_of_mattes
try:
    rules_of_mattes("cpu")
except KeyboardInterrupt:
    print("vitascope.models.rvm.near_people" in sys.modules)
"""


def test_ctrl_c_waits_for_the_import_of_networks():
    """Check that Ctrl-C waits for the import; within a native module, one in some hundred crashed the process."""
    run = subprocess.run(
        [sys.executable, "-c", _PRESSED_WHILE_IMPORTING], capture_output=True, text=True, check=True
    )
    assert run.stdout.split() == ["True"]
