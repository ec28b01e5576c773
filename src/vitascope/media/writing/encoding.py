"""Chooses encoder, pixel format and options of an output.

``choose_encoding`` turns a path and a few options into an `Encoding`; combinations that cannot work raise an error
that suggests one that can.

Quality by speed, at 1080p. CRF scales differ between codecs; within a column, quality is about equal:

========  =======================  ======================  =====================  ==============================
codec     fast                     balanced                quality                CRF and preset scales
========  =======================  ======================  =====================  ==============================
h264      superfast, CRF 23        veryfast, CRF 20        medium, CRF 17         0..51, ultrafast..placebo
h265      ultrafast, CRF 25        superfast, CRF 22       medium, CRF 19         0..51, ultrafast..placebo
av1       10, CRF 35               8, CRF 30               6, CRF 24              1..63, 0 (slow)..13
vp9       8, CRF 34                5, CRF 30               2, CRF 24              0..63, 0 (slow)..8
prores    HQ (4444 with alpha)     HQ (4444 with alpha)    HQ (4444XQ with alpha)  none: fixed quality
ffv1      lossless                 lossless                lossless               none
png       zlib level 1             zlib level 3            zlib level 6           none, 0 (fast)..9
========  =======================  ======================  =====================  ==============================
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Literal, get_args

import av
from av.codec.codec import UnknownCodecError
from av.video.format import VideoFormat

from vitascope.device import available_cores, physical_memory_bytes
from vitascope.errors import OutputError, UsageError
from vitascope.frames import YuvFormat
from vitascope.media.writing.nvenc import NVENC_ENCODERS, Hardware, on_hardware
from vitascope.media.writing.parallel_encoder import encoders_for

__all__ = [
    "PRESETS",
    "X264_LOOKAHEAD_FRAMES",
    "CodecName",
    "Encoding",
    "Hardware",
    "Speed",
    "choose_encoding",
    "rate_options",
]


CodecName = Literal["h264", "h265", "av1", "prores", "vp9", "ffv1", "png"]
Speed = Literal["fast", "balanced", "quality"]

_X26X_PRESETS = (
    "ultrafast",
    "superfast",
    "veryfast",
    "faster",
    "fast",
    "medium",
    "slow",
    "slower",
    "veryslow",
    "placebo",
)
PRESETS: dict[CodecName, tuple[str, ...]] = {
    "h264": _X26X_PRESETS,
    "h265": _X26X_PRESETS,
    "av1": tuple(str(n) for n in range(14)),
    "vp9": tuple(str(n) for n in range(9)),
    "png": tuple(str(n) for n in range(10)),
}
_CRF_RANGES: dict[CodecName, tuple[int, int]] = {
    "h264": (0, 51),
    "h265": (0, 51),
    "av1": (1, 63),
    "vp9": (0, 63),
}
_DEFAULTS: dict[CodecName, dict[Speed, tuple[int | None, str]]] = {
    "h264": {"fast": (23, "superfast"), "balanced": (20, "veryfast"), "quality": (17, "medium")},
    "h265": {"fast": (25, "ultrafast"), "balanced": (22, "superfast"), "quality": (19, "medium")},
    "av1": {"fast": (35, "10"), "balanced": (30, "8"), "quality": (24, "6")},
    "vp9": {"fast": (34, "8"), "balanced": (30, "5"), "quality": (24, "2")},
    "png": {"fast": (None, "1"), "balanced": (None, "3"), "quality": (None, "6")},
}


def rate_options(
    codec: CodecName, crf: int | None, preset: str | None, speed: Speed, *, pixel_format: str
) -> tuple[dict[str, str], dict[str, str]]:
    """Encoder options and entries of the encoder's parameter list.

    Args:
        codec: The codec.
        crf: Constant rate factor on the codec's own scale; None takes the default of ``speed``.
        preset: The encoder's preset; None takes the default of ``speed``.
        speed: Column of the table above.
        pixel_format: FFmpeg's format of the encoder's input.

    Raises:
        UsageError: The codec does not have this preset or CRF.
    """
    if crf is not None and codec not in _CRF_RANGES:
        raise UsageError(f"{codec} has no CRF; leave it out or choose one of {', '.join(_CRF_RANGES)}")
    if preset is not None and codec not in PRESETS:
        raise UsageError(f"{codec} has no presets; leave it out or choose one of {', '.join(PRESETS)}")
    default_crf, default_preset = _DEFAULTS[codec][speed] if codec in _DEFAULTS else (None, "")
    crf = default_crf if crf is None else crf
    preset = default_preset if preset is None else preset
    if crf is not None and not _CRF_RANGES[codec][0] <= crf <= _CRF_RANGES[codec][1]:
        raise UsageError(
            f"CRF {crf} for {codec}; expected a value from {_CRF_RANGES[codec][0]} to {_CRF_RANGES[codec][1]}"
        )
    if preset and preset not in PRESETS[codec]:
        raise UsageError(f"preset {preset!r} for {codec}; known are {', '.join(PRESETS[codec])}")
    match codec:
        case "h264" | "av1":
            return {"crf": str(crf), "preset": preset}, {}
        case "h265":
            return {"crf": str(crf), "preset": preset}, {"log-level": "none"}
        case "vp9":
            # b=0 makes it constant quality; auto-alt-ref adds hidden frames that VP9's alpha stream cannot mirror.
            alpha = {"auto-alt-ref": "0"} if pixel_format.startswith("yuva") else {}
            return {
                "crf": str(crf),
                "b": "0",
                "deadline": "good",
                "cpu-used": preset,
                "row-mt": "1",
            } | alpha, {}
        case "prores":
            if "444" not in pixel_format:
                return {"profile": "hq", "vendor": "apl0"}, {}
            profile = "4444xq" if speed == "quality" else "4444"
            return {"profile": profile, "vendor": "apl0", "alpha_bits": "16"}, {}
        case "ffv1":
            return {"level": "3", "slicecrc": "1", "g": "1"}, {}
        case "png":
            return {"compression_level": preset, "pred": "mixed"}, {}


_ENCODERS: dict[CodecName, str] = {
    "h264": "libx264",
    "h265": "libx265",
    "av1": "libsvtav1",
    "prores": "prores_ks",
    "vp9": "libvpx-vp9",
    "ffv1": "ffv1",
    "png": "png",
}
_MUXERS = {".mp4": "mp4", ".m4v": "mp4", ".mov": "mov", ".mkv": "matroska", ".webm": "webm", ".png": "image2"}
_CODECS_OF_MUXER: dict[str, tuple[CodecName, ...]] = {
    "mp4": ("h264", "h265", "av1", "vp9"),
    "mov": ("h264", "h265", "prores"),
    "matroska": ("h264", "h265", "av1", "vp9", "prores", "ffv1"),
    "webm": ("vp9", "av1"),
    "image2": ("png",),
}
_ALPHA_OF_MUXER: dict[str, tuple[CodecName, ...]] = {
    "mov": ("prores",),
    "matroska": ("ffv1", "vp9", "prores"),
    "webm": ("vp9",),
    "image2": ("png",),
}
_SIZE_OF_ONE_SLICE = (352, 288)
"""Largest width and height that FFmpeg's FFV1 encoder keeps in one slice; in larger pictures of a few rows or columns,
subsampled chroma has too few samples for several."""
_ALPHA_ADVICE = "use .mov (ProRes 4444), .webm (VP9), .mkv (FFV1), or a folder of .png"
_SUFFIX_ADVICE = ".mp4, .mov, .mkv, .webm, or a folder (or a name such as frame_%06d.png) for PNG pictures"

X264_LOOKAHEAD_FRAMES = {
    "faster": 20,
    "fast": 30,
    "medium": 40,
    "slow": 50,
    "slower": 60,
    "veryslow": 60,
    "placebo": 60,
}
"""Presets whose lookahead is longer than the shortest chunk (``x264 --fullhelp``, presets)."""
_EVEN_SIZE_ENCODERS = frozenset({"libx264", "libx265", *NVENC_ENCODERS.values()})
"""Encoders that refuse 4:2:0 pictures of odd width or height; H.264 and H.265 cannot crop a single luma row there."""


@dataclass(frozen=True, slots=True)
class Encoding:
    """An encoder, its pixel format and its options. Hardware encoders have other names and formats."""

    codec: CodecName
    encoder: str
    """FFmpeg's name of the encoder, such as ``libx264``."""
    pixel_format: str
    """FFmpeg's format of the encoder's input."""
    muxer: str
    """FFmpeg's muxer: ``mp4``, ``mov``, ``matroska``, ``webm``, or ``image2`` for numbered pictures."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Encoder options."""
    parameters: Mapping[str, str] = field(default_factory=dict)
    """Entries of the encoder's own parameter list (``x264-params``, ``x265-params``, ``svtav1-params``)."""
    threads: int = 0
    """Encoder threads of all encoders together; 0 uses all cores."""
    parallel_encoders: int = 1
    """Number of encoders that work on closed chunks of the video at the same time; see ``parallel_encoder``."""
    is_even: bool = False
    """True to make odd widths and heights even, by repeating the last column or row, to keep 4:2:0."""
    notes: tuple[str, ...] = ()
    """Losses that come with the choice, one line each, for the summary."""

    @property
    def bit_depth(self) -> int:
        """Bits of a sample."""
        return max(component.bits for component in VideoFormat(self.pixel_format).components)

    @property
    def is_nvenc(self) -> bool:
        """True for the GPU's encoder."""
        return self.encoder in NVENC_ENCODERS.values()

    def for_size(self, width: int, height: int) -> Encoding:
        """The same encoding, adapted to a picture size.

        Encoders that refuse odd sizes in 4:2:0 and 4:2:2 get 4:4:4 instead, so that a picture of 97x65 stays 97x65;
        with ``is_even``, they get a larger picture, see ``coded_size``.

        Raises:
            OutputError: The encoder does not support the size in any format.
        """
        shorter, longer = sorted((width, height))
        takes, instead = None, "h264, vp9 or ffv1"
        if self.encoder == "libx265" and shorter < 16:
            takes = "16x16 on"
        elif self.encoder == "libsvtav1" and (shorter < 4 or (shorter <= 24 and longer > 64)):
            takes = "4x4 on, and from 25x25 on where a side is longer than 64"  # SVT-AV1 4.1 hangs below that
        elif self.encoder == "libsvtav1" and (width > 16384 or height > 8704):
            takes, instead = "4x4 to 16384x8704", "h265, vp9 or ffv1"
        elif self.encoder == "libx264" and longer > 16384:
            takes, instead = "1x1 to 16384x16384", "h265, vp9 or ffv1"
        elif self.encoder == "ffv1" and width < 2 and height > _SIZE_OF_ONE_SLICE[1]:
            takes, instead = "2x1 on where they are higher than 288", "h264 or vp9"
        if takes is not None:
            raise OutputError(
                f"{self.codec} takes pictures from {takes}; this one has {width}x{height}: use {instead}"
            )
        if self.encoder == "ffv1" and shorter < 16:  # its usual slices would be too small
            if width <= _SIZE_OF_ONE_SLICE[0] and height <= _SIZE_OF_ONE_SLICE[1]:
                return replace(self, options={**self.options, "slices": "1"})
            return replace(self, pixel_format=self.pixel_format.replace("420", "444").replace("422", "444"))
        fit = self
        if self.encoder == "libx265" and width < 64 and self.bit_depth > 8:
            # At widths of 33 to 48, x265 4.2's AVX2 code for it writes beyond an array, and the process may crash.
            fit = replace(self, parameters={**self.parameters, "cutree": "0"})
        chosen = VideoFormat(self.pixel_format, 64, 64)
        odd = (width % 2 and chosen.chroma_width() < 64) or (height % 2 and chosen.chroma_height() < 64)
        if not odd or self.encoder not in _EVEN_SIZE_ENCODERS:
            return fit
        if (coded := self.coded_size(width, height)) != (width, height):
            note = (
                f"{width}x{height} is an odd size, which headsets cannot decode; written as {coded[0]}x{coded[1]}, "
                f"the last {_added(width, height)} repeated"
            )
            return replace(fit, notes=(*self.notes, note))
        pixel_format = (
            self.pixel_format.replace("nv12", "yuv420p").replace("420", "444").replace("422", "444")
        )
        if self.is_nvenc or pixel_format not in _pixel_formats(self.encoder):
            raise OutputError(
                f"{self.encoder} cannot store odd sizes such as {width}x{height}; use vp9 or ffv1"
            )
        note = f"{width}x{height} is an odd size, which {self.codec} takes only as 4:4:4; some players cannot show that"
        return replace(fit, pixel_format=pixel_format, notes=(*self.notes, note))

    def coded_size(self, width: int, height: int) -> tuple[int, int]:
        """(width, height) of the encoded pictures, for pictures of this size."""
        if not self.is_even or self.is_nvenc or self.encoder not in _EVEN_SIZE_ENCODERS:
            return width, height
        return width + width % 2, height + height % 2


def _added(width: int, height: int) -> str:
    """What is added to make an odd picture even."""
    return " and ".join(name for name, side in (("column", width), ("row", height)) if side % 2)


def choose_encoding(
    out_path: Path,
    *,
    codec: Literal["auto"] | CodecName = "auto",
    source_format: YuvFormat,
    crf: int | None = None,
    preset: str | None = None,
    bit_depth: Literal["auto", 8, 10] = "auto",
    with_alpha: bool = False,
    grey: bool = False,
    is_even: bool = False,
    speed: Speed = "balanced",
    threads: int = 0,
    hardware: Hardware = "cpu",
    parallel_encoders: int | Literal["auto"] = 1,
    size: tuple[int, int] | None = None,
    cache_dir: Path | None = None,
    device_id: int = 0,
) -> Encoding:
    """Choose encoder, pixel format and options for an output.

    ``codec="auto"`` depends on the suffix: H.264 for 8 bits and H.265 for more in .mp4, .mov and .mkv; VP9 for 8 bits
    and AV1 for more in .webm; with alpha ProRes 4444 in .mov, VP9 in .webm, FFV1 in .mkv; PNG for a folder or .png.
    The source's chroma resolution is kept if the codec supports it.

    Args:
        out_path: The output; its suffix sets the container. No suffix means a folder of pictures.
        codec: A codec, or ``auto``.
        source_format: Layout of the frames to write.
        crf: Constant rate factor on the codec's own scale; None takes the default of ``speed``.
        preset: The encoder's preset; None takes the default of ``speed``.
        bit_depth: Bits per sample; ``auto`` keeps the source's as far as the codec allows.
        with_alpha: True if every frame comes with an alpha plane.
        grey: True if only luma matters (masks); lossless codecs then store no chroma.
        is_even: See ``Encoding``; for players that only decode 4:2:0.
        speed: Column of the table above.
        threads: Encoder threads of all encoders together; 0 uses all cores.
        hardware: ``nvenc`` for the GPU's encoder (H.264, H.265, AV1; 4:2:0 without alpha), ``cpu``, or ``auto``: the
            GPU's if it supports the pictures and has passed a trial here. CRF and preset are translated from the
            CPU's scales.
        parallel_encoders: Number of encoders that work on chunks of the video at the same time, to keep many cores
            busy with small or simple pictures (H.264 on the CPU only). ``auto`` uses one for every four threads, or
            every two for large pictures, if memory allows.
        size: (width, height) of the pictures, if known.
        cache_dir: Folder where verdicts on the GPU's encoder are kept; None tests it in each process.
        device_id: Index of the GPU that delivers the frames.

    Raises:
        UsageError: The options contradict each other or are out of range.
        OutputError: The suffix is unknown, the container or this FFmpeg build does not support the codec, or NVENC is
            requested but not available.
    """
    muxer = _muxer_of(out_path)
    if codec != "auto" and codec not in get_args(CodecName):
        raise UsageError(f"unknown codec {codec!r}; known are auto, {', '.join(get_args(CodecName))}")
    if bit_depth not in ("auto", 8, 10):
        raise UsageError(f"bit depth {bit_depth!r}; it is 8, 10 or auto")
    wanted_depth = source_format.bit_depth if bit_depth == "auto" else bit_depth
    name = _auto_codec(muxer, wanted_depth, with_alpha) if codec == "auto" else codec
    _check_container(out_path, muxer, name, with_alpha)
    encoder = _ENCODERS[name]
    _check_available(name, encoder)
    pixel_format, notes = _pixel_format(name, source_format, wanted_depth, with_alpha=with_alpha, grey=grey)
    if VideoFormat(pixel_format).components[0].bits < wanted_depth:
        if bit_depth != "auto":
            raise OutputError(
                f"{out_path}: {name} cannot store {bit_depth} bits; use h265, av1, prores or ffv1"
            )
        notes = (
            *notes,
            f"{name} stores {VideoFormat(pixel_format).components[0].bits} of {wanted_depth} bits",
        )
    options, parameters = rate_options(name, crf, preset, speed, pixel_format=pixel_format)
    count = _parallel_encoders(
        name, parallel_encoders, threads, size=size or (1920, 1080), preset=options.get("preset", "")
    )
    if threads and encoder == "libx265":
        parameters["pools"] = str(threads)
    elif threads and encoder == "libsvtav1":
        parameters["lp"] = str(threads)
    encoding = Encoding(
        codec=name,
        encoder=encoder,
        pixel_format=pixel_format,
        muxer=muxer,
        options=MappingProxyType(options),
        parameters=MappingProxyType(parameters),
        threads=threads,
        parallel_encoders=count,
        is_even=is_even,
        notes=notes,
    )
    presets = PRESETS.get(name, ())
    place = presets.index(options["preset"]) if options.get("preset") in presets else 0
    if name == "av1":  # SVT-AV1's presets start with the slowest
        place = len(presets) - 1 - place
    return on_hardware(
        encoding,
        hardware,
        preset_index=place,
        preset_count=len(presets),
        size=size,
        changes_depth=not grey and encoding.bit_depth != source_format.bit_depth,
        cache_dir=cache_dir,
        device_id=device_id,
    )


def available_codecs() -> list[str]:
    """The codecs that this FFmpeg build can write."""
    return [name for name, encoder in _ENCODERS.items() if _pixel_formats(encoder)]


def _parallel_encoders(
    codec: CodecName, wish: int | Literal["auto"], threads: int, *, size: tuple[int, int], preset: str
) -> int:
    if wish == "auto":
        if codec != "h264":
            return 1
        return encoders_for(
            size[0] * size[1] * 3 // 2,
            threads=threads or available_cores(),
            lookahead_frames=X264_LOOKAHEAD_FRAMES.get(preset, 0),
            memory_bytes=physical_memory_bytes(),
        )
    if wish < 1:
        raise UsageError(f"parallel_encoders={wish}; it must be 1 or more, or auto")
    if wish > 1 and codec != "h264":
        raise UsageError(f"{codec} cannot be written by several encoders, only h264 can")
    return wish


def _muxer_of(path: Path) -> str:
    suffix = path.suffix.lower()
    if not suffix or path.is_dir():
        return "image2"
    if suffix not in _MUXERS:
        raise OutputError(f"{path}: do not know how to write {suffix!r}; use {_SUFFIX_ADVICE}")
    return _MUXERS[suffix]


def _auto_codec(muxer: str, depth: int, with_alpha: bool) -> CodecName:
    if with_alpha and muxer in _ALPHA_OF_MUXER:
        return _ALPHA_OF_MUXER[muxer][0]
    if muxer == "image2":
        return "png"
    if muxer == "webm":
        return "vp9" if depth == 8 else "av1"
    return "h264" if depth == 8 else "h265"


def _check_container(path: Path, muxer: str, codec: CodecName, with_alpha: bool) -> None:
    if with_alpha and codec not in _ALPHA_OF_MUXER.get(muxer, ()):
        what = codec if muxer in _ALPHA_OF_MUXER else path.suffix
        raise OutputError(f"{path}: {what} cannot carry alpha; {_ALPHA_ADVICE}")
    if codec not in _CODECS_OF_MUXER[muxer]:
        takes = ", ".join(_CODECS_OF_MUXER[muxer])
        homes = ", ".join(suffix for suffix, name in _MUXERS.items() if codec in _CODECS_OF_MUXER[name])
        where = path.suffix or "a folder of pictures"
        raise OutputError(
            f"{path}: {where} cannot carry {codec}; it takes {takes} ({codec} goes into {homes})"
        )


def _check_available(codec: CodecName, encoder: str) -> None:
    if not _pixel_formats(encoder):
        others = ", ".join(available_codecs())
        raise OutputError(f"{codec}: this FFmpeg build has no {encoder} encoder; it can write {others}")


@lru_cache(maxsize=32)
def _pixel_formats(encoder: str) -> frozenset[str]:
    """The formats that an encoder of this FFmpeg build accepts; empty if the build lacks it."""
    try:
        return frozenset(fmt.name for fmt in av.Codec(encoder, "w").video_formats or ())
    except UnknownCodecError:
        return frozenset()


def _pixel_format(
    codec: CodecName, source: YuvFormat, depth: int, *, with_alpha: bool, grey: bool
) -> tuple[str, tuple[str, ...]]:
    """The encoder's pixel format nearest to the source's, and notes on what is lost."""
    if codec == "png":
        deep = depth > 8
        if with_alpha:
            return ("rgba64be" if deep else "rgba"), ()
        if grey:
            return ("gray16be" if deep else "gray"), ()
        return ("rgb48be" if deep else "rgb24"), ()
    if codec == "ffv1" and grey and not with_alpha:
        return ("gray" if depth == 8 else f"gray{depth}le"), ()
    chroma = {(1, 1): "420", (1, 0): "422", (0, 0): "444"}[source.chroma_shift_x, source.chroma_shift_y]
    if codec == "prores":
        if with_alpha:
            return "yuva444p10le", ()
        return ("yuv444p10le" if chroma == "444" else "yuv422p10le"), ()
    if grey:
        # 4:0:0 exists in these codecs, but hardware decoders and most players refuse it.
        chroma = "420"
    letter = "yuva" if with_alpha else "yuv"
    known = _pixel_formats(_ENCODERS[codec])
    wanted_chroma = "420" if codec == "vp9" and with_alpha else chroma
    # FFV1 is lossless, so it gets more chroma rather than fewer bits. Players support at most 10 bits of the others,
    # and for AV1 only 4:2:0.
    second_choice = "444" if codec == "ffv1" else "420"
    depths = {depth, min(depth, 10), 8} if codec == "ffv1" else {min(depth, 10), 8}
    for bits in sorted(depths, reverse=True):
        for candidate in dict.fromkeys((wanted_chroma, second_choice)):
            name = f"{letter}{candidate}p" + ("" if bits == 8 else f"{bits}le")
            if name in known:
                if codec == "h264" and name == "yuv420p" and source.name == "nv12":
                    name = "nv12"  # x264's internal format, so chroma need not be split
                poorer = chroma != "420" and candidate == "420"
                note = f"{codec} stores chroma as 4:2:0; the source has 4:{chroma[1]}:{chroma[2]}"
                return name, (note,) if poorer else ()
    raise OutputError(f"{codec}: this FFmpeg build's encoder has no suitable {letter} pixel format")
