"""Tests of equirectangular eyes shown as fisheye pictures: what the network sees, and where its alpha is placed."""

from __future__ import annotations

import numpy as np
import pytest

from pictures import solid_frame
from scripted import BrightnessNetwork
from vitascope.config.compute import InferenceSettings
from vitascope.frames import PIXEL_FORMATS, StereoLayout
from vitascope.gpu.memory.host_arrays import RecycledArrays
from vitascope.models.network import MatteEstimate, NetworkInput
from vitascope.segmentation.matting.fisheye import FisheyeViews
from vitascope.segmentation.matting.stream import MattingOptions, StreamMatting
from vitascope.vr.projection import Equirectangular, Fisheye, Rectilinear

FMT = PIXEL_FORMATS["yuv420p"]
HALF, WHOLE = Equirectangular(180, 180), Equirectangular(360, 180)


class Square:
    """Takes pictures of a fixed size."""

    def __init__(self, size=(96, 96), **form):
        self.form = {"layout": "NCHW", **form}
        self.size = size

    def input_for(self, region_size):
        assert region_size[0] == region_size[1]  # fisheye pictures are square
        return NetworkInput(self.size, **self.form)


def waves(size):
    """Make a smooth picture of the sphere, [1, 1, 3, h, w], whose colour is the direction."""
    height, width = size
    y, x = np.meshgrid((np.arange(height) + 0.5) / height, (np.arange(width) + 0.5) / width, indexing="ij")
    lens = HALF if height == width else WHOLE
    return np.float32(lens.unproject(x, y) / 2 + 0.5)[None, None]


@pytest.mark.parametrize(
    ("lens", "eye", "count"),
    [
        (HALF, (96, 96), 1),
        (WHOLE, (86, 173), 2),
        (Equirectangular(200, 180), (86, 96), 1),
        (Equirectangular(150, 120), (70, 87), 1),
    ],
)
def test_an_eye_is_as_fine_as_what_the_network_sees(lens, eye, count):
    views = FisheyeViews.of_network(lens, Square(), (1024, 1024))
    assert views.eye.size == eye
    assert views.size == (96, 96)
    assert views.count == count


def of_square(lens, *, bent, **form):
    views = FisheyeViews.of_network(lens, Square(**form), (1024, 1024))
    return views.bent if bent else views


def test_a_bent_picture_is_stereographic_and_of_the_same_size():
    usual, bent = (of_square(HALF, bent=bent).as_pictures for bent in (False, True))
    assert (usual[0].bend, bent[0].bend) == (0.0, 0.5)
    assert usual[1].size == bent[1].size == (96, 96)


@pytest.mark.parametrize("lens", [HALF, WHOLE])
@pytest.mark.parametrize("bent", [False, True])
def test_the_fisheye_picture_shows_each_direction_where_a_fisheye_does(lens, bent):
    views = of_square(lens, bent=bent)
    shown = views.show(waves(views.eye.size))
    assert shown.shape == (1, views.count, 3, 96, 96)
    y, x = np.meshgrid((np.arange(96) + 0.5) / 96, (np.arange(96) + 0.5) / 96, indexing="ij")
    picture, _ = views.as_pictures
    assert picture.fov_degrees == (180 if lens is HALF else 200)
    ahead = picture.unproject(x, y)
    outside = np.isnan(ahead[0])
    expected = ahead / 2 + 0.5
    assert np.abs(shown[0, 0][:, ~outside] - expected[:, ~outside]).max() < 0.03
    # Outside the circle the rim is repeated: a corner shows the nearest place in the circle.
    nearest = next(at for at in range(48) if not outside[at, at])
    assert np.abs(shown[0, 0][:, 0, 0] - expected[:, nearest, nearest]).max() < 0.05
    assert np.isfinite(shown[0, 0][:, outside]).all()
    if lens is WHOLE:  # the second camera looks back: left and right are exchanged, and so are ahead and back
        back = ahead * [[[-1]], [[1]], [[-1]]] / 2 + 0.5
        assert np.abs(shown[0, 1][:, ~outside] - back[:, ~outside]).max() < 0.03


def test_a_part_of_the_half_sphere_repeats_its_borders():
    views = FisheyeViews.of_network(Equirectangular(120, 90), Square(), (900, 1200))
    shown = views.show(np.full((1, 1, 3, *views.eye.size), 0.7, np.float32))
    assert shown == pytest.approx(0.7)


@pytest.mark.parametrize("lens", [HALF, WHOLE])
@pytest.mark.parametrize("form", [{}, {"layout": "NHWC"}, {"mean": (0.5, 0.4, 0.3), "std": (0.2, 0.3, 0.4)}])
@pytest.mark.parametrize("eyes", [1, 2])
@pytest.mark.parametrize("bent", [False, True])
def test_what_is_taken_back_lies_where_it_was(lens, form, eyes, bent):
    views = of_square(lens, bent=bent, **form)
    mean, std = (np.float32(views.eye.mean), np.float32(views.eye.std))
    rgb = waves(views.eye.size).repeat(eyes, axis=1)
    rgb[:, -1] = 1 - rgb[:, -1]
    pictures = (rgb - mean[:, None, None]) / std[:, None, None]
    nhwc = views.eye.layout == "NHWC"
    shown = views.show(pictures.transpose(0, 1, 3, 4, 2) if nhwc else pictures)
    again = views.show(pictures.transpose(0, 1, 3, 4, 2) if nhwc else pictures, memory=RecycledArrays())
    np.testing.assert_array_equal(again, shown)
    channels = shown[0].transpose(0, 3, 1, 2) if nhwc else shown[0]
    seen = channels * std[:, None, None] + mean[:, None, None]
    alpha = views.take_back([MatteEstimate(alpha=seen[:, 0])])[0].alpha
    assert np.abs(alpha - rgb[0, :, 0]).max() < 0.03
    green = views.take_back([MatteEstimate(gain=seen[:, 1:2], offset=1 - seen[:, 1:2])])[0]
    assert np.abs(green.gain[:, 0] - rgb[0, :, 1]).max() < 0.03
    assert np.abs(green.offset[:, 0] - (1 - rgb[0, :, 1])).max() < 0.03


def test_the_seam_of_a_whole_sphere_does_not_show():
    views = FisheyeViews.of_network(WHOLE, Square(), (1024, 2048))
    ones = np.ones((views.count, *views.size), np.float32)
    assert views.take_back([MatteEstimate(alpha=ones)])[0].alpha == pytest.approx(1.0)
    y, x = np.meshgrid(*((np.arange(n) + 0.5) / n for n in views.eye.size), indexing="ij")
    around = (
        np.float32(np.sin(x * 2 * np.pi) * np.cos((y - 0.5) * np.pi))[None, None, None].repeat(3, 2) / 2 + 0.5
    )
    back = views.take_back([MatteEstimate(alpha=views.show(around)[0, :, 0])])[0].alpha[0]
    assert np.abs(back - around[0, 0, 0]).max() < 0.03


def matting(network, lens, **inference):
    options = MattingOptions(warm_up_frames=0, inference=InferenceSettings(**inference))
    return StreamMatting(
        network, size=(96, 192), layout=StereoLayout.SIDE_BY_SIDE, options=options, lens=lens
    )


def test_alpha_of_a_film_lands_in_its_own_projection():
    """Check a light square high up in the right eye: the network sees it elsewhere, but alpha covers it."""
    frame = solid_frame(FMT, (96, 192), (0.1, 0.1, 0.1))
    luma = frame.planes[0].copy()
    luma[4:24, 120:168] = 220
    network = BrightnessNetwork()
    stream = matting(network, HALF)
    (matted,) = stream.infer(
        [stream.find_cuts(stream.prepare([frame.with_planes((luma, *frame.planes[1:]))]))]
    )
    alpha = stream.refine(matted).alpha
    assert (alpha[8:20, 126:162] > 240).all()
    assert (alpha[32:] < 16).all()
    assert (alpha[:, :96] < 16).all()


@pytest.mark.parametrize("lens", [HALF, WHOLE, None])
def test_the_memory_of_what_is_shown_is_told(lens):
    stream = matting(BrightnessNetwork(), lens)
    batch = stream.find_cuts(stream.prepare([solid_frame(FMT, (96, 192), (0.1, 0.1, 0.1))]))
    shown = 0 if stream._fisheye is None else stream._fisheye.show(batch.images).nbytes
    assert stream.picture_bytes == batch.images.nbytes + shown


def test_other_projections_are_shown_as_they_are():
    for lens in (None, Rectilinear(90, 90)):
        assert matting(BrightnessNetwork(), lens)._fisheye is None
    assert matting(BrightnessNetwork(recurrent=True), Fisheye(190))._fisheye is None


OFF_CENTRE = Fisheye(200, center=(0.45, 0.52), radius=(0.42, 0.4))


@pytest.mark.parametrize("lens", [Fisheye(190), OFF_CENTRE])
def test_a_network_without_memory_sees_no_black_surround(lens):
    """Networks such as MediaPipe's take a circle on black for a person."""
    views = FisheyeViews.of_network(lens, Square(), (1024, 1024))
    assert views.size == (96, 96)
    height, width = views.eye.size
    assert views.eye.size == tuple(round(48 / radius) for radius in reversed(lens.radius))
    y, x = (np.mgrid[:height, :width] + 0.5) / np.array([height, width]).reshape(2, 1, 1)
    across, down = (x - lens.center[0]) / lens.radius[0], (y - lens.center[1]) / lens.radius[1]
    inside = np.hypot(across, down) <= 1
    eye = np.where(inside, np.stack([across, down, across]) / 2 + 1, 0).astype(np.float32)
    (shown,) = views.show(eye[None, None])[0]
    assert shown.min() > 0.4  # no black, which would be 0
    middle = np.linspace(-1, 1, 97)[:-1] + 1 / 96
    assert np.abs(shown[0, 48, 3:-3] - (middle[3:-3] / 2 + 1)).max() < 0.012  # one sample is 0.01 wide
    # Mapped back, everything is in its place, and nobody is outside the circle.
    back = views.take_back([MatteEstimate(alpha=shown[None, 0])])[0].alpha[0]
    assert (back[~inside] == 0).all()
    well_inside = np.hypot(across, down) < 0.9
    assert np.abs(back - eye[0])[well_inside].max() < 0.012


def test_alpha_of_a_fisheye_film_lands_in_its_circle():
    frame = solid_frame(FMT, (96, 192), (0.1, 0.1, 0.1))
    luma = frame.planes[0].copy()
    luma[30:50, 126:150] = 220
    stream = matting(BrightnessNetwork(), OFF_CENTRE)
    (matted,) = stream.infer(
        [stream.find_cuts(stream.prepare([frame.with_planes((luma, *frame.planes[1:]))]))]
    )
    alpha = stream.refine(matted).alpha
    assert (alpha[36:44, 133:143] > 240).all()
    assert (alpha[66:] < 16).all() and (alpha[:, :96] < 16).all()


def test_levers_that_look_at_parts_see_the_eyes_as_they_are():
    frame, shares = solid_frame(FMT, (96, 192), (0.1, 0.1, 0.1)), []
    for inference in ({}, {"region": "zoom"}):
        network = BrightnessNetwork()
        stream = matting(network, HALF, **inference)
        assert (stream._fisheye is None) == bool(inference)
        stream.infer([stream.find_cuts(stream.prepare([frame]))])
        shares.append(stream.report().network_share)
    assert shares[0] == 1  # counted by the fisheye pictures
