"""Check that decoding on the GPU gives the same frames, times and colours as on the CPU."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from read_films import STRUCTURES, read_all, write_structure

from clips import copied, write_clip
from vitascope.errors import CorruptInputError, MissingDependencyError, UsageError
from vitascope.frames import Frame
from vitascope.media.reading.container import Decoding, OpenedVideo
from vitascope.media.reading.reader import VideoReader, open_video


def as_planar(frame: Frame) -> list[np.ndarray]:
    """Return luma, blue and red on the host, with samples in the low bits; waits only for ``ready``."""
    if frame.ready is not None:
        frame.ready.synchronize()
    planes = [plane.get() if hasattr(plane, "get") else plane for plane in frame.planes]
    if frame.format.semi_planar:
        planes = [planes[0], planes[1][..., 0], planes[1][..., 1]]
    return [plane >> frame.format.sample_shift for plane in planes]


def assert_same_film(path: Path, expected_decoder: str, **options: Any) -> VideoReader:
    """Read on the CPU and on the GPU, and compare all that must not depend on the device."""
    cpu_options = {k: v for k, v in options.items() if k != "decoder_sessions"}
    with open_video(path, **cpu_options) as cpu, open_video(path, cuda_device=0, **options) as gpu:
        assert gpu.decoder == expected_decoder
        assert gpu.info.format.semi_planar
        assert gpu.info.format.bit_depth == cpu.info.format.bit_depth
        assert gpu.info.color == cpu.info.color
        assert gpu.info.rotation_degrees == cpu.info.rotation_degrees
        assert gpu.hdr == cpu.hdr
        expected = list(cpu)
        assert expected
        for frame, other in zip(gpu, expected, strict=True):
            assert type(frame.planes[0]).__module__.startswith("cupy")
            assert (frame.index, frame.pts, frame.duration, frame.keyframe, frame.color) == (
                other.index,
                other.pts,
                other.duration,
                other.keyframe,
                other.color,
            )
            for plane, reference in zip(as_planar(frame), as_planar(other), strict=True):
                np.testing.assert_array_equal(plane, reference)
        assert gpu.corrupt_count == cpu.corrupt_count == 0
    return gpu


@pytest.fixture(scope="module")
def films(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("films")
    return {name: write_structure(folder, name) for name in STRUCTURES}


@pytest.mark.cuda
@pytest.mark.parametrize("name", STRUCTURES)
def test_frames_are_those_of_the_cpu(films: dict[str, Path], name: str) -> None:
    codec = {"h264": "h264", "hevc": "hevc", "vp9": "vp9"}[name.partition("-")[0].partition(".")[0]]
    assert_same_film(films[name], f"nvdec ({codec})")


@pytest.mark.cuda
@pytest.mark.parametrize("name", STRUCTURES)
@pytest.mark.parametrize("buffer_bytes", [1, None])
def test_sessions_give_the_same_film(films: dict[str, Path], name: str, buffer_bytes: int | None) -> None:
    expected, _ = read_all(films[name], cuda_device=0)
    frames, reader = read_all(
        films[name], cuda_device=0, decoder_sessions=3, session_buffer_bytes=buffer_bytes
    )
    assert frames == expected
    assert len(frames) == 100
    assert reader.decoder.startswith("nvdec (")
    assert reader.decoder.endswith("; 3 sessions")


@pytest.mark.cuda
@pytest.mark.parametrize("sessions", [1, 3])
@pytest.mark.parametrize(("start", "end"), [(0.9, None), (1.7, 2.5)])
def test_trims_are_those_of_the_cpu(
    films: dict[str, Path], sessions: int, start: float, end: float | None
) -> None:
    label = "nvdec (hevc)" + ("; 3 sessions" if sessions > 1 else "")
    assert_same_film(
        films["hevc-open.mp4"], label, start_seconds=start, end_seconds=end, decoder_sessions=sessions
    )


@pytest.mark.cuda
@pytest.mark.parametrize(("width", "height"), [(178, 146), (322, 242), (1918, 1082)])
@pytest.mark.parametrize("codec", ["libx264", "libx265"])
def test_sizes_that_are_no_multiple_of_a_block(tmp_path: Path, codec: str, width: int, height: int) -> None:
    quiet = {"x265-params": "log-level=none"} if codec == "libx265" else {}
    path = write_clip(
        tmp_path / "a.mp4", codec=codec, width=width, height=height, frame_count=8, codec_options=quiet
    )
    assert_same_film(path, f"nvdec ({'h264' if codec == 'libx264' else 'hevc'})")


@pytest.mark.cuda
def test_variable_frame_rate_rotation_and_range(tmp_path: Path) -> None:
    source = write_clip(
        tmp_path / "a.mp4",
        width=176,
        height=144,
        pts=[0, 3, 4, 9, 20, 21, 40, 44],
        time_base=Fraction(1, 90),
        color_tags=(1, 1, 1, 2),
    )
    path = copied(source, tmp_path / "turned.mp4", prepare=lambda stream: stream.set_display_rotation(-90))
    reader = assert_same_film(path, "nvdec (h264)")
    assert reader.info.rotation_degrees == 90
    assert reader.info.color.full_range


@pytest.mark.cuda
def test_hdr_stays_ten_bits_with_its_metadata(tmp_path: Path) -> None:
    path = write_clip(
        tmp_path / "hdr.mp4",
        width=176,
        height=144,
        codec="libx265",
        pixel_format="yuv420p10le",
        color_tags=(9, 16, 9, 1),
        codec_options={
            "x265-params": "log-level=none:max-cll=1000,400:"
            "master-display=G(13250,34500)B(7500,3000)R(34000,16000)WP(15635,16450)L(10000000,1)"
        },
    )
    reader = assert_same_film(path, "nvdec (hevc)")
    assert reader.info.format.name == "p010le"
    assert reader.hdr is not None
    assert reader.hdr.max_content_light_level == 1000


@pytest.mark.cuda
@pytest.mark.parametrize(
    ("name", "options", "decoder"),
    [
        (
            "a.mp4",
            {
                "codec": "libx265",
                "pixel_format": "yuv422p",
                "codec_options": {"x265-params": "log-level=none"},
            },
            "libavcodec (hevc): this GPU cannot decode hevc in yuv422p at 176x144",
        ),
        (
            "a.mp4",
            {
                "codec": "libx265",
                "pixel_format": "yuv444p",
                "codec_options": {"x265-params": "log-level=none"},
            },
            "libavcodec (hevc): NVDEC gives yuv444p, which the kernels cannot read",
        ),
        (
            "a.mp4",
            {
                "codec": "libx265",
                "pixel_format": "yuv420p12le",
                "codec_options": {"x265-params": "log-level=none"},
            },
            "libavcodec (hevc): NVDEC gives p016le, which the kernels cannot read",
        ),
        (
            "a.mp4",
            {"codec": "libx264", "pixel_format": "yuv420p10le"},
            "libavcodec (h264): this GPU cannot decode h264 in yuv420p10le at 176x144",
        ),
        (
            "a.mp4",
            {"codec": "libx264", "pixel_format": "yuv422p"},
            "libavcodec (h264): this GPU cannot decode h264 in yuv422p at 176x144",
        ),
        (
            "a.mkv",
            {"codec": "libsvtav1"},
            "libavcodec (libdav1d): FFmpeg has no way from libdav1d to NVDEC",
        ),
        (
            "a.mkv",
            {"codec": "libvpx-vp9", "width": 321, "height": 241},
            "libavcodec (vp9): NVDEC gives 322x242 of 321x241",
        ),
        ("a.mkv", {"codec": "ffv1"}, "libavcodec (ffv1): FFmpeg has no way from ffv1 to NVDEC"),
    ],
)
def test_what_the_gpu_does_not_decode_comes_from_the_cpu_with_a_reason(
    tmp_path: Path, name: str, options: dict[str, Any], decoder: str
) -> None:
    path = write_clip(tmp_path / name, **({"width": 176, "height": 144, "frame_count": 6} | options))
    expected, _ = read_all(path)
    frames, reader = read_all(path, cuda_device=0)
    assert reader.decoder == decoder
    assert frames == expected


@pytest.mark.cuda
def test_images_come_from_the_cpu(tmp_path: Path) -> None:
    frame = av.VideoFrame.from_ndarray(np.zeros((40, 40, 3), np.uint8), format="rgb24")
    frame.save(str(tmp_path / "a.png"))
    frames, reader = read_all(tmp_path / "a.png", cuda_device=0)
    assert len(frames) == 1
    assert reader.decoder == "libavcodec (png): images are decoded on the CPU"


@pytest.mark.cuda
def test_frames_stay_what_they_are_while_others_are_decoded(films: dict[str, Path]) -> None:
    import cupy

    expected, _ = read_all(films["hevc-open.mp4"], cuda_device=0)
    with open_video(films["hevc-open.mp4"], cuda_device=0) as reader:
        frames = list(reader)
    pointers = {frame.planes[0].data.ptr for frame in frames}
    assert len(pointers) == len(frames) == 100
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        for frame in frames:
            stream.wait_event(frame.ready)
        sums = [cupy.asnumpy(frame.planes[0].sum(dtype=cupy.int64)) for frame in frames]
    stream.synchronize()
    again = [int(as_planar(frame)[0].astype(np.int64).sum()) for frame in frames]
    assert [int(value) >> 6 for value in sums] == again
    assert [frame[0] for frame in expected] == [frame.index for frame in frames]


@pytest.mark.cuda
def test_opened_here_decoded_there(films: dict[str, Path]) -> None:
    """Only the opening thread makes the device current by itself."""
    found: list[object] = []
    with open_video(films["hevc-closed.mp4"], cuda_device=0) as reader:
        thread = threading.Thread(target=lambda: found.extend(frame.pts for frame in reader))
        thread.start()
        thread.join(60)
    assert len(found) == 100


@pytest.mark.cuda
@pytest.mark.parametrize("sessions", [1, 3])
def test_closing_early_returns_and_frames_stay_valid(films: dict[str, Path], sessions: int) -> None:
    for _ in range(5):
        with open_video(films["h264-open.mp4"], cuda_device=0, decoder_sessions=sessions) as reader:
            frame = next(reader)
        assert int(as_planar(frame)[0].max()) > 0


@pytest.mark.whole_gpu
@pytest.mark.cuda
@pytest.mark.parametrize("sessions", [1, 3])
def test_memory_is_flat_and_the_count_exact(films: dict[str, Path], sessions: int) -> None:
    import cupy

    def read() -> int:
        with open_video(films["hevc-closed.mp4"], cuda_device=0, decoder_sessions=sessions) as reader:
            return sum(1 for _ in reader)

    assert read() == 100
    cupy.cuda.Device(0).synchronize()
    before = cupy.cuda.runtime.memGetInfo()[0]
    assert [read() for _ in range(8)] == [100] * 8
    cupy.cuda.Device(0).synchronize()
    assert before - cupy.cuda.runtime.memGetInfo()[0] < 32 << 20


@pytest.mark.cuda
def test_a_device_that_is_not_there_is_refused(films: dict[str, Path]) -> None:
    with pytest.raises(UsageError, match="this machine has devices 0 to"):
        open_video(films["hevc-closed.mp4"], cuda_device=99)


@pytest.mark.cuda
@pytest.mark.parametrize("sessions", [1, 3])
def test_a_truncated_film_is_noticed_on_the_gpu_too(tmp_path: Path, sessions: int) -> None:
    whole = write_structure(tmp_path, "hevc-closed.mp4")
    path = copied(whole, tmp_path / "front.mp4", kept=0.7, movflags="faststart")
    with (
        open_video(path, cuda_device=0, decoder_sessions=sessions) as reader,
        pytest.raises(CorruptInputError, match="should have 100 frames"),
    ):
        list(reader)
    assert reader.decoded_count > 10


@pytest.mark.cuda
@pytest.mark.parametrize("name", ["h264-closed.mp4", "hevc-closed.mp4"])
@pytest.mark.parametrize("sessions", [1, 3])
def test_damage_is_counted_and_what_follows_is_whole(tmp_path: Path, name: str, sessions: int) -> None:
    path = write_structure(tmp_path, name)
    expected, _ = read_all(path, cuda_device=0)
    data = bytearray(path.read_bytes())
    with av.open(str(path)) as container:
        spans = [(entry.pos, entry.size) for entry in container.streams.video[0].index_entries]
    for position, size in spans[45:48]:
        data[position + 5 : position + size] = bytes(size - 5)
    path.write_bytes(data)
    frames, reader = read_all(path, cuda_device=0, decoder_sessions=sessions)
    assert reader.decoder.startswith("nvdec")
    assert 1 <= reader.corrupt_count <= 20
    assert len(frames) + reader.corrupt_count == pytest.approx(100, abs=3)
    assert [frame[1:] for frame in frames[:40]] == [frame[1:] for frame in expected[:40]]
    assert [frame[1:] for frame in frames[-40:]] == [frame[1:] for frame in expected[-40:]]


@pytest.mark.cuda
@pytest.mark.parametrize(
    ("codec", "options"),
    [
        ("libx264", {"bf": "0"}),
        ("libx265", {"x265-params": "bframes=0:log-level=none"}),
    ],
)
def test_without_reordering_every_packet_gives_its_picture_at_once(
    tmp_path: Path, codec: str, options: dict[str, str]
) -> None:
    path = write_clip(tmp_path / "a.mp4", codec=codec, width=176, height=144, codec_options=options)
    video = OpenedVideo(path, Decoding(cuda_device=0))
    try:
        packets = [packet for packet in video.container.demux(video.stream) if packet.size]
        found = [[picture.pts for picture in video.decode(packet)] for packet in packets]
    finally:
        video.close()
    assert found == [[packet.pts] for packet in packets]
    assert len(found) == 12


class DroppingVideo(OpenedVideo):
    """A decoder that silently loses every tenth picture."""

    def decode(self, packet: Any) -> list[av.VideoFrame]:
        return [picture for picture in super().decode(packet) if (picture.pts // 512) % 10 != 7]


@pytest.mark.cuda
def test_pictures_that_the_gpu_drops_silently_count_as_damage(
    films: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vitascope.media.reading.container.OpenedVideo", DroppingVideo)
    with open_video(films["h264-closed.mp4"], cuda_device=0) as reader:
        assert len(list(reader)) == 90
        assert reader.corrupt_count == 10


@pytest.fixture
def without_cupy(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(__import__("sys").modules, "cupy", None)
    yield


@pytest.mark.usefixtures("without_cupy")
def test_without_cupy_the_error_names_what_to_install(tmp_path: Path) -> None:
    path = write_clip(tmp_path / "a.mp4", frame_count=2)
    with pytest.raises(MissingDependencyError, match=r"vitascope\[cuda\]"):
        open_video(path, cuda_device=0)
