"""Tests of when faces are looked for, and which of them are described."""

from types import SimpleNamespace

import numpy as np
import pytest

from vitascope.errors import ModelUnavailableError
from vitascope.frames import Projection, StereoLayout
from vitascope.models.finders import Face
from vitascope.segmentation.people import faces as faces_module
from vitascope.segmentation.people import scan
from vitascope.segmentation.people.appearance import FaceLooks
from vitascope.segmentation.people.faces import FaceNetworks, FacesNowAndThen
from vitascope.segmentation.people.small_frames import SmallFrames

UPRIGHT = np.array([[47, 47.5], [103, 47.5], [75, 79], [51, 103.5], [99, 103.5]]) / 150


def looks(count, *, begins=(0,)):
    frames = SmallFrames()
    rgb = np.random.default_rng(1).random((1, 3, 90, 320), np.float32)
    return [frames.next(n, rgb, np.ones((1, 90, 320), np.float32), n in begins) for n in range(count)]


def face(left=20, *, height=40.0, score=0.9, nose=0.0):
    """Make a square face; its nose is moved by that share of its size."""
    points = UPRIGHT * height + (left, 10)
    points[2, 0] += nose * height
    return Face(left, 10, height, height, score, points)


def test_faces_are_looked_for_where_a_shot_begins_and_in_every_sixth_frame():
    seen = []

    def find(rgb):
        assert rgb.flags.c_contiguous and rgb.dtype == np.uint8
        seen.append(rgb.shape)
        return [Face(20, 10, 40, 60, 0.9, np.zeros((5, 2)))]

    look = FacesNowAndThen(find)
    made = looks(20, begins=(0, 9))
    faces = [look(one)[2] for one in made]
    assert [n for n, found in enumerate(faces) if found] == [0, 6, 9, 15]
    assert faces[0] == [(10, 5, 20, 30, None)]  # in cells
    assert seen == 4 * [(90, 320, 3)]
    assert FacesNowAndThen(None)(made[0]) == (*made[0], [])


def test_a_shots_first_faces_are_described_and_one_of_four_later_ones():
    described = []

    def describe(faces):
        described.append(len(faces))
        return np.ones((len(faces), 128), np.float32)

    look = FacesNowAndThen(lambda _: [face()], describe)
    faces = [look(one)[2] for one in looks(6 * 16, begins=(0,))]
    at = [n // 6 + 1 for n, found in enumerate(faces) if found and found[0].description is not None]
    assert at == [1, 2, 3, 4, 5, 6, 7, 8, 12, 16]
    assert described == [1] * 10


@pytest.mark.parametrize(
    ("seen", "is_described"),
    [
        ({}, True),
        ({"height": 20}, False),  # too small to tell people apart
        ({"score": 0.55}, False),  # blurred
        ({"nose": 0.3}, False),  # turned away
    ],
)
def test_a_face_that_says_little_is_not_described(seen, is_described):
    look = FacesNowAndThen(lambda _: [face(**seen)], lambda faces: np.ones((len(faces), 128), np.float32))
    (found,) = look(looks(1)[0])[2]
    assert (found.description is not None) == is_described


def test_each_face_gets_its_own_description_the_largest_four_of_them():
    heights = [30, 60, 20, 50, 40, 45]

    def describe(faces):
        return np.arange(len(faces), dtype=np.float32)[:, None] * np.ones(128, np.float32)

    look = FacesNowAndThen(lambda _: [face(height=height) for height in heights], describe)
    found = look(looks(1)[0])[2]
    ranks = [None if one.description is None else int(one.description[0]) for one in found]
    assert ranks == [None, 0, None, 1, 3, 2]


def test_what_is_seen_of_a_face_is_the_mean():
    one, other = FaceLooks(), FaceLooks()
    assert one.is_blank
    for value in (0.0, 2.0):
        one.learn(np.full(128, value, np.float32))
    other.learn(np.full(128, 1.5, np.float32))
    assert one.distance(other) == pytest.approx(0.5 * 128**0.5)
    other.join(one)
    assert other.distance(one) == pytest.approx((3.5 / 3 - 1) * 128**0.5, rel=1e-5)


class Store:
    """Offers some of the networks."""

    def __init__(self, *there):
        self._there = there

    def pull(self, name, *, progress):
        if name not in self._there:
            raise ModelUnavailableError(f"no {name}")
        return name


def test_it_is_said_what_is_lost_without_a_network(monkeypatch):
    closed = []

    class Opened:
        def __init__(self, path, *, threads):
            self.find = self.describe = path

        def __enter__(self):
            return self

        def __exit__(self, *_):
            closed.append(self.find)

    monkeypatch.setattr(faces_module, "CenterFace", Opened)
    monkeypatch.setattr(faces_module, "FaceDescriptor", Opened)
    with FaceNetworks(Store("centerface", "face-recognition"), None) as networks:
        assert (networks.find, networks.describe, networks.notes) == ("centerface", "face-recognition", [])
    assert closed == ["face-recognition", "centerface"]
    with FaceNetworks(Store("centerface"), None) as networks:
        assert networks.find == "centerface" and networks.describe is None
        assert networks.notes == [
            "no face-recognition, then `vitascope people --again`; continuing without: people are recognised by "
            "colours alone"
        ]
    with FaceNetworks(Store(), None) as networks:
        assert networks.find is networks.describe is None
        (note,) = networks.notes
        assert note.startswith("no centerface, then `vitascope people --again`; continuing without faces: ")


@pytest.mark.parametrize(("pixel_aspect", "is_described"), [(1.0, False), (2.0, True)])
def test_faces_of_squeezed_eyes_are_described_as_they_are_shown(pixel_aspect, is_described):
    one = face()
    squeezed = one._replace(width=one.width / 2, points=one.points * (0.5, 1))
    look = FacesNowAndThen(
        lambda _: [squeezed], lambda faces: np.ones((len(faces), 128), np.float32), pixel_aspect=pixel_aspect
    )
    _, _, found = look(looks(1)[0])
    assert (found[0].description is not None) == is_described


@pytest.mark.parametrize(
    ("layout", "projection", "aspect", "rotation", "expected"),
    [
        (StereoLayout.SIDE_BY_SIDE, Projection.FLAT, 1.0, 0, 2.0),
        (StereoLayout.TOP_BOTTOM, Projection.FLAT, 1.0, 0, 0.5),
        (StereoLayout.SIDE_BY_SIDE, Projection.HALF_EQUIRECTANGULAR, 1.0, 0, 1.0),
        (StereoLayout.MONO, Projection.FLAT, 1.5, 0, 1.5),
        (StereoLayout.MONO, Projection.FLAT, 1.5, 90, 1 / 1.5),
    ],
)
def test_pixels_are_as_wide_as_an_eye_is_shown(layout, projection, aspect, rotation, expected):
    info = SimpleNamespace(pixel_aspect=aspect, rotation_degrees=rotation)
    vr = SimpleNamespace(layout=layout, projection=projection, is_half=layout is not StereoLayout.MONO)
    assert scan._pixel_aspect(info, vr) == pytest.approx(expected)
