"""Tests of spherical metadata and rotation in real MP4 files."""

from __future__ import annotations

import json
import shutil
import struct
import subprocess
from pathlib import Path

import av
import numpy as np
import pytest

from clips import write_clip
from vitascope.errors import CorruptInputError, InputError, OutputError, UsageError
from vitascope.frames import Projection, StereoLayout
from vitascope.media.metadata.mp4_boxes import Box, read_moov, rewrite_moov, scan_file, video_track
from vitascope.media.metadata.spherical import (
    SphericalMetadata,
    read_spherical,
    set_rotation,
    write_spherical,
)
from vitascope.media.reading.reader import open_video, probe
from vitascope.media.writing.encoding import choose_encoding
from vitascope.media.writing.writer import VideoWriter
from vitascope.vr.detection import describe_vr

VR180 = SphericalMetadata(StereoLayout.SIDE_BY_SIDE, Projection.HALF_EQUIRECTANGULAR)


def remux(source: Path, target: Path, **options: str) -> Path:
    with av.open(str(source)) as before, av.open(str(target), "w", container_options=options) as after:
        streams = {stream.index: after.add_stream_from_template(stream) for stream in before.streams}
        for packet in before.demux():
            if packet.dts is not None:
                packet.stream = streams[packet.stream_index]
                after.mux(packet)
    return target


@pytest.fixture
def clip(tmp_path: Path) -> Path:
    return write_clip(tmp_path / "clip.mp4", audio="aac")


def contents(path: Path) -> list[tuple[int, bytes]]:
    with av.open(str(path)) as container:
        return [(packet.stream_index, bytes(packet)) for packet in container.demux()]


def order(path: Path) -> list[bytes]:
    with path.open("rb") as file:
        return [box.kind for box in scan_file(file)]


def _decoded(path: Path) -> list[bytes]:
    with av.open(str(path)) as container:
        return [bytes(frame.planes[0]) for frame in container.decode(video=0)]


@pytest.mark.parametrize("stereo", [None, *StereoLayout])
@pytest.mark.parametrize(
    "projection", [None, Projection.EQUIRECTANGULAR, Projection.HALF_EQUIRECTANGULAR, Projection.FISHEYE]
)
@pytest.mark.parametrize("suffix", [".mp4", ".mov"])
def test_what_is_written_is_read(
    clip: Path, stereo: StereoLayout | None, projection: Projection | None, suffix: str
) -> None:
    path = remux(clip, clip.with_suffix(f".copy{suffix}"))
    before = contents(path)
    write_spherical(path, SphericalMetadata(stereo, projection))
    got = read_spherical(path)
    if stereo is None and projection is None:
        assert got is None
    else:
        assert got is not None
        assert (got.stereo, got.projection) == (stereo, projection)
    assert contents(path) == before


def test_ffmpeg_understands_the_boxes(clip: Path) -> None:
    write_spherical(clip, VR180)
    with av.open(str(clip)) as container:
        frame = next(container.decode(video=0))
        data = {item.type.name: bytes(item) for item in frame.side_data}
    assert struct.unpack_from("=i", data["STEREO3D"])[0] == 1  # AV_STEREO3D_SIDEBYSIDE
    kind, *_, left, top, right, bottom = struct.unpack_from("=4i4I", data["SPHERICAL"])
    assert kind in (2, 3)  # a tile of an equirectangular picture, or half equirectangular
    if kind == 2:
        assert (left, top, right, bottom) == (0x3FFFFFFF, 0, 0x3FFFFFFF, 0)


@pytest.mark.parametrize("layout", [StereoLayout.SIDE_BY_SIDE, StereoLayout.TOP_BOTTOM])
@pytest.mark.parametrize(
    ("projection", "kind", "fov_degrees"),
    [
        (Projection.EQUIRECTANGULAR, 0, 360),
        (Projection.HALF_EQUIRECTANGULAR, 3, 180),
        (Projection.FISHEYE, 5, 190),
        (Projection.FLAT, 4, 63.5),
    ],
)
@pytest.mark.parametrize("right_eye_first", [False, True])
@pytest.mark.parametrize("suffix", [".mp4", ".mov"])
def test_ffmpeg_finds_packing_order_projection_and_field_of_view(
    clip: Path,
    layout: StereoLayout,
    projection: Projection,
    kind: int,
    fov_degrees: float,
    right_eye_first: bool,
    suffix: str,
) -> None:
    path = remux(clip, clip.with_suffix(f".copy{suffix}"))
    is_told = projection not in (Projection.EQUIRECTANGULAR, Projection.HALF_EQUIRECTANGULAR)
    written = SphericalMetadata(
        layout, projection, right_eye_first=right_eye_first, fov_degrees=fov_degrees if is_told else None
    )
    write_spherical(path, written)
    got = read_spherical(path)
    assert got is not None
    assert (got.stereo, got.projection) == (layout, projection)
    assert (got.right_eye_first, got.fov_degrees) == (right_eye_first, fov_degrees)
    with av.open(str(path)) as container:
        data = {item.type.name: bytes(item) for item in next(container.decode(video=0)).side_data}
    packing, flags, *_, fov, per_degree = struct.unpack("=9i", data["STEREO3D"])
    assert packing == (1 if layout is StereoLayout.SIDE_BY_SIDE else 2)
    assert flags == right_eye_first  # AV_STEREO3D_FLAG_INVERT
    assert fov / per_degree == fov_degrees
    assert struct.unpack_from("=i", data["SPHERICAL"])[0] == kind
    info = probe(path)
    assert (info.stereo, info.right_eye_first, info.fov_degrees) == (layout, right_eye_first, fov_degrees)


@pytest.mark.skipif(
    shutil.which("exiftool") is None, reason="needs ExifTool, a second parser beside FFmpeg's"
)
@pytest.mark.parametrize(
    ("layout", "right_eye_first", "said"),
    [
        (StereoLayout.SIDE_BY_SIDE, False, "Stereoscopic Left-Right"),
        (StereoLayout.SIDE_BY_SIDE, True, "Stereoscopic Right-Left"),
        (StereoLayout.TOP_BOTTOM, False, "Stereoscopic Top-Bottom"),
        (StereoLayout.MONO, False, "Monoscopic"),
    ],
)
@pytest.mark.parametrize(
    ("projection", "bound"), [(Projection.EQUIRECTANGULAR, 0), (Projection.HALF_EQUIRECTANGULAR, 0.25)]
)
@pytest.mark.parametrize("suffix", [".mp4", ".mov"])
def test_exiftool_understands_the_boxes(
    clip: Path,
    layout: StereoLayout,
    right_eye_first: bool,
    said: str,
    projection: Projection,
    bound: float,
    suffix: str,
) -> None:
    path = remux(clip, clip.with_suffix(f".copy{suffix}"))
    write_spherical(path, SphericalMetadata(layout, projection, right_eye_first=right_eye_first))
    told = subprocess.run(["exiftool", "-j", "-ee", str(path)], capture_output=True, check=True).stdout
    (found,) = json.loads(told)
    # Older versions (12.57) have no name for 4, and print the number.
    assert found["Stereoscopic3D"] in (said, "Unknown (4)" if right_eye_first else said)
    assert found["MetadataSource"] == "Vitascope"
    bounds = [found[f"ProjectionBounds{side}"] for side in ("Left", "Right", "Top", "Bottom")]
    assert bounds == pytest.approx([bound, bound, 0, 0], abs=1e-6)
    assert "Warning" not in found


def test_apples_boxes_are_byte_for_byte_those_of_the_specification(clip: Path) -> None:
    metadata = SphericalMetadata(
        StereoLayout.SIDE_BY_SIDE, Projection.FISHEYE, right_eye_first=True, fov_degrees=190
    )
    write_spherical(clip, metadata)
    prji = struct.pack(">I4sI4s", 16, b"prji", 0, b"fish")
    stri = struct.pack(">I4sIB", 13, b"stri", 0, 0b1011)
    pkin = struct.pack(">I4sI4s", 16, b"pkin", 0, b"side")
    parents = zip((b"proj", b"eyes", b"pack"), (prji, stri, pkin), strict=True)
    inside = b"".join(struct.pack(">I4s", 8 + len(child), kind) + child for kind, child in parents)
    vexu = struct.pack(">I4s", 8 + len(inside), b"vexu") + inside
    data = clip.read_bytes()
    assert struct.pack(">I4sIB", 13, b"st3d", 0, 4) in data
    assert vexu + struct.pack(">I4sI", 12, b"hfov", 190_000) in data
    assert b"sv3d" not in data  # this box cannot describe fisheye


@pytest.mark.parametrize("kind", [b"side", b"over"])
def test_a_packing_beside_the_eyes_is_read_too(clip: Path, kind: bytes) -> None:
    pack = struct.pack(">I4sI4sI4s", 24, b"pack", 16, b"pkin", 0, kind)
    eyes = struct.pack(">I4s", 8 + len(pack), b"eyes") + pack
    vexu = struct.pack(">I4s", 8 + len(eyes), b"vexu") + eyes
    write_spherical(clip, SphericalMetadata(sample_entry_boxes=vexu))
    got = read_spherical(clip)
    layouts = {b"side": StereoLayout.SIDE_BY_SIDE, b"over": StereoLayout.TOP_BOTTOM}
    assert got == SphericalMetadata(layouts[kind], sample_entry_boxes=vexu)


@pytest.mark.parametrize(
    "damage",
    [
        struct.pack(">I4s", 8, b"hfov"),
        struct.pack(">I4s", 28, b"vexu") + struct.pack(">I4s", 20, b"eyes") + struct.pack(">I4sI", 12, b"stri", 0),
        struct.pack(">I4s", 28, b"vexu") + struct.pack(">I4s", 20, b"pack") + struct.pack(">I4sI", 12, b"pkin", 0),
    ],
)  # fmt: skip
def test_boxes_that_end_early_say_nothing(clip: Path, damage: bytes) -> None:
    write_spherical(clip, SphericalMetadata(sample_entry_boxes=damage))
    got = read_spherical(clip)
    assert got == SphericalMetadata(sample_entry_boxes=damage)


def spatial_boxes(*, with_eyes: bool = True) -> bytes:
    """Build ``vexu`` and ``hfov`` as in a phone's spatial video: both eyes, a baseline, no packing."""

    def box(kind: bytes, payload: bytes) -> bytes:
        return struct.pack(">I4s", 8 + len(payload), kind) + payload

    eyes = box(b"stri", bytes([0, 0, 0, 0, 3])) + box(b"cams", box(b"blin", struct.pack(">2I", 0, 19240)))
    surface = box(b"proj", box(b"prji", bytes(4) + b"rect"))
    usage = (box(b"eyes", eyes) if with_eyes else b"") + surface
    return box(b"vexu", usage) + box(b"hfov", struct.pack(">I", 63_400))


def test_eyes_in_layers_are_told_and_not_said_of_what_shows_one(clip: Path, tmp_path: Path) -> None:
    write_spherical(clip, SphericalMetadata(sample_entry_boxes=spatial_boxes()))
    info = probe(clip)
    assert info.has_layered_eyes
    assert info.stereo is None
    assert any("MV-HEVC" in doubt for doubt in describe_vr(info).doubts)
    out = tmp_path / "out.mp4"
    with open_video(clip) as reader:
        encoding = choose_encoding(out, source_format=reader.info.format)
        with VideoWriter(out, info=reader.info, encoding=encoding, copy_from=clip) as writer:
            for frame in reader:
                writer.write(frame)
    got = read_spherical(out)
    assert got is not None
    assert not got.has_layered_eyes
    assert (got.projection, got.fov_degrees) == (Projection.FLAT, 63.4)
    assert got.sample_entry_boxes == spatial_boxes(with_eyes=False)


def test_eyes_beside_each_other_are_no_layers(clip: Path) -> None:
    side = struct.pack(">I4s5s", 13, b"st3d", bytes([0, 0, 0, 0, 2]))
    write_spherical(clip, SphericalMetadata(sample_entry_boxes=side + spatial_boxes()))
    info = probe(clip)
    assert (info.stereo, info.has_layered_eyes) == (StereoLayout.SIDE_BY_SIDE, False)


@pytest.mark.parametrize("layout", [StereoLayout.SIDE_BY_SIDE, StereoLayout.TOP_BOTTOM])
def test_matroska_knows_which_eye_is_first(tmp_path: Path, layout: StereoLayout) -> None:
    source = write_clip(tmp_path / "a.mp4")
    write_spherical(source, SphericalMetadata(layout, right_eye_first=True))
    with open_video(source) as reader:
        info = reader.info
        with VideoWriter(
            tmp_path / "a.mkv",
            info=info,
            encoding=choose_encoding(tmp_path / "a.mkv", source_format=info.format),
            copy_from=source,
        ) as writer:
            for frame in reader:
                writer.write(frame)
    assert read_spherical(tmp_path / "a.mkv") == SphericalMetadata(layout, right_eye_first=True)
    assert probe(tmp_path / "a.mkv").right_eye_first


def test_boxes_are_byte_for_byte_those_of_the_specification(clip: Path) -> None:
    write_spherical(clip, VR180)
    data = clip.read_bytes()
    st3d = struct.pack(">I4sIB", 13, b"st3d", 0, 2)
    equi = struct.pack(">I4s5I", 28, b"equi", 0, 0, 0, 0x3FFFFFFF, 0x3FFFFFFF)
    prhd = struct.pack(">I4s4I", 24, b"prhd", 0, 0, 0, 0)
    proj = struct.pack(">I4s", 60, b"proj") + prhd + equi
    assert st3d in data
    assert proj in data
    assert data.index(st3d) < data.index(b"sv3d") < data.index(proj)


@pytest.mark.parametrize("faststart", [True, False])
def test_both_orders_of_moov_and_mdat(clip: Path, tmp_path: Path, faststart: bool) -> None:
    options = {"movflags": "faststart"} if faststart else {}
    path = remux(clip, tmp_path / "copy.mp4", **options)
    kinds = order(path)
    assert (kinds.index(b"moov") < kinds.index(b"mdat")) is faststart
    before, pictures = contents(path), _decoded(path)
    write_spherical(path, VR180)
    assert order(path) == kinds
    assert contents(path) == before
    assert _decoded(path) == pictures
    assert read_spherical(path) is not None
    assert [entry.name for entry in tmp_path.iterdir() if entry.name.startswith(".")] == []


def test_a_free_box_gives_room(clip: Path, tmp_path: Path) -> None:
    path = remux(clip, tmp_path / "copy.mp4", moov_size="20000")
    kinds = order(path)
    assert b"free" in kinds
    size, before = path.stat().st_size, contents(path)
    write_spherical(path, VR180)
    assert path.stat().st_size == size
    assert contents(path) == before
    write_spherical(path, SphericalMetadata())
    assert path.stat().st_size == size
    assert read_spherical(path) is None


def test_metadata_is_replaced_not_added(clip: Path) -> None:
    write_spherical(clip, VR180)
    once = clip.stat().st_size
    write_spherical(clip, VR180)
    assert clip.stat().st_size == once
    write_spherical(clip, SphericalMetadata(StereoLayout.TOP_BOTTOM, Projection.FISHEYE))
    got = read_spherical(clip)
    assert got is not None
    assert (got.stereo, got.projection) == (StereoLayout.TOP_BOTTOM, Projection.FISHEYE)


def test_raw_boxes_are_carried_over_exactly(clip: Path, tmp_path: Path) -> None:
    odd = struct.pack(">I4sIB", 13, b"st3d", 0, 4) + struct.pack(">I4s", 12, b"sv3d") + b"\0\0\0\1"
    other = remux(clip, tmp_path / "other.mp4")
    write_spherical(clip, SphericalMetadata(sample_entry_boxes=odd))
    got = read_spherical(clip)
    assert got is not None
    assert got.sample_entry_boxes == odd
    assert got.stereo is StereoLayout.SIDE_BY_SIDE
    write_spherical(other, got)
    assert read_spherical(other) == got


def _v1_box(fields: dict[str, str]) -> bytes:
    xml = "".join(f"<GSpherical:{name}>{value}</GSpherical:{name}>" for name, value in fields.items())
    payload = bytes.fromhex("ffcc8263f8554a938814587a02521fdd") + f"<?xml?><rdf:SphericalVideo>{xml}".encode()
    return struct.pack(">I4s", 8 + len(payload), b"uuid") + payload


@pytest.mark.parametrize(
    ("fields", "stereo", "projection"),
    [
        (
            {"ProjectionType": "equirectangular", "StereoMode": "top-bottom"},
            StereoLayout.TOP_BOTTOM,
            Projection.EQUIRECTANGULAR,
        ),
        ({"Spherical": "true"}, None, Projection.EQUIRECTANGULAR),
        (
            {
                "Spherical": "true",
                "StereoMode": "left-right",
                "CroppedAreaImageWidthPixels": "4096",
                "FullPanoWidthPixels": "8192",
            },
            StereoLayout.SIDE_BY_SIDE,
            Projection.HALF_EQUIRECTANGULAR,
        ),
        ({"Stitched": "true"}, None, None),
    ],
)
def test_version_one_is_read_and_carried_over(
    clip: Path,
    tmp_path: Path,
    fields: dict[str, str],
    stereo: StereoLayout | None,
    projection: Projection | None,
) -> None:
    write_spherical(clip, SphericalMetadata(track_boxes=_v1_box(fields)))
    got = read_spherical(clip)
    assert got == SphericalMetadata(stereo, projection, b"", _v1_box(fields))
    other = write_clip(tmp_path / "other.mp4")
    write_spherical(other, got)
    assert read_spherical(other) == got


@pytest.mark.parametrize("degrees", [0, 90, 180, 270])
@pytest.mark.parametrize("faststart", [True, False])
def test_rotation(clip: Path, tmp_path: Path, degrees: int, faststart: bool) -> None:
    path = remux(clip, tmp_path / "copy.mp4", **({"movflags": "faststart"} if faststart else {}))
    before = contents(path)
    set_rotation(path, degrees)
    with av.open(str(path)) as container:
        assert next(container.decode(video=0)).rotation % 360 == -degrees % 360
    assert contents(path) == before


def test_rotation_by_other_angles_is_refused(clip: Path) -> None:
    with pytest.raises(UsageError, match="45"):
        set_rotation(clip, 45)


@pytest.mark.parametrize("suffix", [".mkv", ".webm", ".avi", ".ts"])
def test_other_containers_say_nothing(tmp_path: Path, suffix: str) -> None:
    codec = "libvpx-vp9" if suffix == ".webm" else "mpeg4" if suffix == ".avi" else "libx264"
    path = write_clip(tmp_path / f"clip{suffix}", frame_count=2, codec=codec)
    assert read_spherical(path) is None


def test_writing_into_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "text.mp4"
    path.write_text("not a video " * 100)
    before = path.read_bytes()
    with pytest.raises(CorruptInputError, match=r"text\.mp4: no movie box"):
        write_spherical(path, VR180)
    assert path.read_bytes() == before
    assert read_spherical(path) is None


def test_missing_files_are_our_errors(tmp_path: Path) -> None:
    with pytest.raises(InputError):
        read_spherical(tmp_path / "gone.mp4")
    with pytest.raises(OutputError):
        write_spherical(tmp_path / "gone.mp4", VR180)


def test_a_fragmented_file_is_not_torn(clip: Path, tmp_path: Path) -> None:
    path = remux(clip, tmp_path / "copy.mp4", movflags="frag_keyframe+empty_moov")
    before = path.read_bytes()
    with pytest.raises(OutputError, match="fragmented"):
        write_spherical(path, VR180)
    assert path.read_bytes() == before


def test_an_edit_that_shrinks_a_leading_moov_leaves_a_free_box(clip: Path, tmp_path: Path) -> None:
    path = remux(clip, tmp_path / "copy.mp4", movflags="faststart")
    before = contents(path)

    def drop_tags(moov: Box) -> None:
        moov.children = moov.without(b"udta")

    rewrite_moov(path, drop_tags)
    assert b"free" in order(path)
    assert contents(path) == before


def test_the_video_track_is_found_behind_others(tmp_path: Path) -> None:
    path = tmp_path / "a.mp4"
    with av.open(str(path), "w") as container:
        sound = container.add_stream("aac", rate=48000)
        video = container.add_stream("libx264", rate=24, width=32, height=32, pix_fmt="yuv420p")
        silence = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
        silence.sample_rate, silence.pts = 48000, 0
        container.mux(sound.encode(silence))
        container.mux(video.encode(av.VideoFrame(32, 32, "yuv420p")))
        container.mux(sound.encode(None))
        container.mux(video.encode(None))
    write_spherical(path, VR180)
    moov = read_moov(path)
    assert moov is not None
    track = video_track(moov)
    assert track is not None
    assert [box.kind for box in track.walk()].count(b"st3d") == 1
    assert [box.kind for box in moov.walk()].count(b"st3d") == 1
