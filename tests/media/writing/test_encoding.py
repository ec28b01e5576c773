"""Tests of the encoder that a path and some options lead to, and of what is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import av
import pytest
from written_films import decode, encode, make_frame, make_info

from vitascope.errors import OutputError, UsageError
from vitascope.frames import PIXEL_FORMATS
from vitascope.media.planes import has_alpha
from vitascope.media.writing import encoding as encoding_module
from vitascope.media.writing.encoding import choose_encoding
from vitascope.media.writing.writer import VideoWriter

EIGHT = PIXEL_FORMATS["yuv420p"]
TEN = PIXEL_FORMATS["yuv420p10le"]


@pytest.mark.parametrize(
    ("name", "source", "alpha", "codec", "pixel_format"),
    [
        ("a.mp4", "yuv420p", False, "h264", "yuv420p"),
        ("a.M4V", "nv12", False, "h264", "nv12"),
        ("a.mkv", "yuv444p", False, "h264", "yuv444p"),
        ("a.mov", "yuv422p", False, "h264", "yuv422p"),
        ("a.mp4", "yuv420p10le", False, "h265", "yuv420p10le"),
        ("a.mp4", "p010le", False, "h265", "yuv420p10le"),
        ("a.mkv", "yuv422p12le", False, "h265", "yuv422p10le"),
        ("a.webm", "yuv420p", False, "vp9", "yuv420p"),
        ("a.webm", "yuv420p10le", False, "av1", "yuv420p10le"),
        ("a.mov", "yuv420p", True, "prores", "yuva444p10le"),
        ("a.webm", "yuv420p", True, "vp9", "yuva420p"),
        ("a.webm", "yuv444p", True, "vp9", "yuva420p"),
        ("a.mkv", "yuv420p", True, "ffv1", "yuva420p"),
        ("a.mkv", "yuv422p10le", True, "ffv1", "yuva422p10le"),
        ("a.mkv", "yuv420p12le", True, "ffv1", "yuva444p12le"),
        ("frames", "yuv420p", True, "png", "rgba"),
        ("frames", "yuv420p10le", True, "png", "rgba64be"),
        ("f_%04d.png", "yuv420p", False, "png", "rgb24"),
        ("f.png", "yuv420p10le", False, "png", "rgb48be"),
    ],
)
def test_auto(name: str, source: str, alpha: bool, codec: str, pixel_format: str) -> None:
    chosen = choose_encoding(Path(name), source_format=PIXEL_FORMATS[source], with_alpha=alpha)
    assert (chosen.codec, chosen.pixel_format) == (codec, pixel_format)
    assert has_alpha(chosen.pixel_format) is alpha


@pytest.mark.parametrize(
    ("codec", "name", "source", "pixel_format"),
    [
        ("av1", "a.mp4", "yuv444p10le", "yuv420p10le"),
        ("prores", "a.mov", "yuv420p", "yuv422p10le"),
        ("prores", "a.mov", "yuv444p", "yuv444p10le"),
        ("ffv1", "a.mkv", "yuv420p12le", "yuv420p12le"),
        ("vp9", "a.mp4", "yuv422p", "yuv422p"),
        ("h264", "a.mp4", "yuv420p10le", "yuv420p10le"),
    ],
)
def test_named_codecs(codec: Any, name: str, source: str, pixel_format: str) -> None:
    chosen = choose_encoding(Path(name), codec=codec, source_format=PIXEL_FORMATS[source])
    assert chosen.pixel_format == pixel_format


def test_what_is_lost_is_noted() -> None:
    def notes(codec: Any, name: str, source: str) -> str:
        return " ".join(choose_encoding(Path(name), codec=codec, source_format=PIXEL_FORMATS[source]).notes)

    assert "4:2:0; the source has 4:4:4" in notes("av1", "a.mp4", "yuv444p")
    assert "10 of 12 bits" in notes("h265", "a.mp4", "yuv420p12le")
    assert "8 of 10 bits" in notes("vp9", "a.webm", "yuv420p10le")
    assert notes("h265", "a.mp4", "yuv420p10le") == ""
    assert notes("ffv1", "a.mkv", "yuv422p12le") == ""


@pytest.mark.parametrize(
    ("name", "codec", "pixel_format"),
    [
        ("m.mp4", "auto", "yuv420p"),
        ("m.mkv", "ffv1", "gray"),
        ("m", "auto", "gray"),
        ("m.mov", "prores", "yuv422p10le"),
    ],
)
def test_grey(name: str, codec: Any, pixel_format: str) -> None:
    chosen = choose_encoding(Path(name), codec=codec, source_format=PIXEL_FORMATS["yuv444p"], grey=True)
    if codec != "prores":
        assert chosen.pixel_format == pixel_format
    assert chosen.notes == ()


def test_ten_bit_grey() -> None:
    assert (
        choose_encoding(Path("m.mp4"), source_format=EIGHT, grey=True, bit_depth=10).pixel_format
        == "yuv420p10le"
    )
    assert choose_encoding(Path("m"), source_format=TEN, grey=True).pixel_format == "gray16be"


def test_bit_depth_overrides_the_source() -> None:
    assert choose_encoding(Path("a.mp4"), source_format=EIGHT, bit_depth=10).codec == "h265"
    assert choose_encoding(Path("a.mp4"), source_format=TEN, bit_depth=8).pixel_format == "yuv420p"


@pytest.mark.parametrize(
    ("name", "options", "error", "words"),
    [
        ("a.mp4", {"with_alpha": True}, OutputError, r"\.mp4 cannot carry alpha; use \.mov \(ProRes 4444\)"),
        ("a.mov", {"codec": "h264", "with_alpha": True}, OutputError, "h264 cannot carry alpha"),
        ("a.avi", {}, OutputError, r"'\.avi'; use \.mp4"),
        ("a.webm", {"codec": "h264"}, OutputError, r"it takes vp9, av1 \(h264 goes into \.mp4"),
        ("a.mp4", {"codec": "prores"}, OutputError, r"prores goes into \.mov, \.mkv"),
        ("frames", {"codec": "h265"}, OutputError, "a folder of pictures cannot carry h265"),
        ("a.mp4", {"codec": "vp9", "bit_depth": 10}, OutputError, "cannot store 10 bits"),
        ("a.mp4", {"codec": "divx"}, UsageError, "'divx'; known are auto, h264"),
        ("a.mp4", {"crf": 52}, UsageError, "0 to 51"),
        ("a.webm", {"crf": -1}, UsageError, "0 to 63"),
        ("a.mp4", {"preset": "warp"}, UsageError, "known are ultrafast"),
        ("a.mp4", {"codec": "av1", "preset": "slow"}, UsageError, "known are 0, 1"),
        ("a.mkv", {"codec": "ffv1", "crf": 20}, UsageError, "ffv1 has no CRF"),
        ("a.mov", {"codec": "prores", "preset": "slow"}, UsageError, "prores has no presets"),
        ("a.mp4", {"bit_depth": 9}, UsageError, "8, 10 or auto"),
    ],
)
def test_refusals_say_what_would_work(
    name: str, options: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words) as caught:
        choose_encoding(Path(name), source_format=EIGHT, **options)
    assert "\n" not in str(caught.value)


def test_a_build_without_the_encoder_says_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    real = encoding_module._pixel_formats
    monkeypatch.setattr(
        encoding_module, "_pixel_formats", lambda name: frozenset() if name == "libx265" else real(name)
    )
    with pytest.raises(OutputError, match=r"no libx265 encoder; it can write .*h264"):
        choose_encoding(Path("a.mp4"), codec="h265", source_format=EIGHT)


def test_unknown_encoders_have_no_formats() -> None:
    assert encoding_module._pixel_formats("no_such_encoder") == frozenset()


@pytest.mark.parametrize("codec", ["h264", "h265", "av1", "vp9"])
def test_slower_is_finer(codec: Any) -> None:
    path = Path("a.webm" if codec == "vp9" else "a.mp4")
    crfs = [
        int(choose_encoding(path, codec=codec, source_format=EIGHT, speed=speed).options["crf"])
        for speed in ("fast", "balanced", "quality")
    ]
    assert crfs == sorted(crfs, reverse=True)
    assert len(set(crfs)) == 3


def test_wishes_win_over_defaults() -> None:
    chosen = choose_encoding(Path("a.mp4"), source_format=EIGHT, crf=33, preset="slow", threads=3)
    assert (chosen.options["crf"], chosen.options["preset"], chosen.threads) == ("33", "slow", 3)
    assert (
        choose_encoding(Path("a.mp4"), codec="h265", source_format=EIGHT, threads=2).parameters["pools"]
        == "2"
    )
    assert choose_encoding(Path("a.mp4"), codec="av1", source_format=EIGHT, threads=2).parameters["lp"] == "2"


def test_crf_zero_is_a_wish() -> None:
    assert choose_encoding(Path("a.mp4"), source_format=EIGHT, crf=0).options["crf"] == "0"


@pytest.mark.parametrize(
    ("codec", "alpha"),
    [(codec, False) for codec in ("h264", "h265", "av1", "vp9", "prores", "ffv1", "png")]
    + [(codec, True) for codec in ("vp9", "prores", "ffv1", "png")],
)
@pytest.mark.parametrize("speed", ["fast", "balanced", "quality"])
def test_encoders_know_every_option_they_are_given(codec: Any, speed: Any, alpha: bool) -> None:
    homes = {"vp9": "a.webm", "prores": "a.mov", "ffv1": "a.mkv", "png": "frames"}
    path = Path(homes.get(codec, "a.mp4"))
    chosen = choose_encoding(path, codec=codec, source_format=EIGHT, speed=speed, with_alpha=alpha)
    context = av.CodecContext.create(chosen.encoder, "w")
    known = context.supported_options
    names = {option.name for option in (*known.generic, *known.private)}
    assert set(chosen.options) <= names


@pytest.mark.parametrize(
    ("size", "pixel_format"),
    [((96, 64), "yuv420p"), ((97, 64), "yuv444p"), ((96, 65), "yuv444p"), ((1, 1), "yuv444p")],
)
def test_odd_sizes_need_full_chroma_in_h264(size: tuple[int, int], pixel_format: str) -> None:
    chosen = choose_encoding(Path("a.mp4"), source_format=EIGHT).for_size(*size)
    assert chosen.pixel_format == pixel_format
    assert bool(chosen.notes) == (pixel_format == "yuv444p")


@pytest.mark.parametrize(
    ("codec", "size", "coded"),
    [
        ("h264", (97, 64), (98, 64)),
        ("h265", (96, 65), (96, 66)),
        ("h265", (97, 65), (98, 66)),
        ("vp9", (97, 65), (97, 65)),  # supports odd sizes in 4:2:0
        ("h264", (96, 64), (96, 64)),
    ],
)
def test_odd_sizes_stay_420_for_a_headset(codec: Any, size: tuple[int, int], coded: tuple[int, int]) -> None:
    path = Path("a.webm" if codec == "vp9" else "a.mp4")
    chosen = choose_encoding(path, codec=codec, source_format=EIGHT, is_even=True).for_size(*size)
    assert chosen.pixel_format == "yuv420p"
    assert chosen.coded_size(*size) == coded
    assert [f"written as {coded[0]}x{coded[1]}" in note for note in chosen.notes] == [True] * (coded != size)


@pytest.mark.parametrize(
    ("codec", "refused", "taken"),
    [
        ("h265", [(1, 1), (2, 2), (4, 4), (15, 64), (64, 8)], [(16, 16), (17, 33)]),
        ("av1", [(1, 1), (3, 3), (2, 64), (16, 65), (24, 480), (128, 18)], [(4, 4), (16, 64), (25, 65)]),
        ("h264", [], [(1, 1), (2, 3), (4, 4), (16, 480)]),
        ("vp9", [], [(1, 1), (2, 3), (4, 4), (16, 480)]),
        ("ffv1", [], [(1, 1), (1, 9), (2, 3), (3, 3), (4, 7), (15, 33), (16, 3), (17, 16), (200, 2)]),
        (
            "ffv1",
            [(1, 289)],
            [(1, 288), (353, 1), (352, 2), (900, 3), (900, 10), (2, 900), (3, 289), (15, 900)],
        ),
    ],
)
def test_a_small_size_is_written_or_refused_with_what_would_do(
    tmp_path: Path, codec: Any, refused: list[tuple[int, int]], taken: list[tuple[int, int]]
) -> None:
    path = tmp_path / "a.mkv"
    for size in refused:
        info = make_info(*size)
        with pytest.raises(
            OutputError, match=rf"in\.mp4: {codec} .* from \d+x\d+ on.*{size[0]}x{size[1]}: use h264"
        ):
            encode(path, info, encoding=choose_encoding(path, codec=codec, source_format=EIGHT))
    for size in taken:
        encoding = choose_encoding(path, codec=codec, source_format=EIGHT, speed="fast")
        encode(path, make_info(*size), encoding=encoding)
        assert {(frame.width, frame.height) for frame in decode(path)} == {size}


@pytest.mark.parametrize(
    ("codec", "refused", "taken"),
    [("h264", [(16386, 64), (64, 32816)], (16384, 16)), ("av1", [(16386, 64), (64, 8706)], (64, 8704))],
)
def test_a_large_size_is_taken_or_refused_with_what_would_do(
    tmp_path: Path, codec: Any, refused: list[tuple[int, int]], taken: tuple[int, int]
) -> None:
    path = tmp_path / "a.mkv"
    encoding = choose_encoding(path, codec=codec, source_format=EIGHT)
    for size in refused:
        with pytest.raises(OutputError, match=rf"in\.mp4: {codec} .* to .*{size[0]}x{size[1]}: use h265"):
            encode(path, make_info(*size), encoding=encoding)
    encode(path, make_info(*taken), encoding=encoding)


_NARROW = """
import sys
from pathlib import Path
from written_films import encode, make_info
from vitascope.frames import PIXEL_FORMATS
from vitascope.media.writing.encoding import choose_encoding

path, info = Path(sys.argv[1]), make_info(int(sys.argv[2]), int(sys.argv[3]), format_name="yuv420p10le")
encode(path, info, pts=range(24), encoding=choose_encoding(path, codec="h265", source_format=info.format))
"""


@pytest.mark.parametrize("size", [(36, 64), (48, 64), (46, 96)])
def test_a_narrow_video_of_ten_bits_does_not_end_the_process(tmp_path: Path, size: tuple[int, int]) -> None:
    """Check that x265, which wrote outside an array of its own, does not crash the process."""
    path = tmp_path / "a.mkv"
    run = subprocess.run(
        [sys.executable, "-c", _NARROW, str(path), *map(str, size)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert (run.returncode, run.stderr) == (0, "")
    assert len(list(decode(path))) == 24
    encoding = choose_encoding(path, codec="h265", source_format=TEN)
    assert encoding.for_size(*size).parameters["cutree"] == "0"
    eight = choose_encoding(path, codec="h265", source_format=EIGHT)
    for other in (encoding.for_size(64, 64), eight.for_size(*size)):
        assert "cutree" not in other.parameters


@pytest.mark.skipif(not hasattr(os, "sched_getscheduler"), reason="no scheduling policies here")
def test_av1_takes_no_real_time_priority(tmp_path: Path) -> None:
    """As root, SVT-AV1 takes real-time priority, which everything started later would inherit."""
    path, info = tmp_path / "a.mkv", make_info(64, 64)
    encoding = choose_encoding(path, codec="av1", source_format=EIGHT, speed="fast")
    tasks = Path("/proc/self/task")
    before = set(tasks.iterdir())
    with VideoWriter(path, info=info, encoding=encoding) as writer:
        writer.write(make_frame(info, 0, pts=0))
        its_own = set(tasks.iterdir()) - before
        assert len(its_own) > 4
        assert {os.sched_getscheduler(int(thread.name)) for thread in its_own} == {os.SCHED_OTHER}
    assert os.sched_getscheduler(0) == os.SCHED_OTHER


def test_odd_heights_are_fine_with_half_width_chroma() -> None:
    source = PIXEL_FORMATS["yuv422p"]
    chosen = choose_encoding(Path("a.mp4"), source_format=source)
    assert chosen.for_size(96, 65) is chosen
    assert chosen.for_size(97, 64).pixel_format == "yuv444p"


def test_odd_sizes_are_fine_elsewhere() -> None:
    for name, codec in (("a.webm", "vp9"), ("a.mkv", "ffv1"), ("a.mp4", "av1"), ("a.mov", "prores")):
        wanted: Any = codec
        chosen = choose_encoding(Path(name), codec=wanted, source_format=EIGHT)
        assert chosen.for_size(97, 65) is chosen
