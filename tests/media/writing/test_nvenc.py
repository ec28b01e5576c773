"""NVENC, on machines that have none: what it is told is held against FFmpeg itself, the rest against stand-ins."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from written_films import decode, make_frame, make_info

from vitascope.errors import OutputError
from vitascope.frames import PIXEL_FORMATS, Frame
from vitascope.media.writing import nvenc
from vitascope.media.writing.encoding import Encoding, choose_encoding
from vitascope.media.writing.nvenc import NvencFramePacker
from vitascope.media.writing.writer import VideoWriter

NV12, P010 = PIXEL_FORMATS["nv12"], PIXEL_FORMATS["p010le"]


@pytest.fixture
def nvenc_works(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(nvenc, "why_nvenc_fails", lambda _encoder: None)
    yield


@pytest.fixture
def nvenc_fails(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(nvenc, "why_nvenc_fails", lambda encoder: f"{encoder} is on strike")
    yield


@pytest.mark.usefixtures("nvenc_works")
@pytest.mark.parametrize(
    ("codec", "source", "preset", "crf", "encoder", "pixel_format", "options"),
    [
        ("h264", "nv12", "ultrafast", 23, "h264_nvenc", "nv12", ("p1", "23")),
        ("h264", "yuv420p", "medium", 17, "h264_nvenc", "nv12", ("p4", "17")),
        ("h264", "yuv420p", "placebo", 0, "h264_nvenc", "nv12", ("p7", "1")),
        ("h265", "p010le", "fast", 51, "hevc_nvenc", "p010le", ("p4", "51")),
        ("av1", "p010le", "13", 63, "av1_nvenc", "p010le", ("p1", "51")),
        ("av1", "yuv420p", "0", 30, "av1_nvenc", "nv12", ("p7", "24")),
    ],
)
def test_wishes_become_nvencs(
    codec: Any,
    source: str,
    preset: str,
    crf: int,
    encoder: str,
    pixel_format: str,
    options: tuple[str, str],
) -> None:
    chosen = choose_encoding(
        Path("a.mp4"),
        codec=codec,
        source_format=PIXEL_FORMATS[source],
        preset=preset,
        crf=crf,
        hardware="nvenc",
        parallel_encoders=1,
    )
    assert (chosen.encoder, chosen.pixel_format) == (encoder, pixel_format)
    assert (chosen.options["preset"], chosen.options["cq"]) == options
    assert chosen.is_nvenc
    assert not chosen.parameters


@pytest.mark.usefixtures("nvenc_works")
@pytest.mark.parametrize("codec", ["h264", "h265", "av1"])
@pytest.mark.parametrize("crf", [None, 1, 51])
@pytest.mark.parametrize("speed", ["fast", "balanced", "quality"])
def test_ffmpegs_encoder_knows_the_options(codec: Any, crf: int | None, speed: Any) -> None:
    """FFmpeg reads the options before it looks for a GPU: what it does not know is an invalid argument."""
    chosen = choose_encoding(
        Path("a.mp4"), codec=codec, source_format=NV12, crf=crf, speed=speed, hardware="nvenc"
    )
    formats = {fmt.name for fmt in av.Codec(chosen.encoder, "w").video_formats or ()}
    assert {"cuda", chosen.pixel_format} <= formats
    assert not isinstance(
        opening_error(chosen, dict(chosen.options)), (av.error.ArgumentError, OverflowError)
    )
    for name in ("preset", "rc", "tune"):
        wrong = dict(chosen.options) | {name: "nonsense"}
        assert isinstance(opening_error(chosen, wrong), av.error.ArgumentError), name
    assert isinstance(opening_error(chosen, dict(chosen.options) | {"cq": "64"}), OverflowError)


def opening_error(encoding: Encoding, options: dict[str, str]) -> Exception | None:
    context = av.CodecContext.create(encoding.encoder, "w")
    context.width = context.height = 256
    context.pix_fmt, context.time_base = encoding.pixel_format, Fraction(1, 25)
    context.options = options
    try:
        context.open()
    except (av.FFmpegError, OverflowError) as error:
        return error
    return None


@pytest.mark.usefixtures("nvenc_fails")
def test_nvenc_that_cannot_be_had_is_an_error_only_when_asked_for() -> None:
    with pytest.raises(
        OutputError, match=r"NVENC was asked for.*h264_nvenc is on strike.*leave it to the CPU"
    ):
        choose_encoding(Path("a.mp4"), source_format=NV12, hardware="nvenc")
    automatic = choose_encoding(Path("a.mp4"), source_format=NV12, hardware="auto")
    assert automatic == choose_encoding(Path("a.mp4"), source_format=NV12, hardware="cpu")
    assert automatic.encoder == "libx264"


@pytest.mark.usefixtures("nvenc_works")
@pytest.mark.parametrize(
    ("path", "options", "why"),
    [
        ("a.mov", {"codec": "prores"}, "it writes h264, h265, av1, not prores"),
        ("a.mp4", {"source_format": PIXEL_FORMATS["yuv444p"]}, "it takes no yuv444p for h264"),
        ("a.mp4", {"codec": "h264", "source_format": P010}, "it takes no yuv420p10le for h264"),
    ],
)
def test_what_nvenc_does_not_write(path: str, options: dict[str, Any], why: str) -> None:
    wishes = {"source_format": NV12} | options
    with pytest.raises(OutputError, match=why):
        choose_encoding(Path(path), hardware="nvenc", **wishes)
    assert not choose_encoding(Path(path), hardware="auto", **wishes).is_nvenc


@pytest.mark.usefixtures("nvenc_works")
def test_odd_sizes_are_refused(tmp_path: Path) -> None:
    info = make_info(97, 65, format_name="nv12")
    chosen = choose_encoding(tmp_path / "a.mp4", source_format=info.format, hardware="nvenc")
    with pytest.raises(OutputError, match="takes no odd picture sizes such as 97x65"):
        VideoWriter(tmp_path / "a.mp4", info=info, encoding=chosen)


def test_the_trial_says_what_is_missing_and_is_made_once() -> None:
    nvenc.why_nvenc_fails.cache_clear()
    reason = nvenc.why_nvenc_fails("h264_nvenc")
    assert nvenc.why_nvenc_fails("h264_nvenc") is reason
    assert nvenc.why_nvenc_fails.cache_info().misses == 1
    if reason is not None:
        assert reason.startswith("h264_nvenc does not start on this machine (")
    assert nvenc.why_nvenc_fails("none_nvenc") == "this FFmpeg build has no none_nvenc"
    assert nvenc.why_nvenc_fails("libx264") is None


@pytest.mark.parametrize("format_name", ["nv12", "yuv420p"])
def test_frames_in_host_memory_go_the_same_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format_name: str
) -> None:
    """x264 stands in: it takes NV12 too."""
    monkeypatch.setattr(nvenc, "why_nvenc_fails", lambda _encoder: None)
    info = make_info(format_name=format_name)
    chosen = choose_encoding(tmp_path / "a.mp4", source_format=info.format, hardware="nvenc")
    with_options = {"encoder": "libx264", "options": {"crf": "8"}}
    stand_in = Encoding(**{name: getattr(chosen, name) for name in ENCODING_FIELDS} | with_options)
    monkeypatch.setattr(Encoding, "is_nvenc", property(lambda _self: True))
    with VideoWriter(tmp_path / "a.mp4", info=info, encoding=stand_in) as writer:
        for index in range(6):
            writer.write(make_frame(info, index))
    pictures = decode(tmp_path / "a.mp4")
    assert len(pictures) == 6
    for index, picture in enumerate(pictures):
        luma = np.frombuffer(picture.planes[0], np.uint8).reshape(picture.height, -1)[:, : picture.width]
        np.testing.assert_allclose(luma.astype(int), make_frame(info, index).planes[0].astype(int), atol=6)


ENCODING_FIELDS = ("codec", "encoder", "pixel_format", "muxer", "options", "parameters", "threads", "notes")


@pytest.mark.cuda
@pytest.mark.parametrize("fmt", [NV12, P010])
@pytest.mark.parametrize("is_joined", [True, False])
@pytest.mark.parametrize("rotation", [0, 90, 180])
def test_planes_on_the_gpu_become_cuda_pictures(fmt: Any, is_joined: bool, rotation: int) -> None:
    import cupy

    height, width = 146, 178
    random = cupy.random.default_rng(1)
    whole = random.integers(0, 255, (height * 3 // 2, width)).astype(fmt.dtype)
    planes = (whole[:height], whole[height:].reshape(height // 2, width // 2, 2))
    if not is_joined:
        planes = tuple(plane.copy() for plane in planes)
    info = make_info()
    with cupy.cuda.Stream(non_blocking=True) as stream:
        stream.synchronize()
        cupy.cuda.Device().synchronize()
        packer = NvencFramePacker(_NoHostPacker(), fmt.name, rotation_degrees=rotation)
        frames = [Frame(planes, fmt, info.color, n, n, info.time_base) for n in range(3)]
        pictures = [packer.pack(frame) for frame in frames]
        stream.synchronize()
    for picture in pictures:
        assert (picture.format.name, picture.sw_format.name) == ("cuda", fmt.name)
        if is_joined and not rotation:
            assert picture.planes[0].buffer_ptr == whole.data.ptr
        host = picture.reformat(format=fmt.name)
        for plane, expected in zip(host.planes, planes, strict=True):
            turned = np.rot90(expected.get(), -(rotation // 90))
            rows = np.frombuffer(plane, fmt.dtype).reshape(turned.shape[0], -1)
            np.testing.assert_array_equal(rows[:, : turned[0].size].reshape(turned.shape), turned)


class _NoHostPacker:
    def pack(self, *_: object) -> av.VideoFrame:
        raise AssertionError("a frame on the GPU went through host memory")


@pytest.mark.cuda
def test_frames_on_the_gpu_need_an_encoder_there(tmp_path: Path) -> None:
    import cupy

    info = make_info(format_name="nv12")
    frame = make_frame(info, 0)
    on_gpu = frame.with_planes(tuple(cupy.asarray(plane) for plane in frame.planes))
    chosen = choose_encoding(tmp_path / "a.mp4", source_format=info.format)
    with (
        pytest.raises(OutputError, match="frame 0 is on the GPU, and this encoder takes host memory"),
        VideoWriter(tmp_path / "a.mp4", info=info, encoding=chosen) as writer,
    ):
        writer.write(on_gpu)
    with pytest.raises(OutputError, match="is nv12 on the GPU; its encoder takes p010le"):
        NvencFramePacker(_NoHostPacker(), "p010le").pack(on_gpu)
