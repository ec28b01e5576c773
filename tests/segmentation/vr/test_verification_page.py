"""Tests of the page on which a person judges packed alpha: its content, and that a browser shows it."""

from __future__ import annotations

import base64
import json
import re
import time

import cv2
import numpy as np
import pytest

from clips import write_clip
from headless_browser import Page
from pictures import solid_frame
from vitascope.cli import main
from vitascope.errors import OutputError
from vitascope.frames import PIXEL_FORMATS
from vitascope.segmentation.vr.verification import UnpackedFrames, verify
from vitascope.vr.packing import pack_discs, tile_size

SIDE, FRAMES = 256, 20


def tiles_of(index):
    """Make a moving person in the middle of the left eye, and another in the right eye."""
    height, width = tile_size(SIDE)
    tiles = np.zeros((2, height, width), np.float32)
    tiles[0, 30:70, 30 + index : 60 + index] = 1
    tiles[1, 30:70, 40:64] = 1
    return tiles


def packed(index):
    frame = solid_frame(PIXEL_FORMATS["yuv444p"], (SIDE, 2 * SIDE), (0.5, 0.5, 0.5))
    pack_discs(frame, tiles_of(index))
    return frame.to_rgb()


@pytest.fixture(scope="module")
def video(tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "film_<1>_FISHEYE190_alpha.mp4"
    return write_clip(path, width=2 * SIDE, height=SIDE, frame_count=FRAMES, paint=packed)


@pytest.fixture(scope="module")
def page(video, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "page.html"
    verify(video, page=path)
    return path


def frames_of(page):
    return json.loads(re.search(r"const frames=(\[.*?\]);\s*const by", page.read_text(), re.DOTALL)[1])


def decoded(address):
    data = np.frombuffer(base64.b64decode(address.partition(",")[2]), np.uint8)
    return cv2.imdecode(data, cv2.IMREAD_UNCHANGED)


def test_the_page_holds_frames_and_mattes_as_they_were_unpacked(page):
    frames = frames_of(page)
    assert len(frames) == FRAMES // 2  # every other frame, as there are at most 16
    assert frames[1]["t"] == pytest.approx(2 * frames[-1]["t"] / (FRAMES - 2), abs=1e-3)
    for eye, one in enumerate(frames[4]["eyes"]):
        assert one["picture"].startswith("data:image/jpeg;base64,")
        picture, matte = decoded(one["picture"]), decoded(one["matte"])
        assert picture.shape == (SIDE, SIDE, 3)
        assert matte.shape == (SIDE, SIDE, 4)
        assert (matte[..., :3] == 255).all()
        truth = cv2.resize(255 * tiles_of(8)[eye], (SIDE, SIDE), interpolation=cv2.INTER_LINEAR)
        assert np.abs(matte[..., 3].astype(int) - truth).mean() < 4
        middle = picture[SIDE // 2 - 8 : SIDE // 2 + 8, SIDE // 2 - 8 : SIDE // 2 + 8]
        assert np.abs(middle.astype(int) - 128).mean() < 4


def test_the_page_fetches_nothing_and_names_the_video(page):
    text = page.read_text()
    assert "http" not in text
    assert "src=" not in re.sub(r"image\.src=url", "", text)
    assert "film_&lt;1&gt;_FISHEYE190_alpha.mp4, unpacked" in text
    assert f"{FRAMES} frames, 0 without people" in text
    assert 'name="viewport"' in text


def test_without_a_frame_there_is_no_page(tmp_path):
    with pytest.raises(OutputError, match="no frame"):
        UnpackedFrames().save(tmp_path / "page.html", title="x", lines=[])
    assert not (tmp_path / "page.html").exists()


def test_the_command_writes_it_and_does_not_replace_another(video, tmp_path, capsys):
    path = tmp_path / "page.html"
    for flags, code in (
        (["--html", str(path)], 0),
        (["--html", str(path), "-n"], 1),
        (["--html", str(path), "-y"], 0),
    ):
        with pytest.raises(SystemExit) as ended:
            main(["vr", "verify", str(video), *flags])
        said = capsys.readouterr()
        assert (ended.value.code != 0) == bool(code), said.err
    assert "page.html" in said.out
    assert len(frames_of(path)) == FRAMES // 2


def test_a_browser_shows_people_on_a_colour(page, browser):
    with Page(browser) as shown:
        shown.show(page.as_uri(), width=390, is_phone=True)
        assert shown.value("document.documentElement.scrollWidth") <= 390
        until(shown, pixel(20), [0x2B, 0x6C, 0xB0, 255])  # the colour
        assert max(abs(code - 128) for code in shown.value(pixel(120))[:3]) < 12  # the person
        move = "document.getElementById('at').value = 9"
        shown.value(f"{move}; document.getElementById('at').dispatchEvent(new Event('input'))")
        until(shown, "document.getElementById('time').textContent", f"{frames_of(page)[9]['t']:.2f} s")
        shown.value("document.querySelector('[value=matte]').click()")
        until(shown, pixel(20), [0, 0, 0, 255])
        assert not shown.complaints()


def pixel(x):
    """Build an expression for a sample of the left eye; it copies the canvas, as browsers warn of reading one."""
    return f"""(() => {{
        const copy = new OffscreenCanvas(1, 1).getContext("2d", {{willReadFrequently: true}});
        copy.drawImage(document.querySelector("canvas"), -{x}, -128);
        return [...copy.getImageData(0, 0, 1, 1).data];
    }})()"""


def until(shown, expression, wanted):
    """Wait until the page shows the value: pictures are decoded in the background."""
    end = time.monotonic() + 20
    while (met := shown.value(expression)) != wanted:
        assert time.monotonic() < end, (met, wanted)
        time.sleep(0.05)
