"""Tests of skin that folds: where, how strongly, and in what colour."""

from __future__ import annotations

from dataclasses import replace

import cv2
import numpy as np
import pytest
from faces import made_face

from vitascope.animation.canonical_mesh import (
    EYES,
    INNER_LOWER_LIP,
    INNER_UPPER_LIP,
    MOUTH_CORNERS,
    OUTER_LOWER_LIP,
    OUTER_UPPER_LIP,
)
from vitascope.animation.expression import ExpressionBasis
from vitascope.animation.face import FaceMotion
from vitascope.animation.mesh.animator import MeshAnimator
from vitascope.animation.mesh.creases import Creases
from vitascope.animation.mesh.deform import Gains, bend
from vitascope.animation.mesh.head import uncut
from vitascope.animation.mesh.lips import gap_cm
from vitascope.animation.mesh.rig import build_rig

SKIN = np.array([206, 160, 138], np.uint8)
UPPER, LOWER = (140, 92, 84), (196, 128, 118)
"""Lips of a portrait that smiles: the smile turns the upper one away from the light."""
SIZE = (480, 640)
SMILE, FROWN, SURPRISE = (
    {"mouthSmileLeft": 0.9, "mouthSmileRight": 0.9},
    {"browDownLeft": 0.9, "browDownRight": 0.9},
    {"browInnerUp": 0.9, "browOuterUpLeft": 0.9, "browOuterUpRight": 0.9},
)


@pytest.fixture
def skin():
    return np.full((*SIZE, 3), SKIN, np.uint8)


@pytest.fixture
def shaded(mesh, skin):
    """Return a function that folds a portrait's skin, before any point moves; it also returns the strengths."""

    def shade(weights, *, rgb=None, closure=(0.0, 0.0), face=None):
        rgb = skin if rgb is None else rgb
        rig = build_rig(mesh, made_face(mesh) if face is None else face, size=SIZE)
        creases = Creases(rgb, uncut(rgb, rig), rig)
        motion = replace(FaceMotion.authored(weights), eye_closure=np.array(closure, np.float32))
        moved = ExpressionBasis(mesh).displacement(motion.blendshapes)
        bent = bend(rig, mesh, motion, displacement=moved, gains=Gains())
        return creases.shaded(bent.vertices)[..., :3].copy(), creases.strengths(bent.vertices), rig

    return shade


def test_each_expression_has_its_own_folds(shaded, skin):
    for weights, expected in (
        (SMILE, [1, 1, 0, 0, 0, 0, 0, 0, 0]),
        (FROWN, [0, 0, 1, 0, 0, 0, 0, 0, 0]),
        (SURPRISE, [0, 0, 0, 1, 0, 0, 0, 0, 0]),
    ):
        picture, strengths, _ = shaded(weights)
        assert ((strengths > 0.5) == expected).all() and ((strengths > 0) == expected).all()
        assert (picture != skin).any(axis=-1).sum() > 300
    left, strengths, rig = shaded({"mouthSmileLeft": 0.9})
    assert strengths[1] > 0.5 and strengths[0] == 0
    changed = np.flatnonzero((left != skin).any(axis=(0, 2)))
    assert changed.min() > rig.face.landmarks[1, 0] - 20  # the person's left is on the picture's right


def test_at_rest_and_in_a_shout_nothing_folds(shaded, skin):
    for weights, most in (({}, 0), ({"jawOpen": 0.8}, 0), ({"mouthPucker": 0.8}, 1)):
        picture, strengths, _ = shaded(weights)
        assert not strengths[:4].any()
        # The fill at the ends of a puckered mouth is rounded.
        assert np.abs(picture.astype(int) - skin).max() <= most


def test_lips_that_are_drawn_together_leave_no_dark_ends_and_grow_redder(mesh, shaded, skin):
    landmarks = made_face(mesh).landmarks[:, :2]
    outline = np.rint(landmarks[list(OUTER_UPPER_LIP + OUTER_LOWER_LIP[-2:0:-1])]).astype(np.int32)
    seen = cv2.fillPoly(skin.copy(), [outline], (190, 120, 110))
    right, left = (np.rint(landmarks[corner]).astype(int) for corner in MOUTH_CORNERS)
    beyond = np.array([4, 0])
    cv2.line(seen, (right - beyond).tolist(), (left + beyond).tolist(), (70, 40, 40), 2)
    before, strengths, _ = shaded({}, rgb=seen)
    assert not strengths.any() and (before == seen).all()
    picture, strengths, _ = shaded({"mouthPucker": 1.0}, rgb=seen)
    assert strengths[4] == 1 and not strengths[5:].any()
    for row, column in ((right[1], right[0] - 2), (left[1], left[0] + 2)):
        assert picture[row, column].sum() > seen[row, column].sum() + 150
    lip = tuple(np.rint(landmarks[[14, 17]].mean(axis=0)).astype(int)[::-1])
    assert int(picture[lip][0]) - int(picture[lip][1]) > int(seen[lip][0]) - int(seen[lip][1]) + 3
    changed = np.flatnonzero((picture != seen).any(axis=(1, 2)))
    assert changed.min() > landmarks[4, 1]  # nothing above the nose's tip


def test_the_broad_shade_beside_a_mouth_that_does_not_smile_leaves_with_a_pucker(mesh, shaded, skin):
    """Regression: the darkest part, beyond the corner, was taken for the mouth's end."""
    face, seen = made_face(mesh), skin.copy()
    corners = [np.rint(face.landmarks[corner, :2]).astype(int) for corner in MOUTH_CORNERS]
    for x, y in corners:
        cv2.ellipse(seen, (int(x), int(y)), (4, 4), 0, 0, 360, (SKIN * 0.6).tolist(), -1)
    picture, strengths, _ = shaded({"mouthPucker": 1.0}, rgb=cv2.GaussianBlur(seen, (0, 0), 1.5))
    assert strengths[4] == 1
    for x, y in corners:
        assert picture[y - 4 : y + 5, x - 5 : x + 6].mean(axis=-1).min() > 0.85 * SKIN.mean()


@pytest.mark.parametrize("hair", [(74, 60, 50), (176, 170, 166)], ids=["dark", "grey"])
def test_a_beard_beside_the_mouth_keeps_its_hair_as_lips_are_drawn_together(mesh, shaded, skin, hair):
    landmarks = made_face(mesh).landmarks[:, :2]
    seen = skin.copy()
    for corner in MOUTH_CORNERS:
        x, y = np.rint(landmarks[corner]).astype(int)
        beard = seen[y - 14 : y + 15, x - 20 : x + 21]
        strands = np.random.default_rng(corner).integers(0, 2, (*beard.shape[:2], 1))
        beard[...] = hair - 22 * strands
    outline = np.rint(landmarks[list(OUTER_UPPER_LIP + OUTER_LOWER_LIP[-2:0:-1])]).astype(np.int32)
    cv2.fillPoly(seen, [outline], (190, 120, 110))
    picture, strengths, rig = shaded({"mouthPucker": 1.0}, rgb=seen)
    assert strengths[4] == 1
    outward = round(0.5 * rig.pose.scale)
    for corner, side in zip(MOUTH_CORNERS, (-1, 1), strict=True):
        x, y = np.rint(landmarks[corner]).astype(int)
        beside = np.s_[y - 3 : y + 4, x + side * outward - 3 : x + side * outward + 4]
        assert (
            np.abs(picture[beside].astype(int) - seen[beside]).mean() < 2
        )  # a blur of the lighter strands was added


def test_what_shines_on_lips_does_not_become_a_line_when_they_are_drawn_together(mesh, shaded, skin):
    landmarks = made_face(mesh).landmarks[:, :2]
    outline = np.rint(landmarks[list(OUTER_UPPER_LIP + OUTER_LOWER_LIP[-2:0:-1])]).astype(np.int32)
    seen = cv2.fillPoly(skin.copy(), [outline], (190, 120, 110))
    lip = np.rint(landmarks[[14, 17]].mean(axis=0)).astype(int).tolist()
    beside = [lip[0] + 8, lip[1]]
    cv2.circle(seen, lip, 2, (240, 236, 255), -1)
    picture, strengths, _ = shaded({"mouthPucker": 1.0}, rgb=seen)
    assert strengths[4] == 1
    spot, near = (picture[y, x].astype(int) for x, y in (lip, beside))
    assert abs(spot.sum() - near.sum()) < 60  # it was 310
    assert spot[0] > spot[2] + 30  # as red as the lip, not bluish


def test_a_broad_shine_on_lips_becomes_lips_and_no_flat_pale_spot(mesh, shaded, skin):
    landmarks = made_face(mesh).landmarks[:, :2]
    outline = np.rint(landmarks[list(OUTER_UPPER_LIP + OUTER_LOWER_LIP[-2:0:-1])]).astype(np.int32)
    # Outside painted lips the outline is soft: it is half skin.
    seen = cv2.fillPoly(skin.copy(), [outline], (200, 70, 60))
    cv2.polylines(seen, [outline], True, (203, 115, 99), 3)
    lip = np.rint(landmarks[[14, 17]].mean(axis=0)).astype(int).tolist()
    cv2.ellipse(seen, lip, (9, 4), 0, 0, 360, (240, 205, 200), -1)
    grain = np.random.default_rng(3).integers(-6, 7, (*SIZE, 1))
    seen = np.clip(seen.astype(int) + grain, 0, 255).astype(np.uint8)
    picture, _, _ = shaded({"mouthPucker": 1.0}, rgb=seen)
    rows, columns = np.s_[lip[1] - 2 : lip[1] + 3], np.s_[lip[0] - 5 : lip[0] + 6]
    shine, was = picture[rows, columns].astype(int), seen[rows, columns].astype(int)
    fine, was_fine = (np.diff(part.mean(axis=-1), axis=1).std() for part in (shine, was))
    assert fine > 0.5 * was_fine  # it was 0.17
    assert (shine[..., 0] - shine[..., 1]).mean() > 130  # as red as lips, not as their edge (109)


@pytest.fixture
def smiling(mesh, skin):
    """Make a portrait that smiles with bared teeth: a shaded upper lip, and a dark fold in each cheek."""
    basis = ExpressionBasis(mesh)
    parted = basis.lips_apart * np.float32(1.2 / gap_cm(basis.lips_apart))
    face = made_face(
        mesh, displacement=parted + 0.4 * basis.displacement(FaceMotion.authored(SMILE).blendshapes)
    )
    face = replace(face, blendshapes=FaceMotion.authored(SMILE).blendshapes)
    landmarks = face.landmarks[:, :2]

    def fill(line, colour):
        cv2.fillPoly(seen, [np.rint(landmarks[list(line)]).astype(np.int32)], colour)

    seen = skin.copy()
    for fold in ((203, 206, 216), (423, 426, 436)):
        cv2.polylines(seen, [np.rint(landmarks[list(fold)]).astype(np.int32)], False, (120, 80, 66), 3)
    fill(OUTER_LOWER_LIP + INNER_LOWER_LIP[::-1], LOWER)
    fill(OUTER_UPPER_LIP + INNER_UPPER_LIP[::-1], UPPER)
    fill(INNER_UPPER_LIP + INNER_LOWER_LIP[::-1], (30, 20, 20))
    middle = landmarks[[13, 14]].mean(axis=0)
    half = np.abs(landmarks[[13, 14]] - middle).max()
    cv2.ellipse(seen, np.rint(middle).astype(int).tolist(), (15, int(half)), 0, 0, 360, (245, 240, 225), -1)
    return seen, face


@pytest.mark.parametrize("together", [0.0, 1.0], ids=["shut", "puckered"])
def test_lips_of_a_smile_that_meet_show_one_line_and_no_rest_of_teeth(mesh, smiling, together):
    """Check that the line is as dark as on real faces: five have 0.55 to 0.9 of the light beside it."""
    pucker = ExpressionBasis(mesh).displacement(FaceMotion.authored({"mouthPucker": together}).blendshapes)
    with MeshAnimator(mesh) as animator:
        animator.set_portrait(smiling[0], face=smiling[1])
        motion = FaceMotion(vertices=pucker)
        drawn, places = animator.animate(motion).astype(int), animator.bent(motion).places
    right, left = (places[[upper, lower]].mean(axis=0) for upper, lower in ((81, 178), (311, 402)))
    for share in np.linspace(0, 1, 9):
        x, y = np.rint(right + share * (left - right)).astype(int)
        across = drawn[y - 6 : y + 7, x].sum(axis=-1)
        darker_lip = min(across[:3].mean(), across[-3:].mean())
        beside = across[3:-3]
        assert beside.min() < 0.9 * darker_lip, f"no line at {share}"
        assert beside.min() > 0.55 * darker_lip, f"an open mouth at {share}"
        assert (beside < 0.85 * darker_lip).sum() <= 4, f"a band at {share}"
        assert beside.max() < 1.15 * sum(LOWER), f"a pale speck at {share}"


def test_pixels_that_are_half_of_teeth_are_no_specks_beside_lips_that_meet(mesh, smiling):
    seen, face = smiling[0].copy(), smiling[1]
    rims = face.landmarks[list(INNER_UPPER_LIP[2:-2]) + list(INNER_LOWER_LIP[2:-2]), :2]
    outward = np.sign(rims[:, 1] - face.landmarks[[13, 14], 1].mean())
    for (x, y), side in zip(rims, outward, strict=True):
        seen[round(float(y) + 2 * side), round(float(x))] = np.mean([LOWER, (245, 225, 205)], axis=0)
    motion = FaceMotion(vertices=np.zeros((468, 3), np.float32))
    drawn = []
    for picture in (smiling[0], seen):
        with MeshAnimator(mesh) as animator:
            animator.set_portrait(picture, face=face)
            drawn.append(animator.animate(motion).astype(int).sum(axis=-1))
            places = animator.bent(motion).places
    x, y = np.rint(places[[82, 13, 312, 87, 14, 317]].T).astype(int)
    mouth = np.s_[y.min() - 5 : y.max() + 6, x.min() - 5 : x.max() + 6]
    assert (drawn[1] - drawn[0])[mouth].max() < 20


def upper_lip_shut(mesh, seen, face):
    with MeshAnimator(mesh) as animator:
        animator.set_portrait(seen, face=face)
        motion = FaceMotion(vertices=np.zeros((468, 3), np.float32))
        drawn, places = animator.animate(motion), animator.bent(motion).places
    x, y = np.rint(places[[0, 13]].mean(axis=0)).astype(int)
    return drawn[y, x]


def test_an_upper_lip_leaves_the_shade_of_a_smile_as_lips_meet(mesh, smiling):
    lip = upper_lip_shut(mesh, *smiling)
    assert np.mean(UPPER) + 10 < lip.mean() < np.mean(LOWER)


def test_a_lower_lip_that_is_far_lighter_than_the_upper_one_keeps_its_colour_as_they_meet(mesh, smiling):
    """Check its colour; it became flat and brown beside the colour of both lips."""
    seen, face = smiling[0].copy(), smiling[1]
    pink = np.array((239, 170, 175), np.uint8)
    seen[(seen == LOWER).all(axis=-1)] = pink
    with MeshAnimator(mesh) as animator:
        animator.set_portrait(seen, face=face)
        motion = FaceMotion(vertices=np.zeros((468, 3), np.float32))
        drawn, places = animator.animate(motion), animator.bent(motion).places
    x, y = np.rint(places[[14, 17]].mean(axis=0)).astype(int)
    lip = drawn[y - 1 : y + 2, x - 8 : x + 9].reshape(-1, 3).astype(int)
    assert np.abs(lip - pink).max() < 12  # it was 38


def test_an_upper_lip_that_is_dark_without_a_smile_stays_so(mesh, smiling):
    """Check lips that are dark by nature, or painted."""
    seen, face = smiling
    lip = upper_lip_shut(mesh, seen, replace(face, blendshapes=FaceMotion.authored({}).blendshapes))
    assert abs(lip.mean() - np.mean(UPPER)) < 5


def test_what_a_smile_shades_beside_a_corner_leaves_with_a_pucker(mesh, smiling):
    """Check a dimple almost as broad as a lip is high, which became a grey smudge beside the mouth."""
    plain, face = smiling
    scale = build_rig(mesh, face, size=plain.shape[:2]).pose.scale
    dimple = np.rint(face.landmarks[MOUTH_CORNERS[1], :2] + (0.45 * scale, -0.3 * scale)).astype(int)
    half, dark = round(0.45 * scale), np.array((120, 84, 70))
    dimpled = cv2.circle(plain.copy(), dimple.tolist(), half, dark.tolist(), -1)
    pucker = ExpressionBasis(mesh).displacement(FaceMotion.authored({"mouthPucker": 1.0}).blendshapes)
    motion = FaceMotion(vertices=pucker)
    light = []
    for picture in (plain, dimpled):
        with MeshAnimator(mesh) as animator:
            animator.set_portrait(picture, face=face)
            drawn, places = animator.animate(motion), animator.bent(motion).places
        x, y = np.rint(places[MOUTH_CORNERS[1]]).astype(int)
        beside = drawn[y - 2 * half : y + half, x + 2 : x + 2 + 3 * half].sum(axis=-1)
        light.append(float(np.percentile(beside, 10)))
    assert light[0] - light[1] < 0.4 * (SKIN.sum() - dark.sum())


def test_the_dark_ends_of_an_open_mouth_leave_with_a_round_one(mesh, smiling):
    """Check ends outside the landmarks, which became black notches beside an o."""
    plain, face = smiling
    scale = build_rig(mesh, face, size=plain.shape[:2]).pose.scale
    dark, basis = plain.copy(), ExpressionBasis(mesh)
    for corner in MOUTH_CORNERS:
        middle = np.rint(face.landmarks[corner, :2]).astype(int).tolist()
        cv2.circle(dark, middle, round(0.4 * scale), (24, 14, 14), -1)
    round_mouth = {"mouthPucker": 0.9, "jawOpen": 0.4}
    motion = FaceMotion(vertices=basis.displacement(FaceMotion.authored(round_mouth).blendshapes))
    light = []
    for picture in (plain, dark):
        with MeshAnimator(mesh) as animator:
            animator.set_portrait(picture, face=face)
            drawn, places = animator.animate(motion).astype(int), animator.bent(motion).places
        (right, row), (left, _) = np.rint(places[list(MOUTH_CORNERS)]).astype(int)
        beside = [
            drawn[row - 4 : row + 5, column - 3 : column + 4].sum(axis=-1) for column in (right - 4, left + 4)
        ]
        light.append(float(np.percentile(beside, 10)))
    assert light[1] > 0.75 * light[0]


def test_tips_of_teeth_beyond_the_landmarks_of_the_opening_are_no_specks_beside_a_round_mouth(mesh, smiling):
    plain, face = smiling
    scale, basis = build_rig(mesh, face, size=plain.shape[:2]).pose.scale, ExpressionBasis(mesh)
    tips = plain.copy()
    for point in (INNER_LOWER_LIP[3], INNER_LOWER_LIP[-4]):
        x, y = np.rint(face.landmarks[point, :2]).astype(int).tolist()
        cv2.circle(tips, (x, y + round(0.1 * scale)), round(0.12 * scale), (245, 240, 225), -1)
    round_mouth = {"mouthPucker": 0.9, "jawOpen": 0.4}
    motion = FaceMotion(vertices=basis.displacement(FaceMotion.authored(round_mouth).blendshapes))
    drawn = []
    for picture in (plain, tips):
        with MeshAnimator(mesh) as animator:
            animator.set_portrait(picture, face=face)
            drawn.append(animator.animate(motion).astype(int).sum(axis=-1))
    assert (tips.astype(int) - plain).sum(axis=-1).max() > 200
    assert (drawn[1] - drawn[0]).max() < 60


def test_a_smiles_folds_leave_the_cheeks_with_a_pucker(mesh, smiling):
    basis = ExpressionBasis(mesh)
    seen, face = smiling
    depths = []
    for weight in (0.0, 1.0):
        moved = basis.displacement(FaceMotion.authored({"mouthPucker": weight}).blendshapes)
        with MeshAnimator(mesh) as animator:
            animator.set_portrait(seen, face=face)
            motion = FaceMotion(vertices=moved)
            drawn, places = animator.animate(motion), animator.bent(motion).places
        x, y = np.rint(places[206]).astype(int)
        depths.append(SKIN.sum() - float(drawn[y - 4 : y + 5, x - 6 : x + 7].sum(axis=-1).min()))
    assert depths[1] < 0.6 * depths[0]


def test_stubble_is_not_smoothed_away_where_the_folds_of_a_smile_are_filled(mesh, smiling):
    """It left a flat patch beside the corners of a round mouth."""
    seen, face = smiling
    random = np.random.default_rng(3)
    hairs = np.where(random.random(seen.shape[:2]) < 0.25, 0.62, 1.0)
    landmarks = face.landmarks[:, :2]
    beside = np.zeros(seen.shape[:2], np.uint8)
    for point in (206, 426, 165, 391, 92, 322, 216, 436):
        cv2.circle(beside, np.rint(landmarks[point]).astype(int).tolist(), 16, 1, -1)
    lips = cv2.convexHull(np.rint(landmarks[list(OUTER_UPPER_LIP + OUTER_LOWER_LIP)]).astype(np.int32))
    cv2.fillConvexPoly(beside, lips, 0)
    hairy = np.where(beside[..., None] > 0, seen * hairs[..., None], seen).astype(np.uint8)
    rig = build_rig(mesh, face, size=seen.shape[:2])
    made = []
    for picture in (seen, hairy):
        gathered = Creases(picture, uncut(picture, rig), rig).parts[4]
        assert gathered is not None
        made.append(gathered.rgba[..., :3].mean(axis=-1))
    fine = [
        hair - cv2.GaussianBlur(hair, (0, 0), 2)
        for hair in (
            made[1] - made[0],
            (gathered.patch.of(hairy) - 1.0 * gathered.patch.of(seen)).mean(axis=-1),
        )
    ]
    for point in (206, 426):
        x, y = np.rint(landmarks[point] - (gathered.patch.left, gathered.patch.top)).astype(int)
        left_of_it, stubble = (float(part[y - 4 : y + 5, x - 4 : x + 5].std()) for part in fine)
        assert left_of_it > 0.7 * stubble


def test_a_smile_is_dark_beside_the_mouth_and_light_on_the_cheek(shaded, skin):
    picture, _, rig = shaded(SMILE)
    change = picture.astype(int).sum(axis=-1) - skin.astype(int).sum(axis=-1)
    fold, cheek = (np.rint(rig.face.landmarks[point, :2]).astype(int) for point in (206, 50))
    assert change[fold[1], fold[0]] < -20
    assert change[cheek[1], cheek[0]] > 5
    shares = picture[fold[1], fold[0]] / picture[fold[1], fold[0]].sum()
    assert shares == pytest.approx(SKIN / SKIN.astype(int).sum(), abs=0.01)  # darker, of the same colour


def test_hair_on_the_forehead_does_not_fold(shaded, skin):
    fringe = skin.copy()
    rows = slice(0, 190)
    fringe[rows] = (70, 60, 30)
    picture, strengths, _ = shaded(SURPRISE, rgb=fringe)
    assert strengths[3] > 0.5
    bare, _, _ = shaded(SURPRISE)
    inside = np.s_[100:170, 250:390]
    assert (bare[inside] != skin[inside]).any()
    assert np.abs(picture[inside].astype(int) - fringe[inside]).max() <= 3


def test_folds_come_and_go_with_the_expression(mesh, skin):
    face = made_face(mesh)
    with MeshAnimator(mesh) as animator:
        animator.set_portrait(skin, face=face)
        still = animator.animate(FaceMotion())
        frowning = animator.animate(FaceMotion.authored(FROWN))
        assert (frowning != still).any()
        assert (animator.animate(FaceMotion()) == still).all()
        darker = []
        for strength in (0.2, 0.5, 0.9):
            weights = dict.fromkeys(FROWN, strength)
            drawn = animator.animate(FaceMotion.authored(weights))
            darker.append((still.astype(int) - drawn).clip(0).sum())
    assert 0 <= darker[0] < darker[1] < darker[2]


def test_a_face_at_the_pictures_edge_is_no_trouble(mesh, skin):
    face = made_face(mesh)
    moved = replace(face, landmarks=face.landmarks - np.float32([0, 200, 0]))
    with MeshAnimator(mesh) as animator:
        animator.set_portrait(skin, face=moved)
        assert animator.animate(FaceMotion.authored(SURPRISE | SMILE)).shape == skin.shape


def with_lids(face, skin, light):
    """Make skin with upper lids of a share of its light; also returns the lids' middles, int [2, 2]."""
    seen, middles = skin.copy(), []
    for eye in EYES:
        row = face.landmarks[list(eye.outline + eye.upper_lid + eye.crease), :2]
        cv2.fillPoly(seen, [cv2.convexHull(np.rint(row).astype(np.int32))], (SKIN * light).tolist())
        opening = np.rint(face.landmarks[list(eye.outline), :2]).astype(np.int32)
        cv2.fillPoly(seen, [opening], (225, 220, 215))
        middles.append(np.rint(face.landmarks[list(eye.upper_lid), :2].mean(axis=0)).astype(int))
    return seen, middles


def test_a_lid_that_a_brow_hides_is_of_skin_when_it_closes(mesh, shaded, skin):
    seen, (right, left) = with_lids(made_face(mesh), skin, 0.25)
    at_rest, _, _ = shaded({}, rgb=seen)
    assert (at_rest == seen).all()
    closed, strengths, _ = shaded({}, rgb=seen, closure=(1.0, 1.0))
    assert (strengths[7:] == 1).all()
    for x, y in (right, left):
        lid = closed[y, x].astype(float)
        assert seen[y, x].mean() < 0.3 * SKIN.mean() and 0.75 * SKIN.mean() < lid.mean() < SKIN.mean()
        assert np.abs(lid / lid.sum() - SKIN / SKIN.sum()).max() < 0.02  # in the skin's colour
    winking, strengths, _ = shaded({}, rgb=seen, closure=(1.0, 0.0))
    assert strengths[7] == 1 and strengths[8] == 0
    changed = np.flatnonzero((winking != seen).any(axis=(0, 2)))
    assert changed.max() < (right[0] + left[0]) / 2  # the person's right is on the picture's left


def test_a_hidden_lid_is_round_and_redder_in_the_shade_as_the_faces_skin_is(mesh, shaded, skin):
    """Regression: the lid was flat, and greyer than all other skin in that light."""
    face = made_face(mesh)
    powers = np.array([0.7, 1.1, 1.5])
    away = np.abs(np.arange(SIZE[0]) - face.landmarks[list(EYES[0].lower_lid), 1].mean())
    fall = np.clip(0.5 + 0.5 * (away - 15) / 60, 0.5, 1)  # for deep-set eyes
    lit = np.broadcast_to((SKIN * fall[:, None] ** powers)[:, None], skin.shape).round().astype(np.uint8)
    seen, middles = with_lids(face, lit, 0.1)
    closed, _, _ = shaded({}, rgb=seen, closure=(1.0, 1.0))
    light = lit[:, 0].mean(axis=-1)
    for (x, y), eye in zip(middles, EYES, strict=True):
        lid = closed[y, x].astype(float)
        of_that_light = lit[np.abs(light - lid.mean()).argmin(), 0].astype(float)
        assert np.abs(lid / lid.sum() - of_that_light / of_that_light.sum()).max() < 0.015
        ends = np.rint(face.landmarks[list(eye.upper_lid)][[1, -2], :2]).astype(int)
        assert closed[ends[:, 1], ends[:, 0]].mean() < 0.96 * lid.mean()


def test_a_lid_that_is_seen_closes_in_its_own_colour(mesh, shaded, skin):
    seen, middles = with_lids(made_face(mesh), skin, 0.92)
    closed, _, _ = shaded({}, rgb=seen, closure=(1.0, 1.0))
    for x, y in middles:
        lid = np.s_[y - 3 : y - 1, x - 5 : x + 6]
        assert np.abs(closed[lid].astype(int) - seen[lid]).max() <= 2


def test_a_lid_in_the_shade_of_the_brow_comes_out_of_it_as_it_closes(mesh, shaded, skin):
    """It was drawn out over the eye as dark as it was under the brow."""
    seen, middles = with_lids(made_face(mesh), skin, 0.6)
    closed, _, _ = shaded({}, rgb=seen, closure=(1.0, 1.0))
    for x, y in middles:
        lid = closed[y, x].astype(float)
        assert 0.75 * SKIN.mean() < lid.mean() < SKIN.mean()
        assert np.abs(lid / lid.sum() - SKIN / SKIN.sum()).max() < 0.02


def test_a_shining_lid_is_no_lighter_than_skin_is_when_it_closes(mesh, shaded, skin):
    bright = (skin * 0.6).astype(np.uint8)
    seen, middles = with_lids(made_face(mesh), bright, 0.95)
    closed, _, _ = shaded({}, rgb=seen, closure=(1.0, 1.0))
    for x, y in middles:
        assert seen[y, x].mean() > 1.5 * bright.mean()
        assert closed[y, x].mean() < 1.25 * bright.mean()


def test_a_shut_lid_keeps_the_fold_that_the_open_one_has(mesh, shaded, skin):
    face = made_face(mesh, scale=22.0)
    wide = np.broadcast_to(SKIN, (SIZE[1], SIZE[0], 3)).copy()
    plain, _ = with_lids(face, wide, 0.95)
    folded, depths = plain.copy(), []
    for eye in EYES:
        row = (face.landmarks[list(eye.upper[1:-1]), :2] + face.landmarks[list(eye.upper_lid), :2]) / 2
        cv2.polylines(folded, [np.rint(row).astype(np.int32)], False, (SKIN * 0.6).tolist(), 3)
    for seen in (plain, folded):
        closed, _, _ = shaded({}, rgb=seen, closure=(1.0, 1.0), face=face)
        depths.append([])
        for eye in EYES:
            x, y = face.landmarks[[eye.upper_lid[3], eye.crease[3]], :2].mean(axis=0).round().astype(int)
            x0, y0 = face.landmarks[eye.upper_lid[3], :2].round().astype(int)
            fold = closed[y - 1 : y + 2, x].mean()
            depths[-1].append(float(1 - fold / closed[y0 - 2 : y0 + 1, x0].mean()))
    assert max(depths[0]) < 0.03
    assert min(depths[1]) > 0.03


def test_a_lid_with_the_rim_of_glasses_on_it_closes_with_it(mesh, shaded, skin):
    face, seen = made_face(mesh), skin.copy()
    for eye in EYES:
        rim = np.rint(face.landmarks[list(eye.upper_lid), :2]).astype(np.int32)
        cv2.polylines(seen, [rim], False, (20, 20, 20), 4)
    closed, _, _ = shaded({}, rgb=seen, closure=(1.0, 1.0))
    for eye in EYES:
        for x, y in np.rint(face.landmarks[list(eye.upper_lid)[2:-2], :2]).astype(int):
            assert closed[y, x].mean() < 0.5 * SKIN.mean()


@pytest.mark.parametrize("roll", [0.0, 30.0])
def test_what_is_fine_on_a_lid_is_not_drawn_out_over_it_as_it_closes(mesh, shaded, skin, roll):
    """Check brow hair and cracks of a painting, which became streaks across the lid."""
    face = made_face(mesh, roll=roll)
    plain, middles = with_lids(face, skin, 0.92)
    (right, left), seen = middles, plain.copy()
    along = (left - right) / np.linalg.norm(left - right)
    upright = np.array([-along[1], along[0]])
    for middle in middles:
        for index, offset in enumerate(range(-12, 13, 3)):
            ends = [np.rint(middle + offset * along + end * upright).astype(int).tolist() for end in (-5, 5)]
            cv2.line(seen, *ends, (SKIN * (0.72, 0.88)[index % 2]).tolist(), 1)
    closed, _, _ = shaded({}, rgb=seen, closure=(1.0, 1.0), face=face)
    for middle in middles:
        across, up = np.rint(middle - 2 * upright + np.arange(-6, 7)[:, None] * along).astype(int).T
        streaks, left_of_them = (picture[up, across].mean(axis=-1).std() for picture in (seen, closed))
        assert left_of_them < 0.25 * streaks


@pytest.mark.parametrize("roll", [0.0, 30.0])
def test_lashes_that_stand_on_a_lid_are_not_drawn_out_over_it_as_it_closes(mesh, shaded, skin, roll):
    face = made_face(mesh, roll=roll)
    bare, middles = with_lids(face, skin, 0.9)
    seen, (right, left) = bare.copy(), middles
    along = (left - right) / np.linalg.norm(left - right)
    upright = np.array([-along[1], along[0]])
    for middle in middles:
        for offset in range(-15, 16, 5):
            ends = [np.rint(middle + offset * along + end * upright).astype(int).tolist() for end in (-5, 5)]
            cv2.line(seen, *ends, (40, 30, 26), 2)
    at_rest, _, _ = shaded({}, rgb=seen, face=face)
    assert (at_rest == seen).all()
    closed, strengths, _ = shaded({}, rgb=seen, closure=(1.0, 1.0), face=face)
    without, _, _ = shaded({}, rgb=bare, closure=(1.0, 1.0), face=face)
    assert (strengths[7:] == 1).all()
    for x, y in middles:
        lid = np.s_[y - 2 : y + 2, x - 5 : x + 6]
        left_of_them = np.abs(closed[lid].astype(int) - without[lid]).mean()
        assert left_of_them < 0.15 * np.abs(seen[lid].astype(int) - bare[lid]).mean()


@pytest.mark.parametrize("roll", [0.0, 30.0])
def test_a_line_painted_along_a_lid_is_not_drawn_out_over_it_as_it_closes(mesh, shaded, skin, roll):
    """Check mascara, which became a dark cloud over the lid."""
    face = made_face(mesh, scale=24.0, roll=roll)
    bare, _ = with_lids(face, skin, 0.9)
    seen = bare.copy()
    for eye in EYES:
        edge, row = (face.landmarks[list(points), :2] for points in (eye.upper[1:-1], eye.upper_lid))
        band = np.concatenate(
            (edge - 0.4 * (row - edge), (edge + 0.6 * (row - edge))[::-1])
        )  # lashes, in front of the eye
        cv2.fillPoly(seen, [np.rint(band).astype(np.int32)], (60, 45, 40))
    closed, _, _ = shaded({}, rgb=seen, closure=(1.0, 1.0), face=face)
    without, _, _ = shaded({}, rgb=bare, closure=(1.0, 1.0), face=face)
    for eye in EYES:
        edge, row = (face.landmarks[list(points), :2] for points in (eye.upper[3:-3], eye.upper_lid[2:-2]))
        x, y = np.rint(edge + 0.4 * (row - edge)).astype(int).T
        painted, left_of_it = (np.abs(one[y, x].astype(int) - without[y, x]).mean() for one in (seen, closed))
        assert left_of_it < 0.35 * painted
