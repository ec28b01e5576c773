"""Reads image files as a video: one image, a folder, a printf pattern or a glob, in natural order."""

from __future__ import annotations

import glob
import re
import struct
from collections.abc import Callable, Iterator
from fractions import Fraction
from math import isqrt
from pathlib import Path
from typing import cast

import av
import numpy as np
import numpy.typing as npt

from vitascope.errors import InputError
from vitascope.media.libav import silence_libav, wrap_input_error
from vitascope.media.metadata.icc import picture_primaries
from vitascope.media.planes import RGB_COLOR
from vitascope.media.reading.container import STILL_BRANDS, open_container
from vitascope.media.reading.damage import DamageCounter
from vitascope.media.reading.source import SourceFacts

IMAGE_SUFFIXES = frozenset(
    {
        ".avif", ".bmp", ".dpx", ".exr", ".heic", ".heif", ".jp2", ".jpeg", ".jpg", ".pbm", ".pgm", ".png", ".pnm",
        ".ppm", ".tga", ".tif", ".tiff", ".webp",
    }
)  # fmt: skip
"""Suffixes, in lower case, of files that can belong to an image sequence."""

_PRINTF_NUMBER = re.compile(r"%(0?\d*)d")


def natural_key(name: str) -> tuple[tuple[int, int, str], ...]:
    """Sort key that puts ``img2`` before ``img10``: digits compare as numbers, the rest without case.

    Args:
        name: A file name or a path.
    """
    parts = re.split(r"(\d+)", name)
    keys = ((0, int(part), "") if part.isdecimal() else (1, 0, part.casefold()) for part in parts if part)
    # The name itself comes last, so that "a1" and "A01" have a fixed order.
    return (*keys, (2, 0, name))


def find_images(source: Path) -> list[Path] | None:
    """Resolve an image source to its files, in natural order.

    Args:
        source: An existing folder; or, where no such file exists, a path whose last part is a printf pattern
            (``img_%04d.png``) or a glob (``img_*.png``).

    Returns:
        The files; None if ``source`` is something else, to be opened as a file.

    Raises:
        InputError: The folder, pattern or glob holds no image.
    """
    if source.is_file():
        return None
    if source.is_dir():
        found = [path for path in source.iterdir() if is_image(path)]
        if not found:
            raise InputError(
                f"{source}: the folder contains no images ({', '.join(sorted(IMAGE_SUFFIXES))}); "
                "to read a video, give its file"
            )
    elif _PRINTF_NUMBER.search(source.name):
        found = _match_printf(source)
        if not found:
            raise InputError(f"{source}: no file matches this numbered pattern")
    elif glob.has_magic(str(source)):
        found = [path for name in glob.glob(str(source)) if is_image(path := Path(name))]  # noqa: PTH207 - absolute patterns
        if not found:
            raise InputError(f"{source}: no image matches this pattern")
    else:
        return None
    return sorted(found, key=lambda path: natural_key(str(path)))


class ImageSource:
    """Image files as a video of constant frame rate: image n has pts n, in a time base of one frame.

    Each file is opened separately, so numbers may have gaps and formats may be mixed; the reader requires a single
    size. An unreadable file is skipped and counted, and its time stays empty, so that the others keep theirs.

    Args:
        path: The path that the user gave, for messages and ``VideoInfo.path``.
        files: The images in order, at least one.
        frame_rate: Images a second.
        max_corrupt_frames: Maximum number of unreadable images.

    Raises:
        InputError: No file has a readable header.
    """

    def __init__(
        self, path: Path, *, files: list[Path], frame_rate: Fraction, max_corrupt_frames: int
    ) -> None:
        silence_libav()
        self._files = files
        self._time_base = 1 / frame_rate
        self._next = 0
        self.damage = DamageCounter(path, limit=max_corrupt_frames)
        self.facts = SourceFacts(
            path=path,
            container="images",
            codec=_codec_of(files),
            time_base=self._time_base,
            average_frame_rate=frame_rate,
            frame_count_estimate=len(files),
            duration_seconds=float(len(files) / frame_rate),
        )
        self.decoder = f"libavcodec ({self.facts.codec})"

    def pictures(self) -> Iterator[av.VideoFrame]:
        """Decode from the current position; see ``PictureSource``."""
        for number in range(self._next, len(self._files)):
            try:
                frame = _decode_image(self._files[number])
            except InputError as error:
                self.damage.add(error)
                continue
            frame.pts, frame.time_base, frame.duration = number, self._time_base, 1
            self.damage.decoded += 1
            yield frame

    def seek(self, pts: int) -> None:
        """Go to image ``pts``."""
        self._next = min(max(pts, 0), len(self._files))

    def rewind(self) -> None:
        """Go to the first image."""
        self._next = 0

    def close(self) -> None:
        """Do nothing: no file stays open between images."""


def picture_size(path: Path) -> tuple[int, int] | None:
    """(width, height) of the picture in a file by its header, without decoding it.

    Returns:
        The size; None if FFmpeg does not know the format; (0, 0) if the header is damaged.

    Raises:
        OSError: The file cannot be read.
    """
    try:
        with open_container(path) as container:
            stream = next(iter(container.streams.video), None)
            # PyAV's stubs do not say that a stream of an unknown codec, such as SVG's, has no context.
            if stream is not None and cast("object", stream.codec_context) is None:
                return None
            size = (0, 0) if stream is None else (stream.width, stream.height)
    except InputError:
        return None
    return size if all(size) else declared_size(path) or (0, 0)


def is_still_image(path: Path) -> bool:
    """True for a file with a single picture, judged by its content: a GIF or an animated PNG is a video.

    Raises:
        InputError: It cannot be opened.
    """
    if path.suffix.lower() not in IMAGE_SUFFIXES:
        return False
    with open_container(path) as container:
        is_picture = container.format.name == "image2" or container.format.name.endswith("_pipe")
        return is_picture or container.metadata.get("major_brand") in STILL_BRANDS


def is_image(path: Path) -> bool:
    """True for a picture file that is not hidden, by its name."""
    return path.suffix.lower() in IMAGE_SUFFIXES and not path.name.startswith(".") and path.is_file()


def _match_printf(source: Path) -> list[Path]:
    """Files whose names the pattern could have printed; ``%04d`` prints at least 4 digits."""
    number = _PRINTF_NUMBER.search(source.name)
    if number is None or not source.parent.is_dir():
        return []
    width = int(number[1] or 0)
    digits = rf"(?:0\d{{{width - 1}}}|\d{{{width},}})" if number[1].startswith("0") and width else r"\d+"
    before, after = source.name[: number.start()], source.name[number.end() :]
    pattern = re.compile(re.escape(before) + digits + re.escape(after))
    return [path for path in source.parent.iterdir() if pattern.fullmatch(path.name) and path.is_file()]


def _codec_of(files: list[Path]) -> str:
    error: InputError | None = None
    for file in files:
        try:
            with open_container(file) as container:
                if container.streams.video and container.streams.video[0].codec_context is not None:
                    return container.streams.video[0].codec_context.name
        except InputError as problem:
            error = error or problem
    raise error or InputError(f"{files[0]}: it is not an image that this FFmpeg build can decode")


def refuse_by_header(file: Path) -> None:
    """Refuse a picture whose header shows that FFmpeg cannot decode it.

    Raises:
        InputError: It has too many pixels, and the message gives the limit; or it is an animated WebP.
    """
    try:
        size = declared_size(file)
        moves = _is_animated_webp(file)
    except OSError:  # opening it reports the error
        return
    if moves:
        raise InputError(
            f"{file}: FFmpeg here does not decode animated WebP; convert it to GIF, APNG or video first"
        )
    if size is not None and is_too_large(size):
        raise InputError(
            f"{file}: {size[0]}x{size[1]} is too large: FFmpeg decodes {LARGEST_SIDE}x{LARGEST_SIDE} at most, "
            "or as many in another shape; make the picture smaller"
        )


def _is_animated_webp(file: Path) -> bool:
    """True for an animated WebP file ("WebP Container Specification", Extended File Format)."""
    with file.open("rb") as opened:
        header = opened.read(21)
    is_extended = header[:4] == b"RIFF" and header[8:16] == b"WEBPVP8X"
    return is_extended and len(header) == 21 and bool(header[20] & _WEBP_ANIMATION)


def _decode_image(file: Path) -> av.VideoFrame:
    """Decode the first picture of a file.

    Raises:
        InputError: It cannot be opened or decoded.
    """
    refuse_by_header(file)
    with open_container(file) as container, wrap_input_error(file, "decode it"):
        frame = next(container.decode(video=0), None) if container.streams.video else None
    if frame is None:
        raise InputError(f"{file}: there is no picture in it")
    if frame.color_primaries == _UNSPECIFIED:
        frame.color_primaries = _primaries_of_profile(file)
        if frame.color_primaries != _UNSPECIFIED and frame.color_trc == _UNSPECIFIED:
            frame.color_trc = RGB_COLOR.transfer
    return frame


_UNSPECIFIED = 2  # H.273


def _primaries_of_profile(file: Path) -> int:
    """H.273 ColourPrimaries as returned by ``picture_primaries``."""
    with wrap_input_error(file, "read it"), file.open("rb") as opened:
        return picture_primaries(opened.read(_HEAD_BYTES))


_MOST_PIXELS, _MARGIN = (1 << 28) - 1, 128
"""FFmpeg's maximum number of pixels, and the pixels that it adds on each side."""
LARGEST_SIDE = isqrt(_MOST_PIXELS) - _MARGIN
"""Side of the largest square, in pixels."""
_HEAD_BYTES = 1 << 20
"""Bytes to read: the size may follow profiles or a thumbnail."""

# JPEG (ITU-T T.81, B.1.1.3): frame headers, and markers without a length.
_FRAME_HEADERS = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_ALONE = frozenset({0x01, *range(0xD0, 0xD9)})
_TIFFS = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
_TIFF_WIDTH, _TIFF_HEIGHT, _TIFF_EXTRA_SAMPLES = 256, 257, 338
_WEBP_ANIMATION = 0x02


def is_too_large(size: tuple[int, int]) -> bool:
    """True for a (width, height) that no FFmpeg decoder accepts."""
    width, height = size
    return (width + _MARGIN) * (height + _MARGIN) > _MOST_PIXELS


def declared_size(path: Path) -> tuple[int, int] | None:
    """(width, height) from the header of a PNG, JPEG, BMP, GIF, WebP, TIFF, or PBM to PPM file; None for others.

    Raises:
        OSError: The file cannot be read.
    """
    with path.open("rb") as file:
        head = file.read(_HEAD_BYTES)
        if head.startswith(_TIFFS):
            try:
                file.seek(_tiff_directory(head))
                found = _tiff_values(head, file.read(_HEAD_BYTES))
            except (struct.error, ValueError, OSError):  # the file is truncated, or an offset is invalid
                return None
            width, height = found.get(_TIFF_WIDTH), found.get(_TIFF_HEIGHT)
            return None if width is None or height is None else (width, height)
    for signature, read in _READERS.items():
        if head.startswith(signature):
            try:
                return read(head)
            except (struct.error, IndexError):  # the file is truncated
                return None
    return None


def _png(head: bytes) -> tuple[int, int] | None:
    width, height = struct.unpack_from(">II", head, 16)
    return width, height


def _jpeg(head: bytes) -> tuple[int, int] | None:
    at = 2
    while head[at] == 0xFF:
        marker = head[at + 1]
        if marker in _FRAME_HEADERS:
            height, width = struct.unpack_from(">HH", head, at + 5)
            return width, height
        if marker == 0xFF:  # a fill byte
            at += 1
        elif marker in _ALONE:
            at += 2
        else:
            at += 2 + int(struct.unpack_from(">H", head, at + 2)[0])
    return None


def _bmp(head: bytes) -> tuple[int, int] | None:
    width, height = struct.unpack_from("<ii", head, 18)
    return abs(width), abs(height)  # top-down bitmaps have a negative height


def _gif(head: bytes) -> tuple[int, int] | None:
    width, height = struct.unpack_from("<HH", head, 6)
    return width, height


def _webp(head: bytes) -> tuple[int, int] | None:
    """Read a WebP header (RFC 9649): lossy, lossless, extended."""
    kind = head[12:16]
    if kind == b"VP8 ":
        width, height = struct.unpack_from("<HH", head, 26)
        return width & 0x3FFF, height & 0x3FFF
    if kind == b"VP8L":
        (bits,) = struct.unpack_from("<I", head, 21)
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if kind == b"VP8X":
        return int.from_bytes(head[24:27], "little") + 1, int.from_bytes(head[27:30], "little") + 1
    return None


def is_tiff_with_alpha(content: npt.NDArray[np.uint8]) -> bool:
    """True if a file, uint8 [N], is a TIFF whose fourth sample is tagged as alpha (TIFF 6.0, section 18)."""
    if content[:4].tobytes() not in _TIFFS:
        return False
    try:
        values = _tiff_values(content.data, content.data[_tiff_directory(content.data) :])
    except struct.error:  # the file is truncated
        return False
    return values.get(_TIFF_EXTRA_SAMPLES) in (1, 2)


def _tiff_directory(head: bytes | memoryview) -> int:
    """Offset of the first directory, often after the samples.

    In BigTIFF (https://www.awaresystems.be/imaging/tiff/bigtiff.html), offsets and counts have twice the size.
    """
    order, is_big = _tiff_kind(head)
    return int(
        struct.unpack_from(f"{order}Q", head, 8)[0] if is_big else struct.unpack_from(f"{order}I", head, 4)[0]
    )


def _tiff_values(head: bytes | memoryview, directory: bytes | memoryview) -> dict[int, int]:
    """The values of a TIFF's directory by tag; of several values the first, if they are stored inline.

    Raises:
        struct.error: The directory is truncated.
    """
    order, is_big = _tiff_kind(head)
    numbers = struct.Struct(f"{order}Q" if is_big else f"{order}H")
    entry = struct.Struct(f"{order}HHQ8s" if is_big else f"{order}HHI4s")
    (count,) = numbers.unpack_from(directory)
    found: dict[int, int] = {}
    for start in range(numbers.size, numbers.size + count * entry.size, entry.size):
        tag, kind, _, value = entry.unpack_from(directory, start)
        code = {3: "H", 4: "I"}.get(kind, "Q" if is_big else "I")
        (found[tag],) = struct.unpack_from(f"{order}{code}", value)
    return found


def _tiff_kind(head: bytes | memoryview) -> tuple[str, bool]:
    """Byte order as ``struct`` spells it, and whether it is BigTIFF."""
    return "<" if bytes(head[:2]) == b"II" else ">", b"+" in bytes(head[2:4])


def _pnm(head: bytes) -> tuple[int, int] | None:
    match = re.match(rb"P[1-6]\s+(?:#[^\n]*\n\s*)*(\d{1,9})\s+(?:#[^\n]*\n\s*)*(\d{1,9})\s", head)
    return None if match is None else (int(match[1]), int(match[2]))


_READERS: dict[bytes, Callable[[bytes], tuple[int, int] | None]] = {
    b"\x89PNG\r\n\x1a\n": _png,
    b"\xff\xd8\xff": _jpeg,
    b"BM": _bmp,
    b"GIF8": _gif,
    b"RIFF": _webp,
    **{b"P%d" % kind: _pnm for kind in range(1, 7)},
}
