"""Check that motion files return what was written, and that other files are refused in one line."""

from __future__ import annotations

import json
import resource

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vitascope.animation.face import FaceMotion, rotation_from_degrees
from vitascope.animation.motion_file import MotionReader, MotionWriter, write_motion
from vitascope.errors import CorruptInputError, InputError, OutputError, VitascopeError


def some_motions(count=5, *, vertices=True):
    rng = np.random.default_rng(0)
    for index in range(count):
        yield FaceMotion(
            rotation=rotation_from_degrees(index, -index, 2 * index),
            scale=1 + 0.01 * index,
            translation=rng.normal(size=2).astype(np.float32),
            blendshapes=rng.random(52).astype(np.float32),
            neutral_blendshapes=rng.random(52).astype(np.float32),
            vertices=rng.normal(size=(468, 3)).astype(np.float32) if vertices else None,
            eye_closure=rng.random(2).astype(np.float32),
            gaze=rng.random((2, 2)).astype(np.float32),
            pts_seconds=1000 + index / 30,
        )


@pytest.fixture
def recorded(tmp_path):
    path = tmp_path / "a.motion"
    with MotionWriter(path, frame_rate=29.97, title="a test") as writer:
        for motion in some_motions():
            writer.write(motion)
    return path


def test_what_goes_in_comes_out(recorded):
    with MotionReader(recorded) as reader:
        assert reader.header.frame_rate == 29.97
        assert reader.header.title == "a test"
        assert reader.header.has_vertices
        assert reader.row_count == 5
        for _ in range(2):  # it can be read again
            for got, given in zip(reader, some_motions(), strict=True):
                assert got.pts_seconds == given.pts_seconds
                assert np.allclose(got.rotation, given.rotation, atol=1e-5)
                for name in ("translation", "blendshapes", "neutral_blendshapes", "eye_closure", "gaze"):
                    assert np.array_equal(getattr(got, name), getattr(given, name)), name
                assert np.abs(got.vertices - given.vertices).max() < 2e-3


def test_authored_motion_has_no_vertices(tmp_path):
    path = tmp_path / "b.motion"
    write_motion(path, some_motions(vertices=False))
    with MotionReader(path) as reader:
        assert not reader.header.has_vertices
        assert [motion.vertices for motion in reader] == [None] * 5
        assert not next(iter(reader)).eye_closure.any()


def test_times_that_do_not_grow_are_left_out(tmp_path):
    with MotionWriter(tmp_path / "c.motion") as writer:
        for seconds in (0.0, 0.1, 0.1, 0.05, 0.2):
            writer.write(FaceMotion(pts_seconds=seconds))
        assert writer.row_count == 3


def test_nothing_appears_before_it_is_complete(tmp_path):
    path = tmp_path / "d.motion"
    with pytest.raises(RuntimeError), MotionWriter(path) as writer:
        writer.write(FaceMotion())
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(OutputError, match="nothing was recorded"), MotionWriter(path):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_there_is_made_as_for_every_output(tmp_path):
    with pytest.raises(RuntimeError), MotionWriter(tmp_path / "new" / "e.motion"):
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []
    with MotionWriter(tmp_path / "new" / "e.motion") as writer:
        writer.write(FaceMotion(pts_seconds=1.0))
    assert (tmp_path / "new" / "e.motion").is_file()


def test_a_folder_that_cannot_be(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="cannot create"):
        MotionWriter(tmp_path / "file" / "e.motion")


def read_all(path):
    with MotionReader(path) as reader:
        return list(reader)


def test_another_version_says_so(recorded):
    recorded.write_bytes(recorded.read_bytes().replace(b"MOTION 1\n", b"MOTION 7\n", 1))
    with pytest.raises(InputError, match="version 7; this program reads version 1"):
        read_all(recorded)


@pytest.mark.parametrize("rows", [1, 20])  # fewer than are written at once, and more
def test_a_full_disk_is_an_output_error_and_leaves_nothing(tmp_path, rows):
    path = tmp_path / "a.motion"
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (2048, hard))
        with pytest.raises(OutputError, match=r"a\.motion: cannot be written"), MotionWriter(path) as writer:
            for motion in some_motions(rows):
                writer.write(motion)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("rows", "left"), [(0, []), (3, ["a.motion"])])
def test_ctrl_c_keeps_the_rows_that_came(tmp_path, rows, left):
    with pytest.raises(KeyboardInterrupt), MotionWriter(tmp_path / "a.motion") as writer:
        for motion in some_motions(rows):
            writer.write(motion)
        raise KeyboardInterrupt
    assert [entry.name for entry in tmp_path.iterdir()] == left


@pytest.mark.parametrize("data", [b"", b"\x80\x04K\x01.", b"VITASCOPE-MOTION", b"RIFF....AVI "])
def test_other_files_are_no_motion(tmp_path, data):
    (tmp_path / "x.motion").write_bytes(data)
    with pytest.raises(InputError, match="not a motion file"):
        read_all(tmp_path / "x.motion")
    with pytest.raises(InputError, match="cannot be read"):
        read_all(tmp_path / "missing.motion")


def test_a_damaged_row_is_named(recorded):
    data = bytearray(recorded.read_bytes())
    data[-20] ^= 1
    recorded.write_bytes(data)
    with pytest.raises(CorruptInputError, match="row 4 is damaged"):
        read_all(recorded)
    recorded.write_bytes(data[:-700])
    with pytest.raises(CorruptInputError, match="cut off in row 4"):
        read_all(recorded)


@pytest.mark.parametrize(
    "change",
    [
        lambda header: header.pop("fields"),
        lambda header: header["fields"].pop(0),
        lambda header: header["fields"][0].update(type="O"),
        lambda header: header["fields"][1].update(shape=[1 << 40]),
        lambda header: header["fields"].append(header["fields"][0]),
        lambda header: header["blendshapes"].pop(),
        lambda header: header.update(frame_rate=float("nan")),
    ],
)
def test_a_header_that_cannot_be_is_refused(recorded, change):
    magic, header, rows = recorded.read_bytes().split(b"\n", 2)
    fields = json.loads(header)
    change(fields)
    recorded.write_bytes(b"\n".join((magic, json.dumps(fields).encode(), rows)))
    with pytest.raises(CorruptInputError, match="header is damaged"):
        read_all(recorded)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 4000), st.binary(min_size=1, max_size=8))
def test_damage_anywhere_is_an_error_of_ours_or_harmless(tmp_path_factory, position, damage):
    path = tmp_path_factory.mktemp("fuzz") / "f.motion"
    write_motion(path, some_motions(3, vertices=False))
    data = bytearray(path.read_bytes())
    position %= len(data)
    data[position : position + len(damage)] = damage
    path.write_bytes(data)
    try:
        for motion in read_all(path):
            assert np.isfinite(motion.rotation).all()
    except VitascopeError as error:
        assert "\n" not in str(error)


def test_two_who_record_to_one_file_do_not_mix(tmp_path):
    path = tmp_path / "both.motion"
    with MotionWriter(path) as first:
        with pytest.raises(OutputError, match="being written already"):
            MotionWriter(path)
        first.write(FaceMotion(pts_seconds=1.0))
        first.write(FaceMotion(pts_seconds=2.0))
    with MotionReader(path) as reader:
        assert [motion.pts_seconds for motion in reader] == [1.0, 2.0]
    with MotionWriter(path) as second:  # the lock ended with its holder
        second.write(FaceMotion(pts_seconds=3.0))
    assert [entry.name for entry in tmp_path.iterdir()] == ["both.motion"]
