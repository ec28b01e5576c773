"""Encoding and picture size of each output."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal, get_args

from vitascope.config import OutputKind, OutputSettings
from vitascope.config.compute import GpuSettings
from vitascope.config.home import engine_cache
from vitascope.errors import OutputError, UsageError
from vitascope.frames import PIXEL_FORMATS, StereoLayout, VideoInfo, YuvFormat
from vitascope.media.planes import layout_of
from vitascope.media.writing.encoding import Encoding, choose_encoding
from vitascope.media.writing.nvenc import Hardware
from vitascope.vr.packing import packed_size
from vitascope.vr.stereo import eye_regions

_EDITING_CODECS = frozenset({"prores", "ffv1", "png"})
_CODECS_WITH_ALPHA = frozenset({"auto", "prores", "vp9", "ffv1", "png"})
_CODECS_WITH_CRF = frozenset({"h264", "h265", "av1", "vp9"})
_MOST_NVENC_SESSIONS = 3
"""Concurrent sessions that GeForce drivers have allowed since 2020: 3, then 5 from 2023 and 8 from 2024 on."""
_CODECS_WITH_PRESET = frozenset({"h264", "h265", "av1", "vp9", "png"})


def check_kinds(kinds: Sequence[str], settings: OutputSettings) -> None:
    """Check that these kinds can be made with these settings; the settings' own kinds do not matter.

    Raises:
        UsageError: No kind is given, one is unknown, or ``replace`` has no background.
    """
    known = get_args(OutputKind)
    if not kinds:
        raise UsageError(f"no output kind given; choose from {', '.join(known)}")
    for kind in kinds:
        if kind not in known:
            raise UsageError(f"unknown kind of output {kind!r}; known are {', '.join(known)}")
    if "replace" in kinds and settings.background is None:
        raise UsageError("replace needs output.background, the path of an image or a video")


def hardware_for(gpu: GpuSettings, *, output_count: int) -> Hardware:
    """Choose the encoder for a run; ``auto`` only if the trial encoding covers everything that can fail.

    Args:
        gpu: The requested settings.
        output_count: Number of outputs that are written at the same time.
    """
    may_share = output_count <= _MOST_NVENC_SESSIONS and gpu.device_ids is None
    return gpu.allowed_encoder if may_share or gpu.encoder != "auto" else "cpu"


def encoding_for(
    path: Path,
    kind: OutputKind,
    *,
    info: VideoInfo,
    layout: StereoLayout,
    settings: OutputSettings,
    threads: int,
    alone: bool,
    hardware: Hardware = "cpu",
    parallel_encoders: Literal[1, "auto"] = 1,
    device_id: int = 0,
) -> Encoding:
    """Choose the encoding of one output.

    With several outputs, a codec without alpha does not apply to ``alpha``, and ``crf`` and ``preset`` apply only to
    codecs that have them. With a single output every setting applies, or is an error.

    Args:
        path: The output; its suffix chooses the container.
        kind: Kind of the output.
        info: The input.
        layout: Stereo layout of the input.
        settings: The requested settings; their ``kinds`` do not matter here.
        threads: Encoder threads; 0 uses all cores.
        alone: True for the only output of a run.
        hardware: Which encoder, see ``choose_encoding``. With ``auto``, HDR metadata is left to CPU encoders, which
            write it into the bitstream.
        parallel_encoders: ``auto`` if frames arrive faster than one CPU encoder accepts them.
        device_id: Index of the GPU that delivers the frames.

    Raises:
        UsageError: The settings contradict each other.
        OutputError: The container does not support the codec, or this FFmpeg build lacks it.
    """
    codec = settings.codec
    if kind == "alpha" and codec not in _CODECS_WITH_ALPHA and not alone:
        codec = "auto"
    if not path.suffix and codec not in ("auto", "png"):  # --player sets a codec, too
        raise OutputError(
            f"{path}: a folder of pictures cannot carry {codec}; {path}/, with a slash, is a folder of videos, and "
            f"{path}.mp4 a video"
        )

    if hardware == "auto" and kind != "mask" and info.has_hdr_side_data:
        hardware = "cpu"
    height, width = picture_size(kind, info, layout=layout, mask_max_width=settings.mask_max_width)
    for_headset = kind == "packed-alpha" or settings.player is not None

    def choose(crf: int | None, preset: str | None) -> Encoding:
        return choose_encoding(
            path,
            codec=codec,
            source_format=info.format
            if kind == "alpha"
            else coded_format(info, codec, for_headset=for_headset),
            crf=crf,
            preset=preset,
            bit_depth=settings.bit_depth,
            with_alpha=kind == "alpha",
            grey=kind == "mask",
            is_even=for_headset,
            speed=settings.speed,
            threads=threads,
            hardware=hardware,
            parallel_encoders=parallel_encoders,
            size=(width, height),
            cache_dir=engine_cache(),
            device_id=device_id,
        )

    if alone:
        return choose(settings.crf, settings.preset)
    name = choose(None, None).codec
    return choose(
        settings.crf if name in _CODECS_WITH_CRF else None,
        settings.preset if name in _CODECS_WITH_PRESET else None,
    )


def coded_format(info: VideoInfo, codec: str, *, for_headset: bool = False) -> YuvFormat:
    """Choose the pixel format for frames: their own, but 4:2:0 for RGB (pictures, GIFs, screen recordings).

    Phones, headsets and hardware decoders refuse 4:4:4. Editing codecs keep it.

    Args:
        info: The input.
        codec: The requested codec, or ``auto``.
        for_headset: True also converts 4:2:2, as cameras record it, to 4:2:0, the only format that headsets decode.
    """
    if codec in _EDITING_CODECS:
        return info.format
    if for_headset or info.container == "images" or layout_of(info.source_format).way == "rgb":
        depth = info.format.bit_depth
        return PIXEL_FORMATS["yuv420p" if depth == 8 else f"yuv420p{depth}le"]
    return info.format


def picture_size(
    kind: OutputKind, info: VideoInfo, *, layout: StereoLayout, mask_max_width: int | None
) -> tuple[int, int]:
    """Return (height, width) of an output's pictures.

    Args:
        kind: Kind of the output.
        info: The input.
        layout: Stereo layout of the input.
        mask_max_width: See ``mask_size``.
    """
    if kind == "packed-alpha":
        return packed_size(eye_regions(info.width, info.height, layout))
    smaller = mask_size(info, mask_max_width) if kind == "mask" else None
    return smaller or (info.height, info.width)


def mask_size(info: VideoInfo, max_width: int | None) -> tuple[int, int] | None:
    """(height, width) of masks: at most ``max_width`` wide, even for each eye; None for the frame's size.

    The width of a rotated video is the coded one.
    """
    if max_width is None or info.width <= max_width:
        return None
    width = max(max_width // 4 * 4, 4)
    height = max(min(round(info.height * width / info.width / 4), info.height // 4) * 4, 4)
    return height, width
