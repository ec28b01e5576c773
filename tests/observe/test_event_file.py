"""Tests of event files, read back by TensorBoard itself; checksums against the vectors of RFC 3720."""

from __future__ import annotations

import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tensorboard_reader import curves_of

from vitascope.errors import OutputError
from vitascope.observe import tensorboard as event_file
from vitascope.observe.tensorboard import EventFile, crc32c, run_folder


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", 0),
        (b"123456789", 0xE3069283),
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(range(31, -1, -1)), 0x113FDB5C),
    ],
)
def test_the_checksum_is_that_of_rfc_3720(data, expected):
    assert crc32c(data) == expected


def test_tensorboard_reads_what_was_written(tmp_path):
    with EventFile(tmp_path / "runs" / "one") as file:
        for n in range(300):
            file.add(
                {"speed": n / 7, "queue_items/decode > infer": float(n % 5)},
                step=n * 1000,
                wall_seconds=1.8e9 + n,
            )
        file.add({"speed": math.nan, "grown/größer": -1e30}, step=2**40, wall_seconds=1.9e9)
    assert "tfevents" in file.path.name
    curves = curves_of(tmp_path / "runs" / "one")
    assert set(curves) == {"speed", "queue_items/decode > infer", "grown/größer"}
    for n, (wall_seconds, step, value) in enumerate(curves["speed"][:300]):
        assert (wall_seconds, step) == (1.8e9 + n, n * 1000)
        assert value == pytest.approx(n / 7, rel=1e-6)
    assert curves["speed"][300][1] == 2**40
    assert math.isnan(curves["speed"][300][2])
    assert curves["grown/größer"][0][2] == pytest.approx(-1e30, rel=1e-6)


@given(st.dictionaries(st.text(min_size=1, max_size=200), st.floats(width=32), max_size=40))
def test_every_record_is_framed_by_its_length_and_two_checksums(tmp_path_factory, scalars):
    folder = tmp_path_factory.mktemp("events")
    with EventFile(folder) as file:
        file.add(scalars, step=1, wall_seconds=2.0)
    data, records = file.path.read_bytes(), []
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        payload = data[12 : 12 + length]
        assert data[8:12] == masked(data[:8])
        assert data[12 + length : 16 + length] == masked(payload)
        records.append(payload)
        data = data[16 + length :]
    assert len(records) == 2
    assert b"brain.Event:2" in records[0]
    assert all(tag.encode() in records[1] for tag in scalars)


def masked(data):
    crc = crc32c(data)
    return struct.pack("<I", (((crc >> 15) | (crc << 17)) + 0xA282EAD8) % 2**32)


def test_what_is_written_is_there_before_the_file_is_closed(tmp_path):
    with EventFile(tmp_path) as file:
        file.add({"speed": 1.0}, step=1, wall_seconds=1.0)
        assert len(curves_of(tmp_path)["speed"]) == 1


def test_runs_of_one_second_have_folders_of_their_own(tmp_path, monkeypatch):
    monkeypatch.setattr(event_file.time, "strftime", lambda _: "20261121-120000")
    first = run_folder(tmp_path)
    first.mkdir()
    second = run_folder(tmp_path)
    second.mkdir()
    assert [path.name for path in (first, second, run_folder(tmp_path))] == [
        "20261121-120000",
        "20261121-120000-2",
        "20261121-120000-3",
    ]


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OutputError, match="cannot be written"):
        EventFile(tmp_path / "file" / "run")
