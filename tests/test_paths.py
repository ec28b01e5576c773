"""Check that every public call takes a path as text and as any ``os.PathLike``, not only ``pathlib.Path``."""

from __future__ import annotations

import os

import pytest
from skimage import data

import vitascope
from clips import write_clip


class Named(os.PathLike):
    """A path like those of py.path or a web framework."""

    def __init__(self, path):
        self._path = str(path)

    def __fspath__(self):
        return self._path


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    return write_clip(
        tmp_path_factory.mktemp("paths") / "in.mp4",
        width=64,
        height=64,
        frame_count=3,
        paint=lambda index: data.astronaut()[:64, :64].copy(),
    )


@pytest.mark.parametrize("path", [str, Named])
def test_segmentation(path, clip, tmp_path):
    assert vitascope.segment(path(clip), path(tmp_path / "a.mp4"), profile="fast").frame_count == 3
    with vitascope.Segmenter(profile="fast") as segmenter:
        segmenter.write(path(clip), [("key", path(tmp_path / "b.mp4"))], preview=path(tmp_path / "b.png"))
        assert len(list(segmenter.stream(path(clip)))) == 3
    with vitascope.open_video(path(tmp_path / "b.mp4")) as video:
        assert len(list(video)) == 3
    assert (tmp_path / "b.png").is_file()


@pytest.mark.parametrize("path", [str, Named])
def test_pictures_of_the_pipeline(path, tmp_path):
    import cv2

    from vitascope.gpu.toolkit.async_pipeline import decode_picture

    cv2.imwrite(str(tmp_path / "a.png"), data.astronaut()[..., ::-1])
    assert (decode_picture(path(tmp_path / "a.png")) == data.astronaut()).all()


@pytest.mark.parametrize("path", [str, Named])
def test_animation(path, tmp_path):
    with pytest.raises(vitascope.errors.InputError, match=r"none\.jpg"):
        vitascope.animate(path(tmp_path / "none.jpg"), path(tmp_path / "d.motion"), path(tmp_path / "o.mp4"))
