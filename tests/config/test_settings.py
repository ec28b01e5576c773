"""Tests of properties of all settings: frozen, described, strict, limited, written and read back."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

import vitascope.config
from vitascope.config import BatchRange, RgbColor, Settings, load_settings
from vitascope.config.settings import section_keys, setting_fields, suggestion, value_of
from vitascope.errors import ConfigError

FIELDS = list(setting_fields().values())


def test_settings_cannot_be_changed() -> None:
    settings = Settings()
    with pytest.raises(ValidationError, match="frozen"):
        settings.model.name = "rvm"
    with pytest.raises(ValidationError, match="frozen"):
        settings.pipeline.stages.decode.threads = 4
    assert hash(settings) == hash(Settings())


def test_every_setting_is_described() -> None:
    units = {
        "_ms": "milliseconds",
        "_seconds": "seconds",
        "_gb": "gigabytes",
        "_mb": "megabytes",
        "_px": "pixels",
    }
    for entry in FIELDS:
        assert entry.description[0].isupper(), entry.key
        assert entry.description.endswith("."), entry.key
        assert len(entry.description) < 160, entry.key
        assert entry.expected, entry.key
        for suffix, unit in units.items():
            if entry.key.endswith(suffix):
                assert unit in entry.description.lower(), entry.key


@pytest.mark.parametrize("section", [*sorted(section_keys())])
def test_every_section_is_described_and_strict(section: str) -> None:
    model = value_of(Settings(), section)
    assert section in (type(model).__doc__ or "")
    with pytest.raises(ValidationError, match="extra_forbidden"):
        type(model)(nonsense=1)


@pytest.mark.parametrize("wrong", [{"a": 1}, object(), float("nan"), -(10**30)])
def test_nothing_takes_what_it_should_not(wrong: object) -> None:
    for entry in FIELDS:
        with pytest.raises(ConfigError, match=entry.key):
            load_settings(flags={entry.key: wrong})


def test_every_value_survives_being_set_to_its_default() -> None:
    for entry in FIELDS:
        value = value_of(load_settings(flags={entry.key: entry.default}).settings, entry.key)
        assert value == entry.default, entry.key
        assert type(value) is type(entry.default), entry.key


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("model.batchsize", "model.batch_size"),
        ("Model.Batch-Size", "model.batch_size"),
        ("keycolor", "output.key_color"),
        ("output.colour", "output.key_color"),
        ("crf", "output.crf"),
        ("int8", "tensorrt.precision.int8"),
        ("threads", None),  # three stages have threads, so a guess would mislead
        ("pipeline.decode.threads", "pipeline.stages.decode.threads"),
        ("xyzzy", None),
        ("", None),
    ],
)
def test_suggestions(typed: str, meant: str | None) -> None:
    found = suggestion(typed)
    if typed == "output.colour":
        assert found in ("output.codec", "output.key_color", "output.overlay_color")
    else:
        assert found == meant


def test_one_slip_of_the_finger_is_understood() -> None:
    for entry in FIELDS:
        assert suggestion(entry.key[:-1]) is not None, entry.key
        assert suggestion(entry.key + "x") == entry.key


ROOT = Path("/").absolute()
NAMES = st.text(st.characters(codec="utf-8", exclude_characters="/\\\0:~"), min_size=1, max_size=20).filter(
    lambda name: name not in (".", "..")
)
PATHS = st.builds(lambda name: ROOT / name, NAMES)
FLOATS = st.floats(0, 1, exclude_min=True, exclude_max=True)
BATCHES = st.tuples(st.integers(1, 1024), st.integers(1, 1024)).map(lambda pair: BatchRange(*sorted(pair)))
COLORS = st.builds(RgbColor, *[st.integers(0, 255)] * 3)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "model.name": st.one_of(
        NAMES, st.sampled_from(["1e3", "null", "yes", "1:30", "- x", "#a", "a: b", "16-32"])
    ),
    "model.kind": st.sampled_from([None, "matte", "yolo-seg"]),
    "model.batch_size": BATCHES,
    "model.input_size": st.one_of(
        st.none(), st.integers(32, 16384), st.tuples(*[st.integers(32, 16384)] * 2)
    ),
    "model.downsample_ratio": st.one_of(st.just("auto"), FLOATS),
    "video.stereo": st.sampled_from(["auto", "mono", "sbs", "ou"]),
    "video.start_seconds": st.floats(0, 1e5),
    "output.kinds": st.lists(st.sampled_from(["mask", "key", "alpha", "blur"]), min_size=1),
    "output.key_color": COLORS,
    "output.background": st.one_of(st.none(), PATHS),
    "output.preset": st.one_of(st.none(), st.integers(0, 13), st.sampled_from(["slow", "8", "null"])),
    "output.bit_depth": st.sampled_from(["auto", 8, 10]),
    "output.keep_partial": st.booleans(),
    "edges.threshold": st.one_of(st.none(), st.just((0.25, 0.75)), st.tuples(st.just(0.0), FLOATS)),
    "edges.grow_px": st.floats(-256, 256),
    "edges.temporal_smoothing": FLOATS,
    "inference.scales": st.lists(st.floats(0.25, 4), min_size=1, max_size=3),
    "processing.num_threads": st.one_of(st.none(), st.integers(0, 4096)),
    "pipeline.stages.inference.batch_size": st.one_of(st.none(), BATCHES),
    "tensorrt.precision.int8": st.booleans(),
    "performance.max_latency_ms": st.floats(1e-6, 60_000),
}


@given(
    profile=st.sampled_from(["fast", "balanced", "quality", "animator"]),
    flags=st.fixed_dictionaries({}, optional=VALUES),
)
def test_what_is_written_loads_to_the_same_settings(profile: str, flags: dict[str, Any]) -> None:
    loaded = load_settings(profile=profile, flags=flags)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "again.yaml"
        path.write_text(loaded.to_yaml(), encoding="utf-8")
        again = load_settings(files=[path])
    assert again.settings == loaded.settings
    assert again.profile == profile
    assert {row.key for row in again.rows() if row.origin.explicit} == set(flags)
    assert again.to_yaml() == loaded.to_yaml()


def test_written_files_are_short_and_readable() -> None:
    loaded = load_settings(
        profile="fast", assignments=["model.batch_size=4-8", "output.kinds=key,mask", "output.key_color=lime"]
    )
    assert loaded.to_yaml() == (
        "profile: fast\nmodel:\n  batch_size: 4-8\noutput:\n  kinds: [key, mask]\n  key_color: '#00FF00'\n"
    )
    assert load_settings().to_yaml() == "profile: balanced\n"


def test_exported_names() -> None:
    assert sorted(vitascope.config.__all__, key=str) == [
        "BatchRange",
        "Codec",
        "DEFAULT_PROFILE",
        "EdgeSettings",
        "EncoderSpeed",
        "FlagValue",
        "LoadedSettings",
        "Origin",
        "OriginKind",
        "OutputKind",
        "OutputSettings",
        "PlayerName",
        "RgbColor",
        "SettingRow",
        "Settings",
        "SettingsSource",
        "VideoSettings",
        "available_profiles",
        "given_flags",
        "load_settings",
        "parse_seconds",
        "vitascope_home",
    ]
    assert all(hasattr(vitascope.config, name) for name in vitascope.config.__all__)
