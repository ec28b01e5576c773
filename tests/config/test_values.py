"""Tests of the spellings of values, and of what is not a value."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from vitascope.config import BatchRange, EdgeSettings, OutputSettings, RgbColor, VideoSettings, parse_seconds
from vitascope.config.compute import ModelSettings, ProcessingSettings
from vitascope.config.values import unique_list
from vitascope.frames import StereoLayout


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (8, BatchRange(8, 8)),
        ("8", BatchRange(8, 8)),
        ("16-32", BatchRange(16, 32)),
        (" 16 – 32 ", BatchRange(16, 32)),
        ("1-1024", BatchRange(1, 1024)),
        (BatchRange(2, 3), BatchRange(2, 3)),
    ],
)
def test_batch_ranges(given: object, expected: BatchRange) -> None:
    assert BatchRange.parse(given) == expected


@pytest.mark.parametrize(
    "given", [0, -4, 1025, "32-16", "0-4", "4-", "-4", "4-8-16", "", "four", 4.0, True, None, [4, 8]]
)
def test_no_batch_ranges(given: object) -> None:
    with pytest.raises(ValueError, match=r"expected|batch size"):
        BatchRange.parse(given)


@given(st.integers(1, 1024), st.integers(1, 1024))
def test_batch_ranges_read_what_they_write(one: int, other: int) -> None:
    batch = BatchRange(min(one, other), max(one, other))
    assert BatchRange.parse(str(batch)) == batch


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("#78FF9B", (120, 255, 155)),
        ("#78ff9b", (120, 255, 155)),
        ("#7f9", (119, 255, 153)),
        ("120,255,155", (120, 255, 155)),
        (" 120 , 255 , 155 ", (120, 255, 155)),
        ([0, 0, 255], (0, 0, 255)),
        ((0, 0, 255), (0, 0, 255)),
        ("Lime", (0, 255, 0)),
        ("green", (0, 128, 0)),
    ],
)
def test_colors(given: object, expected: tuple[int, int, int]) -> None:
    assert RgbColor.parse(given).as_tuple() == expected


@pytest.mark.parametrize(
    "given",
    [
        "78FF9B",
        "#78FF9",
        "#GGGGGG",
        "256,0,0",
        "1,2",
        "-1,0,0",
        [1, 2],
        [1, 2, 256],
        [True, 0, 0],
        5,
        None,
        "",
    ],
)
def test_no_colors(given: object) -> None:
    with pytest.raises(ValueError, match="colour"):
        RgbColor.parse(given)


@given(st.tuples(*[st.integers(0, 255)] * 3))
def test_colors_read_what_they_write(components: tuple[int, int, int]) -> None:
    assert RgbColor.parse(str(RgbColor(*components))).as_tuple() == components


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (0, 0.0),
        (90, 90.0),
        (90.5, 90.5),
        ("90.5", 90.5),
        ("1:30", 90.0),
        ("01:30.25", 90.25),
        ("0:01:30", 90.0),
        ("1:01:01.5", 3661.5),
        ("100:00:00", 360_000.0),
    ],
)
def test_times(given: object, expected: float) -> None:
    assert parse_seconds(given) == expected


@pytest.mark.parametrize(
    "given",
    [-1, "-1", "1:60", "1:2:3:4", "1:", ":30", "", "soon", True, None, float("nan"), float("inf"), [1]],
)
def test_no_times(given: object) -> None:
    with pytest.raises(ValueError, match="time"):
        parse_seconds(given)


@given(st.integers(0, 359_999_999))
def test_clock_times_mean_what_they_say(milliseconds: int) -> None:
    seconds, rest = divmod(milliseconds, 1000)
    text = f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}.{rest:03}"
    assert parse_seconds(text) == pytest.approx(milliseconds / 1000, abs=1e-9)


@pytest.mark.parametrize(
    ("spelling", "layout"),
    [
        ("auto", "auto"),
        ("mono", StereoLayout.MONO),
        ("side-by-side", StereoLayout.SIDE_BY_SIDE),
        ("SBS", StereoLayout.SIDE_BY_SIDE),
        ("lr", StereoLayout.SIDE_BY_SIDE),
        ("top-bottom", StereoLayout.TOP_BOTTOM),
        ("tb", StereoLayout.TOP_BOTTOM),
        ("ou", StereoLayout.TOP_BOTTOM),
        (StereoLayout.TOP_BOTTOM, StereoLayout.TOP_BOTTOM),
    ],
)
def test_stereo_spellings(spelling: Any, layout: str) -> None:
    stereo = VideoSettings(stereo=spelling).stereo
    assert stereo == layout
    assert stereo == "auto" or isinstance(stereo, StereoLayout)


@pytest.mark.parametrize(
    ("given", "stored", "longest"),
    [
        (None, None, None),
        (640, 640, 640),
        ([1024, 512], (1024, 512), 1024),
        ((512, 1024), (512, 1024), 1024),
        (32, 32, 32),
    ],
)
def test_input_sizes(given: Any, stored: object, longest: int | None) -> None:
    model = ModelSettings(input_size=given)
    assert (model.input_size, model.longest_side) == (stored, longest)


@pytest.mark.parametrize(
    "given", [31, 16385, 0, -1, [640], [640, 0], [1, 2, 3], "640", 640.0, True, [True, 640]]
)
def test_no_input_sizes(given: Any) -> None:
    with pytest.raises(ValidationError):
        ModelSettings(input_size=given)


@pytest.mark.parametrize("given", ["auto", 1, 1.0, 0.25, 1e-3])
def test_downsample_ratios(given: Any) -> None:
    assert ModelSettings(downsample_ratio=given).downsample_ratio == given


@pytest.mark.parametrize("given", [0, -0.5, 1.01, "0.5", "none", True, None, float("nan")])
def test_no_downsample_ratios(given: Any) -> None:
    with pytest.raises(ValidationError):
        ModelSettings(downsample_ratio=given)


def test_no_threads_named_means_the_machine_decides() -> None:
    given: Any = None
    assert ProcessingSettings(num_threads=given).num_threads == 0


@pytest.mark.parametrize("given", [[0.1, 0.9], (0, 1), "0.1,0.9", "0.1, 0.9"])
def test_alpha_levels(given: Any) -> None:
    levels = EdgeSettings(threshold=given).threshold
    assert levels is not None
    assert all(isinstance(level, float) for level in levels)


@pytest.mark.parametrize(
    "given",
    [[0.9, 0.1], [0.5, 0.5], [-0.1, 1], [0, 1.1], [0.5], 0.5, "a,b", "0.5", [True, 1], [float("nan"), 1]],
)
def test_no_alpha_levels(given: Any) -> None:
    with pytest.raises(ValidationError):
        EdgeSettings(threshold=given)


@pytest.mark.parametrize("given", ["key", ["key"], "key,key", ["key", "key"]])
def test_one_kind_counts_once(given: Any) -> None:
    assert OutputSettings(kinds=given).kinds == ("key",)


def test_many_kinds_are_read_in_one_pass() -> None:
    """Check speed: comparing each with each would take minutes for these."""
    assert OutputSettings(kinds=["key", "mask"] * 75_000).kinds == ("key", "mask")
    with pytest.raises(ValidationError):
        OutputSettings(kinds=[f"kind {number}" for number in range(150_000)])


@pytest.mark.parametrize("given", [[], "", "key,", ["mesk"], None, 5, [["key"]]])
def test_no_kinds(given: Any) -> None:
    with pytest.raises(ValidationError):
        OutputSettings(kinds=given)


@pytest.mark.parametrize("given", [0, 1.5, "0.99"])
def test_smoothing_never_freezes_the_matte(given: Any) -> None:
    if given == 0:
        assert EdgeSettings(temporal_smoothing=given).temporal_smoothing == 0
    else:
        with pytest.raises(ValidationError):
            EdgeSettings(temporal_smoothing=given)


@pytest.mark.parametrize(("given", "expected"), [(None, None), ("slow", "slow"), (8, "8"), (0, "0")])
def test_presets(given: Any, expected: str | None) -> None:
    assert OutputSettings(preset=given).preset == expected


@pytest.mark.parametrize("given", [-1, 14, 8.0, True, "", ["slow"]])
def test_no_presets(given: Any) -> None:
    with pytest.raises(ValidationError):
        OutputSettings(preset=given)


def test_a_long_list_is_read_item_by_item() -> None:
    class Watched(str):
        comparisons = 0

        def __eq__(self, other: object) -> bool:
            Watched.comparisons += 1
            return super().__eq__(other)

        __hash__ = str.__hash__

    items = [Watched(f"x{n % 1500}") for n in range(2000)]
    assert unique_list(items) == tuple(items[:1500])
    assert Watched.comparisons < 20_000  # each with each would be a million
    assert unique_list([["a"], {}, "b", ["a"], {}, "b"]) == (["a"], {}, "b")
