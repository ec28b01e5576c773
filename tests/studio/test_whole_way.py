"""Tests of a user's whole way in a real browser, on a juggler, two people in two shots, and VR180.

Open, look, choose people, touch up, edges, cut, correct during the cut, cut again, play, leave, and return.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from fractions import Fraction
from typing import NamedTuple

import av
import numpy as np
import numpy.typing as npt
import pytest
from driven_page import StudioPage, faults

from clips import write_clip
from two_people import two_people
from vitascope.config.hints import read_hints
from vitascope.media.reading.reader import open_video
from vitascope.studio.queue import Queue
from vitascope.vr.packing import unpack_discs

pytestmark = pytest.mark.slow

WIDTH, FRAMES, FRAME_RATE = 1280, 84, Fraction(6)
KEY, BLACK, WHITE = (120, 255, 155), (0, 0, 0), (255, 255, 255)
SETTINGS = ("gpu.device=cpu", "processing.chunk_size=6", "processing.overlap_frames=4")
"""Stretches of one second, out of 14: a stroke reaches ten seconds at most, and leaves the others unchanged."""
BRIGHT = (250, 230, 90)


class Video(NamedTuple):
    """What a user does with one of the videos."""

    name: str
    paint: Callable[[int], npt.NDArray[np.uint8]]
    people: int
    somebody: tuple[float, float]
    """Place of person 1 in the first frame, in shares of the eye."""
    cuts: int = 0
    is_vr: bool = False


def juggler(n: int) -> npt.NDArray[np.uint8]:
    """Paint a swaying person, and balls above: as bright, but no person."""
    picture = np.full((90, 160, 3), (30, 50, 40), np.uint8)
    left = 66 + round(6 * np.sin(n / 9))
    picture[34:90, left : left + 28] = BRIGHT
    for ball in range(3):
        x, y = 80 + 26 * np.cos(n / 5 + 2.1 * ball), 26 - 14 * abs(np.sin(n / 5 + 2.1 * ball))
        down, across = np.mgrid[0:90, 0:160]
        picture[np.hypot(across - x, down - y) < 3] = (240, 240, 240)
    return picture


WALL = np.kron(np.random.default_rng(3).integers(10, 100, (8, 12, 3)), np.ones((8, 8, 1), int)).astype(
    np.uint8
)


def two_shots(n: int) -> npt.NDArray[np.uint8]:
    """Paint two people who walk to and fro, after seven seconds by another wall."""
    picture = two_people(abs(n % 24 - 12))
    return picture if n < FRAMES // 2 else np.where(picture.max(axis=-1, keepdims=True) > 60, picture, WALL)


def stage(n: int) -> npt.NDArray[np.uint8]:
    """Paint two people in VR180, 30 degrees to either side, a little further left in the right eye."""
    eyes, sway = [], abs(n % 24 - 12) // 2
    for eye in range(2):
        picture = np.full((128, 128, 3), (30, 50, 40), np.uint8)
        for middle in (36 + sway - 2 * eye, 92 - sway - 2 * eye):
            picture[40:96, middle - 8 : middle + 8] = BRIGHT
        eyes.append(picture)
    return np.hstack(eyes)


VIDEOS = [
    Video("juggle.mp4", juggler, 1, (0.5, 0.7)),
    Video("spliced.mp4", two_shots, 2, (32 / 96, 0.6), cuts=1),
    Video("stage_LR_180.mp4", stage, 2, (42 / 128, 0.5), is_vr=True),
]


@pytest.fixture
def page(browser):
    with StudioPage(browser) as opened:
        yield opened


def alpha_at(path, seconds, place):
    """Return a cut's alpha at a time and place, 0 to 1: of a matte, or of packed alpha's left eye."""
    with open_video(path) as reader:
        frame = next(one for one in reader if one.pts_seconds >= seconds - 0.001)
    if path.stem.endswith("_alpha"):
        tile = unpack_discs(frame)[0]
        # The place is in 180 degrees, the tile has 190.
        x, y = ((share - 0.5) * 180 / 190 + 0.5 for share in place)
        return float(tile[round(y * tile.shape[0]), round(x * tile.shape[1])])
    return float(frame.planes[0][round(place[1] * frame.height), round(place[0] * frame.width)] > 128)


@pytest.mark.parametrize("video", VIDEOS, ids=lambda video: video.name.partition(".")[0])
def test_the_whole_way(page, serving, films, video, monkeypatch, request):
    height, width = video.paint(0).shape[:2]
    write_clip(
        films / video.name,
        width=width,
        height=height,
        frame_count=FRAMES,
        frame_rate=FRAME_RATE,
        paint=video.paint,
        audio="aac",
        codec_options={"g": "6", "crf": "4"},
    )
    studio = serving(films, settings=SETTINGS)
    x, y = video.somebody

    # 1. Choose it in the list; see a timeline with thumbnails and cuts, and the first matted frame.
    page.show(studio.opened.address.partition("&")[0], width=WIDTH)
    page.until("document.querySelectorAll('.card img').length === 2")
    page.value(
        f"[...document.querySelectorAll('.card')].find((one) => one.innerText.includes({video.name!r})).click()"
    )
    page.until_color(0.02, 0.02, KEY)
    page.until("document.querySelectorAll('#thumbs img.there').length > 3")
    page.until(f"document.querySelectorAll('#notches i').length === {video.cuts}")

    # 2. Every view, and a wipe between two; each eye of a VR video, and a look around.
    colors = [video.paint(0)[2, 2], BLACK, KEY]
    for number, color in enumerate(colors, start=1):
        page.press(str(number))
        page.until_color(0.02, 0.02, color)
    page.value(
        "(() => { const beside = document.querySelector('#beside-view'); beside.value = 'mask'; "
        "beside.dispatchEvent(new Event('change')); })()"
    )
    page.until(
        "!document.querySelector('#wipe').hidden && document.querySelector('#beside').naturalWidth > 0"
    )
    page.drag("#wipe", [(0.5, 0.5), (-4, 0.5)])
    page.until("Number(document.querySelector('#wipe').getAttribute('aria-valuenow')) < 50")
    page.value(
        "(() => { const beside = document.querySelector('#beside-view'); beside.value = ''; "
        "beside.dispatchEvent(new Event('change')); })()"
    )
    page.press("2")
    page.until_color(x, y, WHITE)
    if video.is_vr:
        page.click("#eyes button:nth-child(2)")
        page.until("document.querySelector('#shown').naturalWidth > 0")
        page.click("#eyes button:nth-child(1)")
        page.click("#look")
        page.until(
            "(({ naturalWidth: w, naturalHeight: h }) => w * 9 === h * 16)(document.querySelector('#shown'))"
        )
        page.click("#look")
        page.until_color(x, y, WHITE)

    # 3. Find people; leave one out with a click, remove with a stroke, and undo both.
    page.click("#people-empty .primary")
    page.until(f"document.querySelectorAll('.person').length >= {video.people}", seconds=90)
    page.drag("#picture", [(x, y)])
    page.until_color(x, y, BLACK)
    page.press("z")
    page.until_color(x, y, WHITE)
    page.click("#tab-touch")
    page.click("#brushes button:nth-child(2)")
    for _ in range(6):
        page.press("]")
    page.drag("#picture", [(x, y - 0.15), (x, y), (x, y + 0.15)])
    page.until_color(x, y, BLACK)
    page.press("z")
    page.until_color(x, y, WHITE)

    # 4. Move a slider.
    page.click("#tab-edges")
    page.value("document.querySelector('#edge-sliders input').focus()")
    page.press("ArrowRight")
    page.until("document.querySelector('#edge-sliders output').innerText === '+0.5 px'")
    page.until("document.querySelector('#saved').innerText.startsWith('Saved')")

    # 5. Cut; a stroke during the cut counts for the next one, which remakes what it affects.
    go_on = threading.Event()
    has_started = Queue._has_started

    def wait(queue, started):
        has_started(queue, started)
        assert go_on.wait(120)

    monkeypatch.setattr(Queue, "_has_started", wait)
    page.click("#tab-cut")
    page.click(f"#kinds label:nth-child({6 if video.is_vr else 3})")
    page.click("#order .primary")
    page.until(f"document.querySelector('.job .figures')?.innerText.includes(' of {FRAMES} frames')")
    page.click("#tab-touch")
    page.press("Home")
    page.click("#brushes button:nth-child(2)")
    page.drag("#picture", [(x, y - 0.15), (x, y), (x, y + 0.15)])
    page.until_color(x, y, BLACK)
    page.until("document.querySelector('#saved').innerText.startsWith('Saved')")
    go_on.set()
    page.click("#tab-cut")
    page.until("document.querySelectorAll('.job [data-does^=play]').length === 1", seconds=120)
    page.click("#order .primary")
    page.until("document.querySelectorAll('.job [data-does^=play]').length === 2", seconds=120)
    first, second = (job for job in studio.get("/api/jobs").json["jobs"] if job["order"]["task"] == "cut")
    results = [films / job["made"][0]["name"] for job in (first, second)]
    assert [alpha_at(path, 0, (x, y)) > 0.5 for path in results] == [True, False]
    (said,) = [line for line in second["said"] if "made again" in line]
    anew, count = (int(said.split()[place]) for place in (0, 2))
    assert 0 < anew < count, said
    with av.open(str(results[1])) as container:
        assert container.streams.video[0].frames == FRAMES
        assert len(container.streams.audio) == 1
    page.click(".job [data-does^=play]")
    page.until("document.querySelector('#result').videoWidth > 0", seconds=90)
    page.click("#player-dialog form button")
    assert (
        page.value("document.querySelector('.job a[download]').getAttribute('download')") == results[1].name
    )
    if video.is_vr:
        # A separate browser draws in three dimensions, which takes a CPU longer than all the rest.
        with StudioPage(request.getfixturevalue("browser_3d")) as headset:
            headset.show(studio.opened.address.partition("&")[0], width=WIDTH)
            headset.show(page.value("document.querySelector('.job a[href^=\"/headset\"]').href"), width=WIDTH)
            headset.until("document.querySelector('#video')?.readyState >= 2", seconds=90)
            assert headset.text("#name") == results[1].name
            assert [line for line in faults(headset) if "media" not in line] == []

    assert [line for line in faults(page) if "media" not in line] == []

    # 6. End the studio, and open it again.
    studio.end()
    again = serving(films, settings=SETTINGS)
    film = again.film(video.name)
    page.show(again.opened.address + f"&film={film['id']}", width=WIDTH)
    page.until(f"document.querySelectorAll('.person').length >= {video.people}")
    page.press("2")
    page.until_color(x, y, BLACK)
    page.click("#tab-cut")
    page.until("document.querySelectorAll('.job [data-does^=play]').length === 2")
    hints = read_hints(films / f"{video.name.removesuffix('.mp4')}.hints.yaml")
    assert (len(hints.marks), hints.edges.grow_px) == (1, 0.5)
