"""Tests of NVENC without the hardware: its options against FFmpeg itself, the rest with other encoders."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from written_films import decode, encode, make_frame, make_info

from vitascope.device import Gpu
from vitascope.errors import OutputError
from vitascope.frames import PIXEL_FORMATS, Frame
from vitascope.media.writing import encoding, nvenc, nvenc_trial
from vitascope.media.writing.encoding import Encoding, choose_encoding
from vitascope.media.writing.nvenc import NvencFramePacker, NvencStreamEncoder
from vitascope.media.writing.writer import VideoWriter

NV12, P010 = PIXEL_FORMATS["nv12"], PIXEL_FORMATS["p010le"]


@pytest.fixture
def a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Gpu("NVIDIA GeForce RTX 9090", "999.1", 2**34)
    monkeypatch.setattr(nvenc, "probe_gpus", lambda: (gpu,))


@pytest.fixture
def nvenc_works(monkeypatch: pytest.MonkeyPatch, a_gpu: None) -> None:
    monkeypatch.setattr(nvenc, "why_nvenc_fails", lambda _encoder, _format, **_: None)


@pytest.fixture
def nvenc_fails(monkeypatch: pytest.MonkeyPatch, a_gpu: None) -> None:
    monkeypatch.setattr(nvenc, "why_nvenc_fails", lambda encoder, _format, **_: f"{encoder} is on strike")


@pytest.fixture
def no_trial(monkeypatch: pytest.MonkeyPatch, a_gpu: None) -> None:
    def fail(*_: object, **__: object) -> None:
        raise AssertionError("it was tried")

    monkeypatch.setattr(nvenc, "why_nvenc_fails", fail)


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
    """Check for invalid arguments: FFmpeg reads the options before it looks for a GPU."""
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


def opening_error(chosen: Encoding, options: dict[str, str]) -> Exception | None:
    context = av.CodecContext.create(chosen.encoder, "w")
    context.width = context.height = 256
    context.pix_fmt, context.time_base = chosen.pixel_format, Fraction(1, 25)
    context.options = options
    try:
        context.open()
    except (av.FFmpegError, OverflowError) as error:
        return error
    return None


@pytest.mark.usefixtures("nvenc_fails")
def test_nvenc_that_cannot_be_had_is_an_error_only_when_asked_for() -> None:
    with pytest.raises(
        OutputError, match=r"NVENC was requested.*h264_nvenc is on strike.*let the CPU encode"
    ):
        choose_encoding(Path("a.mp4"), source_format=NV12, hardware="nvenc")
    automatic = choose_encoding(Path("a.mp4"), source_format=NV12, hardware="auto")
    assert replace(automatic, notes=()) == choose_encoding(Path("a.mp4"), source_format=NV12, hardware="cpu")
    assert automatic.encoder == "libx264"
    assert automatic.notes == ("the CPU encodes instead of the GPU: h264_nvenc is on strike",)


@pytest.mark.usefixtures("no_trial")
@pytest.mark.parametrize(
    ("path", "options", "why"),
    [
        ("a.mov", {"codec": "prores"}, "it can write h264, h265, av1, not prores"),
        ("a.mp4", {"source_format": PIXEL_FORMATS["yuv444p"]}, "it cannot write yuv444p in h264"),
        ("a.mp4", {"codec": "h264", "source_format": P010}, "it cannot write yuv420p10le in h264"),
        ("a.mov", {"with_alpha": True}, "it can write h264, h265, av1, not prores"),
        ("a.webm", {}, "not vp9"),
        ("a", {}, "not png"),
        ("a.mkv", {"codec": "ffv1", "grey": True}, "not ffv1"),
        ("a.mp4", {"size": (7680, 4320)}, "7680x4320 is too large: h264 goes up to 4096 there"),
        (
            "a.mp4",
            {"size": (8194, 4320), "source_format": P010},
            "8194x4320 is too large: h265 goes up to 8192",
        ),
    ],
)
def test_what_nvenc_does_not_write(path: str, options: dict[str, Any], why: str) -> None:
    wishes = {"source_format": NV12} | options
    with pytest.raises(OutputError, match=why):
        choose_encoding(Path(path), hardware="nvenc", **wishes)
    assert choose_encoding(Path(path), hardware="auto", **wishes) == choose_encoding(Path(path), **wishes)


@pytest.mark.usefixtures("no_trial")
@pytest.mark.parametrize(
    "options",
    [
        {"size": (97, 650)},
        {"size": (650, 97)},
        {"size": (1920, 200)},  # below the minimum of every generation
        {"source_format": P010, "bit_depth": 8},  # a GPU does not convert these
        {"bit_depth": 10},
    ],
)
def test_what_is_not_given_to_nvenc_unasked(options: dict[str, Any]) -> None:
    wishes = {"source_format": NV12} | options
    assert choose_encoding(Path("a.mp4"), hardware="auto", **wishes) == choose_encoding(
        Path("a.mp4"), **wishes
    )


def test_without_a_gpu_nothing_is_tried_or_said(monkeypatch: pytest.MonkeyPatch, no_trial: None) -> None:
    monkeypatch.setattr(nvenc, "probe_gpus", tuple)
    automatic = choose_encoding(Path("a.mp4"), source_format=NV12, hardware="auto")
    assert automatic == choose_encoding(Path("a.mp4"), source_format=NV12)


@pytest.mark.usefixtures("nvenc_works")
def test_odd_sizes_are_refused(tmp_path: Path) -> None:
    info = make_info(97, 65, format_name="nv12")
    chosen = choose_encoding(tmp_path / "a.mp4", source_format=info.format, hardware="nvenc")
    with pytest.raises(OutputError, match="cannot store odd sizes such as 97x65"):
        VideoWriter(tmp_path / "a.mp4", info=info, encoding=chosen)


def test_why_nvenc_fails_where_nothing_can_be_tried(monkeypatch: pytest.MonkeyPatch, a_gpu: None) -> None:
    assert nvenc.why_nvenc_fails("none_nvenc") == "this FFmpeg build has no none_nvenc"
    nvenc.why_nvenc_fails.cache_clear()
    monkeypatch.setattr(nvenc, "probe_gpus", tuple)
    assert nvenc.why_nvenc_fails("h264_nvenc") == "there is no NVIDIA GPU here, or its driver is missing"


STAND_IN = """
import json, sys
from pathlib import Path
import av
from vitascope.media.writing import encoding, nvenc_trial
from vitascope.media.writing.nvenc import NvencStreamEncoder

with (Path(__file__).parent / "trials").open("a") as trials:
    trials.write("+")
request = json.loads(sys.argv[1])
deep = request["pixel_format"] == "p010le"
encoder, preset = ("libx265", "superfast") if deep else ("libx264", "veryfast")
request |= {"encoder": encoder, "options": {"preset": preset, "crf": "20"}}
encoding.NVENC_ENCODERS = {"h264": "libx264", "h265": "libx265"}
plain, number = NvencStreamEncoder.encode, 0

def encode(self, picture):
    global number
    if deep:  # which x265 takes only in three planes
        pts, time_base, picture = picture.pts, picture.time_base, picture.reformat(format="yuv420p10le")
        picture.pts, picture.time_base = pts, time_base
    number += 1
    if number == 5:
        ...
    return plain(self, picture)

NvencStreamEncoder.encode = encode
sys.argv[1] = json.dumps(request)
nvenc_trial.main()
"""
"""The trial with x264 or x265 instead of NVENC; ``...`` happens to the fifth picture."""


class Trials:
    """Simulates a machine with a GPU and an encoder, and counts its trials."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.script, self.cache = folder / "stand_in.py", folder / "engines"
        monkeypatch.setattr(nvenc, "_TRIAL", (sys.executable, str(self.script)))
        self.becomes("pass")

    def becomes(self, fault: str) -> None:
        self.script.write_text(STAND_IN.replace("...", fault))

    def ask(self, encoder: str = "h264_nvenc", pixel_format: str = "nv12") -> str | None:
        """Ask as a new process would."""
        nvenc.why_nvenc_fails.cache_clear()
        return nvenc.why_nvenc_fails(encoder, pixel_format, cache_dir=self.cache)

    @property
    def count(self) -> int:
        return len((self.script.parent / "trials").read_text())


@pytest.fixture
def trials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, a_gpu: None) -> Iterator[Trials]:
    yield Trials(tmp_path, monkeypatch)
    nvenc.why_nvenc_fails.cache_clear()


def test_an_encoder_that_is_right_is_tried_once(trials: Trials, monkeypatch: pytest.MonkeyPatch) -> None:
    assert trials.ask() is None
    trials.becomes("raise SystemExit(3)")
    assert trials.ask() is None
    assert trials.count == 1
    newer = Gpu("NVIDIA GeForce RTX 9090", "1000.0", 2**34)
    monkeypatch.setattr(nvenc, "probe_gpus", lambda: (newer,))
    assert "could not be tried" in (trials.ask() or "")
    assert trials.count == 2


def test_ten_bits_are_tried_by_themselves(trials: Trials) -> None:
    assert trials.ask() is None
    assert trials.ask("hevc_nvenc", "p010le") is None
    assert trials.count == 2


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        (
            "memoryview(picture.planes[0])[:] = bytes(picture.planes[0])[::-1]",
            r"damages pictures: number 4 has",
        ),
        (
            "memoryview(picture.planes[1])[:] = bytes(picture.planes[1])[::-1]",
            r"damages pictures: number 4 has",
        ),
        ("return []", r"gives 11 pictures for 12"),
        ("picture.pts += 1", r"moves pictures in time"),
        (
            "raise av.error.ExternalError(542398533, 'no capable devices')",
            r"does not work on this machine \(",
        ),
    ],
)
def test_an_encoder_that_is_wrong_is_not_used_and_tried_once(trials: Trials, fault: str, why: str) -> None:
    trials.becomes(fault)
    assert re.match(f"h264_nvenc {why}", trials.ask() or "")
    trials.becomes("pass")
    assert re.match(f"h264_nvenc {why}", trials.ask() or "")
    assert trials.count == 1


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ("raise av.error.MemoryError(12, 'Cannot allocate memory')", r"does not work on this machine \("),
        (
            "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
            "could not be tried: its process ended with",
        ),
    ],
)
def test_what_may_pass_is_tried_again(trials: Trials, fault: str, why: str) -> None:
    """Check that a trial is repeated if all sessions of the GPU were busy, or if it was killed."""
    trials.becomes(fault)
    assert re.match(f"h264_nvenc {why}", trials.ask() or "")
    trials.becomes("pass")
    assert trials.ask() is None


def test_an_encoder_that_hangs_is_not_waited_for(trials: Trials, monkeypatch: pytest.MonkeyPatch) -> None:
    trials.script.write_text("import time; time.sleep(600)")
    monkeypatch.setattr(nvenc, "_TRIAL_SECONDS", 1)
    assert trials.ask() == "h264_nvenc did not answer within 1 seconds"
    trials.becomes("pass")
    assert trials.ask() == "h264_nvenc did not answer within 1 seconds"


def test_the_trial_itself_runs_and_nothing_of_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, a_gpu: None
) -> None:
    """Check with another encoder's options, so that the trial fails on every machine."""
    monkeypatch.setattr(nvenc, "NVENC_ENCODERS", {"h264": "libx264"})
    (tmp_path / "av.py").write_text("raise SystemExit('imported from the current folder')")
    monkeypatch.chdir(tmp_path)
    nvenc.why_nvenc_fails.cache_clear()
    assert (nvenc.why_nvenc_fails("libx264") or "").startswith("libx264 does not work on this machine (")


def test_without_python_there_is_no_trial(monkeypatch: pytest.MonkeyPatch, a_gpu: None) -> None:
    """Check programs that embed Python, which may not know their interpreter."""
    monkeypatch.setattr(nvenc, "_TRIAL", ("", "-m", "vitascope"))
    nvenc.why_nvenc_fails.cache_clear()
    assert (nvenc.why_nvenc_fails("h264_nvenc") or "").startswith("h264_nvenc could not be tried: ")
    nvenc.why_nvenc_fails.cache_clear()


def test_an_output_goes_to_the_encoder_that_passed(
    trials: Trials, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check the way from the setting to the file, with x264 as NVENC."""
    info = make_info(320, 256, format_name="nv12")
    monkeypatch.setattr(nvenc, "_options", lambda **_: {"preset": "veryfast", "crf": "20"})
    for module in (nvenc, encoding):
        monkeypatch.setattr(module, "NVENC_ENCODERS", {"h264": "libx264"})
    wishes: dict[str, Any] = {"source_format": info.format, "size": (320, 256), "cache_dir": trials.cache}
    chosen = choose_encoding(tmp_path / "a.mp4", hardware="auto", **wishes)
    assert chosen.is_nvenc
    assert chosen.notes == ("the GPU encodes (libx264); gpu.encoder=cpu is slower, but makes smaller files",)
    encode(tmp_path / "a.mp4", info, encoding=chosen)
    assert len(decode(tmp_path / "a.mp4")) == 6
    trials.becomes("return []")
    trials.cache.rename(tmp_path / "gone")
    nvenc.why_nvenc_fails.cache_clear()
    chosen = choose_encoding(tmp_path / "b.mp4", hardware="auto", **wishes)
    assert chosen.notes == ("the CPU encodes instead of the GPU: libx264 gives 11 pictures for 12",)
    with pytest.raises(
        OutputError, match=r"NVENC was requested.*gives 11 pictures for 12; let the CPU encode"
    ):
        choose_encoding(tmp_path / "b.mp4", hardware="nvenc", **wishes)


def test_an_encoder_that_does_not_start_any_more_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check the message, if a trial passed earlier."""
    info = make_info(320, 256, format_name="nv12")
    chosen = replace(choose_encoding(tmp_path / "a.mp4", source_format=info.format), options={"preset": "p4"})
    monkeypatch.setattr(encoding, "NVENC_ENCODERS", {"h264": "libx264"})
    with pytest.raises(
        OutputError, match=r"a\.mp4: libx264 does not start \(.*gpu\.encoder=cpu does without it"
    ):
        encode(tmp_path / "a.mp4", info, encoding=chosen)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.cuda
def test_the_trial_gives_pictures_from_the_gpu_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check with x264, for which pictures are downloaded first."""
    monkeypatch.setattr(encoding, "NVENC_ENCODERS", {"h264": "libx264"})
    plain, formats = NvencStreamEncoder.encode, []

    def brought_down(self: NvencStreamEncoder, picture: av.VideoFrame) -> Any:
        formats.append(picture.format.name)
        host = picture.reformat(format="nv12")
        host.pts, host.time_base = picture.pts, picture.time_base
        return plain(self, host)

    monkeypatch.setattr(NvencStreamEncoder, "encode", brought_down)
    options = {"preset": "veryfast", "crf": "20"}
    verdict = nvenc_trial.examine("h264", "libx264", "nv12", options, 0)
    assert verdict.passed, verdict.reason
    assert formats == ["nv12"] * 12 + ["cuda"] * 12


@pytest.mark.usefixtures("nvenc_works")
@pytest.mark.parametrize("format_name", ["nv12", "yuv420p"])
def test_frames_in_host_memory_go_the_same_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format_name: str
) -> None:
    """Check with x264, which accepts NV12 too."""
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
        pytest.raises(OutputError, match="frame 0 is on the GPU, and this encoder needs host memory"),
        VideoWriter(tmp_path / "a.mp4", info=info, encoding=chosen) as writer,
    ):
        writer.write(on_gpu)
    with pytest.raises(OutputError, match="is nv12 on the GPU; its encoder takes p010le"):
        NvencFramePacker(_NoHostPacker(), "p010le").pack(on_gpu)
