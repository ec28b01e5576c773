"""Tests of the headset page in a real browser: each pixel must equal NumPy's unpacking."""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import av
import cv2
import numpy as np
import pytest
from driven_page import faults
from headset import HeadsetPage, emulator, rays_of, rotation, unpacked_view

from clips import write_clip
from vitascope.frames import PIXEL_FORMATS, ColorSpec, Frame
from vitascope.media.reading.reader import open_video
from vitascope.studio import proxies
from vitascope.vr.packing import pack_discs, tile_size

SIDE = 512
WIDTH, HEIGHT = 320, 240
NAME = "dance_FISHEYE190_alpha.webm"


def somebody():
    """Make alpha, float32 [2, *tile_size(SIDE)]: a disc in the left eye, a bar and a soft edge in the right."""
    height, width = tile_size(SIDE)
    y, x = np.mgrid[0:height, 0:width]
    left = np.hypot(x - width * 0.4, y - height * 0.55) < height * 0.3
    right = (np.abs(x - width * 0.55) < width * 0.2) & (y > height * 0.3)
    return np.stack([cv2.GaussianBlur(one.astype(np.float32), (0, 0), 1.5) for one in (left, right)])


def board():
    """Make smooth colours that differ between the eyes: uint8 [SIDE, 2 * SIDE, 3]."""
    y, x = np.mgrid[0:SIDE, 0:SIDE] / SIDE
    eyes = [np.stack([40 + 160 * x, 40 + 160 * y, 60 + 120 * eye + 0 * x], -1) for eye in (0, 1)]
    wave = 30 * np.sin(x * 40) * np.sin(y * 40)
    return np.clip(np.hstack([eye + wave[..., None] for eye in eyes]), 0, 255).astype(np.uint8)


CODECS = {
    ".webm": ("libvpx-vp9", "yuv444p", {"lossless": "1", "deadline": "realtime", "cpu-used": "8"}),
    ".mp4": ("libx264", "yuv420p", {"crf": "6", "preset": "veryfast"}),
    ".mkv": ("ffv1", "yuv420p", {}),
}
"""Formats by suffix.

Lossless with full chroma shows exactly what was packed; the chroma of players' files is scaled in the
browser's own way.
"""


@cache
def packed(suffix, color):
    """Return a packed video with equal pictures, two a second, as each is decoded on the CPU."""
    codec, pixel_format, options = CODECS[suffix]
    with TemporaryDirectory() as folder:
        path = Path(folder, f"packed{suffix}")
        with av.open(str(path), "w") as container:
            stream = container.add_stream(codec, rate=2, options=options)
            stream.width, stream.height, stream.pix_fmt = 2 * SIDE, SIDE, pixel_format
            context = stream.codec_context
            context.colorspace, context.color_primaries, context.color_trc, context.color_range = 1, 1, 1, 1
            picture = av.VideoFrame.from_ndarray(board(), format="rgb24")
            picture = picture.reformat(format=pixel_format, dst_colorspace=1, dst_color_range=1)
            planes = tuple(
                np.frombuffer(plane, np.uint8).reshape(plane.height, plane.line_size)[:, : plane.width].copy()
                for plane in picture.planes
            )
            tags = ColorSpec(matrix="bt709")
            frame = Frame(planes, PIXEL_FORMATS[pixel_format], tags, 0, 0, Fraction(1, 2))
            pack_discs(frame, somebody(), color=color)
            for plane, written in zip(picture.planes, planes, strict=True):
                rows = np.zeros((plane.height, plane.line_size), np.uint8)
                rows[:, : plane.width] = written
                plane.update(rows)
            for n in range(4):
                picture.pts, picture.time_base = n, Fraction(1, 2)
                container.mux(stream.encode(picture))
            container.mux(stream.encode())
        return path.read_bytes()


def write_packed(path, *, color="red"):
    path.write_bytes(packed(path.suffix, color))
    return path


@pytest.fixture
def page(browser_3d):
    with HeadsetPage(browser_3d) as opened:
        opened.watch_pixels()
        yield opened


@pytest.fixture(scope="session")
def iwer(request):
    return emulator(request.config.cache.mkdir("iwer"))


def opened(page, studio, name=NAME, base=None):
    """Open the page on a video, and wait for its picture."""
    base = base or f"/api/films/{studio.film(name)['id']}"
    page.enter(studio.opened.address.partition("&")[0], width=WIDTH, height=HEIGHT)
    page.show(f"http://{studio.host}/headset?of={base}", width=WIDTH, height=HEIGHT)
    page.until("document.querySelector('#video').readyState >= 2", seconds=90)
    page.until("!document.querySelector('#enter').textContent.includes('Looking')")


def differences(shown, wanted):
    """Return mean and 99.9th percentile of differences in 8-bit codes, of colour and of alpha."""
    apart = np.abs(shown.astype(np.float64) - wanted * 255)
    return [(one.mean(), np.percentile(one, 99.9)) for one in (apart[..., :3], apart[..., 3])]


def assert_alike(shown, wanted, *, is_exact=True):
    """Check errors: a code on average, some more at the rims of circles, and edges in the right places.

    A matte shifted by a quarter of its samples would have 0.4 % of the view on the wrong side of the edge.
    """
    for what, (average, high) in zip(("colour", "alpha"), differences(shown, wanted), strict=True):
        assert average < (1.0 if is_exact else 2.2), (what, average, high)
        assert high < (6 if is_exact else 32), (what, average, high)
    aside = ((shown[..., 3] > 127) != (wanted[..., 3] > 0.5)).mean()
    assert aside < (0.001 if is_exact else 0.01), aside


def first_frame(path):
    with open_video(path) as reader:
        return next(iter(reader))


def put_on(page):
    """Begin a session, and wait until it draws; the current view is then straight ahead."""
    page.click("#enter")
    page.until("document.querySelector('#enter').textContent === 'Leave the headset'")
    page.until("Boolean(window.headset.activeSession?.renderState.baseLayer)")
    for _ in range(2):  # the first picture may still be the flat view
        shown = page.pixels()
    assert shown.shape[:2] == (HEIGHT, WIDTH)


def look(page, yaw, pitch):
    """Turn the flat view with the keyboard, 5 degrees a press."""
    page.value("document.querySelector('#people').focus()")
    for key, degrees in ((("ArrowRight", "ArrowLeft"), yaw), (("ArrowUp", "ArrowDown"), pitch)):
        for _ in range(abs(degrees) // 5):
            page.press(key[degrees < 0])


@pytest.mark.parametrize(("color", "suffix"), [("red", ".webm"), ("grey", ".webm"), ("red", ".mp4")])
def test_without_a_headset_each_eye_is_shown_flat(page, studio, films, color, suffix):
    path = write_packed(films / NAME.replace(".webm", suffix), color=color)
    frame = first_frame(path)
    opened(page, studio, path.name)
    assert page.text("#enter") == "No headset"
    assert "No headset found" in page.text("#why")
    for number, yaw, pitch in ((0, 0, 0), (0, -35, 10), (1, 0, 0), (1, 20, -25)):
        page.click(f"#eyes button:nth-child({number + 1})")
        look(page, yaw, pitch)
        shown = page.pixels()
        turn = rotation(yaw=yaw, pitch=pitch)
        rays = rays_of(shown.shape[:2], half_width=np.tan(np.radians(40)), turn=turn)
        wanted = unpacked_view(frame, rays, eye=number)
        assert_alike(shown, wanted, is_exact=suffix == ".webm")
        look(page, -yaw, -pitch)
    assert faults(page) == []
    assert all(address.startswith((f"http://{studio.host}/", "data:")) for address in page.requests())


@pytest.mark.parametrize("turned", [(0, 0), (40, 15), (-60, -30)])
def test_in_a_headset_both_eyes_are_shown_over_the_room(page, studio, films, iwer, turned):
    frame = first_frame(write_packed(films / NAME))
    page.put_on(iwer)
    opened(page, studio)
    assert page.text("#enter") == "See them in your room"
    put_on(page)
    turn = rotation(yaw=turned[0], pitch=turned[1])
    half_yaw, half_pitch = np.radians(-turned[0]) / 2, np.radians(turned[1]) / 2
    quaternion = [
        np.cos(half_yaw) * np.sin(half_pitch), np.sin(half_yaw) * np.cos(half_pitch),
        -np.sin(half_yaw) * np.sin(half_pitch), np.cos(half_yaw) * np.cos(half_pitch),
    ]  # fmt: skip
    page.value(f"window.headset.quaternion.set({', '.join(map(str, quaternion))})")
    page.pixels()
    shown = page.pixels()
    height, width = shown.shape[:2]
    assert (height, width) == (HEIGHT, WIDTH)
    for number in (0, 1):
        half = shown[:, number * width // 2 : (number + 1) * width // 2]
        rays = rays_of(half.shape[:2], half_width=np.tan(np.radians(45)) * half.shape[1] / height, turn=turn)
        assert_alike(half, unpacked_view(frame, rays, eye=number))
    page.value("window.headset.activeSession.end()")
    page.until("document.querySelector('#enter').textContent === 'See them in your room'")
    assert faults(page) == []


def test_a_headset_that_shows_no_room_shows_people_in_the_dark(page, studio, films, iwer):
    write_packed(films / NAME)
    page.put_on(iwer, modes=["immersive-vr"])
    opened(page, studio)
    assert page.text("#enter") == "See them in the headset"
    put_on(page)
    shown = page.pixels()
    assert (shown[..., 3] == 255).all()
    assert 0.01 < (shown == (13, 13, 13, 255)).all(axis=-1).mean() < 0.9
    assert faults(page) == []


def test_the_trigger_pauses_and_the_grip_turns_the_video_to_where_one_looks(page, studio, films, iwer):
    write_packed(films / NAME)
    page.put_on(iwer)
    opened(page, studio)
    put_on(page)
    page.until("!document.querySelector('#video').paused")
    ahead = page.pixels()
    page.value("window.headset.controllers.right.updateButtonValue('trigger', 1)")
    page.pixels()
    page.value("window.headset.controllers.right.updateButtonValue('trigger', 0)")
    page.until("document.querySelector('#video').paused")
    page.value("window.headset.quaternion.set(0, Math.sin(0.5), 0, Math.cos(0.5))")
    page.pixels()
    aside = page.pixels()
    assert np.abs(aside.astype(int) - ahead).mean() > 5
    page.value("window.headset.controllers.right.updateButtonValue('squeeze', 1)")
    page.pixels()
    page.value("window.headset.controllers.right.updateButtonValue('squeeze', 0)")
    for _ in range(4):
        again = page.pixels()
    assert np.abs(again.astype(int) - ahead).mean() < 0.5


def test_a_copy_of_half_the_size_is_unpacked_as_well(page, studio, films, monkeypatch):
    monkeypatch.setattr(proxies, "_VR_SIDE", SIDE)
    path = write_packed(films / NAME.replace("webm", "mkv"))
    opened(page, studio, path.name)
    page.until("document.querySelector('#copy').innerText.startsWith('A smaller copy is shown')")
    assert page.value("document.querySelector('#video').videoWidth") == SIDE
    shown = page.pixels()
    rays = rays_of(shown.shape[:2], half_width=np.tan(np.radians(40)), turn=rotation())
    wanted = unpacked_view(first_frame(path), rays, eye=0)
    for average, _ in differences(shown, wanted):
        assert average < 4


def test_a_key_is_taken_out_per_eye(page, serving, films):
    """Check a VR180 video cut to key colour: a bright person on transparency, and nothing green."""
    (films / "wedding.mp4").unlink()

    def bright(n):
        eye = np.full((128, 128, 3), (30, 50, 40), np.uint8)
        eye[40:90, 50:80] = (250, 230, 90)
        return np.hstack([eye, eye])

    write_clip(films / "dance_LR_180.mp4", width=256, height=128, frame_count=8, paint=bright)
    studio = serving(films)
    job = studio.job(studio.order(studio.film("dance_LR_180.mp4"), task="cut", kind="key"))
    opened(page, studio, base=f"/api/jobs/{job['id']}/files/0")
    shown = page.pixels().astype(int)
    assert 0.1 < (shown[..., 3] > 250).mean() < 0.6
    assert (shown[..., 3] < 5).mean() > 0.3
    person = shown[shown[..., 3] > 250]
    assert np.abs(np.median(person[:, :3], axis=0) - (250, 230, 90)).max() < 25
    assert (shown[..., 1] - np.maximum(shown[..., 0], shown[..., 2])).max() < 60
    assert faults(page) == []


@pytest.mark.parametrize(
    "of", ["", "https://evil.example/x", "//evil.example/api/films/ab", "/api/jobs", "/api/films/../jobs"]
)
def test_nothing_else_can_be_shown(page, studio, of):
    page.enter(studio.opened.address.partition("&")[0], width=WIDTH, height=HEIGHT)
    page.show(f"http://{studio.host}/headset?of={of}", width=WIDTH, height=HEIGHT)
    page.until("document.querySelector('#banner').innerText.includes('There is nothing to show')")
    assert [one for one in page.requests() if not one.startswith(f"http://{studio.host}/")] == []
