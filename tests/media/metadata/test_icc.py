from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from profiled_pictures import ADOBE_COLORANTS, P3_COLORANTS, icc_profile, with_profile
from vitascope.media.metadata.icc import picture_primaries
from vitascope.media.reading.reader import open_video, probe

BLUE = np.full((48, 64, 3), (10, 20, 200), np.uint8)
EXIF = b"\xff\xe1\0\x22Exif\0\0MM\0\x2a\0\0\0\x08" + b"\0\x01\x01\x12\0\x03\0\0\0\x01\0\x01\0\0" + bytes(4)


@pytest.mark.parametrize("suffix", [".jpg", ".png", ".webp", ".avif"])
def test_a_profile_names_the_primaries(suffix):
    assert picture_primaries(with_profile(suffix, BLUE, icc_profile(P3_COLORANTS))) == 12


@pytest.mark.parametrize("suffix", [".jpg", ".png", ".webp", ".avif"])
def test_other_and_damaged_profiles_name_none(suffix):
    assert picture_primaries(with_profile(suffix, BLUE, icc_profile(ADOBE_COLORANTS))) == 2
    whole = with_profile(suffix, BLUE, icc_profile(P3_COLORANTS))
    profile_end = min(len(whole), 700)
    assert {picture_primaries(whole[:size]) for size in range(profile_end)} <= {2, 12}
    assert picture_primaries(whole[:60]) == 2


def test_files_without_a_profile_name_none():
    for content in (
        b"",
        b"\xff\xd8",
        b"\x89PNG\r\n\x1a\n",
        b"RIFF\0\0\0\0WEBP",
        b"\0\0\0\x1cftypavif",
        bytes(64),
    ):
        assert picture_primaries(content) == 2


@pytest.mark.parametrize("suffix", [".jpg", ".png", ".webp"])
def test_a_picture_has_the_primaries_of_its_profile(tmp_path, suffix):
    path = tmp_path / f"a{suffix}"
    path.write_bytes(with_profile(suffix, BLUE, icc_profile(P3_COLORANTS)))
    # Run a separate process: listing the side data of a PNG with a profile crashed it.
    code = f"from vitascope.media.reading.reader import open_video, probe; print(probe({str(path)!r}).color)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "primaries=12, transfer=13" in found


def test_fill_bytes_before_a_marker_do_not_hide_a_profile():
    content = with_profile(".jpg", BLUE, icc_profile(P3_COLORANTS), before=b"\xff\xff")
    assert picture_primaries(content) == 12


@pytest.mark.parametrize("name", ["", "photo_%d.jpg", "photo_*.jpg"])
def test_each_picture_of_a_sequence_has_the_primaries_of_its_profile(tmp_path, name):
    for number, profile in enumerate((icc_profile(P3_COLORANTS), icc_profile(ADOBE_COLORANTS))):
        (tmp_path / f"photo_{number}.jpg").write_bytes(with_profile(".jpg", BLUE, profile))
    with open_video(tmp_path / name) as reader:
        assert (reader.info.color.primaries, reader.info.color.transfer) == (12, 13)
        assert [frame.color.primaries for frame in reader] == [12, 2]


def test_exif_beside_it_does_not_hide_a_profile(tmp_path):
    path = tmp_path / "phone.jpg"
    path.write_bytes(with_profile(".jpg", BLUE, icc_profile(P3_COLORANTS), before=EXIF))
    assert (probe(path).color.primaries, probe(path).color.transfer) == (12, 13)
