"""Tests of separating the head from its background."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

from vitascope.animation.face import FaceMotion, rotation_from_degrees
from vitascope.animation.mesh import head
from vitascope.animation.mesh.animator import MeshAnimator
from vitascope.animation.mesh.deform import Gains, bend
from vitascope.animation.mesh.head import CutPortrait, cut_out, find_person, uncut
from vitascope.animation.mesh.layers import Patch
from vitascope.animation.mesh.rig import build_rig, with_person


@pytest.fixture(scope="module")
def rig(mesh, astronaut, astronaut_face):
    return build_rig(mesh, astronaut_face, size=astronaut.shape[:2])


@pytest.fixture(scope="module")
def matte(astronaut, rig):
    return find_person(astronaut, rig)


def of_box(rig, picture):
    left, top, right, bottom = rig.box
    return picture[top:bottom, left:right]


def test_a_person_is_found_with_hair_and_collar(astronaut, rig, matte):
    assert matte.shape == astronaut.shape[:2] and matte.dtype == np.float32
    for x, y in (
        (225, 120),
        (190, 60),
        (280, 60),
        (165, 200),
    ):  # nose, hair on both sides, edge of the collar
        assert matte[y, x] > 0.9
    for x, y in ((120, 60), (330, 60), (320, 150)):
        assert matte[y, x] < 0.1


def test_nobody_is_found_where_a_network_sees_no_person(rig):
    noise = np.random.default_rng(0).integers(0, 256, (*rig.size, 3), np.uint8)
    assert find_person(noise, rig) is None


def test_at_rest_a_cut_portrait_is_the_portrait(astronaut, rig, matte):
    for cut in (cut_out(astronaut, rig, matte), uncut(astronaut, rig)):
        out = np.empty_like(of_box(rig, astronaut))
        cut.over_background(of_box(rig, cut.rgba), out=out)
        assert (out == of_box(rig, astronaut)).all()
        assert (cut.rgba[..., :3] <= cut.rgba[..., 3:]).mean() > 0.999


def test_straight_lines_behind_a_head_that_turns_stay(mesh, astronaut, astronaut_face, rig, matte):
    stripes = astronaut.copy()
    of_box(rig, stripes)[:, ::8] = 40
    of_box(rig, stripes)[::8] = 40
    share = matte[..., None]
    striped = np.rint(astronaut * share + stripes * (1 - share)).astype(np.uint8)
    with MeshAnimator(mesh) as animator:
        animator.set_portrait(striped, face=astronaut_face)
        turned = animator.animate(FaceMotion(rotation=rotation_from_degrees(12, 0, -12)))
        drawn = animator._portrait.shown.of(animator._portrait.layer)
    beside = cv2.dilate((matte > 0).astype(np.uint8), np.ones((13, 13))) == 0
    seen = of_box(rig, (drawn[..., 3] == 0) & beside)
    assert seen.mean() > 0.25
    assert (of_box(rig, turned)[seen] == of_box(rig, striped)[seen]).mean() > 0.99
    moved = np.abs(of_box(rig, turned).astype(int) - of_box(rig, striped)).max(axis=-1)
    assert moved[of_box(rig, matte) > 0.9].mean() > 5


def test_what_is_beside_a_head_stays_behind_unless_it_is_like_hair(astronaut, rig, matte):
    """Regression: patches of background, as far as hair may reach, moved with the head."""
    person = (matte > 1 / 255).astype(np.uint8)
    reach = round(0.04 * rig.face_height)
    disc = cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (2 * reach + 1, 2 * reach + 1))
    near = (cv2.dilate(person, disc) > 0) & (person == 0)
    beside = of_box(rig, near)
    squares = np.random.default_rng(3).choice([60, 130, 200], (128, 128, 3)) * (0.7, 0.9, 1.2)
    squares = squares.repeat(4, axis=0).repeat(4, axis=1)
    busy = np.rint(astronaut * matte[..., None] + squares * (1 - matte[..., None])).astype(np.uint8)
    cut = cut_out(busy, rig, matte)
    assert (of_box(rig, cut.rgba)[..., 3][beside] == 0).mean() > 0.4
    # What stays is visible from outside: islands would be specks in the fill.
    outer = of_box(rig, (person == 0) & ~near)
    stays = (of_box(rig, busy) == cut.behind).all(axis=-1) & beside | outer
    parts = cv2.connectedComponents(stays.astype(np.uint8), connectivity=4)[1]
    islands = stays & ~np.isin(parts, np.unique(parts[outer]))
    assert islands.sum() < 5, islands.sum()
    plain = np.rint(astronaut * matte[..., None] + 200 * (1 - matte[..., None])).astype(np.uint8)
    near[:, np.arange(near.shape[1]) % 12 > 0] = False
    strands = np.where(near[..., None], (70, 60, 40), plain).astype(np.uint8)
    hair = of_box(rig, near)
    assert hair.sum() > 50
    assert (of_box(rig, cut_out(strands, rig, matte).rgba)[..., 3][hair] > 150).mean() > 0.9


def test_a_background_of_the_colours_of_clothes_stays_behind(astronaut, rig, matte):
    """Check white beside a white collar and dark coats: its mean around is grey, so it was taken for the person."""
    person = (matte > 1 / 255).astype(np.uint8)
    reach = round(0.04 * rig.face_height)
    disc = cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (2 * reach + 1, 2 * reach + 1))
    beside = of_box(rig, (cv2.dilate(person, disc) > 0) & (person == 0))
    bars = np.where(np.arange(astronaut.shape[1]) // 9 % 2, 235, 30).repeat(3).reshape(1, -1, 3)
    checked = np.rint(astronaut * matte[..., None] + bars * (1 - matte[..., None])).astype(np.uint8)
    cover = of_box(rig, cut_out(checked, rig, matte).rgba)[..., 3]
    share = (cover[beside] == 0).mean()
    assert share > 0.6, share  # it was 0.4


def test_hair_goes_as_the_head_does_to_its_end(mesh, astronaut, rig, matte):
    before, after = rig.rings, with_person(rig, matte).rings
    above = before.directions[:, 1] < -0.5
    covered = matte[tuple(np.rint(np.clip(before.sources, 0, 511)).astype(int)[..., axis] for axis in (1, 0))]
    hair = (covered > 0.9) & above
    assert hair.sum() > 20
    assert after.weights[hair].min() > 0.93 > before.weights[hair].min()
    assert (after.weights[-1] == 0).all()
    assert (np.diff(after.weights, axis=0) <= 1e-6).all()


def test_tall_hair_is_not_pressed_flat_by_a_head_that_rises(mesh, astronaut, rig, matte):
    grown = matte.copy()
    landmarks = rig.face.landmarks
    (x, y), across = landmarks[10, :2].astype(int), 0.6 * rig.face_height
    tall = round(0.8 * rig.face_height)
    cv2.ellipse(grown, (int(x), int(y)), (int(across), tall), 0, 0, 360, 1.0, -1)
    usual, taller = with_person(rig, matte), with_person(rig, grown)
    np.testing.assert_array_equal(usual.rings.sources, rig.rings.sources)
    up = int(np.argmin(rig.rings.directions[:, 1]))
    heights = y - taller.rings.sources[:, up, 1]
    assert taller.rings.weights[heights < 0.85 * tall, up].min() > 0.9
    motion = FaceMotion(translation=np.float32([0, -5]), vertices=np.zeros((468, 3), np.float32))
    bent = bend(taller, mesh, motion, displacement=motion.vertices, gains=Gains())
    places = bent.places[468:].reshape(*taller.rings.weights.shape, 2)[:, up, 1]
    risen = taller.rings.sources[:, up, 1] - places
    assert risen[heights < 0.85 * tall].min() > 4 * rig.pose.scale
    assert taller.box[1] < rig.box[1] or rig.box[1] == 0


def test_what_was_hidden_goes_on_as_what_is_beside_it():
    ramp = np.repeat(np.linspace(60, 200, 120)[None], 90, axis=0)
    grain = np.random.default_rng(1).normal(0, 6, ramp.shape)
    seen = np.repeat(np.clip(ramp + grain, 0, 255).astype(np.uint8)[..., None], 3, axis=-1)
    known = np.ones(ramp.shape, bool)
    known[30:60, 40:80] = False
    seen[~known] = 0
    made = head._continued(seen, known, 6.0)
    assert (made[known] == seen[known]).all()
    hidden = made[..., 0].astype(float)[30:60, 40:80]
    assert np.abs(cv2.blur(hidden, (9, 9)) - ramp[30:60, 40:80]).max() < 14
    assert 3 < (hidden - cv2.blur(hidden, (5, 5))).std() < 8


@pytest.mark.parametrize("width", [4, 8, 16])
def test_what_was_hidden_begins_as_what_is_beside_it(width):
    """Check a stripe along the edge, as of a flag: it was filled with the mean around it, and the edge showed."""
    known = np.ones((120, 800), bool)
    known[20:, 60:100] = False
    seen = np.full((120, 800, 3), 220, np.uint8)
    seen[:, 60 - width : 60] = (190, 30, 40)
    made = head._continued(seen, known, 20.0).astype(int)
    assert np.abs(made[40:, 60] - seen[40:, 59]).max() < 25
    assert np.abs(made[40:, 99] - seen[40:, 100]).max() < 25


def test_what_was_hidden_behind_ragged_hair_is_no_fan_of_streaks():
    rng = np.random.default_rng(5)
    noise = cv2.GaussianBlur(rng.standard_normal((240, 240, 1)).astype(np.float32), (0, 0), 3)
    seen = np.clip(128 + 60 * noise[..., None] / noise.std(), 0, 255).astype(np.uint8).repeat(3, axis=-1)
    y, x = np.mgrid[:240, :240] - 119.5
    turn = np.arctan2(y, x)
    away = np.hypot(x, y) - 70
    strands = 2 * rng.standard_normal(180)[((turn + np.pi) / (2 * np.pi) * 179).astype(int)]
    made = head._continued(seen, away > strands, 12.0).astype(float)[..., 0]
    rough = np.hypot(np.diff(made, axis=0)[:, :-1], np.diff(made, axis=1)[:-1])
    away = away[:-1, :-1]
    hidden, beside = (rough[(away > low) & (away < low + 14)].mean() for low in (-22, 12))
    assert hidden < 1.4 * beside  # it was 1.6


@pytest.mark.parametrize("opaque", [np.s_[40:260], np.s_[0:300], np.s_[0:200], np.s_[0:0], np.s_[290:300]])
def test_what_is_behind_is_seen_beside_a_person_wherever_they_stand(opaque):
    random = np.random.default_rng(0)
    layer = random.integers(0, 256, (300, 300, 4), np.uint8)
    layer[20:290, opaque, 3] = 255
    layer[..., :3] = np.minimum(layer[..., :3], layer[..., 3:])
    behind = random.integers(0, 256, (300, 300, 3), np.uint8)
    cut = CutPortrait(layer, behind, Patch(0, 0, 300, 300), is_whole=False)
    out = np.zeros((300, 300, 3), np.uint8)
    cut.over_background(layer, out=out)
    seen = np.rint(behind * (255.0 - layer[..., 3:]) / 255)
    assert (out == np.minimum(layer[..., :3] + seen, 255)).all()
