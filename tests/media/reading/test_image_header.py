"""The size that a file claims, for those that no decoder takes."""

from __future__ import annotations

import subprocess
import sys

import av
import cv2
import numpy as np
import pytest

from clips import write_large_png
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
        with pytest.raises(InputError, match=r"16384x16384 are too many pixels: FFmpeg decodes 16255x16255"):
            read(path)


@pytest.mark.skipif(sys.platform == "win32", reason="resource is of POSIX")
def test_the_command_refuses_it_in_one_line_and_little_memory(tmp_path):
    write_large_png(tmp_path / "in.png", side=16384)
    program = (
        "import re, sys\nfrom vitascope.cli import main\n"
        "try: main(sys.argv[1:])\n"
        # ru_maxrss would be that of the process which started this one, where that is larger.
        "finally: print(re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1])"
    )
    command = ["segment", "in.png", "out.png", "--profile", "fast", "--device", "cpu"]
    ended = subprocess.run(
        [sys.executable, "-c", program, *command], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 3
    assert ended.stderr.count("\n") == 1
    assert "in.png: 16384x16384 are too many pixels" in ended.stderr
    assert int(ended.stdout) < 400_000  # kB; the pixels would be 768 MB
    assert not (tmp_path / "out.png").exists()
