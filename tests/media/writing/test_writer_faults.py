"""Tests of the files on disk after an error, an interrupt or a refusal."""

from __future__ import annotations

import resource
import stat
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from written_films import decode, encode, make_frame, make_info

from clips import write_clip
from vitascope.errors import CorruptInputError, OutputError, PipelineError, UsageError
from vitascope.media.writing.encoding import choose_encoding
from vitascope.media.writing.writer import VideoWriter


def test_frames_of_another_size_are_refused(tmp_path: Path) -> None:
    info = make_info()
    encoding = choose_encoding(tmp_path / "a.mp4", source_format=info.format)
    with (
        pytest.raises(OutputError, match="32x32"),
        VideoWriter(tmp_path / "a.mp4", info=info, encoding=encoding) as writer,
    ):
        writer.write(make_frame(make_info(32, 32), 0))


def test_no_frames_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="no frame"):
        encode(tmp_path / "deep" / "er" / "a.mp4", make_info(), pts=[])
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_visible_before_the_end(tmp_path: Path) -> None:
    info = make_info()
    path = tmp_path / "a.mp4"
    path.write_bytes(b"old")
    with VideoWriter(path, info=info, encoding=choose_encoding(path, source_format=info.format)) as writer:
        writer.write(make_frame(info, 0))
        assert path.read_bytes() == b"old"
    assert len(decode(path)) == 1
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.mp4"]


@pytest.mark.parametrize("target", ["a.mp4", "a.mkv", "frames"])
def test_an_error_leaves_the_old_output_alone(tmp_path: Path, target: str) -> None:
    info = make_info()
    path = tmp_path / target
    with pytest.raises(ZeroDivisionError):  # noqa: SIM117 - the writer's block is what is tested
        with VideoWriter(
            path, info=info, encoding=choose_encoding(path, source_format=info.format)
        ) as writer:
            writer.write(make_frame(info, 0))
            raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("target", ["a.mp4", "a.mkv", "a.webm", "frames"])
def test_an_interrupt_keeps_what_there_is(tmp_path: Path, target: str) -> None:
    info = make_info()
    path = tmp_path / target
    with pytest.raises(KeyboardInterrupt):  # noqa: SIM117
        with VideoWriter(
            path, info=info, encoding=choose_encoding(path, source_format=info.format)
        ) as writer:
            for index in range(5):
                writer.write(make_frame(info, index))
            raise KeyboardInterrupt
    assert [entry.name for entry in tmp_path.iterdir()] == [f"{target}.part"]
    kept = tmp_path / f"{target}.part"
    if kept.is_dir():
        assert len(list(kept.iterdir())) == 5
    else:
        assert len(decode(kept)) == 5


def test_an_interrupt_before_the_first_frame_leaves_nothing(tmp_path: Path) -> None:
    info = make_info()
    path = tmp_path / "a.mp4"
    with (
        pytest.raises(KeyboardInterrupt),
        VideoWriter(path, info=info, encoding=choose_encoding(path, source_format=info.format)),
    ):
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("wanted", [True, False])
@pytest.mark.parametrize("grouped", [True, False])
def test_a_corrupt_input_keeps_what_decoded_when_asked(tmp_path: Path, wanted: bool, grouped: bool) -> None:
    info = make_info()
    path = tmp_path / "a.mp4"
    error: Exception = CorruptInputError("in.mp4: ends early")
    if grouped:
        error = PipelineError("failed", [error])
    with pytest.raises(type(error)):  # noqa: SIM117
        with VideoWriter(
            path, info=info, encoding=choose_encoding(path, source_format=info.format), keep_partial=wanted
        ) as writer:
            writer.write(make_frame(info, 0))
            raise error
    assert [entry.name for entry in tmp_path.iterdir()] == (["a.mp4.part"] if wanted else [])


def test_output_equal_to_input_is_refused(tmp_path: Path) -> None:
    source = write_clip(tmp_path / "in.mp4")
    before = source.read_bytes()
    with pytest.raises(UsageError, match="is the input"):
        encode(source, make_info(), copy_from=source)
    assert source.read_bytes() == before


def test_an_encoder_that_refuses_is_an_output_error(tmp_path: Path) -> None:
    info = make_info(96, 64)
    path = tmp_path / "a.mp4"
    encoding = choose_encoding(path, codec="h265", source_format=info.format)
    encoding = replace(encoding, options={"preset": "unheard-of"})
    with pytest.raises(OutputError, match=r"a\.mp4: cannot encode 96x64 .* libx265"):
        encode(path, info, encoding=encoding)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_is_an_output_error_and_leaves_nothing(tmp_path: Path) -> None:
    info = make_info(256, 256)
    path = tmp_path / "a.mkv"
    encoding = choose_encoding(path, codec="ffv1", source_format=info.format)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    noise = np.random.default_rng(0)
    planes = tuple(noise.integers(0, 256, p.shape, np.uint8) for p in make_frame(info, 0).planes)
    try:
        with pytest.raises(OutputError, match=r"a\.mkv: cannot"):  # noqa: SIM117
            with VideoWriter(path, info=info, encoding=encoding) as writer:
                resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, hard))
                for index in range(40):
                    writer.write(replace(make_frame(info, index), planes=planes))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == []


def test_a_file_whose_header_could_not_be_written_is_not_finished(tmp_path: Path) -> None:
    # Like a live run, which closes a sink after it failed.
    info = make_info(64, 64)
    path = tmp_path / "a.mp4"
    writer = VideoWriter(path, info=info, encoding=choose_encoding(path, source_format=info.format))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
        with pytest.raises(OutputError, match=r"a\.mp4: cannot write frame"):
            for index in range(200):
                writer.write(make_frame(info, index))
        with pytest.raises(OutputError, match="writing has failed"):
            writer.finish()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_an_output_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="a part of the path is a file"):
        encode(tmp_path / "file" / "a.mp4", make_info())


def test_permissions_follow_the_umask(tmp_path: Path) -> None:
    encode(tmp_path / "a.mp4", make_info(), pts=[0])
    (tmp_path / "plain").touch()
    assert stat.S_IMODE((tmp_path / "a.mp4").stat().st_mode) == stat.S_IMODE(
        (tmp_path / "plain").stat().st_mode
    )
