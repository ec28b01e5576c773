"""Check that ``benchmarks/portrait_quality`` reads faces of known shape, and compares videos."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
from faces import made_face

from vitascope.animation.canonical_mesh import EYES
from vitascope.animation.expression import ExpressionBasis
from vitascope.animation.face import FaceMotion
from vitascope.animation.mesh.animator import MeshAnimator
from vitascope.animation.mesh.deform import Gains, bend

FOLDER = Path(__file__).parents[2] / "benchmarks" / "portrait_quality"


@pytest.fixture
def quality(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    import readings

    return readings


@pytest.fixture
def read(quality, mesh):
    """Return readings by name for a face with some expressions and a pose."""
    basis = ExpressionBasis(mesh)

    def reader(*shapes, strength=0.6, **pose):
        moved = sum(
            (basis.field(shape) * np.float32(strength) for shape in shapes), np.zeros((468, 3), np.float32)
        )
        values = quality.readings_of(mesh, made_face(mesh, displacement=moved, **pose))
        return dict(zip(quality.READINGS, values, strict=True))

    return reader


def test_each_reading_is_moved_by_its_own(read):
    still = read()
    assert read("jawOpen")["lip gap"] - still["lip gap"] > 0.1
    assert read("mouthSmileLeft", "mouthSmileRight")["mouth width"] - still["mouth width"] > 0.02
    raised = read("browInnerUp", "browOuterUpLeft", "browOuterUpRight")
    assert raised["brows"] - still["brows"] > 0.01
    assert abs(raised["lip gap"] - still["lip gap"]) < 0.01


def test_flow_sees_brows_that_go_up_and_not_a_head_that_does(quality, mesh):
    from skin_flow import brows_by_flow

    face = made_face(mesh, scale=14)
    noise = cv2.resize(np.random.default_rng(0).integers(0, 256, (120, 160), np.uint8), (640, 480))
    picture = np.ascontiguousarray(np.repeat(noise[..., None], 3, axis=2))
    eyes = face.landmarks[[eye.outer_corner for eye in EYES], :2]
    unit = float(np.linalg.norm(eyes[1] - eyes[0]))
    # Six pixels up: the whole picture, or only what is above the eyes.
    head = np.roll(picture, -6, axis=0)
    brows = np.where(np.arange(480)[:, None, None] < eyes[:, 1].mean() - 0.12 * unit, head, picture)
    risen = brows_by_flow([picture, head, brows], 0, face)
    assert risen[:2] == pytest.approx([0, 0], abs=0.005)
    assert risen[2] == pytest.approx(6 / unit, rel=0.15)


def test_points_are_known_where_they_are_drawn_and_irises_go_with_a_glance(quality, mesh):
    import drawn_weights
    from drawn_face import recorded

    assert len(drawn_weights._SHOWN) == 146  # as many as the network takes
    face, places, still = made_face(mesh), [], np.zeros((468, 3), np.float32)
    pucker = ExpressionBasis(mesh).field("mouthPucker")
    with MeshAnimator(mesh) as animator, recorded(places):
        animator.set_portrait(np.full((480, 640, 3), 160, np.uint8), face=face)
        animator.bent(FaceMotion(vertices=still))
        animator.bent(FaceMotion(vertices=pucker))
        animator.bent(FaceMotion(vertices=still, gaze=np.full((2, 2), (0.04, 0), np.float32)))
    rest, puckered, aside = places
    mouth, irises = [61, 291], [point for eye in EYES for point in eye.iris]
    assert rest.shape == (478, 2)
    assert rest[mouth] == pytest.approx(face.landmarks[mouth, :2], abs=2)
    assert np.ptp(puckered[mouth, 0]) < 0.8 * np.ptp(rest[mouth, 0])
    width = np.linalg.norm(np.subtract(*face.landmarks[[EYES[0].outer_corner, EYES[0].inner_corner], :2]))
    assert aside[irises] - rest[irises] == pytest.approx(
        np.tile([0.04 * width, 0], (len(irises), 1)), abs=0.1
    )
    assert np.delete(aside, irises, axis=0) == pytest.approx(np.delete(rest, irises, axis=0), abs=0.01)


def test_what_is_drawn_is_known_whatever_a_tracker_reads(quality, mesh):
    from drawn_face import DRAWN, recorded

    face = made_face(mesh)
    with MeshAnimator(mesh) as animator, recorded() as faces:
        animator.set_portrait(np.full((480, 640, 3), 160, np.uint8), face=face)
        animator.bent(FaceMotion.authored({}))
        animator.bent(FaceMotion.authored({"jawOpen": 0.6}))
        animator.bent(FaceMotion.authored({"mouthPucker": 0.8}))
        animator.bent(FaceMotion.authored({"eyeLookOutLeft": 0.6, "eyeLookInRight": 0.6}))
        animator.bent(FaceMotion.authored({"eyeLookUpLeft": 0.6, "eyeLookUpRight": 0.6}))
        animator.bent(FaceMotion.authored({"browInnerUp": 0.8}, yaw_degrees=8.0, pitch_degrees=5.0))
    still, jaw, pucker, glance, upwards, turned = (dict(zip(DRAWN, values, strict=True)) for values in faces)
    at = {name: index for index, name in enumerate(quality.READINGS)}
    assert still["lip gap"] == pytest.approx(quality.readings_of(mesh, face)[at["lip gap"]], abs=0.01)
    assert jaw["lip gap"] > still["lip gap"] + 0.1
    assert pucker["mouth width"] < 0.85 * still["mouth width"]
    # This face's irises are small, and stay within 1.5 of their radii.
    assert 0.03 < glance["gaze sideways"] - still["gaze sideways"] <= 0.6 * 0.17 + 0.001
    assert glance["gaze up"] == pytest.approx(still["gaze up"], abs=0.005)
    assert 0.01 < upwards["gaze up"] - still["gaze up"] <= 0.6 * 0.17 + 0.001
    assert still["brows"] == pytest.approx(quality.readings_of(mesh, face)[at["brows"]], abs=0.01)
    assert turned["brows"] > still["brows"] + 0.01
    assert turned["yaw"] - still["yaw"] == pytest.approx(8, abs=1)
    assert turned["pitch"] - still["pitch"] == pytest.approx(5, abs=1)


def test_sixty_eight_points_tell_lips_brows_and_turns(quality, mesh):
    from sixty_eight_points import _RIGID, POINTS_READ, read_points

    here = dict(_RIGID) | {48: 61, 54: 291, 62: 13, 66: 14}
    brows = dict(zip(range(17, 27), [70, 63, 105, 66, 107, 336, 296, 334, 293, 300], strict=True))

    def told(*shapes, **pose):
        basis = ExpressionBasis(mesh)
        still = np.zeros((468, 3), np.float32)
        moved = sum((basis.field(shape) * np.float32(0.6) for shape in shapes), still)
        face = made_face(mesh, displacement=moved, **pose)
        points = np.zeros((68, 2), np.float32)
        for point, vertex in (here | brows).items():
            points[point] = face.landmarks[vertex, :2]
        read = dict(zip(quality.READINGS, quality.readings_of(mesh, face), strict=True))
        return dict(zip(POINTS_READ, read_points(points, mesh), strict=True)), read

    still, resting = told()
    for shapes, name in (
        (["jawOpen"], "lip gap"),
        (["mouthSmileLeft", "mouthSmileRight"], "mouth width"),
        (["browInnerUp", "browOuterUpLeft", "browOuterUpRight"], "brows"),
    ):
        for pose in ({}, {"yaw": 20.0, "roll": 15.0, "scale": 7.0}):
            points, read = told(*shapes, **pose)
            assert points[name] - still[name] > 0.02, name
            assert points[name] - still[name] == pytest.approx(read[name] - resting[name], abs=0.02), name
    turned, _ = told(yaw=12.0, pitch=-8.0, roll=10.0)
    assert turned["yaw"] == pytest.approx(12, abs=0.5) and turned["pitch"] == pytest.approx(-8, abs=0.5)


def test_the_box_of_the_points_lies_below_the_eyes_and_goes_with_the_head(quality, mesh, monkeypatch):
    import sixty_eight_points

    class MiddleOfBox:
        """A predictor whose points are all in the middle of the box."""

        def __init__(self, path):
            pass

        def __call__(self, shown, box):
            left, top, right, bottom = box
            middle = SimpleNamespace(x=(left + right) / 2, y=(top + bottom) / 2)
            return SimpleNamespace(part=lambda index: middle)

    dlib = SimpleNamespace(rectangle=lambda *corners: corners, shape_predictor=MiddleOfBox)
    monkeypatch.setitem(sys.modules, "dlib", dlib)
    reader = sixty_eight_points.PointReader(Path("a.dat"))
    picture = np.zeros((480, 640, 3), np.uint8)
    for roll in (0.0, 30.0):
        face = made_face(mesh, roll=roll, scale=12.0)
        eyes = np.mean(
            [face.landmarks[[eye.outer_corner, eye.inner_corner], :2] for eye in EYES], axis=(0, 1)
        )
        points = reader.points(picture, face, mesh)
        down = np.array([-np.sin(np.radians(roll)), np.cos(np.radians(roll))])
        assert points == pytest.approx(np.tile(eyes + 12 * 3.0 * down, (68, 1)), abs=1.0)


def test_known_motions_move_what_is_read_of_them_and_begin_at_rest(quality, mesh):
    from drawn_face import DRAWN, drawn
    from reading_error import known_motions

    with MeshAnimator(mesh) as animator:
        animator.set_portrait(np.full((480, 640, 3), 160, np.uint8), face=made_face(mesh))
        portrait = animator._portrait
        moved = {}
        for name, reading, motions in known_motions(mesh):
            bent = [
                bend(portrait.rig, mesh, motion, displacement=motion.vertices, gains=Gains())
                for motion in motions
            ]
            values = [drawn(one, portrait.eyes, portrait.rig.sources)[DRAWN.index(reading)] for one in bent]
            assert np.std(values) > quality.MOVES[reading], name
            assert values[:6] == pytest.approx([values[-1]] * 6, abs=1e-5), name
            moved[name] = np.ptp(values) * np.sign(np.mean(values) - values[0])
    assert moved["smile"] > 0 > moved["pucker"]
    assert moved["brows up"] > 0 > moved["brows down"]
    assert abs(moved["yaw"]) == pytest.approx(24, abs=1)


def test_a_turn_changes_no_shape(read):
    still, turned = read("jawOpen"), read("jawOpen", yaw=12, pitch=-8, roll=10, scale=7.0)
    for name in ("lip gap", "mouth width", "brows"):
        assert turned[name] == pytest.approx(still[name], abs=0.01)
    for name in ("gaze sideways", "gaze up"):  # an iris is a little in front of its corners
        assert turned[name] == pytest.approx(still[name], abs=0.02)
    assert [turned[name] for name in ("yaw", "pitch", "roll")] == pytest.approx([12, -8, 10], abs=0.5)


def test_irises_that_move_are_a_glance(quality, mesh):
    face = made_face(mesh)
    landmarks = face.landmarks.copy()
    for eye in EYES:
        landmarks[list(eye.iris), 0] += 6
        landmarks[list(eye.iris), 1] -= 3
    at = {name: index for index, name in enumerate(quality.READINGS)}
    before, after = (quality.readings_of(mesh, one) for one in (face, replace(face, landmarks=landmarks)))
    assert after[at["gaze sideways"]] - before[at["gaze sideways"]] > 0.1
    assert after[at["gaze up"]] - before[at["gaze up"]] > 0.05


@pytest.mark.parametrize("roll", [0.0, 20.0])
def test_the_darkest_disc_is_where_an_iris_is(quality, mesh, roll):
    from dark_disc import darkest_sideways

    face = made_face(mesh, roll=roll)
    for share in (-0.2, 0.0, 0.15):
        rgb = np.full((480, 640, 3), (206, 160, 138), np.uint8)
        for eye in EYES:
            outline = np.rint(face.landmarks[list(eye.outline), :2]).astype(np.int32)
            cv2.fillPoly(rgb, [outline], (230, 228, 224))
            corners = sorted(
                (face.landmarks[eye.outer_corner, :2], face.landmarks[eye.inner_corner, :2]),
                key=lambda at: at[0],
            )
            middle = (corners[0] + corners[1]) / 2 + share * (corners[1] - corners[0])
            iris = np.zeros(rgb.shape[:2], np.uint8)
            cv2.circle(iris, np.rint(middle * 16).astype(int).tolist(), 5 * 16, 1, -1, shift=4)
            inside = cv2.fillPoly(np.zeros(rgb.shape[:2], np.uint8), [outline], 1)
            rgb[(iris & inside) > 0] = (40, 30, 25)
        assert darkest_sideways(rgb, face.landmarks, (5.0, 5.0)) == pytest.approx(share, abs=0.04)


def test_depth_that_is_guessed_wrongly_is_not_read(quality, mesh):
    face = made_face(mesh, yaw=30.0)
    landmarks = face.landmarks.copy()
    landmarks[[61, *(eye.iris[0] for eye in EYES)], 2] += 20
    at = {name: index for index, name in enumerate(quality.READINGS)}
    right, wrong = (quality.readings_of(mesh, one) for one in (face, replace(face, landmarks=landmarks)))
    for name in ("mouth width", "gaze sideways", "gaze up"):
        assert wrong[at[name]] == right[at[name]]


def test_closed_eyes_look_nowhere(quality):
    series = np.zeros((2, len(quality.READINGS), 3))
    blink = quality.READINGS.index("blink")
    series[0, blink, 1] = series[1, blink, 2] = 0.6
    assert quality.open_eyed(series).tolist() == [True, False, False]


def test_lines_are_compared(quality):
    driver = np.sin(np.linspace(0, 9, 50))
    assert quality.compared(driver, 0.5 * driver + 3) == {
        "driver_std": round(float(driver.std()), 4),
        "r": 1.0,
        "slope": 0.5,
    }
    assert quality.compared(driver, np.ones(50))["r"] == 0.0


def test_lips_are_wrong_where_they_are_clearly_the_other(quality):
    driver = np.array([0.0, 0.0, 0.1, 0.1, 0.04])
    assert quality.wrong_lips(driver, driver) == 0
    assert quality.wrong_lips(driver, np.array([0.0, 0.09, 0.1, 0.0, 0.0])) == 0.5


def test_errors_of_regions(quality, mesh):
    face = made_face(mesh)
    inside, mouth = quality.region_of(face, "face"), quality.region_of(face, "mouth")
    assert inside.shape == (480, 640) and mouth.sum() < inside.sum() / 4
    assert (mouth & ~inside).sum() < 0.1 * mouth.sum()
    black, white = (np.full((480, 640, 3), level, np.uint8) for level in (0, 255))
    assert quality.psnr([quality.squared_error(black, white, mouth)]) == 0
    assert quality.psnr([quality.squared_error(black, black + np.uint8(1), mouth)]) == pytest.approx(
        48.13, abs=0.01
    )
