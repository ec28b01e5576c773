"""Tests of converting projections: pixels against the formula of a scene, and all that is not pixels."""

from __future__ import annotations

import os
import struct
import threading
from pathlib import Path

import av
import cv2
import numpy as np
import pytest

from clips import write_clip
from vitascope.config import VideoSettings
from vitascope.errors import CorruptInputError, InputError, OutputError, UsageError
from vitascope.frames import Projection, StereoLayout
from vitascope.media.metadata.color_tags import read_hdr
from vitascope.media.metadata.spherical import (
    SphericalMetadata,
    read_spherical,
    set_rotation,
    write_spherical,
)
from vitascope.media.reading.reader import VideoReader, open_video, probe
from vitascope.segmentation.layout import vr_of
from vitascope.segmentation.vr.conversion import TARGETS, Reprojector, _made_info, convert
from vitascope.vr.projection import Equirectangular, Fisheye, Rectilinear
from vitascope.vr.stereo import eye_regions

SIDE = 160
SBS, TB, MONO = StereoLayout.SIDE_BY_SIDE, StereoLayout.TOP_BOTTOM, StereoLayout.MONO
PNG = {"codec": "png", "pixel_format": "rgb24"}
VR180 = Equirectangular(180.0, 180.0)


def scene(rays, eye=0):
    """Return the colour of each direction: smooth, asymmetric, different in each eye; float [..., 3]."""
    x, y, z = rays / np.linalg.norm(rays, axis=0)
    return np.stack(
        [128 + 80 * x - 30 * eye, 128 + 70 * y * z, 128 + 60 * np.sin(2 * x + y) + 20 * eye], axis=-1
    )


def painted(lens, size, eye=0):
    """Paint the scene, float [h, w, 3], NaN outside the lens."""
    y, x = np.meshgrid(
        (np.arange(size[0]) + 0.5) / size[0], (np.arange(size[1]) + 0.5) / size[1], indexing="ij"
    )
    return scene(lens.unproject(x, y), eye)


def film(path, lenses, layout, *, width=2 * SIDE, height=SIDE, **options):
    """Write a video of the scene, lossless except for its colours."""
    picture = np.zeros((height, width, 3), np.uint8)
    for number, (lens, region) in enumerate(zip(lenses, eye_regions(width, height, layout), strict=True)):
        picture[region.rows, region.columns] = np.nan_to_num(painted(lens, region.size, number)).round()
    settings = {"codec": "ffv1", "pixel_format": "yuv444p"} if path.suffix == ".mkv" else {}
    return write_clip(
        path, width=width, height=height, paint=lambda _: picture, **{"frame_count": 3, **settings, **options}
    )


def error_of(path, lens, layout):
    """Compare a video's first frame with the scene: differences inside the lens, and the samples outside it."""
    with open_video(path) as reader:
        picture = next(iter(reader)).to_rgb().astype(float)
    differences, outside = [], []
    for number, region in enumerate(eye_regions(picture.shape[1], picture.shape[0], layout)):
        wanted = painted(lens, region.size, number)
        got = picture[region.rows, region.columns]
        shown = ~np.isnan(wanted[..., 0])
        differences.append(np.abs(got - wanted)[shown])
        outside.append(got[~shown])
    return np.concatenate(differences), np.concatenate(outside)


@pytest.mark.parametrize("layout", list(StereoLayout))
@pytest.mark.parametrize("target", list(TARGETS))
def test_each_target_shows_the_scene(tmp_path, layout, target):
    width = SIDE if layout is not SBS else 2 * SIDE
    height = 2 * SIDE if layout is TB else SIDE
    # This lens sees everything that the targets show.
    source = film(
        tmp_path / "a.mkv", [Equirectangular(360.0, 180.0)] * (1 if layout is MONO else 2), layout,
        width=2 * width, height=height,
    )  # fmt: skip
    wanted = VideoSettings(stereo=layout, projection=Projection.EQUIRECTANGULAR)
    if target == "equirect360":
        with pytest.raises(UsageError, match="is already equirect360"):
            convert(source, None, target, wanted=wanted)
        return
    report = convert(source, tmp_path / "made.mkv", target, wanted=wanted, codec="ffv1")
    shape = TARGETS[target]
    made = probe(tmp_path / "made.mkv")
    eye = eye_regions(made.width, made.height, layout)[0]
    assert eye.width / eye.height == pytest.approx(float(shape.aspect), rel=0.05)
    assert report.frame_count == 3
    lens = {
        "fisheye190": Fisheye(190.0),
        "equirect180": VR180,
        "flat": Rectilinear(90.0, np.degrees(2 * np.arctan(eye.height / eye.width))),
    }[target]
    differences, outside = error_of(tmp_path / "made.mkv", lens, layout)
    assert differences.mean() < 1.0
    assert np.percentile(differences, 99) < 4.0
    assert outside.size == 0 or outside.max() <= 2


@pytest.mark.parametrize("pixel_format", ["yuv420p", "yuv422p10le", "yuv420p10le", "yuv444p"])
@pytest.mark.parametrize("size", [(2 * SIDE, SIDE), (2 * SIDE + 1, SIDE), (2 * SIDE + 2, SIDE - 1)])
def test_odd_eyes_and_every_layout_of_planes(tmp_path, pixel_format, size):
    source = film(
        tmp_path / "a.mkv", [VR180, VR180], SBS, width=size[0], height=size[1], pixel_format=pixel_format
    )
    convert(
        source,
        tmp_path / "b.mkv",
        "fisheye190",
        wanted=VideoSettings(stereo=SBS, projection="equirect180"),
        codec="ffv1",
    )
    made = probe(tmp_path / "b.mkv")
    assert made.source_format == pixel_format
    assert (made.width % 4, made.height % 4) == (0, 0)
    # Black where VR180 sees nothing: the outermost 5 degrees.
    differences, _ = error_of(tmp_path / "b.mkv", Fisheye(190.0), SBS)
    assert np.percentile(differences, 85) < 5.0


@pytest.mark.parametrize(("dtype", "told"), [(np.uint16, ["h265 stores 10 of 12 bits"]), (np.uint8, [])])
def test_bits_that_are_lost_of_rgb_are_told(tmp_path, dtype, told):
    (tmp_path / "shots").mkdir()
    picture = np.full((SIDE, 2 * SIDE, 3), np.iinfo(dtype).max // 3, dtype)
    for number in range(2):
        cv2.imwrite(str(tmp_path / "shots" / f"{number}.png"), picture)
    report = convert(
        tmp_path / "shots",
        tmp_path / "b_LR_FISHEYE190.mp4",
        "fisheye190",
        wanted=VideoSettings(stereo=SBS, projection="equirect180"),
    )
    assert [note for note in report.notes if "bits" in note] == told
    assert probe(tmp_path / "b_LR_FISHEYE190.mp4").format.bit_depth == (10 if told else 8)


def test_no_colour_runs_over_the_seam(tmp_path):
    """Check a red and a blue eye: neither contains the other's colour, nor its chroma."""
    for width in (2 * SIDE, 2 * SIDE + 2):
        half = width // 2
        picture = np.zeros((SIDE, width, 3), np.uint8)
        picture[:, :half], picture[:, half:] = (200, 0, 0), (0, 0, 200)
        source = write_clip(
            tmp_path / "a.mkv",
            width=width,
            height=SIDE,
            codec="ffv1",
            frame_count=1,
            paint=lambda _, p=picture: p,
        )
        convert(
            source, tmp_path / "b.mkv", "equirect360", codec="ffv1",
            wanted=VideoSettings(stereo=SBS, projection=Projection.HALF_EQUIRECTANGULAR),
        )  # fmt: skip
        with open_video(tmp_path / "b.mkv") as reader:
            made = next(iter(reader)).to_rgb().astype(int)
        left, right = np.hsplit(made, 2)
        # At the rim, where half a chroma sample is outside, red may be grey, but not blue.
        assert (left[..., 2] - left[..., 0]).max() < 12
        assert (right[..., 0] - right[..., 2]).max() < 12
        assert left[..., 0].max() > 180
        (tmp_path / "b.mkv").unlink()


def test_a_seam_inside_a_chroma_block(tmp_path):
    """Check eyes of 161 samples: the chroma block at the seam belongs to both, and is used for neither."""
    width, half = 2 * SIDE + 2, SIDE + 1
    source = write_clip(tmp_path / "a.mkv", width=width, height=SIDE, codec="ffv1", frame_count=1)
    with open_video(source) as reader:
        frame = next(iter(reader))
        description = vr_of(reader.info, VideoSettings(stereo=SBS, projection="equirect180"))
        target = TARGETS["equirect360"]
        made = _made_info(reader.info, description, target)
        painter = Reprojector(reader.info, made, description, target)
    luma = np.tile((np.arange(width) % half + 40).astype(np.uint8), (SIDE, 1))
    chroma = np.full((SIDE // 2, half), 60, np.uint8)
    chroma[:, SIDE // 2], chroma[:, half // 2 + 1 :] = 130, 200
    painted_frame = painter.paint(frame.with_planes((luma, chroma, chroma)))
    for number, value in enumerate((60, 200)):
        wide = made.width // 2
        seen = slice(number * wide + wide // 4 + 4, (number + 1) * wide - wide // 4 - 4)
        got = painted_frame.planes[0][SIDE // 2, seen].astype(float)
        # The eye is half of the sphere, so each of its samples appears in the result, whatever the seam.
        assert np.abs(got - (np.arange(4, wide // 2 - 4) * (half / (wide // 2)) + 40)).max() < 1.1
        colour = painted_frame.planes[1][:, seen.start // 2 - 1 : seen.stop // 2 + 1]
        inside = colour[SIDE // 8 : -SIDE // 8]
        assert np.abs(inside.astype(int) - value).max() <= 1


def test_squeezed_eyes_are_stretched(tmp_path):
    source = film(tmp_path / "a_HSBS_180.mkv", [VR180, VR180], SBS, width=SIDE)
    convert(source, tmp_path / "b.mkv", "fisheye190", codec="ffv1")
    made = probe(tmp_path / "b.mkv")
    assert (made.width, made.height, made.sample_aspect_ratio) == (2 * SIDE, SIDE, 1)
    differences, _ = error_of(tmp_path / "b.mkv", Fisheye(190.0), SBS)
    assert np.percentile(differences, 85) < 5.0


def test_circles_off_centre_are_straightened(tmp_path):
    lenses = [Fisheye(190.0, (0.45, 0.5), (0.44, 0.44)), Fisheye(190.0, (0.54, 0.51), (0.44, 0.44))]
    source = film(tmp_path / "a_FISHEYE190.mkv", lenses, SBS, width=4 * SIDE, height=2 * SIDE)
    convert(source, tmp_path / "b.mkv", "equirect180", codec="ffv1")
    differences, _ = error_of(tmp_path / "b.mkv", VR180, SBS)
    assert differences.mean() < 4.0  # off by a sample or two


def test_there_and_back(tmp_path):
    source = film(tmp_path / "a_LR_180.mkv", [VR180, VR180], SBS)
    there = convert(source, tmp_path / "b.mkv", "fisheye190", codec="ffv1").output
    convert(
        there,
        tmp_path / "c.mkv",
        "equirect180",
        codec="ffv1",
        wanted=VideoSettings(projection="fisheye", fov_degrees=190),
    )
    differences, _ = error_of(tmp_path / "c.mkv", VR180, SBS)
    assert np.percentile(differences, 90) < 2.5  # the rest is at the border


def side_data(path):
    with av.open(str(path)) as container:
        return {item.type.name: bytes(item) for item in next(container.decode(video=0)).side_data}


def test_boxes_of_the_new_projection_and_everything_else_as_it_was(tmp_path):
    source = film(
        tmp_path / "a.mp4", [VR180, VR180], SBS, frame_count=12, audio="aac", metadata={"title": "Beach"}
    )
    write_spherical(source, SphericalMetadata(SBS, Projection.HALF_EQUIRECTANGULAR, right_eye_first=True))
    report = convert(source, tmp_path / "b.mp4", "fisheye190")
    got = read_spherical(report.output)
    assert (got.stereo, got.projection, got.fov_degrees, got.right_eye_first) == (
        SBS, Projection.FISHEYE, 190.0, True,
    )  # fmt: skip
    assert b"sv3d" not in report.output.read_bytes()
    packing, flags, *_, fov, per_degree = struct.unpack("=9i", side_data(report.output)["STEREO3D"])
    assert (packing, flags, fov / per_degree) == (1, 1, 190)
    assert struct.unpack_from("=i", side_data(report.output)["SPHERICAL"])[0] == 5
    with av.open(str(source)) as before, av.open(str(report.output)) as after:
        sounds = [[bytes(packet) for packet in container.demux(audio=0)] for container in (before, after)]
        assert sounds[0] == sounds[1]
        assert after.metadata["title"] == "Beach"
        times = [[frame.pts * frame.time_base for frame in c.decode(video=0)] for c in (before, after)]
        assert times[0] == times[1]
    back = convert(report.output, tmp_path / "c.mp4", "equirect180")
    got = read_spherical(back.output)
    assert (got.projection, got.right_eye_first) == (Projection.HALF_EQUIRECTANGULAR, True)


def test_a_flat_picture_of_one_eye_says_nothing_of_vr(tmp_path):
    source = film(tmp_path / "a.mp4", [VR180], MONO, width=SIDE)
    write_spherical(source, SphericalMetadata(MONO, Projection.HALF_EQUIRECTANGULAR))
    assert read_spherical(convert(source, tmp_path / "b.mp4", "flat").output) is None
    assert probe(tmp_path / "b.mp4").projection is None


def test_hdr_stays(tmp_path):
    display = "G(13250,34500)B(7500,3000)R(34000,16000)WP(15635,16450)L(10000000,1)"
    source = film(
        tmp_path / "a_LR_180.mp4", [VR180, VR180], SBS, codec="libx265", pixel_format="yuv420p10le",
        color_tags=(9, 16, 9, 1),
        codec_options={"x265-params": f"log-level=none:hdr10=1:master-display={display}:max-cll=1000,400"},
    )  # fmt: skip
    convert(source, tmp_path / "b.mp4", "fisheye190")
    before, after = probe(source), probe(tmp_path / "b.mp4")
    assert after.has_hdr_side_data
    assert read_hdr(tmp_path / "b.mp4") == read_hdr(source)
    assert (after.color.primaries, after.color.transfer, after.color.matrix) == (9, 16, "bt2020")
    assert after.format.bit_depth == before.format.bit_depth == 10


def test_folders_of_pictures(tmp_path):
    """Check that a folder receives the file, but a folder of an earlier run's pictures is replaced."""
    (tmp_path / "a_MONO_180").mkdir()
    for number in range(2):
        film(tmp_path / "a_MONO_180" / f"{number}.png", [VR180], MONO, width=SIDE, frame_count=1, **PNG)
    source, frames = tmp_path / "a_MONO_180", tmp_path / "frames"
    replaced: list[Path] = []
    convert(source, frames, "flat", may_replace=replaced.append)
    assert sorted(path.name for path in frames.iterdir()) == ["000000.png", "000001.png"]
    convert(source, frames, "fisheye190", may_replace=replaced.append)
    assert sorted(path.name for path in frames.iterdir()) == ["000000.png", "000001.png"]
    assert replaced == [frames]
    (tmp_path / "made").mkdir()
    report = convert(source, tmp_path / "made", "flat", may_replace=replaced.append)
    assert (report.output, report.notes) == (tmp_path / "made" / "a_flat.mp4", ())
    convert(source, tmp_path / "made", "flat", may_replace=replaced.append)
    assert replaced == [frames, report.output]


def test_names(tmp_path):
    source = film(tmp_path / "wedding_LR_180.mp4", [VR180, VR180], SBS)
    report = convert(source, None, "fisheye190")
    assert report.output == tmp_path / "wedding_LR_FISHEYE190.mp4"
    assert report.notes == ()
    assert convert(source, tmp_path, "flat").output == tmp_path / "wedding_LRF_Full_SBS.mp4"
    (note,) = convert(source, tmp_path / "wedding_LR_180_new.mp4", "fisheye190").notes
    assert note == (
        "players go by names, and wedding_LR_180_new.mp4 does not say what it is; wedding_LR_FISHEYE190.mp4 would"
    )


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("a_LR_180.mp4", {"target": "equirect180"}, r"is already equirect180 \(file name \(180\)\)"),
        ("a_FISHEYE190_alpha.mp4", {}, "is packed alpha, whose mattes lie in the corners"),
        ("a_mono.mp4", {}, "is taken for a flat picture, and its field of view is unknown"),
        ("a_mono.mp4", {"target": "flat"}, "is flat already, and its field"),
        (
            "a_LR_180.mp4",
            {"wanted": VideoSettings(projection="flat", fov_degrees=200)},
            "a field of view of 200 degrees",
        ),
        ("a_LR_180.mp4", {"crf": 99}, "CRF 99"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_written(tmp_path, name, options, said):
    source = write_clip(tmp_path / name, width=64, height=32, frame_count=2)
    with pytest.raises(UsageError, match=said):
        convert(source, tmp_path / "out.mp4", options.pop("target", "fisheye190"), **options)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_turned_video_is_refused(tmp_path):
    source = write_clip(tmp_path / "a_LR_180.mp4", width=64, height=32, frame_count=2)
    set_rotation(source, 90)
    with pytest.raises(UsageError, match="stored rotated by 90 degrees"):
        convert(source, tmp_path / "out.mp4", "fisheye190")


def test_hostile_inputs_leave_nothing(tmp_path, monkeypatch):
    source = film(tmp_path / "a_LR_180.mp4", [VR180, VR180], SBS, frame_count=24, codec_options={"g": "4"})
    (tmp_path / "text_LR_180.mp4").write_text("no video " * 99)
    (tmp_path / "cut_LR_180.mp4").write_bytes(source.read_bytes()[:4000])
    before = sorted(path.name for path in tmp_path.iterdir())
    for name in ("text_LR_180.mp4", "cut_LR_180.mp4", "gone.mp4"):
        with pytest.raises(InputError, match=name.split(".", maxsplit=1)[0]):
            convert(tmp_path / name, tmp_path / "out.mp4", "fisheye190")
    with pytest.raises(UsageError, match="the output is the input"):
        convert(source, source, "fisheye190")
    (tmp_path / "locked.mp4").write_bytes(b"")
    (tmp_path / "locked.mp4").chmod(0o400)
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(OutputError, match="write-protected"):
        convert(source, tmp_path / "locked.mp4", "fisheye190")
    (tmp_path / "locked.mp4").unlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_damage_ends_it_or_is_kept_on_demand(tmp_path, monkeypatch):
    source = film(tmp_path / "a_LR_180.mkv", [VR180, VR180], SBS, frame_count=24)
    whole = VideoReader.__next__

    def breaking(reader):
        frame = whole(reader)
        if frame.index == 10:
            raise CorruptInputError(f"{source}: the rest cannot be read")
        return frame

    monkeypatch.setattr(VideoReader, "__next__", breaking)
    with pytest.raises(CorruptInputError, match="the rest cannot be read"):
        convert(source, tmp_path / "b.mp4", "fisheye190")
    assert [path.name for path in tmp_path.iterdir()] == [source.name]
    with pytest.raises(CorruptInputError):
        convert(source, tmp_path / "b.mp4", "fisheye190", keep_partial=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == [source.name, "b.mp4.part"]
    with av.open(str(tmp_path / "b.mp4.part"), format="mp4") as container:
        assert sum(1 for _ in container.decode(video=0)) == 10


def test_a_stretch(tmp_path):
    source = film(tmp_path / "a_LR_180.mp4", [VR180, VR180], SBS, frame_count=24, audio="aac")
    wanted = VideoSettings(start_seconds=0.25, end_seconds=0.75)
    assert convert(source, tmp_path / "b.mp4", "fisheye190", wanted=wanted).frame_count == 12
    with pytest.raises(InputError, match="no frame between 5 s and the end"):
        convert(source, tmp_path / "c.mp4", "fisheye190", wanted=VideoSettings(start_seconds=5))
    assert not (tmp_path / "c.mp4").exists()


def test_ctrl_c_keeps_what_was_written(tmp_path):
    source = film(tmp_path / "a_LR_180.mkv", [VR180, VR180], SBS, frame_count=200)

    def press_later(event):
        def watch():
            while event.pipeline.snapshot().items < 3:
                threading.Event().wait(0.01)
            event.pipeline.interrupt()

        threading.Thread(target=watch, daemon=True).start()

    with pytest.raises(KeyboardInterrupt, match=r"kept what was written: .*b\.mp4\.part"):
        convert(source, tmp_path / "b.mp4", "fisheye190", on_start=press_later)
    assert sorted(path.name for path in tmp_path.iterdir()) == [source.name, "b.mp4.part"]


def test_opencv_gets_its_threads_back(tmp_path):
    import cv2

    threads = cv2.getNumThreads()
    convert(film(tmp_path / "a_LR_180.mp4", [VR180, VR180], SBS), Path(tmp_path / "b.mp4"), "flat")
    assert cv2.getNumThreads() == threads
