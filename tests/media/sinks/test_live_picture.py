"""Check that a picture is converted once to each format."""

from __future__ import annotations

import threading

import numpy as np
from live_pictures import make_picture

from vitascope.media.sinks.sink import LivePicture


def test_formats_show_the_same_colour() -> None:
    picture = make_picture(color=(200, 60, 30))
    assert picture.as_format("rgb24") is picture.rgb
    assert picture.as_format("rgba")[5, 7].tolist() == [200, 60, 30, 255]
    assert picture.as_format("bgra")[5, 7].tolist() == [30, 60, 200, 255]
    made = picture.as_format("yuv420p")
    luma, blue, red = (int(np.frombuffer(plane, np.uint8)[0]) for plane in made.planes)
    # BT.709, limited range.
    exact = 0.2126 * 200 + 0.7152 * 60 + 0.0722 * 30
    assert abs(luma - (16 + exact * 219 / 255)) <= 1
    assert abs(blue - (128 + (30 - exact) / 1.8556 * 224 / 255)) <= 1
    assert abs(red - (128 + (200 - exact) / 1.5748 * 224 / 255)) <= 1


def test_threads_share_one_conversion() -> None:
    picture = make_picture()
    made: list[object] = []
    threads = [threading.Thread(target=lambda: made.append(picture.as_format("bgra"))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(array) for array in made}) == 1


def test_alpha_goes_to_the_formats_that_have_it() -> None:
    rgb = np.full((4, 6, 3), (200, 60, 30), np.uint8)
    alpha = np.full((4, 6), 77, np.uint8)
    picture = LivePicture(rgb, alpha=alpha, captured_seconds=0.0)
    assert picture.as_format("rgba")[1, 2].tolist() == [200, 60, 30, 77]
    assert picture.as_format("bgra")[1, 2].tolist() == [30, 60, 200, 77]
    assert picture.for_png()[1, 2].tolist() == [30, 60, 200, 77]
    assert make_picture().for_png().shape[2] == 3
    made = picture.as_format("yuva420p")
    assert made.format.name == "yuva420p"
    assert np.frombuffer(made.planes[3], np.uint8)[:6].tolist() == [77] * 6
    opaque = make_picture().as_format("yuva420p")
    assert np.frombuffer(opaque.planes[3], np.uint8)[0] == 255
