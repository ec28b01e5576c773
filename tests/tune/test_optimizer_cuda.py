"""Tests of tuning on a GPU, with real runs of RVM."""

from __future__ import annotations

import pytest

from clips import write_clip
from vitascope.config import SettingsSource
from vitascope.tune import optimizer as search_time
from vitascope.tune.optimizer import Tuner, auto_tune

pytestmark = [pytest.mark.cuda, pytest.mark.whole_gpu]

HELD = ("gpu.device=cuda", "gpu.encoder=cpu", "pipeline.stages.preprocess.cuda_streams=4")


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    return write_clip(tmp_path_factory.mktemp("tuning") / "in.mp4", width=640, height=360, frame_count=96)


def test_a_tune_of_rvm(clip, rvm_model_path, monkeypatch):
    monkeypatch.setattr(search_time, "_TURNS", 1)
    source = SettingsSource(assignments=(*HELD, "gpu.precision=fp16", "model.backend=auto"))
    tuned = Tuner(source, clip, subject="a clip", seconds=0.2, most_trials=4).tune()
    assert tuned.shown.device.kind == "cuda"
    assert tuned.unreachable is None
    assert 0 < tuned.after.figures["vram_share"] <= 0.9
    assert tuned.after.figures["alpha_error"] <= tuned.error_limit
    assert tuned.after.score >= tuned.before.score
    assert len(tuned.search.trials) <= 4


def test_auto_tune_leaves_the_matte(clip, rvm_model_path):
    tuned = auto_tune(
        SettingsSource(assignments=(*HELD, "gpu.decoder_sessions=1", "performance.target_fps=1")), clip
    )
    assert tuned.note.startswith("auto-tune: ")
    assert "not possible" not in tuned.note
    assert not {"gpu.precision", "model.input_size", "model.backend"} & set(tuned.values)
