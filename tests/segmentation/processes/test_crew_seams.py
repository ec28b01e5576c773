"""Check that seams between processes do not show, as networks with a memory warm up."""

from __future__ import annotations

import av
import numpy as np
import pytest

from clips import write_clip
from makers_here import crew_here
from photographs import astronaut
from vitascope.segmentation.processes import film_joiner
from vitascope.segmentation.segmenter import Segmenter

pytestmark = pytest.mark.slow

FRAMES, SIDE = 48, 128
NETWORK_SIDE = 96
"""Side of the network's pictures: small, as RVM is slow on a CPU."""


def swaying(n: int):
    """Paint a swaying person by a slightly flickering wall."""
    rgb = np.roll(astronaut()[:384:3, 40:424:3], round(8 * np.sin(n / 9)), axis=1).astype(np.int16)
    rng = np.random.default_rng(n)
    return np.clip(rgb + rng.integers(-4, 5, rgb.shape), 0, 255).astype(np.uint8)


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    return write_clip(
        tmp_path_factory.mktemp("seams") / "in.mp4",
        width=SIDE,
        height=SIDE,
        frame_count=FRAMES,
        paint=swaying,
        codec_options={"g": "12"},
    )


def mattes(clip, out, store, *, frames=FRAMES, shared=False, **settings):
    """Compute mattes in one piece, or in stretches by several processes; also returns the report."""
    flags = {"gpu.device": "cpu", "output.codec": "ffv1", "model.input_size": NETWORK_SIDE} | settings
    with (crew_here if shared else Segmenter)(settings=flags, store=store) as segmenter:
        report = segmenter.write(clip, [("mask", out)])
    assert report.frame_count == frames
    with av.open(str(out)) as container:
        return [frame.to_ndarray(format="gray").astype(int) for frame in container.decode(video=0)], report


@pytest.mark.parametrize("model", ["selfie", "rvm"])
def test_alpha_at_a_seam_is_that_of_one_process(clip, tmp_path, model, request):
    if model == "rvm":
        request.getfixturevalue("rvm_model_path")
    store = request.getfixturevalue("model_store")
    # No cuts: the next test has one beside a seam.
    name = {"model.name": model, "edges.temporal_smoothing": 0.5, "video.scene_cut_threshold": 0}
    whole, _ = mattes(clip, tmp_path / "one.mkv", store, **name)
    shared = name | {
        "shared": True,
        "processing.chunk_size": 16,
        "processing.overlap_frames": 24,
    }
    parts, report = mattes(clip, tmp_path / "two.mkv", store, **shared)
    apart = [np.abs(a - b).mean() for a, b in zip(parts, whole, strict=True)]
    assert max(apart) <= 2.0
    assert report.pipeline.stages[0].items >= FRAMES + 24  # there was a warm-up
    assert 10 < np.mean(whole[FRAMES // 2]) < 245  # there is a person and some background
    if model == "rvm":  # without a warm-up the seam shows, so this test can fail
        cold, _ = mattes(clip, tmp_path / "cold.mkv", store, **shared | {"processing.overlap_frames": 0})
        assert max(np.abs(a - b).mean() for a, b in zip(cold, whole, strict=True)) > max(apart)


def cut_before_a_seam(n: int):
    """Paint one person, then from frame 24 on another who comes in, mirrored and in other light."""
    rgb = astronaut()[:384:3, 40:424:3].astype(np.int16)
    if n >= 24:
        rgb = np.roll(255 - rgb[:, ::-1] // 2, 4 * (n - 24) - 60, axis=1)
    rng = np.random.default_rng(n)
    return np.clip(rgb + rng.integers(-4, 5, rgb.shape), 0, 255).astype(np.uint8)


def test_a_shot_that_begins_shortly_before_a_seam(tmp_path, model_store, rvm_model_path, monkeypatch):
    """Check a cut two frames before the seam; the first stretch sees ten frames beyond it.

    A keyframe is decoded at -2, so the seam lies before frame 26.
    """
    path, frames = tmp_path / "in.mp4", 64
    film = write_clip(
        path, width=SIDE, height=SIDE, frame_count=frames, paint=cut_before_a_seam, codec_options={"g": "12"}
    )
    name = {"model.name": "rvm", "model.input_size": 64}  # even smaller, as only the start of a shot matters
    whole, report = mattes(film, tmp_path / "one.mkv", model_store, frames=frames, **name)
    assert report.scene_cut_count == 1
    shared = name | {
        "shared": True,
        "processing.chunk_size": 36,
        "processing.overlap_frames": 24,
    }
    parts, report = mattes(film, tmp_path / "two.mkv", model_store, frames=frames, **shared)
    assert report.scene_cut_count == 1
    apart = [np.abs(a - b).mean() for a, b in zip(parts, whole, strict=True)]
    assert max(apart[:26]) <= 0.02
    assert max(apart) <= 2.0
    monkeypatch.setattr(film_joiner, "frames_after", lambda _: 0)  # without them it shows: the test can fail
    blind, _ = mattes(film, tmp_path / "blind.mkv", model_store, frames=frames, **shared)
    assert np.abs(blind[24] - whole[24]).mean() > 10 * apart[24] + 0.1
