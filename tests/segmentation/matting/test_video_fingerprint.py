"""Check that a video is recognised by its content."""

from __future__ import annotations

import os

import numpy as np
import pytest

from vitascope.errors import InputError
from vitascope.segmentation.matting.cached_film import WHOLE_BYTES, video_fingerprint


def test_a_copy_is_the_same_film_and_another_of_its_size_is_not(tmp_path):
    content = np.random.default_rng(0).bytes(100_000)
    one, copy, other = (tmp_path / name for name in ("one.mp4", "copy.mkv", "other.mp4"))
    one.write_bytes(content)
    copy.write_bytes(content)
    os.utime(copy, (1, 1))
    other.write_bytes(content[:50_000] + b"\0" + content[50_001:])
    assert video_fingerprint(one) == video_fingerprint(copy)
    assert video_fingerprint(one) != video_fingerprint(other)
    os.utime(other, (one.stat().st_atime, one.stat().st_mtime))
    assert video_fingerprint(one) != video_fingerprint(other)


@pytest.mark.parametrize("where", [0, 100, (1 << 20) - 1, 1 << 20, WHOLE_BYTES, -(1 << 20), -1])
def test_of_a_large_file_ends_and_samples_count(tmp_path, where):
    content = bytearray(WHOLE_BYTES + (2 << 20) + 3)
    film = tmp_path / "film.mp4"
    film.write_bytes(content)
    before = video_fingerprint(film)
    if where == WHOLE_BYTES:  # throughout the middle, as another encoding would
        content[1 << 20 : -(1 << 20) : 1000] = b"x" * len(content[1 << 20 : -(1 << 20) : 1000])
    else:
        content[where] = 1
    film.write_bytes(content)
    assert video_fingerprint(film) != before


def test_images_count_all_of_them_in_order(tmp_path):
    for name in ("a_1.png", "a_2.png"):
        (tmp_path / name).write_bytes(name.encode())
    before = video_fingerprint(tmp_path)
    assert before == video_fingerprint(tmp_path / "a_%d.png")
    (tmp_path / "a_2.png").write_bytes(b"x")
    assert video_fingerprint(tmp_path) != before


def test_a_pipe_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.mp4")
    with pytest.raises(InputError, match=r"pipe\.mp4: it is a pipe or a device"):
        video_fingerprint(tmp_path / "pipe.mp4")


def test_what_is_not_there_is_an_input_error(tmp_path):
    with pytest.raises(InputError):
        video_fingerprint(tmp_path / "none.mp4")
