"""Tests of the made inside of a mouth: a rounded tongue, a dark throat, and teeth along the jaw's arch."""

from __future__ import annotations

from dataclasses import replace

import cv2
import numpy as np
import pytest
from faces import made_face

from vitascope.animation.canonical_mesh import EYES, INNER_LOWER_LIP, INNER_UPPER_LIP, OUTER_LOWER_LIP
from vitascope.animation.expression import ExpressionBasis
from vitascope.animation.face import BLENDSHAPE_INDEX, FaceMotion
from vitascope.animation.mesh.animator import MeshAnimator
from vitascope.animation.mesh.deform import Gains, bend
from vitascope.animation.mesh.layers import opening_mask
from vitascope.animation.mesh.lips import LipFit, gap_cm
from vitascope.animation.mesh.mouth import (
    _EDGE_CM,
    HALF_WIDTH_CM,
    PIXELS_A_CM,
    Mouth,
    _bowed,
    _falling_in,
    _gap,
    _lift_cm,
    _tones,
    draw_teeth,
)
from vitascope.animation.mesh.rig import build_rig
from vitascope.animation.mesh.tongue import HALF_WIDTH, LENGTH, PIXELS_A_UNIT, TIP, draw_tongue

SKIN, LIPS, TEETH = (200, 150, 130), (170, 95, 95), (240, 235, 225)
RIM_PX = 4
LUMA = np.array([0.299, 0.587, 0.114])


@pytest.fixture(scope="module")
def face(mesh):
    return made_face(mesh, scale=18.0)


def painted(face, *, skin=SKIN, lips=LIPS, left=1.0, right=1.0):
    """Paint a plain face with plain lips, its left and right half in different light."""
    width, height = face.picture_size
    rgb = np.full((height, width, 3), skin, np.float32)
    mouth = face.landmarks[list(OUTER_LOWER_LIP), :2]
    cv2.fillConvexPoly(rgb, cv2.convexHull(np.rint(mouth).astype(np.int32)), lips)
    middle = int(face.landmarks[1, 0])
    rgb[:, :middle] *= left
    rgb[:, middle:] *= right
    return np.rint(rgb).astype(np.uint8)


def shouting(jaw=1.0):
    weights = np.zeros(len(BLENDSHAPE_INDEX), np.float32)
    weights[BLENDSHAPE_INDEX["jawOpen"]] = jaw
    return FaceMotion(blendshapes=weights)


def shout(mesh, rgb, face, jaw=1.0):
    """Return colours of the open mouth at shares of its width (-1..1) and of its height (0 at the upper lip)."""
    with MeshAnimator(mesh) as animator:
        animator.set_portrait(rgb, face=face)
        bent = animator.bent(shouting(jaw))
        drawn = animator.draw(bent).astype(float)
    upper, lower, right, left = bent.places[[13, 14, 78, 308]]
    half = (left - right) / 2

    def colour(across, down):
        x, y = upper + (lower - upper) * down + half * across
        return drawn[round(y) - 2 : round(y) + 3, round(x) - 2 : round(x) + 3].mean(axis=(0, 1))

    return colour


def test_a_tongue_is_rounded_and_ends_in_the_dark():
    light, cover = draw_tongue(0.0)
    assert light.dtype == cover.dtype == np.float32
    assert (
        light.shape == cover.shape == (round(LENGTH * PIXELS_A_UNIT), round(2 * HALF_WIDTH * PIXELS_A_UNIT))
    )
    seen = light * cover

    def at(across, from_tip):
        row = round((TIP - from_tip) * PIXELS_A_UNIT)
        column = round((HALF_WIDTH + across) * PIXELS_A_UNIT)
        return seen[row - 4 : row + 5, column - 4 : column + 5].mean()

    # Bright in front, darker at the sides and towards the throat.
    assert at(0.4, 0.8) > 0.9
    assert at(0.4, 0.8) > at(0.4, 1.4) > at(0.4, 2.0) > at(0.4, 2.6) > 0.0
    for side in (-1, 1):
        assert at(side * 0.4, 1.0) > at(side * 0.75, 1.0) > at(side * 1.0, 1.0) > at(side * 1.3, 1.0)
    # A soft furrow along the middle: a few hundredths darker than beside it.
    assert 0.02 < at(0.4, 1.0) - at(0.0, 1.0) < 0.2
    assert seen[0].max() < 0.02 and seen[-1].max() < 0.02
    assert np.abs(seen - seen[:, ::-1]).max() < 0.15  # except for its grain


def test_a_tongue_is_lit_from_the_side_that_the_portrait_is(mesh, face):
    bright_left = shout(mesh, painted(face, right=0.6), face)
    bright_right = shout(mesh, painted(face, left=0.6), face)
    for colour, sign in ((bright_left, -1), (bright_right, 1)):
        near, far = colour(sign * 0.3, 0.6) @ LUMA, colour(-sign * 0.3, 0.6) @ LUMA
        assert near > 1.08 * far


def test_a_shout_shows_a_tongue_between_dark_cheeks_and_above_the_floor(mesh, face):
    colour = shout(mesh, painted(face), face)

    def luma(across, down):
        return colour(across, down) @ LUMA

    # Bright in front; the throat is darker, and so are the cheeks and the floor between tip and lip.
    assert luma(0.2, 0.55) > 1.06 * luma(0.2, 0.28)
    assert luma(0.2, 0.55) > 1.4 * luma(0.2, 0.88)
    for side in (-1, 1):
        assert luma(side * 0.2, 0.6) > 1.15 * luma(side * 0.75, 0.6)
    darkest, brightest = luma(0.2, 0.88), luma(0.2, 0.55)
    assert 0.25 < darkest / (np.array(SKIN) @ LUMA) < brightest / (np.array(SKIN) @ LUMA) < 1


def test_painted_lips_do_not_colour_the_tongue(mesh, face):
    natural, red = (shout(mesh, painted(face, lips=lips), face)(0.2, 0.6) for lips in (LIPS, (220, 30, 40)))
    assert red[1] / red[0] > 0.9 * natural[1] / natural[0]
    assert red[2] / red[0] > 0.9 * natural[2] / natural[0]


def test_a_grey_picture_has_grey_teeth_and_a_grey_tongue(mesh, face):
    grey = np.repeat(painted(face).mean(axis=-1, keepdims=True), 3, axis=-1)
    with MeshAnimator(mesh) as animator:
        animator.set_portrait(np.rint(grey).astype(np.uint8), face=face)
        mouth = animator._portrait.mouth
    for texture in (mouth.upper_teeth, mouth.lower_teeth, mouth.tongue):
        assert texture[..., :3].max() > 60
        assert np.ptp(texture[..., :3], axis=-1).max() < 1


@pytest.mark.parametrize("skin", [(212, 143, 153), (200, 165, 175), (225, 179, 135)])
def test_teeth_are_no_yellower_than_the_skin_in_pink_or_orange_light(mesh, face, skin):
    rgb = painted(face, skin=skin)
    for eye in EYES:  # narrowed lids, browner than the skin
        outline = np.rint(face.landmarks[list(eye.outline), :2]).astype(np.int32)
        cv2.fillPoly(rgb, [outline], (159, 106, 66))
    with MeshAnimator(mesh) as animator:
        animator.set_portrait(rgb, face=face)
        teeth = _tones(rgb, animator._portrait.rig).teeth
    assert teeth.max() > max(skin)
    assert teeth[2] / teeth[1] > 0.999 * skin[2] / skin[1]
    assert np.ptp(teeth) / teeth.max() < 0.56 * np.ptp(skin) / max(skin)


def test_a_tip_lies_behind_teeth_that_touch_and_above_the_floor_of_an_open_mouth(mesh, face):
    with MeshAnimator(mesh) as animator:
        animator.set_portrait(painted(face), face=face)
        mouth = animator._portrait.mouth

        def above(jaw):
            """Return how far the tip is above the edge of the lower teeth, in centimetres."""
            motion = FaceMotion(vertices=ExpressionBasis(mesh).field("jawOpen") * np.float32(jaw))
            placed = mouth.placed(animator.bent(motion))
            tip = placed.tongue @ (HALF_WIDTH * PIXELS_A_UNIT, TIP * PIXELS_A_UNIT, 1)
            edge = placed.lower_teeth @ (HALF_WIDTH_CM * PIXELS_A_CM, 0.7 * PIXELS_A_CM, 1)
            return (edge[1] - tip[1]) / 18

        assert above(0.1) < 0
        assert above(1.2) > 0.2


def test_lower_teeth_follow_the_arch_of_a_jaw_that_drops(mesh, face):
    with MeshAnimator(mesh) as animator:
        animator.set_portrait(painted(face), face=face)
        mouth = animator._portrait.mouth

        def placed(jaw):
            motion = FaceMotion(vertices=ExpressionBasis(mesh).field("jawOpen") * np.float32(jaw))
            made = mouth.placed(animator.bent(motion))
            assert made is not None
            return made

        spoken, shouted = placed(0.2), placed(1.2)
    assert spoken.lower_bow == 0
    # Two centimetres from the middle, the row is more than half a centimetre higher.
    assert 0.5 < shouted.lower_bow * (2 * PIXELS_A_CM) ** 2 / PIXELS_A_CM < 1.5
    # In the picture, the row's edge, which limits the light on tongue and floor, is higher at the sides.
    patch = shouted.patch
    row = _bowed(mouth.lower_teeth, shouted.lower_teeth, patch, shouted.lower_bow)[..., 3]
    straight = _bowed(mouth.lower_teeth, shouted.lower_teeth, patch, 1e-9)[..., 3]
    middle = round(face.landmarks[13, 0]) - patch.left
    aside = middle + round(1.8 * 18)
    edges = [(drawn > 0.5).argmax(axis=0) for drawn in (row, straight)]
    assert edges[0][middle] == edges[1][middle]
    assert edges[0][aside] < edges[1][aside] - 5


@pytest.mark.parametrize("row", ["upper", "lower"])
def test_between_crowns_no_dark_is_seen_but_at_their_very_edge(row):
    _, cover = draw_teeth(row)
    cover = cover if row == "upper" else cover[::-1]
    columns = np.arange(
        round((HALF_WIDTH_CM - 1.8) * PIXELS_A_CM), round((HALF_WIDTH_CM + 1.8) * PIXELS_A_CM)
    )
    across_cm = np.abs(columns / PIXELS_A_CM - HALF_WIDTH_CM)
    edge_cm = _EDGE_CM - _lift_cm(row, across_cm)
    at_edge, above = (
        cover[np.rint((edge_cm - beyond) * PIXELS_A_CM).astype(int), columns] for beyond in (0.02, 0.2)
    )
    assert above.min() > 0.95
    assert at_edge.min() < 0.1  # crowns have an outline


@pytest.mark.parametrize("row", ["upper", "lower"])
def test_teeth_far_back_are_left_to_the_dark_of_the_cheeks(row):
    _, cover = draw_teeth(row)
    most = cover.max(axis=0)
    for side in (-1, 1):
        front, back = (round((HALF_WIDTH_CM + side * cm) * PIXELS_A_CM) for cm in (2.0, 2.75))
        assert most[front] > 0.95
        assert most[back] < 0.3


def laughing(mesh, *, skin=SKIN, lips=LIPS, teeth=TEETH, shade=None):
    """Make a portrait that shows its teeth, and a rim of the lower lip that landmarks count as inside.

    With ``shade``, a colour, the teeth are in shade along the upper lip and in the corners.
    """
    apart = ExpressionBasis(mesh).lips_apart
    face = made_face(mesh, scale=18.0, displacement=apart * np.float32(0.6))
    rgb = painted(face, skin=skin, lips=lips)
    inner = face.landmarks[list(INNER_UPPER_LIP + INNER_LOWER_LIP[-2:0:-1]), :2]
    mouth = np.zeros(rgb.shape[:2], np.uint8)
    cv2.fillPoly(mouth, [np.rint(inner).astype(np.int32)], 1)
    rim = np.arange(rgb.shape[0])[:, None] > face.landmarks[14, 1] - RIM_PX
    rgb[(mouth > 0) & ~rim] = teeth
    rgb[(mouth > 0) & rim] = lips
    if shade is not None:
        middle = face.landmarks[[13, 14], :2].mean(axis=0)
        beside = np.abs(np.arange(rgb.shape[1])[None] - middle[0]) > 0.7 * np.ptp(inner[:, 0]) / 2
        above = np.roll(mouth, RIM_PX, axis=0) == 0
        rgb[(mouth > 0) & (above | beside)] = shade
    return rgb, face


@pytest.fixture(scope="module")
def toothy(mesh):
    return laughing(mesh)


@pytest.mark.parametrize(
    ("inside", "are_teeth"), [((226, 172, 115), True), ((215, 120, 85), False), ((110, 80, 55), False)]
)
def test_teeth_in_orange_light_are_told_from_gums_and_the_dark(mesh, inside, are_teeth):
    rgb, face = laughing(mesh, skin=(231, 175, 137), lips=(190, 100, 70), teeth=inside)
    mouth = Mouth(rgb, build_rig(mesh, face, size=rgb.shape[:2]))
    assert mouth._has_teeth is are_teeth
    if are_teeth:
        assert np.abs(mouth.tones.teeth - inside).max() < 3


@pytest.mark.parametrize(("own", "counts"), [((220, 210, 202), True), ((206, 150, 130), False)])
def test_a_few_own_teeth_say_of_what_colour_made_ones_are(mesh, own, counts):
    """Check teeth in orange light: made ones were as orange as the skin, beside white ones of its own."""
    rgb, face = laughing(mesh, skin=(212, 138, 107), lips=(150, 95, 90), teeth=(60, 25, 25))
    dark = (rgb == (60, 25, 25)).all(axis=-1)
    plain = Mouth(rgb, build_rig(mesh, face, size=rgb.shape[:2])).tones.teeth
    rows = np.flatnonzero(dark.any(axis=1))
    dark[rows[len(rows) // 4] :] = False
    rgb[dark] = own
    mouth = Mouth(rgb, build_rig(mesh, face, size=rgb.shape[:2]))
    assert not mouth._has_teeth
    assert mouth.tones.teeth.max() == pytest.approx(plain.max(), abs=1)
    wanted = np.array(own) / max(own) if counts else plain / plain.max()
    assert mouth.tones.teeth / mouth.tones.teeth.max() == pytest.approx(wanted, abs=0.02)


def test_what_shades_a_portraits_own_teeth_stays_behind_with_its_lips(mesh):
    rgb, face = laughing(mesh, shade=(90, 45, 40))
    with MeshAnimator(mesh) as animator:
        animator.set_portrait(rgb, face=face)
        rig, still = animator._portrait.rig, np.zeros((468, 3), np.float32)
        rest = animator.draw(bend(rig, mesh, FaceMotion(vertices=still), displacement=still, gains=Gains()))
        bent = animator.bent(shouting())
        drawn = animator.draw(bent).astype(float)
    # A face at rest shows it like the portrait, corners included.
    inner = face.landmarks[list(INNER_UPPER_LIP + INNER_LOWER_LIP), :2]
    (left, top), (right, bottom) = np.rint([inner.min(axis=0), inner.max(axis=0)]).astype(int)
    mouth = np.s_[top : bottom + 1, left : right + 1]
    edge = cv2.dilate((rgb == TEETH).all(axis=-1).astype(np.uint8), np.ones((5, 5), np.uint8))[mouth]
    assert np.abs(rest[mouth].astype(int) - rgb[mouth])[edge == 0].max() < 15
    # A rising lip shows more of the teeth, not the shade and then other teeth.
    upper, lower = bent.places[[13, 14]]
    for x in range(round(upper[0]) - 8, round(upper[0]) + 9, 4):
        luma = drawn[round(upper[1]) + 3 : round(lower[1]) - 2, x] @ LUMA
        teeth = np.flatnonzero(luma > 0.8 * (np.array(TEETH) @ LUMA))
        assert luma[: teeth[-1]].min() > 0.6 * (np.array(TEETH) @ LUMA)


def test_below_a_portraits_own_teeth_a_shout_shows_the_dark(mesh, toothy):
    rgb, face = toothy
    with MeshAnimator(mesh) as animator:
        animator.set_portrait(rgb, face=face)
        assert animator._portrait.mouth._has_teeth
        bent = animator.bent(shouting())
        drawn = animator.draw(bent).astype(float)
    upper, lower = bent.places[[13, 14]]
    x = round(upper[0])
    for across in range(x - 10, x + 11, 5):
        luma = drawn[round(upper[1]) : round(lower[1]) - 2, across] @ LUMA
        teeth = np.flatnonzero(luma > 0.8 * (np.array(TEETH) @ LUMA))
        assert len(teeth) > 6
        # Neither the lip's rim nor a made row is below them: three pixels further it is as dark as the
        # throat.
        below = luma[teeth[-1] + 3 :]
        assert below[:RIM_PX].max() < 1.03 * below[2 * RIM_PX]


def test_at_rest_the_rim_below_a_portraits_own_teeth_stays(mesh, toothy):
    rgb, face = toothy
    with MeshAnimator(mesh) as animator:
        animator.set_portrait(rgb, face=face)
        rig, still = animator._portrait.rig, np.zeros((468, 3), np.float32)
        drawn = animator.draw(bend(rig, mesh, FaceMotion(vertices=still), displacement=still, gains=Gains()))
    x, y = np.rint(face.landmarks[14, :2]).astype(int)
    rim = np.s_[y - RIM_PX + 2 : y + 3, x - 8 : x + 9]
    assert np.abs(drawn[rim].astype(int) - rgb[rim]).max() < 40
    teeth = np.s_[y - RIM_PX - 6 : y - RIM_PX - 1, x - 8 : x + 9]
    assert np.abs(drawn[teeth].astype(int) - rgb[teeth]).max() < 40


def test_a_small_mouth_is_as_bright_behind_the_upper_lip_as_a_large_one(mesh):
    def behind_the_lip(scale):
        face = made_face(mesh, scale=scale)
        rgb = painted(face)
        with MeshAnimator(mesh) as animator:
            animator.set_portrait(rgb, face=face)
            bent = animator.bent(shouting())
        mouth = Mouth(rgb, build_rig(mesh, face, size=rgb.shape[:2]))
        placed = mouth.placed(bent)
        opening = opening_mask(placed.outline, placed.patch, feather=0)
        made = mouth._made(placed, opening) @ LUMA
        top, bottom = placed.outline[:, 1].min(), placed.outline[:, 1].max()
        upper = placed.patch.places[..., 1] < top + 0.3 * (bottom - top)
        return made[(opening > 0.9) & upper].mean()

    large = behind_the_lip(24.0)
    for scale in (5.0, 7.0):
        assert behind_the_lip(scale) == pytest.approx(large, rel=0.1)


@pytest.mark.parametrize("softness_px", [1.0, 2.0, 4.0, 6.0])
def test_light_in_a_mouth_does_not_jump_when_its_patch_grows(softness_px):
    def light(height):
        opening = np.zeros((height, 100), np.float32)
        opening[4:36, 4:96] = 1
        return _falling_in(opening, softness_px)[4:36, 4:96]

    for height in range(40, 48):
        assert np.abs(light(height) - light(height + 1)).max() < 0.01


def test_a_lower_tooth_that_a_portrait_shows_does_not_hang_below_its_upper_ones(mesh):
    rgb, face = laughing(mesh)
    x, y = np.rint(face.landmarks[14, :2]).astype(int)
    columns = np.s_[x - 6 : x + 7]
    rgb[y - RIM_PX : y, columns] = TEETH  # where the rim of the lip was
    rgb[y - RIM_PX - 3 : y - RIM_PX, columns] = (60, 30, 28)
    with MeshAnimator(mesh) as animator:
        animator.set_portrait(rgb, face=face)
        bent = animator.bent(shouting())
        drawn = animator.draw(bent) @ LUMA
    top, bottom = bent.places[[13, 14], 1]
    luma = drawn[round(top) + 3 : round((top + bottom) / 2), round(bent.places[13, 0])] / (
        np.array(TEETH) @ LUMA
    )
    teeth = np.flatnonzero(luma > 0.8)
    assert len(teeth) > 4
    assert luma[: teeth[-1]].min() > 0.6


@pytest.mark.parametrize("across", [-14, 0, 14])
def test_a_lower_tooth_that_touches_upper_ones_is_no_spike_of_these(mesh, across):
    rgb, face = laughing(mesh)
    x, y = np.rint(face.landmarks[14, :2]).astype(int)
    dark = np.s_[y - RIM_PX - 8 : y - RIM_PX + 1, x - 40 : x + 41]
    rgb[dark][(rgb[dark] == TEETH).all(axis=-1)] = (60, 30, 28)
    rgb[y - RIM_PX - 9 : y - RIM_PX + 1, x + across - 2 : x + across + 3] = TEETH
    with MeshAnimator(mesh) as animator:
        animator.set_portrait(rgb, face=face)
        assert animator._portrait.mouth._has_teeth
        bent = animator.bent(shouting())
        drawn = animator.draw(bent) @ LUMA / (np.array(TEETH) @ LUMA)
    top, bottom = bent.places[[13, 14], 1]
    ends = []
    for column in range(x + across - 10, x + across + 11):
        bright = np.flatnonzero(drawn[round(top) + 3 : round((top + bottom) / 2), column] > 0.6)
        ends.append(bright[-1])
    assert np.ptp(ends) <= 4  # it hung 9 pixels below


@pytest.mark.parametrize("side", [-1, 1])
def test_made_teeth_do_not_hang_below_the_last_own_one_beside_them(mesh, side):
    rgb, face = laughing(mesh)
    x, y = np.rint(face.landmarks[14, :2]).astype(int)
    # The lip covers the last of its own teeth; beside them is the dark corner.
    for out, rise in ((range(18, 30), 7), (range(30, 60), 40)):
        for column in (x + side * away for away in out):
            rows = np.s_[y - RIM_PX - rise : y - RIM_PX + 1]
            rgb[rows, column][(rgb[rows, column] == TEETH).all(axis=-1)] = (60, 30, 28)
    with MeshAnimator(mesh) as animator:
        animator.set_portrait(rgb, face=face)
        mouth = animator._portrait.mouth
    assert mouth._has_teeth and mouth._own_edge is not None
    cm = PIXELS_A_CM / (18 * mouth._scale)  # rows of the texture in a pixel
    own, beside = (
        mouth._own_edge[round(HALF_WIDTH_CM * PIXELS_A_CM + side * away * cm)] / cm for away in (24, 36)
    )
    assert beside < own + 1.5  # it was 4


@pytest.mark.parametrize("side", [-1, 1])
def test_in_a_grin_no_dark_lies_below_own_teeth_that_end_higher_beside_the_front_ones(mesh, side):
    rgb, face = laughing(mesh)
    x, y = np.rint(face.landmarks[14, :2]).astype(int)
    ends_higher = sorted((x + side * 15, x + side * 30))
    rgb[y - RIM_PX - 5 : y - RIM_PX + 1, slice(*ends_higher)] = (60, 30, 28)
    basis = ExpressionBasis(mesh)
    grin = basis.lips_apart * 0.4 + sum(
        basis.field(f"{name}{at}") for name in ("mouthSmile", "mouthStretch") for at in ("Left", "Right")
    )
    grin = np.asarray(grin, np.float32)
    with MeshAnimator(mesh) as animator:
        animator.set_portrait(rgb, face=face)
        portrait = animator._portrait
        assert portrait.mouth._has_teeth
        bent = bend(portrait.rig, mesh, FaceMotion(vertices=grin), displacement=grin, gains=Gains())
        drawn = animator.draw(bent).astype(float)
    upper, lower = bent.places[[13, 14]]
    for across in range(ends_higher[0] + 2, ends_higher[1] - 1, 3):
        luma = drawn[round(upper[1]) + 3 : round(lower[1]) - 4, across] @ LUMA
        assert len(luma) > 8
        assert luma.min() > 0.4 * (np.array(TEETH) @ LUMA)


def test_a_grin_bares_teeth_where_the_portrait_speaks_with_a_dark_mouth(mesh):
    rgb, face = laughing(mesh, teeth=(60, 30, 28))
    basis = ExpressionBasis(mesh)
    smile = sum(
        basis.field(f"{name}{at}") for name in ("mouthSmile", "mouthStretch") for at in ("Left", "Right")
    )
    with MeshAnimator(mesh) as animator:
        animator.set_portrait(rgb, face=face)
        portrait = animator._portrait
        assert portrait.mouth.own is not None
        assert not portrait.mouth._has_teeth
        bent, rest = (
            bend(portrait.rig, mesh, FaceMotion(vertices=moved), displacement=moved, gains=Gains())
            for moved in (np.asarray(smile, np.float32), np.zeros((468, 3), np.float32))
        )
        drawn, still = animator.draw(bent).astype(float), animator.draw(rest).astype(float)
    upper, lower = bent.places[[13, 14]]
    between = np.s_[round(upper[1]) + 3 : round(lower[1]) - 3, round(upper[0]) - 12 : round(upper[0]) + 13]
    assert drawn[between].size > 0
    assert np.median(drawn[between] @ LUMA) > 0.6 * (np.array(SKIN) @ LUMA)
    upper, lower = rest.places[[13, 14]]  # at rest, the face shows what the portrait does
    assert still[round((upper[1] + lower[1]) / 2), round(upper[0])] @ LUMA < 0.4 * (np.array(SKIN) @ LUMA)


def test_upper_teeth_hang_from_the_upper_lip_of_a_portrait_whose_mouth_is_open(mesh):
    rgb, face = laughing(mesh, teeth=(60, 30, 28))
    mouth = Mouth(rgb, build_rig(mesh, face, size=rgb.shape[:2]))
    assert not mouth._has_teeth
    seen_cm = mouth._rest_up - float(mouth._upper_edge[1])
    assert 0 < seen_cm < 0.45 * mouth._rest_gap_cm


def test_own_teeth_in_the_shade_are_told_from_lips_and_the_dark_by_their_hue(mesh):
    rgb, face = laughing(mesh)
    x, y = np.rint(face.landmarks[14, :2]).astype(int)
    teeth = (rgb == TEETH).all(axis=-1)
    shaded = teeth & (np.arange(rgb.shape[1]) > x + 6)  # as dark as the lips are
    rgb[shaded] = np.array(TEETH) * 0.55
    rgb[y - RIM_PX - 3 : y - RIM_PX + 1][teeth[y - RIM_PX - 3 : y - RIM_PX + 1]] = (60, 30, 28)
    mouth = Mouth(rgb, build_rig(mesh, face, size=rgb.shape[:2]))
    assert mouth.own is not None and mouth._has_teeth
    patch, cover = mouth.own.patch, mouth.own.cover
    row = y - RIM_PX - 8 - patch.top
    for across in (-14, -4, 4, 14, 24):
        assert cover[row, x + across - patch.left] > 0.95
    assert cover[y - RIM_PX - patch.top, x - patch.left] < 0.3


def test_made_teeth_are_not_as_red_as_lips_that_are_counted_as_inside(mesh):
    rgb, face = laughing(mesh, teeth=(205, 200, 190), lips=(225, 160, 150), skin=(244, 200, 185))
    y = round(float(face.landmarks[14, 1]))
    inside = (rgb == (205, 200, 190)).all(axis=-1)
    inside[: y - RIM_PX - 3] = False
    rgb[inside] = (225, 160, 150)  # with the rim in two fifths of the opening
    mouth = Mouth(rgb, build_rig(mesh, face, size=rgb.shape[:2]))
    assert mouth._has_teeth
    assert np.abs(mouth.tones.teeth / mouth.tones.teeth.max() - np.array((205, 200, 190)) / 205).max() < 0.03


@pytest.mark.parametrize("strip", [True, False])
def test_a_strip_of_own_teeth_leaves_as_lips_part_wide(mesh, strip):
    rgb, face = laughing(mesh)
    if strip:
        y = round(float(face.landmarks[14, 1])) - RIM_PX
        lower = rgb[y - 8 : y + 1]
        lower[(lower == TEETH).all(axis=-1)] = LIPS
    apart = ExpressionBasis(mesh).lips_apart
    with MeshAnimator(mesh) as animator:
        animator.set_portrait(rgb, face=face)
        portrait = animator._portrait
        assert portrait.mouth._has_teeth
        shares = []
        for more in (0.1, 1.0):
            moved = np.asarray(apart * more, np.float32)
            bent = bend(portrait.rig, mesh, FaceMotion(vertices=moved), displacement=moved, gains=Gains())
            shares.append(portrait.mouth.placed(bent).own_share)
    assert shares == [1.0, 0.0] if strip else shares == [1.0, 1.0]


def test_own_teeth_go_on_above_where_the_lip_hides_them(mesh):
    """Regression: a made row above them was a second row of teeth with different columns."""
    rgb, face = laughing(mesh)
    y = round(float(face.landmarks[14, 1])) - RIM_PX
    middle = round(float(face.landmarks[14, 0]))
    upper = rgb[: y - 13]
    upper[(upper == TEETH).all(axis=-1)] = LIPS  # 0.72 cm of them are visible
    teeth = (rgb == TEETH).all(axis=-1)
    for x in range(middle - 20, middle + 21, 10):
        rgb[:, x : x + 2][teeth[:, x : x + 2]] = (150, 140, 130)
    mouth = Mouth(rgb, build_rig(mesh, face, size=rgb.shape[:2]))
    assert mouth.own is not None and mouth._has_teeth and mouth._strip == 0
    patch = mouth.own.patch
    above, tooth = y - 15 - patch.top, np.s_[middle + 4 - patch.left : middle + 8 - patch.left]
    assert (mouth.own.cover[above, tooth] > 0.95).all()
    assert (mouth.own.rgb[above, tooth].mean(axis=-1) > 0.8 * np.mean(TEETH)).all()
    between = mouth.own.rgb[above, middle - patch.left : middle + 2 - patch.left]
    assert between.mean() < 0.75 * np.mean(TEETH)
    far = round(1.3 * mouth._scale * 18.0)
    assert mouth.own.cover[y - far - patch.top, tooth].max() < 0.05


def test_a_portrait_as_wide_as_its_mouth_stays_as_it_was(mesh):
    """Check a portrait that is all mouth, so that what is examined is a view of the portrait."""
    rgb, face = laughing(mesh)
    upper = rgb[: round(float(face.landmarks[14, 1])) - RIM_PX - 13]
    upper[(upper == TEETH).all(axis=-1)] = LIPS  # these are redrawn
    left, right = np.rint(face.landmarks[[61, 291], 0]).astype(int)
    first, last = left - 10, right + 10
    landmarks = face.landmarks - np.float32((first, 0, 0))
    narrow = np.ascontiguousarray(rgb[:, first:last])
    before = narrow.copy()
    mouth = Mouth(narrow, build_rig(mesh, replace(face, landmarks=landmarks), size=narrow.shape[:2]))
    assert mouth.own is not None and mouth._has_teeth
    assert mouth.own.patch.width == narrow.shape[1]
    assert np.array_equal(narrow, before)


def test_lower_teeth_of_an_open_mouth_do_not_hang_in_the_middle_of_it(mesh):
    """Regression: taken for upper teeth, they floated below the lip that they were to hang from."""
    apart = ExpressionBasis(mesh).lips_apart
    face = made_face(mesh, scale=18.0, displacement=apart * np.float32(1.6))
    rgb = painted(face)
    inner = face.landmarks[list(INNER_UPPER_LIP + INNER_LOWER_LIP[-2:0:-1]), :2]
    mouth = np.zeros(rgb.shape[:2], np.uint8)
    cv2.fillPoly(mouth, [np.rint(inner).astype(np.int32)], 1)
    (_, upper), (_, lower) = face.landmarks[[13, 14], :2]
    rows = np.arange(rgb.shape[0])[:, None]
    for begins, seen in ((0.0, True), (0.5, False)):
        rgb[mouth > 0] = (60, 30, 28)
        first = upper + begins * (lower - upper)
        rgb[(mouth > 0) & (rows > first) & (rows < first + 0.48 * (lower - upper))] = TEETH
        made = Mouth(rgb, build_rig(mesh, face, size=rgb.shape[:2]))
        assert made._has_teeth is seen
        assert (made._own_edge is not None) is seen and (made.bared_cm > 0) is seen
        if not seen:  # made ones hang from the upper lip, not from the end of these
            assert made._upper_edge[1] > made._rest_up - 0.6 * made._rest_gap_cm


@pytest.mark.parametrize(
    "shape", [{"gap": 0.5, "wider": 0.0}, {"gap": 0.95, "wider": -0.2}], ids=["closing", "round"]
)
def test_on_less_room_the_rim_of_own_teeth_leaves_no_spots_in_the_corners(mesh, shape):
    """Regression: what the portrait shows beside and below its teeth was squeezed to fangs and dark spots."""
    rgb, face = laughing(mesh)
    with MeshAnimator(mesh) as animator:
        animator.set_portrait(rgb, face=face)
        portrait = animator._portrait
        mouth, rest = portrait.mouth, portrait.rig.reading.vertices
        assert mouth._has_teeth and np.abs(mouth._inward_cm).max() > 0.2
        moved = portrait.lips.fit(
            np.zeros_like(rest), gap=shape["gap"] * mouth._rest_gap_cm, wider=shape["wider"]
        )
        bent = bend(portrait.rig, mesh, FaceMotion(vertices=moved), displacement=moved, gains=Gains())
    lips = bent.places[list(INNER_UPPER_LIP + INNER_LOWER_LIP[-2:0:-1])]
    away = np.linalg.norm(mouth._opening(bent, _gap(bent.vertices)) - lips, axis=1)
    assert away.max() < 0.06 * 18


def test_lower_teeth_that_a_speaking_portrait_shows_stay_at_the_lip_that_sinks(mesh):
    """Regression: they stayed with the skull, and floated half faded in the middle of the mouth."""
    apart = ExpressionBasis(mesh).lips_apart
    face = made_face(mesh, scale=18.0, displacement=apart * np.float32(1.6))
    rgb = painted(face)
    inner = face.landmarks[list(INNER_UPPER_LIP + INNER_LOWER_LIP[-2:0:-1]), :2]
    cv2.fillPoly(rgb, [np.rint(inner).astype(np.int32)], (60, 30, 28))
    with MeshAnimator(mesh) as animator:
        animator.set_portrait(rgb, face=face)
        portrait = animator._portrait
        mouth, rest = portrait.mouth, portrait.rig.reading.vertices
        assert mouth.own is not None and not mouth._has_teeth
        moved = portrait.lips.fit(np.zeros_like(rest), gap=gap_cm(rest) + 0.4, wider=0.0)
        bent = bend(portrait.rig, mesh, FaceMotion(vertices=moved), displacement=moved, gains=Gains())
        placed = mouth.placed(bent)
    assert 0 < placed.own_share < 1
    corner = (mouth.own.patch.left, mouth.own.patch.top)
    seen = (face.landmarks[[13, 14], :2] - corner) @ placed.own[:, :2].T + placed.own[:, 2]
    assert bent.places[14, 1] - face.landmarks[14, 1] > 4
    assert seen[1, 1] - seen[0, 1] == pytest.approx(bent.places[14, 1] - bent.places[13, 1], abs=1.5)


def test_lips_that_close_over_bared_teeth_cover_them_to_their_ends(mesh):
    """Check a round mouth, in which the upper teeth of a grinning portrait stood out as far as in its grin."""
    rgb, face = laughing(mesh)
    with MeshAnimator(mesh) as animator:
        animator.set_portrait(rgb, face=face)
        portrait = animator._portrait
        rest, bared = portrait.rig.reading.vertices, portrait.mouth.bared_cm
        pixels = (round(float(face.landmarks[14, 1])) - RIM_PX - face.landmarks[13, 1]) / 18.0
        assert bared == pytest.approx(pixels, abs=0.1)
        now = rest + portrait.lips.fit(np.zeros_like(rest), gap=0.3, wider=0.0)
        plain = rest + LipFit(ExpressionBasis(mesh), rest).fit(np.zeros_like(rest), gap=0.3, wider=0.0)
        assert gap_cm(now) == pytest.approx(0.3, abs=0.02)
        assert plain[13, 1] - now[13, 1] > 0.15
        bent = bend(
            portrait.rig, mesh, FaceMotion(vertices=now - rest), displacement=now - rest, gains=Gains()
        )
        placed = portrait.mouth.placed(bent)
        # They stay where they are in the skull.
        assert placed.own[1, 2] == pytest.approx(portrait.mouth._own_matrix(bent.pose, 0.0)[1, 2], abs=0.1)


def test_a_narrow_own_tooth_that_stands_apart_keeps_its_end(mesh):
    rgb, face = laughing(mesh)
    x, y = np.rint(face.landmarks[14, :2]).astype(int)
    bottom = y - RIM_PX
    for start, stop in (
        (12, 15),
        (20, 40),
    ):  # one of 5 pixels, 0.33 cm, hangs beside and as low as the front ones
        part = rgb[bottom - 6 : bottom + 1, x + start : x + stop]
        part[(part == TEETH).all(axis=-1)] = (60, 30, 28)
    mouth = Mouth(rgb, build_rig(mesh, face, size=rgb.shape[:2]))
    assert mouth.own is not None and mouth._has_teeth
    patch = mouth.own.patch
    assert mouth.own.cover[bottom - 4 - patch.top, x + 17 - patch.left] > 0.95
    assert mouth.own.cover[bottom - 3 - patch.top, x + 26 - patch.left] < 0.3


@pytest.mark.parametrize("inside", [TEETH, (60, 30, 28)], ids=["teeth", "dark"])
def test_a_mouth_at_rest_is_the_portraits_own_to_the_pixel(mesh, inside):
    rgb, face = laughing(mesh, teeth=inside, shade=(90, 45, 40))
    with MeshAnimator(mesh) as animator:
        animator.set_portrait(rgb, face=face)
        rig, still = animator._portrait.rig, np.zeros((468, 3), np.float32)
        drawn = animator.draw(bend(rig, mesh, FaceMotion(vertices=still), displacement=still, gains=Gains()))
    inner = face.landmarks[list(INNER_UPPER_LIP + INNER_LOWER_LIP), :2]
    (left, top), (right, bottom) = np.rint([inner.min(axis=0), inner.max(axis=0)]).astype(int)
    mouth = np.s_[top - 3 : bottom + 4, left - 3 : right + 4]
    assert (
        np.abs(drawn[mouth].astype(int) - rgb[mouth]).max() <= 2
    )  # edges of teeth and lips differed by up to 40


def test_a_round_mouth_covers_the_upper_teeth_and_a_wide_gap_shows_them(mesh, face):
    """Lips that are drawn together come forward over the teeth; a baby's pucker showed a white row."""
    basis = ExpressionBasis(mesh)
    rig = build_rig(mesh, face, size=face.picture_size[::-1])
    mouth = Mouth(painted(face), rig)
    heights = []
    for weights in (
        {"jawOpen": 0.08},
        {"jawOpen": 0.07, "mouthPucker": 0.7, "mouthClose": 0.07},
        {"jawOpen": 0.9, "mouthPucker": 0.9},
    ):
        moved = basis.displacement(FaceMotion.authored(weights).blendshapes)
        bent = bend(rig, mesh, FaceMotion(), displacement=moved, gains=Gains())
        placed = mouth.placed(bent)
        assert placed is not None and placed.upper_teeth is not None
        # Down from the middle of the biting edge at rest, centimetres.
        row = (mouth.upper_teeth.shape[0] / PIXELS_A_CM - _EDGE_CM) * PIXELS_A_CM
        edge = placed.upper_teeth @ (HALF_WIDTH_CM * PIXELS_A_CM, mouth.upper_teeth.shape[0] - row, 1)
        heights.append((float(edge[1]) / bent.pose.scale, _gap(bent.vertices)))
    (open_edge, open_gap), (round_edge, round_gap), (wide_edge, wide_gap) = heights
    assert 0.05 < round_gap < 0.5 and open_gap < 0.8 and wide_gap > 0.9, heights
    assert round_edge < open_edge - 0.2
    assert wide_edge == pytest.approx(open_edge, abs=0.05)
