"""Tests of the size in a file's header, for files that no decoder reads."""

from __future__ import annotations

import struct
import subprocess
import sys

import av
import cv2
import numpy as np
import pytest

from clips import write_clip, write_large_png
from vitascope.errors import InputError
from vitascope.media.reading.images import LARGEST_SIDE, declared_size, is_too_large, picture_size
from vitascope.media.reading.reader import open_video, probe


@pytest.mark.parametrize("suffix", ["png", "jpg", "bmp", "gif", "webp", "tif", "pbm", "pgm", "ppm"])
def test_it_is_what_a_decoder_says(tmp_path, suffix):
    path = tmp_path / f"a.{suffix}"
    picture = np.full((40, 66, 3), 90, np.uint8)
    assert cv2.imwrite(str(path), picture[..., 0] if suffix in ("pbm", "pgm") else picture)
    assert declared_size(path) == (66, 40) == picture_size(path)


@pytest.mark.parametrize("quality", [100, 101])
def test_webp_without_loss_and_with_alpha(tmp_path, quality):
    path = tmp_path / "a.webp"
    cv2.imwrite(str(path), np.full((41, 67, 4), 90, np.uint8), [cv2.IMWRITE_WEBP_QUALITY, quality])
    assert declared_size(path) == (67, 41)


def test_webp_that_moves_is_refused_and_says_why(tmp_path):
    path = tmp_path / "a.webp"
    with av.open(str(path), "w", format="webp") as container:
        stream = container.add_stream("libwebp_anim", rate=10)
        stream.width, stream.height, stream.pix_fmt = 16, 16, "bgra"
        for number in range(2):
            frame = av.VideoFrame.from_ndarray(np.full((16, 16, 4), 90 * number, np.uint8), "bgra")
            frame.pts = number
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    assert declared_size(path) == (16, 16)
    with pytest.raises(InputError, match="does not decode animated WebP; convert it to GIF"):
        probe(path)


def write_tiled(path, clip):
    """Write a HEIC picture of two tiles side by side, as phones do; each is the first picture of an H.265 clip."""
    with av.open(str(clip)) as container:
        stream = container.streams.video[0]
        setup, width, height = stream.codec_context.extradata, stream.width, stream.height
        tile = bytes(next(container.demux(stream)))
    grid = struct.pack(">BBBBHH", 0, 0, 0, 1, 2 * width, height)

    def box(kind, *parts, flags=None):
        head = b"" if flags is None else struct.pack(">I", flags)
        content = head + b"".join(parts)
        return struct.pack(">I4s", 8 + len(content), kind) + content

    def item(number, kind, *, hidden):
        return box(b"infe", struct.pack(">HH4sB", number, 0, kind, 0), flags=2 << 24 | hidden)

    def index(tiles_at):
        places = [
            struct.pack(">HHHHII", 1 + n, 0, 0, 1, tiles_at + n * len(tile), len(tile)) for n in range(2)
        ]
        places.append(struct.pack(">HHHHII", 3, 1, 0, 1, 0, len(grid)))
        sizes = [box(b"ispe", struct.pack(">II", n * width, height), flags=0) for n in (1, 2)]
        belongs = struct.pack(">IHB2BHB2BHBB", 3, 1, 2, 0x81, 2, 2, 2, 0x81, 2, 3, 1, 3)
        return box(
            b"meta",
            box(b"hdlr", struct.pack(">I4s13x", 0, b"pict"), flags=0),
            box(b"pitm", struct.pack(">H", 3), flags=0),
            box(b"iloc", struct.pack(">HH", 0x4400, 3), *places, flags=1 << 24),
            box(
                b"iinf", struct.pack(">H", 3), item(1, b"hvc1", hidden=1), item(2, b"hvc1", hidden=1),
                item(3, b"grid", hidden=0), flags=0,
            ),
            box(b"iref", box(b"dimg", struct.pack(">HHHH", 3, 2, 1, 2)), flags=0),
            box(
                b"iprp", box(b"ipco", box(b"hvcC", setup), *sizes), box(b"ipma", belongs, flags=0)
            ),
            box(b"idat", grid),
            flags=0,
        )  # fmt: skip

    brand = box(b"ftyp", b"heic\0\0\0\0mif1heic")
    path.write_bytes(brand + index(len(brand + index(0)) + 8) + box(b"mdat", tile, tile))
    return path


def test_a_photo_in_tiles_is_refused_instead_of_read_in_part(tmp_path):
    options = {"x265-params": "log-level=none:bframes=0"}
    clip = write_clip(
        tmp_path / "a.mp4", codec="libx265", width=64, height=64, frame_count=4, codec_options=options
    )
    path = write_tiled(tmp_path / "a.heic", clip)
    with pytest.raises(InputError, match=r"a\.heic: a HEIC or AVIF picture in tiles.*save it as JPEG or PNG"):
        probe(path)


def test_cut_off_foreign_and_empty_files_have_none(tmp_path):
    path = tmp_path / "a.png"
    cv2.imwrite(str(path), np.zeros((8, 8, 3), np.uint8))
    heads = [path.read_bytes()[:18], b"", b"text", b"\xff\xd8\xff\xe0", b"II*\0\xff\xff\xff\x7f", b"P6 12"]
    for head in heads:
        path.write_bytes(head)
        assert declared_size(path) is None


def test_the_largest_side_is_the_last_that_fits():
    assert not is_too_large((LARGEST_SIDE, LARGEST_SIDE))
    assert is_too_large((LARGEST_SIDE + 1, LARGEST_SIDE + 1))


@pytest.mark.parametrize("name", ["a.png", "photos"])
def test_a_picture_of_too_many_pixels_says_how_many_there_may_be(tmp_path, name):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    if name == "photos":
        path.mkdir()
    write_large_png(path / "1.png" if path.is_dir() else path, side=16384)
    for read in (probe, open_video):
        with pytest.raises(InputError, match=r"16384x16384 is too large: FFmpeg decodes 16255x16255"):
            read(path)


@pytest.mark.skipif(sys.platform == "win32", reason="resource is of POSIX")
def test_the_command_refuses_it_in_one_line_and_little_memory(tmp_path):
    write_large_png(tmp_path / "in.png", side=16384)
    program = (
        "import re, sys\nfrom vitascope.cli import main\n"
        "try: main(sys.argv[1:])\n"
        # ru_maxrss would include the parent process's maximum.
        "finally: print(re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1])"
    )
    command = ["segment", "in.png", "out.png", "--profile", "fast", "--device", "cpu"]
    ended = subprocess.run(
        [sys.executable, "-c", program, *command], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 3
    assert ended.stderr.count("\n") == 1
    assert "in.png: 16384x16384 is too large" in ended.stderr
    assert int(ended.stdout) < 400_000  # kB; the pixels would be 768 MB
    assert not (tmp_path / "out.png").exists()
