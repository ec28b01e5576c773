"""Tests of portraits in the studio: any moment and strength in the preview, and the command's recording."""

from __future__ import annotations

import time

import av
import cv2
import numpy as np
import pytest

from vitascope.animation.offline import animate_file
from vitascope.config import load_settings
from vitascope.models.store.store import ModelStore

SETTINGS = {"gpu.device": "cpu", "animation.max_side": 256}


def ids(studio):
    listed = studio.get("/api/films").json
    return {one["name"]: one["id"] for kind in ("films", "pictures", "voices") for one in listed[kind]}


def read(studio, driver):
    until = time.monotonic() + 60
    while time.monotonic() < until:
        motion = studio.get(f"/api/films/{driver}/motion").json
        if motion["complete"] or motion["error"]:
            return motion
        time.sleep(0.05)
    raise AssertionError(motion)


def picture(studio, driver, portrait, **query):
    words = "&".join(f"{name}={value}" for name, value in {"portrait": portrait, **query}.items())
    answer = studio.get(f"/api/films/{driver}/animated?{words}")
    assert answer.status == 200, answer.body
    assert answer.headers["Content-Type"] == "image/jpeg"
    return cv2.imdecode(np.frombuffer(answer.body, np.uint8), cv2.IMREAD_COLOR)


def frames(path):
    with av.open(str(path)) as container:
        return [(frame.time, frame.to_ndarray(format="bgr24")) for frame in container.decode(video=0)]


def softened(picture, like):
    """Blur away what JPEG and H.264 do to single samples."""
    height, width = like.shape[:2]
    return cv2.blur(picture[:height, :width].astype(np.float32), (5, 5))


def test_any_moment_at_any_strength_is_what_the_recording_shows(portrait_studio, films, tmp_path, home):
    studio, known = portrait_studio, ids(portrait_studio)
    driver, portrait = known["talk.motion"], known["astronaut.jpg"]
    assert read(studio, driver)["seconds"] > 1
    job = studio.job(
        studio.order(
            {"id": driver}, task="animate", portrait=portrait, expression=1.5, pose=0.5, end_seconds=2
        ),
        seconds=240,
    )
    assert [file["name"] for file in job["made"]] == ["astronaut_talk.mp4"]
    recorded = frames(films / "astronaut_talk.mp4")
    for n in (30, 45):
        seconds, written = recorded[n]
        drawn, rest = (
            picture(studio, driver, portrait, t=seconds, expression=strength, pose=0.5)
            for strength in (1.5, 0)
        )
        drawn, written, rest = (softened(one, rest) for one in (drawn, written, rest))
        moved = np.abs(drawn - rest).max(axis=2)
        moves = moved > moved.max() / 2
        assert moved.max() > 5
        assert np.abs(drawn - written)[moves].mean() < np.abs(rest - written)[moves].mean() / 2
    # The command writes the same.
    loaded = load_settings(
        flags={**SETTINGS, "animation.expression": 1.5, "animation.pose": 0.5, "video.end_seconds": 2.0}
    )
    out = tmp_path / "by-command.mp4"
    animate_file(films / "astronaut.jpg", films / "talk.motion", out, loaded=loaded, store=ModelStore(home))
    assert all(np.array_equal(one[1], other[1]) for one, other in zip(recorded, frames(out), strict=True))


def test_a_second_recording_keeps_the_first(portrait_studio, films):
    known = ids(portrait_studio)
    (films / "astronaut_talk.mp4").write_bytes(b"mine")
    job = portrait_studio.job(
        portrait_studio.order(
            {"id": known["talk.motion"]}, task="animate", portrait=known["astronaut.jpg"], end_seconds=0.2
        ),
        seconds=240,
    )
    assert [file["name"] for file in job["made"]] == ["astronaut_talk_2.mp4"]
    assert (films / "astronaut_talk.mp4").read_bytes() == b"mine"


@pytest.mark.parametrize(
    ("order", "said"),
    [
        ({}, "choose the portrait"),
        ({"portrait": "0123456789abcdef"}, "no such video"),
        ({"portrait": "ours", "expression": 9}, "expression"),
        ({"portrait": "/etc/passwd"}, "no such video"),
    ],
)
def test_orders_that_cannot_be_followed(portrait_studio, order, said):
    known = ids(portrait_studio)
    if order.get("portrait") == "ours":
        order = order | {"portrait": known["astronaut.jpg"]}
    answer = portrait_studio.ask(
        "POST", f"/api/films/{known['talk.motion']}/jobs", {"task": "animate", **order}
    )
    assert answer.status in (404, 422)
    assert said in answer.json["error"]


def test_a_driver_and_a_portrait_that_cannot_be_read_are_said(portrait_studio, films):
    (films / "broken.motion").write_bytes(b"no motion")
    (films / "broken.jpg").write_bytes(b"no picture")
    known = ids(portrait_studio)
    assert "broken.motion" in read(portrait_studio, known["broken.motion"])["error"]
    answer = portrait_studio.get(f"/api/films/{known['talk.motion']}/animated?portrait={known['broken.jpg']}")
    assert answer.status == 404
    assert "broken.jpg" in answer.json["error"]
