"""Tests of the profiles in the package."""

from __future__ import annotations

from typing import get_args

import pytest

from vitascope.config import Codec, EncoderSpeed, available_profiles, load_settings
from vitascope.config.loading import profile_path
from vitascope.media.writing.encoding import CodecName, Speed


def test_the_profiles() -> None:
    assert available_profiles() == ("animator", "balanced", "fast", "quality")


@pytest.mark.parametrize("name", available_profiles())
def test_every_profile_loads_and_says_why(name: str) -> None:
    loaded = load_settings(profile=name)
    assert loaded.profile == name
    assert any(str(row.origin) == f"profile {name}" for row in loaded.rows())
    assert profile_path(name).read_text(encoding="utf-8").startswith("# ")


def test_segmentation_profiles_differ_in_what_acts() -> None:
    fast, balanced, quality = (
        load_settings(profile=name).settings for name in ("fast", "balanced", "quality")
    )
    assert [s.model.name for s in (fast, balanced, quality)] == ["selfie", "auto", "rvm"]
    assert [s.performance.target_fps for s in (fast, balanced, quality)] == [120, 90, 60]
    assert [s.output.speed for s in (fast, balanced, quality)] == ["fast", "balanced", "quality"]
    assert quality.model.longest_side is None
    assert quality.model.downsample_ratio == "auto"


def test_the_animators_profile_is_the_guides_block() -> None:
    settings = load_settings(profile="animator").settings
    assert str(settings.animation.batch_size) == "4"
    assert settings.animation.inference_precision == "fp16"
    assert settings.animation.use_half_precision
    assert not settings.animation.enable_tensorrt
    assert settings.performance.target_fps == 65
    assert settings.performance.max_latency_ms == 15
    assert settings.performance.frame_skip_enabled
    assert settings.performance.frame_skip_threshold == 0.92
    assert settings.performance.prefetch_frames == 3
    assert settings.performance.gpu_memory_fraction == 0.85
    assert settings.performance.clear_cache_interval == 200


def test_codecs_and_speeds_are_those_of_the_encoders() -> None:
    # config repeats the names, so that reading settings loads no codec library
    assert get_args(Codec) == get_args(CodecName)
    assert get_args(EncoderSpeed) == get_args(Speed)
