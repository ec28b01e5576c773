"""Check that a stretch's file returns what was written, appears complete, and is not confused with another."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitascope.errors import OutputError
from vitascope.media.writing.output_clock import FrameTime
from vitascope.media.writing.segment_encoder import EncodedPacket
from vitascope.segmentation.people.kept import KeptFrames
from vitascope.segmentation.processes.stretch_file import (
    Encoded,
    StretchFile,
    StretchSummary,
    StretchWriter,
)

MADE_BY = {"film": "abc", "settings": {"edges": [1, 2.5]}, "outputs": ("key", "mask")}
SUMMARY = StretchSummary(
    2, 1, 0, None, ("a note",), (288, 512), "engine", "decoder", True, (KeptFrames(1, 2, 1),)
)
STILL = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)

ticks = st.integers(-(2**62), 2**62)
packets = st.builds(
    EncodedPacket,
    st.binary(max_size=40),
    ticks,
    st.none() | ticks,
    st.booleans(),
    st.lists(
        st.tuples(st.sampled_from(["matroska_block_additional"]), st.binary(max_size=9)), max_size=2
    ).map(tuple),
)
times = st.builds(FrameTime, ticks, st.fractions(Fraction(1, 10**6), 1), st.integers(0, 10**6))
steps = st.builds(
    Encoded,
    st.none() | st.lists(st.binary(max_size=20), max_size=3).map(tuple),
    st.lists(times, max_size=2).map(tuple),
    st.lists(st.lists(packets, max_size=3).map(tuple), max_size=3).map(tuple),
)


def written(path, encoded=(), summary=SUMMARY):
    with StretchWriter(path, made_by=MADE_BY) as writer:
        for one in encoded:
            writer.write(one)
        writer.finish(summary)
    return StretchFile(path)


@given(encoded=st.lists(steps, max_size=4))
def test_it_gives_what_was_put_in(tmp_path_factory, encoded):
    file = written(tmp_path_factory.mktemp("stretch") / "1.stretch", encoded)
    assert list(file.encoded()) == encoded
    assert file.summary == SUMMARY


def test_stills_come_back(tmp_path):
    file = written(tmp_path / "1.stretch", [Encoded(None, (), (), (STILL, STILL[:1]))])
    (encoded,) = file.encoded()
    assert [still.tolist() for still in encoded.stills] == [STILL.tolist(), STILL[:1].tolist()]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a file that is always full")
@pytest.mark.parametrize("size", [10, 100_000])
def test_a_full_disk_is_named_and_nothing_stays(tmp_path, size):
    """Check that closing the file does not write its buffer again, which would hide the error that says why."""
    with (
        Path("/dev/full").open("wb") as full,
        pytest.raises(OutputError, match=r"1\.stretch: cannot .*no space left"),
        StretchWriter(tmp_path / "1.stretch", made_by=MADE_BY) as writer,
    ):
        writer._file.close()
        writer._file = full
        writer.write(Encoded((bytes(size),), (), ()))
        writer.finish(SUMMARY)
    assert list(tmp_path.iterdir()) == []


def test_it_appears_when_it_is_whole(tmp_path):
    path = tmp_path / "1.stretch"
    with StretchWriter(path, made_by=MADE_BY) as writer:
        writer.write(Encoded((b"s",), (), ()))
        assert not path.exists()
    assert list(tmp_path.iterdir()) == []
    written(path)
    written(path)  # made twice: the second replaces the first
    assert [file.name for file in tmp_path.iterdir()] == ["1.stretch"]


def test_it_is_whole_only_for_what_made_it(tmp_path):
    file = written(tmp_path / "1.stretch")
    assert file.is_whole(made_by=MADE_BY)
    assert file.summary == SUMMARY
    assert not file.is_whole(made_by=MADE_BY | {"film": "abd"})
    broken_off = StretchSummary(2, 1, 0, "too much damage", (), (1, 1), "", "", True)
    assert not written(tmp_path / "2.stretch", summary=broken_off).is_whole(made_by=MADE_BY)
    assert not StretchFile(tmp_path / "3.stretch").is_whole(made_by=MADE_BY)


@given(at=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
def test_any_bit_that_is_wrong_is_noticed(tmp_path_factory, at, bit):
    path = tmp_path_factory.mktemp("stretch") / "1.stretch"
    file = written(path, [Encoded((b"sets",), (), ((EncodedPacket(b"packet", 1, 2, True),),))])
    content = bytearray(path.read_bytes())
    content[int(at * len(content))] ^= 1 << bit
    path.write_bytes(content)
    assert not file.is_whole(made_by=MADE_BY)
    with pytest.raises(OutputError, match=r"1\.stretch: the file is damaged"):
        list(file.encoded())


@pytest.mark.parametrize("left", [0, 5, 30, -1])
def test_a_file_that_is_cut_short_is_noticed(tmp_path, left):
    file = written(tmp_path / "1.stretch", [Encoded((b"sets",), (), ())])
    file.path.write_bytes(file.path.read_bytes()[:left])
    with pytest.raises(OutputError, match=r"1\.stretch: the file is damaged"):
        list(file.encoded())
