"""The GPU's video encoder: whether it works here, and what it is told.

Written from FFmpeg's and NVIDIA's documentation and checked against a stand-in: the machines that this code was
developed on have no NVENC, so it has never run on hardware.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, cast

import av
import numpy as np
from av.codec.codec import UnknownCodecError

from vitascope.errors import OutputError
from vitascope.media.av_errors import describe_av_error, silence_libav

if TYPE_CHECKING:
    from av.video.codeccontext import VideoCodecContext

    from vitascope.media.writing.encoding import Encoding

__all__ = ["NVENC_ENCODERS", "Hardware", "on_hardware", "why_nvenc_fails"]

Hardware = Literal["cpu", "nvenc", "auto"]

NVENC_ENCODERS: Mapping[str, str] = MappingProxyType(
    {"h264": "h264_nvenc", "h265": "hevc_nvenc", "av1": "av1_nvenc"}
)
"""Codec to FFmpeg's encoder."""
_PIXEL_FORMATS = {
    ("h264", "yuv420p"): "nv12",
    ("h265", "yuv420p"): "nv12",
    ("h265", "yuv420p10le"): "p010le",
    ("av1", "yuv420p"): "nv12",
    ("av1", "yuv420p10le"): "p010le",
}
"""Codec and the CPU encoder's pixel format to NVENC's; what is missing here NVENC does not take on every GPU."""
_PRESET_COUNT = 7
"""p1 is the fastest, p7 the best."""
_CQ_MAX = 51
_CRF_MAX = {"h264": 51, "h265": 51, "av1": 63}
_TRIAL_SIZE = 256
"""Width and height of the trial picture; all generations take it for every codec."""


def on_hardware(encoding: Encoding, hardware: Hardware, *, preset_index: int, preset_count: int) -> Encoding:
    """Move an encoding to the GPU's encoder, if that is wished for and possible.

    Args:
        encoding: The CPU's.
        hardware: ``cpu`` leaves it alone; ``auto`` too, where NVENC cannot take it.
        preset_index: Place of the CPU's preset among its presets, 0 the fastest.
        preset_count: How many there are.

    Raises:
        OutputError: ``nvenc`` is asked for and cannot be had; the message says what is missing.
    """
    if hardware == "cpu":
        return encoding
    codec = encoding.codec
    encoder, pixel_format = (
        NVENC_ENCODERS.get(codec),
        _PIXEL_FORMATS.get((codec, encoding.pixel_format.replace("nv12", "yuv420p"))),
    )
    if encoder is None:
        reason: str | None = f"it writes {', '.join(NVENC_ENCODERS)}, not {codec}"
    elif pixel_format is None:
        reason = f"it takes no {encoding.pixel_format} for {codec}"
    else:
        reason = why_nvenc_fails(encoder)
    if reason is not None or encoder is None or pixel_format is None:
        if hardware == "nvenc":
            raise OutputError(f"NVENC was asked for, and cannot be used: {reason}; leave it to the CPU")
        return encoding
    crf = float(encoding.options["crf"])
    step = round(preset_index * (_PRESET_COUNT - 1) / max(preset_count - 1, 1))
    options = {
        "rc": "vbr",
        "cq": str(max(round(crf * _CQ_MAX / _CRF_MAX[codec]), 1)),  # 0 would mean automatic
        "preset": f"p{1 + step}",
        "tune": "hq",
    }
    return replace(
        encoding,
        encoder=encoder,
        pixel_format=pixel_format,
        options=MappingProxyType(options),
        parameters=MappingProxyType({}),
        parallel_encoders=1,
    )


@lru_cache(maxsize=8)
def why_nvenc_fails(encoder: str) -> str | None:
    """Encode one grey picture; asked once in a process.

    Args:
        encoder: One of ``NVENC_ENCODERS``' values.

    Returns:
        What is missing; None when it works.
    """
    silence_libav()
    try:
        context = cast("VideoCodecContext", av.CodecContext.create(encoder, "w"))
    except UnknownCodecError:
        return f"this FFmpeg build has no {encoder}"
    grey = np.full((_TRIAL_SIZE * 3 // 2, _TRIAL_SIZE), 128, np.uint8)
    try:
        context.width = context.height = _TRIAL_SIZE
        context.pix_fmt, context.time_base, context.framerate = "nv12", Fraction(1, 25), Fraction(25)
        picture = av.VideoFrame.from_ndarray(grey, format="nv12")
        picture.pts, picture.time_base = 0, Fraction(1, 25)
        packets = [*context.encode(picture), *context.encode(None)]
    except (av.FFmpegError, OSError, ValueError) as error:
        return (
            f"{encoder} does not start on this machine ({describe_av_error(error)}): "
            "it has no GPU with NVENC, or its driver is too old"
        )
    return None if packets else f"{encoder} gave no packet for a trial picture"
