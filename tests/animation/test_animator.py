"""Tests of ``vitascope.Animator``, which draws a portrait frame by frame."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import vitascope
from forks import said_in_a_fork
from vitascope.animation.face import FaceMotion
from vitascope.animation.mesh.animator import MeshAnimator
from vitascope.errors import ConfigError, InputError, MissingDependencyError, UsageError

PORTRAIT = Path(__file__).parents[2] / "examples" / "astronaut.jpg"
SHOUT = FaceMotion.authored({"jawOpen": 0.7}, yaw_degrees=8)
QUICK = {"animation.animator": "mesh", "animation.calibrate": False}


@pytest.fixture
def opened(model_store):
    """Open an animator; a test's own settings are added to ``QUICK``."""

    def opener(portrait=PORTRAIT, **settings):
        more = {key.replace("__", "."): value for key, value in settings.items()}
        return vitascope.Animator(portrait, settings=QUICK | more, store=model_store)

    return opener


def test_a_motion_is_drawn_as_the_mesh_draws_it(opened, mesh, astronaut, astronaut_face):
    with MeshAnimator(mesh) as drawing, opened(astronaut) as animator:
        drawing.set_portrait(animator.portrait, face=astronaut_face)
        made = animator.render(SHOUT)
        assert (made.dtype, made.shape) == (np.uint8, astronaut.shape)
        assert np.abs(made.astype(int) - drawing.animate(SHOUT)).mean() < 0.2
        assert animator.motion is SHOUT
        assert np.abs(made.astype(int) - animator.render(FaceMotion())).mean() > 1


@pytest.mark.parametrize("portrait", [PORTRAIT, str(PORTRAIT)])
def test_a_file_is_the_picture_in_it(opened, portrait):
    with opened(portrait) as animator, opened(animator.portrait) as from_array:
        assert np.abs(animator.render(SHOUT).astype(int) - from_array.render(SHOUT)).mean() < 0.2
        assert (animator.name, animator.device_label[:3], from_array.notes) == ("mesh", "CPU", ())


def test_frames_of_a_driver_move_it(opened, astronaut):
    with opened() as driver, opened(animation__neutral="first") as animator:
        opening = [0.0, 0.0, 0.4, 0.8, 0.8]
        drawn = [
            animator.render(driver.render(FaceMotion.authored({"jawOpen": jaw})), pts_seconds=index / 25)
            for index, jaw in enumerate(opening)
        ]
        assert animator.motion.expression("jawOpen") > 0.15
        assert animator.motion.presence == 1
        at_rest, shouting = drawn[0].astype(int), drawn[-1].astype(int)
        assert np.abs(at_rest - astronaut).mean() < 3
        assert np.abs(shouting - at_rest)[100:200, 180:280].mean() > 3
        blank = np.full_like(astronaut, 127)
        for index in range(60):
            relaxed = animator.render(blank, pts_seconds=(5 + index) / 25)
        assert animator.motion.presence == 0
        assert np.abs(relaxed.astype(int) - at_rest).mean() < 1
        assert not animator.set_neutral()


def test_the_face_at_rest_can_be_chosen(opened):
    with opened() as driver, opened(animation__neutral="first", tracking__smoothing_window=1) as animator:
        turned = driver.render(FaceMotion.authored(yaw_degrees=10))
        animator.render(driver.render(FaceMotion()), pts_seconds=0)
        animator.render(turned, pts_seconds=0.04)
        assert animator.motion.angles_degrees[0] > 5
        assert animator.set_neutral()
        animator.render(turned, pts_seconds=2)
        animator.render(turned, pts_seconds=4)
        assert abs(animator.motion.angles_degrees[0]) < 2


def test_settings_act(opened):
    with opened(animation__max_side=256) as small:
        assert small.portrait.shape == small.render(SHOUT).shape == (256, 256, 3)
        assert "shrunk to 256x256" in small.notes[0]
    with opened() as plain, opened(animation__mirror=True) as mirrored:
        turned = FaceMotion.authored(yaw_degrees=10)
        other = FaceMotion.authored(yaw_degrees=-10)
        assert np.array_equal(mirrored.render(turned), plain.render(other))


@pytest.mark.parametrize(
    "frame",
    [
        np.zeros((4, 4, 3), np.float32),
        np.zeros((4, 4), np.uint8),
        np.zeros((4, 4, 4), np.uint8),
        np.zeros((0, 4, 3), np.uint8),
    ],
)
def test_what_is_no_picture_is_refused(opened, frame):
    with pytest.raises(UsageError, match=r"the portrait is .*expected uint8 \[height, width, 3\]"):
        opened(frame)
    with opened() as animator, pytest.raises(UsageError, match="the driver's frame is "):
        animator.render(frame)


def test_what_is_no_array_is_no_frame(opened, astronaut):
    with opened() as animator:
        with pytest.raises(UsageError, match="the driver's frame is NoneType, expected a NumPy array, uint8"):
            animator.render(None)  # OpenCV's value at the end of a video
        for wrong in (float("nan"), 1.7e18):  # the second: time.time_ns()
            with pytest.raises(UsageError, match=r"pts_seconds is .*, expected seconds, not nano"):
                animator.render(astronaut, pts_seconds=wrong)
        assert animator.render(astronaut, pts_seconds=0.0).shape == astronaut.shape


def test_a_fork_is_told_to_open_its_own(opened, astronaut):
    with opened() as animator:
        animator.render(astronaut)
        said = said_in_a_fork(lambda: animator.render(astronaut))
        assert said_in_a_fork(animator.close) == "None"
    assert said.startswith("UsageError: the animator was opened before this process was forked")


def test_a_portrait_without_a_face_is_refused(opened, tmp_path):
    with pytest.raises(InputError, match="the portrait: no face"):
        opened(np.full((200, 200, 3), 90, np.uint8))
    with pytest.raises(InputError, match=r"missing\.jpg"):
        opened(tmp_path / "missing.jpg")


def test_a_closed_one_draws_nothing(opened):
    animator = opened()
    animator.close()
    animator.close()
    with pytest.raises(UsageError, match="closed"):
        animator.render(SHOUT)


def test_what_cannot_be_had(opened, monkeypatch):
    with pytest.raises(ConfigError, match=r"animation\.expression"):
        opened(animation__expression="much")
    with pytest.raises(UsageError, match="no expression weight is called 'jawWide'"):
        FaceMotion.authored({"jawWide": 1})
    monkeypatch.setitem(sys.modules, "mediapipe", None)
    with opened() as animator:  # its landmarks are shipped
        picture = animator.render(SHOUT)
        with pytest.raises(MissingDependencyError, match=r"vitascope\[animate\]"):
            animator.render(picture)
    with pytest.raises(MissingDependencyError, match=r"vitascope\[animate\]"):
        opened(picture)
