"""Tests NVENC: encodes pictures and compares them with the decoded ones. ``nvenc`` runs this in its own process.

A driver may damage pictures without an error. So moving pictures are written like every output, by ``VideoWriter``,
from host memory and, if frames may be on the GPU, from GPU memory. They are then read with FFmpeg's CPU decoder, and
their number, times and planes are compared.

Usage: ``python -m vitascope.media.writing.nvenc_trial JSON``, with ``examine``'s arguments; prints
``{"passed": …, "reason": …, "lasts": …}``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import av
import numpy as np
import numpy.typing as npt

from vitascope.device import select_device
from vitascope.errors import VitascopeError, one_line
from vitascope.frames import PIXEL_FORMATS, ColorSpec, Frame, VideoInfo
from vitascope.gpu.engines.selection import Verdict
from vitascope.media.libav import describe_av_error
from vitascope.media.reading.reader import open_video
from vitascope.media.writing.encoding import CodecName, Encoding
from vitascope.media.writing.writer import VideoWriter

_WIDTH, _HEIGHT = 320, 180
"""Supported by all generations for every codec; the height is not a whole number of blocks, so it must be cropped."""
_TIMES = (0, 1, 2, 4, 5, 8, 9, 10, 11, 15, 16, 17)
"""Times in ticks: a variable frame rate."""
_TIME_BASE = Fraction(1, 25)
_LEAST_PSNR = 30.0
"""Minimum PSNR of each plane, in dB. x264 ``veryfast`` reaches 37 at this quality; neighbouring pictures differ by 14
or 15, so that a swapped one is noticed."""
_COLOR = ColorSpec(matrix="bt709", primaries=1, transfer=1, matrix_code=1)

Planar = tuple[npt.NDArray[np.uint16], ...]
"""Planes of luma, blue and red difference, in codes of the format's depth."""


def examine(
    codec: str, encoder: str, pixel_format: str, options: Mapping[str, str], device_id: int
) -> Verdict:
    """Write pictures with an encoder, read and compare them.

    Args:
        codec: One of ``CodecName``.
        encoder: FFmpeg's name of the encoder.
        pixel_format: ``nv12`` or ``p010le``.
        options: Options of the encoder.
        device_id: Index of the GPU for the second half of the trial, if frames can be there.

    Raises:
        VitascopeError: The encoder failed.
    """
    encoding = Encoding(cast("CodecName", codec), encoder, pixel_format, "mp4", options=options)
    places = [False]
    if encoding.is_nvenc and select_device("auto", index=device_id).kind == "cuda":
        places.append(True)
    pictures = [_picture(number, bits=encoding.bit_depth) for number in range(len(_TIMES))]
    worst = float("inf")
    for on_gpu in places:
        read = _written_and_read(pictures, encoding, device_id=device_id if on_gpu else None)
        origin = " from the GPU's memory" if on_gpu else ""
        if len(read) != len(pictures):
            return Verdict(False, f"gives {len(read)} pictures for {len(pictures)}{origin}")
        times = [round(frame.pts * frame.time_base / _TIME_BASE, 3) for frame in read]
        if times != list(_TIMES):
            return Verdict(False, f"moves pictures{origin} in time")
        for number, (frame, expected) in enumerate(zip(read, pictures, strict=True)):
            found = min(map(_psnr, frame.planes, expected, [encoding.bit_depth] * 3))
            if found < _LEAST_PSNR:
                reason = (
                    f"number {number}{origin} has a PSNR of {found:.0f} dB, {_LEAST_PSNR:.0f} are required"
                )
                return Verdict(False, f"damages pictures: {reason}")
            worst = min(worst, found)
    return Verdict(True, f"gave {len(pictures)} pictures back with a PSNR of {worst:.0f} dB")


def _written_and_read(pictures: list[Planar], encoding: Encoding, *, device_id: int | None) -> list[Frame]:
    fmt = PIXEL_FORMATS[encoding.pixel_format]
    with TemporaryDirectory(prefix="vitascope-", ignore_cleanup_errors=True) as folder:
        path = Path(folder) / "trial.mp4"
        info = VideoInfo(
            path=path,
            width=_WIDTH,
            height=_HEIGHT,
            format=fmt,
            source_format=fmt.name,
            color=_COLOR,
            time_base=_TIME_BASE,
            average_frame_rate=1 / _TIME_BASE,
            frame_count_estimate=len(pictures),
        )
        with VideoWriter(path, info=info, encoding=encoding, spherical=None, hdr=None) as writer:
            for number, (luma, blue, red) in enumerate(pictures):
                planes: tuple[Any, ...] = (luma, np.stack([blue, red], axis=2))
                planes = tuple((plane << fmt.sample_shift).astype(fmt.dtype) for plane in planes)
                frame = Frame(planes, fmt, _COLOR, number, _TIMES[number], _TIME_BASE)
                writer.write(frame if device_id is None else _on_gpu(frame, device_id))
        with open_video(path) as reader:
            # The reader's planes are views onto its memory.
            return [replace(frame, planes=tuple(map(np.copy, frame.planes))) for frame in reader]


def _on_gpu(frame: Frame, device_id: int) -> Frame:
    """Copy a frame to the GPU; only the encoder keeps its memory, so that reuse before it is done would show."""
    import cupy

    with cupy.cuda.Device(device_id):
        return frame.with_planes(tuple(cupy.asarray(plane) for plane in frame.planes))


def _picture(number: int, *, bits: int) -> Planar:
    """A picture of moving waves, in codes of ``bits`` bits."""
    y, x = np.mgrid[:_HEIGHT, :_WIDTH]
    shift = number / 5

    def codes(wave: npt.NDArray[np.float64]) -> npt.NDArray[np.uint16]:
        return np.rint((128 + 90 * wave) * (1 << bits - 8)).astype(np.uint16)

    luma = codes(0.5 * np.sin(x / 17 + 6 * shift) + 0.5 * np.sin(y / 13 - 5 * shift))
    blue, red = (np.sin((x + sign * y)[::2, ::2] / 31 + sign * 4 * shift) for sign in (1, -1))
    return luma, codes(blue), codes(red)


def _psnr(found: npt.NDArray[Any], expected: npt.NDArray[Any], bits: int) -> float:
    """Peak signal-to-noise ratio in dB; 0 for a plane of another shape."""
    if found.shape != expected.shape:
        return 0.0
    error = np.square(found.astype(np.float64) - expected).mean()
    return float(10 * np.log10(((1 << bits) - 1) ** 2 / max(error, 1e-9)))


def main() -> None:
    """Print the verdict for the command-line arguments."""
    lasts = True
    try:
        verdict = examine(**json.loads(sys.argv[1]))
    except VitascopeError as error:
        cause = error.__cause__
        # The driver's error if other programs use all sessions or the memory: it does not last.
        lasts = not isinstance(cause, av.error.MemoryError)
        said = one_line(error)
        if isinstance(cause, av.FFmpegError):
            said = f"{describe_av_error(cause)}: the GPU has no NVENC for it, or the driver is too old"
        verdict = Verdict(False, f"does not work on this machine ({said})")
    answer = {"passed": verdict.passed, "reason": verdict.reason, "lasts": lasts}
    sys.stdout.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
