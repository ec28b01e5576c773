from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from clips import write_clip
from vitascope.config import load_settings
from vitascope.device import Gpu
from vitascope.errors import OutputError, UsageError
from vitascope.frames import StereoLayout
from vitascope.gpu.kernels.region import Region
from vitascope.gpu.kernels.shrink import shrunk_regions
from vitascope.media.planes import has_alpha
from vitascope.media.reading.reader import open_video, probe
from vitascope.media.writing import encoding, nvenc
from vitascope.segmentation.output_encoding import check_kinds, encoding_for, hardware_for, mask_size
from vitascope.segmentation.segmenter import Segmenter


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    return write_clip(tmp_path_factory.mktemp("encoding") / "in.mp4", width=64, height=32, frame_count=3)


def settings(**values):
    return load_settings(flags={f"output.{key}": value for key, value in values.items()}).settings.output


def choose(clip, name, kind, *, alone, **wishes):
    return encoding_for(
        Path(name),
        kind,
        info=probe(clip),
        layout=StereoLayout.MONO,
        settings=settings(**wishes),
        threads=0,
        alone=alone,
    )


def test_a_single_output_takes_every_wish_or_says_why_not(clip):
    chosen = choose(clip, "o.mp4", "key", alone=True, crf=30, preset="slow")
    assert (chosen.options["crf"], chosen.options["preset"]) == ("30", "slow")
    with pytest.raises(UsageError, match="no CRF"):
        choose(clip, "o.mov", "alpha", alone=True, crf=30)
    with pytest.raises(OutputError, match="cannot carry alpha"):
        choose(clip, "o.mp4", "alpha", alone=True)
    with pytest.raises(
        OutputError, match=r"^cut: a folder of pictures .* h265; cut/, with a slash, is a folder of"
    ):
        choose(clip, "cut", "key", alone=True, codec="h265")


def test_of_several_outputs_each_takes_what_applies(clip):
    key = choose(clip, "o_key.mp4", "key", alone=False, crf=30, codec="h264")
    alpha = choose(clip, "o_alpha.mov", "alpha", alone=False, crf=30, codec="h264")
    assert (key.codec, key.options["crf"]) == ("h264", "30")
    assert (alpha.codec, has_alpha(alpha.pixel_format)) == ("prores", True)


def test_the_outputs_of_a_run_decide_not_the_kinds_of_the_settings(clip):
    assert choose(clip, "o.mov", "alpha", alone=False, kinds=["key"], crf=30).codec == "prores"
    with pytest.raises(UsageError, match="no CRF"):
        choose(clip, "o.mov", "alpha", alone=True, kinds=["key", "mask"], crf=30)


def test_two_outputs_written_directly_are_not_taken_for_one(clip, tmp_path):
    wishes = {"output.crf": 30}
    with Segmenter(profile="fast", settings=wishes) as segmenter:
        report = segmenter.write(clip, [("key", tmp_path / "k.mp4"), ("alpha", tmp_path / "a.mov")])
    assert [output.codec for output in report.outputs] == ["h264", "prores"]


@pytest.mark.parametrize(
    ("kinds", "says"), [([], "no output"), (["hologram"], "'hologram'"), (["replace"], "background")]
)
def test_kinds_that_cannot_be_made(clip, tmp_path, kinds, says):
    with pytest.raises(UsageError, match=says):
        check_kinds(kinds, settings())
    with Segmenter(profile="fast") as segmenter, pytest.raises(UsageError, match=says):
        segmenter.write(clip, [(kind, tmp_path / f"{kind}.mp4") for kind in kinds])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "codec", "pixel_format"),
    [
        ("pictures/{}.png", "png", "rgb24"),
        ("in.gif", "gif", "rgb8"),
        ("in.mkv", "libx264rgb", "rgb24"),
        ("in.avi", "rawvideo", "bgr24"),
    ],
)
def test_pictures_gifs_and_screens_make_video_that_players_take(tmp_path, name, codec, pixel_format):
    (tmp_path / "pictures").mkdir()
    is_folder = name.startswith("pictures")
    for number in range(2 if is_folder else 1):
        clip = write_clip(
            tmp_path / name.format(number),
            width=32,
            height=32,
            frame_count=1 if is_folder else 3,
            codec=codec,
            pixel_format=pixel_format,
        )
    info = probe(clip.parent if is_folder else clip)
    assert info.format.name == "yuv444p"
    chosen = {
        (kind, name): encoding_for(
            Path(name),
            kind,
            info=info,
            layout=StereoLayout.MONO,
            settings=load_settings().settings.output,
            threads=0,
            alone=True,
        ).pixel_format
        for kind, name in (("key", "o.mp4"), ("alpha", "o.mov"), ("key", "pictures"))
    }
    assert chosen == {
        ("key", "o.mp4"): "yuv420p",
        ("alpha", "o.mov"): "yuva444p10le",
        ("key", "pictures"): "rgb24",
    }


@pytest.mark.parametrize(
    ("wishes", "outputs", "taken"),
    [
        ([], 1, "auto"),
        ([], 3, "auto"),
        ([], 4, "cpu"),  # drivers limit parallel encoders
        (["gpu.device=cpu"], 1, "cpu"),
        (["gpu.device=cuda"], 1, "auto"),
        (["gpu.device_ids=0,1"], 1, "cpu"),  # the trial does not cover joining the output of processes
        (["gpu.encoder=cpu"], 1, "cpu"),
        (["gpu.encoder=nvenc", "gpu.device=cpu"], 7, "nvenc"),
        (["gpu.encoder=nvenc", "gpu.device_ids=0,1"], 1, "nvenc"),
    ],
)
def test_which_runs_may_be_encoded_by_the_gpu(wishes, outputs, taken):
    gpu = load_settings(assignments=wishes).settings.gpu
    assert hardware_for(gpu, output_count=outputs) == taken


def test_nvenc_is_left_alone_where_it_would_lose_something(clip, monkeypatch):
    monkeypatch.setattr(nvenc, "probe_gpus", lambda: (Gpu("NVIDIA GeForce RTX 9090", "999.1", None),))
    monkeypatch.setattr(nvenc, "why_nvenc_fails", lambda *_, **__: None)
    film = replace(probe(clip), width=3840, height=2160)

    def is_nvenc(info, kind="key", name="o.mp4", layout=StereoLayout.MONO, **wishes):
        chosen = encoding_for(
            Path(name),
            kind,
            info=info,
            layout=layout,
            settings=settings(**wishes),
            threads=0,
            alone=True,
            hardware="auto",
        )
        return chosen.is_nvenc

    assert is_nvenc(film)
    assert not is_nvenc(film, "alpha", "o.mov")
    hdr = replace(film, has_hdr_side_data=True)
    assert not is_nvenc(hdr)
    assert is_nvenc(hdr, "mask")  # a mask carries no HDR data
    wide = replace(film, width=7680, height=4320)
    assert not is_nvenc(wide)
    assert is_nvenc(wide, codec="h265")
    assert not is_nvenc(wide, "mask")
    assert is_nvenc(wide, "mask", mask_max_width=2048)
    eyes = StereoLayout.SIDE_BY_SIDE  # packed, they are twice as wide as high in any case
    assert not is_nvenc(film, "packed-alpha", layout=eyes)
    assert is_nvenc(replace(wide, height=1920), "packed-alpha", layout=eyes)


def test_outputs_are_the_same_on_either_encoder(tmp_path, monkeypatch):
    """Check frames in host memory, with x264 in place of NVENC."""
    film = write_clip(tmp_path / "in.mp4", width=320, height=256, frame_count=3)
    kinds = ("mask", "key", "cutout")

    def write(name, **wishes):
        with Segmenter(profile="fast", settings=wishes | {"output.crf": 1}) as segmenter:
            outputs = [(kind, tmp_path / f"{name}_{kind}.mp4") for kind in kinds]
            return segmenter.write(film, outputs)

    write("cpu")
    monkeypatch.setattr(nvenc, "probe_gpus", lambda: (Gpu("NVIDIA GeForce RTX 9090", "999.1", None),))
    monkeypatch.setattr(nvenc, "why_nvenc_fails", lambda *_, **__: None)
    monkeypatch.setattr(nvenc, "_options", lambda **_: {"crf": "1", "preset": "veryfast"})
    for module in (nvenc, encoding):
        monkeypatch.setattr(module, "NVENC_ENCODERS", {"h264": "libx264"})
    report = write("gpu")
    assert all("the GPU encodes" in output.notes[0] for output in report.outputs)
    for kind in kinds:
        with open_video(tmp_path / f"cpu_{kind}.mp4") as a, open_video(tmp_path / f"gpu_{kind}.mp4") as b:
            assert a.info.color == b.info.color
            for one, other in zip(a, b, strict=True):
                assert (one.pts, one.time_base) == (other.pts, other.time_base)
                for plane, expected in zip(one.planes, other.planes, strict=True):
                    np.testing.assert_allclose(plane.astype(int), expected.astype(int), atol=4)


@pytest.mark.parametrize(
    ("kind", "name", "wishes", "pixel_format"),
    [
        ("key", "o.mp4", {}, "yuv422p10le"),
        ("key", "o.mp4", {"player": "moon"}, "yuv420p10le"),
        ("packed-alpha", "o.mp4", {}, "yuv420p10le"),
        ("key", "o.mov", {"player": "moon", "codec": "prores"}, "yuv422p10le"),
    ],
)
def test_headsets_get_the_chroma_that_they_decode(tmp_path, kind, name, wishes, pixel_format):
    clip = write_clip(
        tmp_path / "in.mp4", width=128, height=64, frame_count=1, pixel_format="yuv422p10le",
    )  # fmt: skip
    found = encoding_for(
        Path(name), kind, info=probe(clip), layout=StereoLayout.SIDE_BY_SIDE, settings=settings(**wishes),
        threads=0, alone=True,
    )  # fmt: skip
    assert found.pixel_format == pixel_format


@pytest.mark.parametrize(
    ("wishes", "size", "pixel_format"),
    [({}, (127, 65), "yuv444p"), ({"player": "moon"}, (128, 66), "yuv420p")],
)
def test_headsets_get_odd_sizes_as_even_ones(clip, wishes, size, pixel_format):
    info = replace(probe(clip), width=127, height=65)
    found = encoding_for(
        Path("o.mp4"), "key", info=info, layout=StereoLayout.SIDE_BY_SIDE, settings=settings(**wishes),
        threads=0, alone=True,
    ).for_size(127, 65)  # fmt: skip
    assert (found.coded_size(127, 65), found.pixel_format) == (size, pixel_format)
    assert any("odd size" in note for note in found.notes)


def test_masks_are_narrow_enough_even_and_never_larger_than_the_video(clip):
    info = probe(clip)

    @given(st.integers(16, 9000), st.integers(8, 5000), st.integers(16, 9000))
    def check(width, height, most):
        size = mask_size(replace(info, width=width, height=height), most)
        if width <= most:
            assert size is None
            return
        assert size[1] <= most
        assert size[0] <= height
        assert size[0] % 2 == size[1] % 2 == 0
        shrunk_regions([Region(0, 0, width, height)], frame_size=(height, width), size=size)

    check()
    assert mask_size(info, None) is None
