"""Tests of how much more of an expression a portrait needs, with readers of known readings."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from faces import made_face

from vitascope.animation.canonical_mesh import (
    CHIN,
    EYES,
    INNER_LOWER_LIP,
    INNER_UPPER_LIP,
    LOWER_LIP_ROWS,
    MOUTH_CORNERS,
    UPPER_LIP_ROWS,
)
from vitascope.animation.expression import CHIN_POINTS, ExpressionBasis
from vitascope.animation.face import BLENDSHAPE_INDEX, FaceMotion
from vitascope.animation.face_reading import mouth_width_seen
from vitascope.animation.mesh.lips import (
    CANONICAL_WIDTH_CM,
    LipFit,
    corners_cm,
    gap_cm,
    level_cm,
    thinned_cm,
    wider,
    width_cm,
)
from vitascope.animation.mesh.response import Curve, Response, measure_response, steady_reader
from vitascope.animation.tracking import FaceTracker


@pytest.fixture(scope="module")
def basis(mesh):
    return ExpressionBasis(mesh)


def reader(mesh, basis, *, of_jaw, in_smile):
    """Make a reader that reads the share ``of_jaw`` of a jaw's strength, or ``in_smile`` in a full smile."""
    fields = [basis.field("jawOpen"), basis.field("mouthSmileLeft") + basis.field("mouthSmileRight")]
    solve = np.linalg.pinv(np.stack([field.ravel() for field in fields]).T)
    face = made_face(mesh)

    def read(motion):
        jaw, smile = solve @ motion.vertices.ravel()
        weights = np.zeros(52, np.float32)
        weights[BLENDSHAPE_INDEX["jawOpen"]] = jaw * (of_jaw + (in_smile - of_jaw) * smile)
        return replace(face, blendshapes=weights)

    return read


def measured(mesh, basis, read, *, own_smile=0.0):
    """Measure the response of a portrait that smiles with strength ``own_smile``."""
    lips = LipFit(basis, mesh.vertices)
    return measure_response(basis, lips, mesh, read, own_smile=smile_of(basis, own_smile))


def smile_of(basis, strength):
    return (basis.field("mouthSmileLeft") + basis.field("mouthSmileRight")) * np.float32(strength)


def adjusted(basis, response, shown, *, narrower=0.0, **named):
    """Return what is drawn when a driver does ``shown``, and the network reads ``named``."""
    weights = np.zeros(52, np.float32)
    for name, value in named.items():
        weights[BLENDSHAPE_INDEX[name]] = value
    drawn, _ = response.adjust(
        shown, np.zeros(2, np.float32), FaceMotion(blendshapes=weights), narrower=narrower
    )
    return drawn


def jaw_of(basis, response, *, jaw, smile):
    """Return the strength of the drawn jaw when a driver opens it."""
    names = {"jawOpen": jaw, "mouthSmileLeft": smile, "mouthSmileRight": smile}
    shown = sum(basis.field(name) * np.float32(strength) for name, strength in names.items())
    drawn = adjusted(basis, response, shown, **names)
    solve = np.linalg.pinv(np.stack([basis.field(name).ravel() for name in names]).T)
    return float((solve @ drawn.ravel())[0])


def test_a_jaw_is_opened_by_what_a_portrait_hides_of_it(mesh, basis):
    response = measured(mesh, basis, reader(mesh, basis, of_jaw=0.8, in_smile=0.8))
    assert jaw_of(basis, response, jaw=0.4, smile=0.0) == pytest.approx(0.5, abs=0.01)


def test_a_smile_that_hides_the_jaw_opens_it_more(mesh, basis):
    response = measured(mesh, basis, reader(mesh, basis, of_jaw=0.8, in_smile=0.5))
    assert jaw_of(basis, response, jaw=0.4, smile=0.0) == pytest.approx(0.5, abs=0.01)
    # Not all of what would read like the driver: 0.8 in a full smile, 0.65 in half a smile.
    assert jaw_of(basis, response, jaw=0.4, smile=1.0) == pytest.approx(0.4 + 0.85 * 0.4, abs=0.02)
    assert jaw_of(basis, response, jaw=0.4, smile=0.5) == pytest.approx(0.4 + 0.925 * 0.25, abs=0.02)


def test_a_jaw_is_opened_by_no_more_than_a_face_allows(mesh, basis):
    response = measured(mesh, basis, reader(mesh, basis, of_jaw=0.3, in_smile=0.3))
    # At most 0.55 more than the driver's, and 1.15 in all.
    assert jaw_of(basis, response, jaw=0.5, smile=0.0) == pytest.approx(0.5 + 0.55, abs=0.02)
    assert jaw_of(basis, response, jaw=0.9, smile=0.0) == pytest.approx(1.15, abs=0.02)


def test_a_jaw_that_was_measured_stays_where_it_was(mesh, basis):
    response = measured(mesh, basis, reader(mesh, basis, of_jaw=0.5, in_smile=0.5))
    shown = basis.field("jawOpen") * np.float32(0.4)
    weights = np.zeros(52, np.float32)
    weights[BLENDSHAPE_INDEX["jawOpen"]] = 0.4

    def gap_of(vertices):
        motion = FaceMotion(blendshapes=weights, vertices=vertices)
        drawn, _ = response.adjust(shown, np.zeros(2, np.float32), motion, narrower=0.0)
        return drawn[13, 1] - drawn[14, 1]

    by_driver = shown[13, 1] - shown[14, 1]
    assert gap_of(None) > 1.4 * by_driver
    assert gap_of(shown) == pytest.approx(by_driver, rel=0.02)


def test_lips_that_bare_the_teeth_are_no_jaw_that_opens(mesh, basis):
    response = measured(mesh, basis, reader(mesh, basis, of_jaw=1.0, in_smile=1.0))
    bared = sum(
        basis.field(f"mouth{part}{side}") for part in ("UpperUp", "LowerDown") for side in ("Left", "Right")
    )
    drawn = adjusted(basis, response, bared, jawOpen=0.3)
    chin = list(CHIN_POINTS)
    assert (drawn - bared)[chin] == pytest.approx(0.3 * basis.field("jawOpen")[chin], abs=0.05)


def test_a_jaw_that_drops_behind_closed_lips_leaves_them_closed(mesh, basis):
    response = measured(mesh, basis, reader(mesh, basis, of_jaw=0.5, in_smile=0.5))
    sealed = 0.4 * (basis.field("jawOpen") + basis.field("mouthClose"))
    drawn = adjusted(basis, response, sealed, jawOpen=0.4, mouthClose=0.4)
    assert (drawn - sealed)[CHIN, 1] < -0.5
    assert np.abs(drawn[list(INNER_UPPER_LIP), 1] - drawn[list(INNER_LOWER_LIP), 1]).max() < 0.05


def test_a_chin_that_was_measured_behind_closed_lips_stays_where_it_was(mesh, basis):
    response = measured(mesh, basis, reader(mesh, basis, of_jaw=0.5, in_smile=0.5))
    sealed = np.float32(0.4) * (basis.field("jawOpen") + basis.field("mouthClose"))
    weights = np.zeros(52, np.float32)
    weights[BLENDSHAPE_INDEX["jawOpen"]] = 0.4
    motion = FaceMotion(blendshapes=weights, vertices=sealed)
    drawn, _ = response.adjust(sealed, np.zeros(2, np.float32), motion, narrower=0.0)
    assert np.abs(drawn - sealed).max() < 0.02


def test_a_side_of_a_smile_that_is_hardly_seen_takes_the_others_curve(mesh, basis):
    face, smile = make_smile_reader(mesh, basis), {}
    for far in (0.3, 0.9):
        smile[far] = measured(mesh, basis, face(far)).curves
    for far, same in ((0.3, True), (0.9, False)):
        assert (smile[far]["mouthSmileRight"] is smile[far]["mouthSmileLeft"]) is same


def make_smile_reader(mesh, basis):
    """Make readers of smiles whose right side reads as a share of the left one."""
    field, face = basis.field("mouthSmileLeft") + basis.field("mouthSmileRight"), made_face(mesh)

    def reads(far):
        def read(motion):
            strength = max(float(np.vdot(motion.vertices, field) / np.square(field).sum()), 0.0)
            weights = np.zeros(52, np.float32)
            weights[BLENDSHAPE_INDEX["mouthSmileLeft"]] = 0.7 * strength
            weights[BLENDSHAPE_INDEX["mouthSmileRight"]] = far * 0.7 * strength
            return replace(face, blendshapes=weights)

        return read

    return reads


def test_an_upper_lip_does_not_climb_into_the_nose(mesh, basis):
    lips, up = LipFit(basis, mesh.vertices), np.zeros_like(mesh.vertices)
    for name in ("mouthUpperUpLeft", "mouthUpperUpRight"):
        up = up + basis.field(name)
    fitted = lips.fit(2 * up, gap=2.0, wider=0.0)
    room = mesh.vertices[2, 1] - mesh.vertices[[37, 0, 267], 1].mean()
    assert (fitted[[37, 0, 267], 1] - fitted[2, 1]).mean() < 0.5 * room
    assert gap_cm(mesh.vertices + fitted) == pytest.approx(2.0, abs=0.1)


def test_glances_are_drawn_as_far_as_they_read(mesh, basis):
    """Check MediaPipe, which reads two thirds of an iris's movement."""
    face = made_face(mesh)

    def read(motion):
        landmarks = face.landmarks.copy()
        for eye, gaze in zip(EYES, motion.gaze, strict=True):
            width = np.linalg.norm(
                face.landmarks[eye.outer_corner, :2] - face.landmarks[eye.inner_corner, :2]
            )
            landmarks[list(eye.iris), :2] += 0.66 * gaze * width
        return replace(face, landmarks=landmarks)

    response = measured(mesh, basis, read)
    wanted = np.array([[0.2, 0.05], [0.18, 0.05]], np.float32)
    assert response.gaze(wanted) == pytest.approx(wanted / 0.66, rel=0.06)
    assert not response.gaze(np.zeros((2, 2), np.float32)).any()


def test_brows_are_lowered_by_what_a_portrait_hides_of_it(mesh, basis):
    face, field = made_face(mesh), basis.field("browDownLeft") + basis.field("browDownRight")

    def read(motion):
        weights = np.zeros(52, np.float32)
        down = float(np.vdot(motion.vertices, field) / np.square(field).sum())
        for side in ("Left", "Right"):
            weights[BLENDSHAPE_INDEX[f"browDown{side}"]] = max(0.5 * down, 0)
        return replace(face, blendshapes=weights)

    drawn = adjusted(basis, measured(mesh, basis, read), 0.4 * field, browDownLeft=0.4, browDownRight=0.4)
    assert np.vdot(drawn, field) / np.square(field).sum() == pytest.approx(0.8, abs=0.02)


@pytest.mark.parametrize("parted", [0.0, 0.6])
def test_lips_are_as_far_apart_as_the_drivers_whatever_the_portraits_are(mesh, basis, parted):
    rest = mesh.vertices + basis.lips_apart * np.float32(parted)
    lips = LipFit(basis, rest)
    for gap in (0.0, 0.3, 1.1):
        fitted = rest + lips.fit(np.zeros_like(rest), gap=gap, wider=0.0)
        assert gap_cm(fitted) == pytest.approx(gap, abs=0.02)
        if gap == 0:
            along = fitted[list(INNER_UPPER_LIP), 1] - fitted[list(INNER_LOWER_LIP), 1]
            assert along.max() < 0.05  # no slits beside the middle
    faded = rest + lips.fit(np.zeros_like(rest), gap=0.0, wider=0.0, share=0.0)
    assert np.abs(faded - rest).max() < 1e-6


def test_lips_of_a_portrait_that_shouts_meet_too(mesh, basis):
    """Regression: a jaw closed by 1.6 cm at most, so a mouth open by 4 cm stayed open in up to 64 % of frames."""
    jaw = basis.field("jawOpen")
    rest = mesh.vertices + jaw * np.float32((4.1 - gap_cm(mesh.vertices)) / gap_cm(jaw))
    for gap in (0.0, 0.5, 4.1):
        fitted = rest + LipFit(basis, rest).fit(np.zeros_like(rest), gap=gap, wider=0.0)
        assert gap_cm(fitted) == pytest.approx(gap, abs=0.02)


@pytest.mark.parametrize(("size", "unit_cm"), [(0.8, 0.8 * 4.91), (1.2, 5.1)], ids=["small", "broad"])
def test_a_mouth_grows_wider_by_as_much_as_the_drivers_or_by_their_share_if_it_is_small(
    mesh, basis, size, unit_cm
):
    """Regression: broad mouths grew by their share, measured otherwise, so grins were half as wide again."""
    rest = mesh.vertices * np.array([size, 1, 1], np.float32)
    lips = LipFit(basis, rest)
    for change in (-0.2, 0.15, 0.25):
        driver = basis.field("mouthPucker") if change < 0 else basis.field("mouthSmileLeft")
        fitted = rest + lips.fit(driver * np.float32(0.05), gap=0.2, wider=change)
        assert width_cm(fitted) - width_cm(rest) == pytest.approx(change * unit_cm, abs=0.05)


def test_a_broad_mouth_that_reads_as_it_is_drawn_is_drawn_as_the_driver_asks(mesh, basis):
    broad = made_face(mesh, displacement=smile_of(basis, 0.9))

    def read(motion):
        return made_face(mesh, displacement=smile_of(basis, 0.9) + motion.vertices)

    response = measure_response(
        basis, LipFit(basis, mesh.vertices + smile_of(basis, 0.9)), mesh, read, own_smile=smile_of(basis, 0.0)
    )
    assert mouth_width_seen(broad.landmarks) > 1.25 * mouth_width_seen(made_face(mesh).landmarks)
    for asked in (-0.2, 0.3):
        assert response.lips(1.2, asked, own_gap=0.0, own_width=0.0)[1] == pytest.approx(asked, rel=0.07)
        assert response.lips(0.0, asked, own_gap=0.0, own_width=0.0)[1] == pytest.approx(asked, rel=0.07)


def test_a_smile_that_only_the_portrait_shows_is_taken_from_its_width_and_given_back_as_the_driver_smiles(
    mesh, basis
):
    smile = smile_of(basis, 0.8)
    rest = mesh.vertices + smile
    lips = LipFit(basis, rest, own_smile=smile)
    own = wider(smile)
    narrowest = CANONICAL_WIDTH_CM - width_cm(mesh.vertices)
    assert lips.most_unsmiled == pytest.approx(1 - narrowest / width_cm(smile), abs=0.01)
    for change, left in ((0.0, 0.55), (0.5 * own, 1.0), (own, 1.0)):
        shown = np.float32(change / own - (1 - left)) * smile
        fitted = rest + lips.fit(shown, gap=0.0, wider=change, unsmiled=1.0, still_smiles=left)
        assert width_cm(fitted) - width_cm(mesh.vertices) == pytest.approx(
            change * CANONICAL_WIDTH_CM, abs=0.05
        )
    # Within the portrait's smile all that is drawn is read, whatever is read of a smile on top of a smile.
    curve = Curve(np.array([-1.0, 0.0, 1.0]), np.array([-0.6, 0.0, 0.6]))
    response = Response(basis, {"mouth wider": curve})
    assert response.lips(0.0, 0.2, own_gap=0.0, own_width=0.3)[1] == pytest.approx(0.2)
    assert response.lips(0.0, 0.36, own_gap=0.0, own_width=0.3)[1] == pytest.approx(0.4)
    assert response.lips(0.0, -0.12, own_gap=0.0, own_width=0.3)[1] == pytest.approx(-0.2)


def test_a_mouth_that_is_drawn_together_too_far_gets_half_of_it_back(mesh, basis):
    """Check a mouth that stayed this narrow, as the portrait's own smile fades at the same time."""
    rest = mesh.vertices
    lips, pucker = LipFit(basis, rest), basis.field("mouthPucker")
    asked = -0.2
    far = pucker * np.float32(0.35 * width_cm(rest) / (width_cm(rest) - width_cm(rest + pucker)))
    assert width_cm(rest + far) / width_cm(rest) == pytest.approx(0.65, abs=0.01)
    fitted = rest + lips.fit(far, gap=0.0, wider=asked)
    assert width_cm(fitted) / width_cm(rest) == pytest.approx((0.65 + 1 + asked) / 2, abs=0.01)
    faded = rest + lips.fit(far, gap=0.0, wider=asked, share=0.0)
    assert width_cm(faded) / width_cm(rest) == pytest.approx(0.65, abs=0.01)


def test_a_smiling_mouth_that_is_drawn_together_is_as_narrow_as_it_would_be_without_its_smile(mesh, basis):
    """Regression: with the smile's width it stayed a centimetre wider than the driver's pucker."""
    smile, pucker, asked = smile_of(basis, 0.9), basis.field("mouthPucker"), -0.3
    rest = mesh.vertices + smile
    lips = LipFit(basis, rest, own_smile=smile)
    driven = pucker * np.float32(0.1) - smile
    fitted = rest + lips.fit(driven, gap=0.0, wider=asked, unsmiled=1.0)
    assert width_cm(fitted) / width_cm(mesh.vertices) == pytest.approx(1 + asked, abs=0.02)
    kept = rest + lips.fit(driven, gap=0.0, wider=asked)
    assert width_cm(kept) > width_cm(fitted) + 0.5
    half = rest + lips.fit(driven, gap=0.0, wider=asked, unsmiled=0.5)
    assert width_cm(fitted) < width_cm(half) < width_cm(kept)
    unsmiling = LipFit(basis, mesh.vertices)
    same = unsmiling.fit(pucker * np.float32(0.1), gap=0.0, wider=asked)
    assert unsmiling.fit(pucker * np.float32(0.1), gap=0.0, wider=asked, unsmiled=1.0) == pytest.approx(same)


def test_a_driver_who_smiles_as_the_portrait_does_leaves_its_teeth_bare(mesh, basis):
    """Regression: the lip that covers teeth in a round mouth also came down by 0.3 cm in that smile."""
    rest = mesh.vertices + smile_of(basis, 0.8) + basis.lips_apart
    lips, upper, wide = (
        LipFit(basis, rest, bared_cm=1.2),
        INNER_UPPER_LIP[5],
        basis.lips_apart * np.float32(0.5),
    )
    gap = gap_cm(rest)  # the driver's lips part as much, and the portrait's are parted already
    heights = [
        float(lips.fit(wide, gap=gap, wider=0.0, smiles=smiles)[upper, 1]) for smiles in (0.0, 0.5, 1.0)
    ]
    assert heights[0] < -0.1
    assert heights[1] == pytest.approx((heights[0] + heights[2]) / 2, abs=0.01)
    assert heights[2] == pytest.approx(0, abs=0.02)
    assert gap_cm(rest + lips.fit(wide, gap=gap, wider=0.0, smiles=1.0)) == pytest.approx(gap, abs=0.02)


def test_an_upper_lip_keeps_its_area_in_a_smile(mesh, basis):
    smile = smile_of(basis, 0.9)
    rest = mesh.vertices + smile
    thinned = thinned_cm(rest, smile)
    now = rest - smile + basis.upper_lip_higher * np.float32(thinned)

    def height(vertices):
        return float((vertices[[37, 0, 267], 1] - vertices[[82, 13, 312], 1]).mean())

    assert height(now) * width_cm(now) == pytest.approx(height(rest) * width_cm(rest), rel=0.08)
    assert gap_cm(now) == pytest.approx(gap_cm(rest - smile), abs=0.02)
    assert thinned_cm(rest, 0 * smile) == 0


def test_corners_do_not_hang_beside_lips_that_are_drawn_together_where_a_smile_was(mesh, basis):
    """Regression: shut by the lower lip, they were .5 cm above the faded smile's corners, an arch as of grief."""
    smile = smile_of(basis, 0.8)
    rest = mesh.vertices + smile + basis.lips_apart
    lips = LipFit(basis, rest, own_smile=smile)
    pucker = basis.field("mouthPucker") - smile * np.float32(1.5)
    hanging = lips.fit(pucker, gap=0.0, wider=-0.4, unsmiled=1.0)
    assert level_cm(rest + hanging) > 0.3
    levelled = lips.levelled(hanging, level=0.0, unsmiled=1.0)
    assert level_cm(rest + levelled) == pytest.approx(0.05, abs=0.04)
    assert gap_cm(rest + levelled) == pytest.approx(gap_cm(rest + hanging), abs=0.01)
    along = (rest + levelled)[list(INNER_UPPER_LIP), 1] - (rest + levelled)[list(INNER_LOWER_LIP), 1]
    assert along.max() < 0.05  # they meet as before
    # A driver's own corners may hang; a smile that stays, and a mouth without one, do not change.
    assert level_cm(rest + lips.levelled(hanging, level=0.15, unsmiled=1.0)) == pytest.approx(0.2, abs=0.04)
    assert lips.levelled(hanging, level=0.0, unsmiled=0.0) is hanging
    assert LipFit(basis, rest).levelled(hanging, level=0.0, unsmiled=1.0) is hanging
    level = pucker * 0 - smile
    assert lips.levelled(level, level=0.5, unsmiled=1.0) == pytest.approx(level, abs=1e-6)


def test_an_open_mouth_is_as_round_as_the_drivers_whatever_smile_the_portrait_shows(mesh, basis):
    rest = mesh.vertices + smile_of(basis, 0.8)  # its corners are above the upper lip
    shout = basis.field("jawOpen")
    lips = LipFit(basis, rest)
    assert corners_cm(rest).max() < 0
    fitted = lips.fit(shout, gap=gap_cm(shout), wider=0.0, corners=corners_cm(shout))
    assert corners_cm(rest + fitted) == pytest.approx(corners_cm(shout), abs=0.05)
    # Closed lips keep it, as do corners that hang already.
    closed = lips.fit(shout * 0, gap=0.0, wider=0.0, corners=corners_cm(shout * 0))
    assert closed == pytest.approx(lips.fit(shout * 0, gap=0.0, wider=0.0), abs=1e-6)
    hanging = LipFit(basis, mesh.vertices - smile_of(basis, 0.5))
    plain = hanging.fit(shout, gap=2.0, wider=0.0)
    assert hanging.fit(shout, gap=2.0, wider=0.0, corners=corners_cm(shout)) == pytest.approx(plain, abs=1e-6)


def test_the_steady_reader_is_the_mean_of_finding_and_following(face_model, astronaut):
    with steady_reader(face_model) as read:
        first, second = read(astronaut), read(astronaut)
        assert read(np.zeros_like(astronaut)) is None
    with FaceTracker(face_model, mode="image", min_confidence=0.3) as tracker:
        found = tracker.find(astronaut)[0]
    with FaceTracker(face_model, min_confidence=0.3) as tracker:
        followed = [tracker.track(astronaut, pts_seconds=float(second)) for second in range(2)]
    for got, face in zip((first, second), followed, strict=True):
        assert np.allclose(got.blendshapes, (found.blendshapes + face.blendshapes) / 2, atol=1e-6)


def test_a_grin_and_a_smile_have_widths_of_their_own(mesh, basis):
    """Check a reader that sees all of a grin's width, and three quarters of a smile's and of a pucker's."""
    face = made_face(mesh)
    right, left = (face.landmarks[corner, :2] for corner in MOUTH_CORNERS)

    def read(motion):
        share = 1.0 if gap_cm(motion.vertices) > 0.2 else 0.75
        landmarks = face.landmarks.copy()
        moved = 0.5 * share * wider(motion.vertices) * (left - right)
        landmarks[MOUTH_CORNERS[0], :2] -= moved
        landmarks[MOUTH_CORNERS[1], :2] += moved
        return replace(face, landmarks=landmarks)

    response = measured(mesh, basis, read)
    for gap, asked, drawn in ((2.0, 0.3, 0.3), (0.0, 0.3, 0.4), (0.0, -0.2, -0.2 / 0.75)):
        assert response.lips(gap, asked, own_gap=0.0, own_width=0.0)[1] == pytest.approx(drawn, abs=0.02)


def test_parted_lips_of_a_painting_are_drawn_as_far_apart_as_it_shows_them(mesh, basis):
    """Check a third, which is what is read of a gap below half a centimetre."""
    apart = basis.lips_apart / np.float32(gap_cm(basis.lips_apart))

    def read(motion):
        gap = gap_cm(mesh.vertices + motion.vertices)
        seen = max(gap / 3, gap - 0.33)
        return made_face(mesh, displacement=apart * np.float32(seen - gap_cm(mesh.vertices)))

    response = measured(mesh, basis, read)
    assert response.lips(0.2, 0.0, own_gap=0.6, own_width=0.0)[0] == pytest.approx(0.53, abs=0.08)
    assert response.lips(0.2, 0.0, own_gap=0.0, own_width=0.0)[0] == pytest.approx(0.3, abs=0.01)  # no shout
    assert response.lips(0.0, 0.0, own_gap=0.6, own_width=0.0)[0] == pytest.approx(0, abs=0.05)


def test_what_a_reader_sees_too_much_of_a_gap_is_filled_by_the_lips(mesh, basis):
    """Check that lips fill it, except in a grin, whose lips are thin, or if the portrait shouts."""
    apart = basis.lips_apart / np.float32(gap_cm(basis.lips_apart))

    def reads_more(by_cm):
        def read(motion):
            gap = gap_cm(mesh.vertices + motion.vertices)
            seen = gap + by_cm * np.interp(gap, (0, 0.2), (0, 1))
            return made_face(mesh, displacement=apart * np.float32(seen - gap_cm(mesh.vertices)))

        return measured(mesh, basis, read)

    response = reads_more(0.3)
    gap, _, fuller = response.lips(0.9, 0.0, own_gap=0.0, own_width=0.0)
    assert gap == pytest.approx(0.9)
    assert fuller == pytest.approx(0.3, abs=0.06)
    assert response.lips(0.25, 0.0, own_gap=0.0, own_width=0.0)[2] == 0
    assert response.lips(0.9, 0.4, own_gap=0.0, own_width=0.0)[2] == 0
    assert response.lips(0.9, 0.0, own_gap=4.1, own_width=0.0)[2] == 0
    assert reads_more(0.0).lips(0.9, 0.0, own_gap=0.0, own_width=0.0)[2] == pytest.approx(0, abs=0.06)
    assert reads_more(-0.2).lips(0.9, 0.0, own_gap=0.0, own_width=0.0)[2] == 0
    assert reads_more(0.9).lips(0.9, 0.0, own_gap=0.0, own_width=0.0)[2] == pytest.approx(0.4)


@pytest.mark.parametrize("parted", [0.0, 1.5])
def test_fuller_lips_fill_a_gap_from_its_edges_and_keep_their_outline(mesh, basis, parted):
    rest = mesh.vertices + basis.lips_apart * np.float32(parted)
    lips, still = LipFit(basis, rest), np.zeros_like(rest)
    thin, full = (rest + lips.fit(still, gap=0.9, wider=0.0, fuller_cm=by) for by in (0.0, 0.3))
    assert gap_cm(full) == pytest.approx(gap_cm(thin) - 0.3, abs=0.02)
    np.testing.assert_array_equal(full[list(UPPER_LIP_ROWS[0])], thin[list(UPPER_LIP_ROWS[0])])
    np.testing.assert_array_equal(full[list(LOWER_LIP_ROWS[0])], thin[list(LOWER_LIP_ROWS[0])])
    for rows, sign in ((UPPER_LIP_ROWS, -1), (LOWER_LIP_ROWS, 1)):
        moved = [sign * (full - thin)[list(row[2:-2]), 1] for row in rows]
        assert (np.diff(moved, axis=0) > 0).all()  # each row by more than the one beyond it
    faded = rest + lips.fit(still, gap=0.9, wider=0.0, fuller_cm=0.3, share=0.0)
    np.testing.assert_allclose(faded, rest, atol=1e-6)


def test_a_pucker_of_parted_lips_is_drawn_as_it_reads_of_those(mesh, basis):
    """Check a reader that sees less of a pucker with parted lips than with closed ones."""
    face, field, apart = made_face(mesh), basis.field("mouthPucker"), basis.lips_apart
    closed = face_with_closed_lips(mesh, basis)

    def read(motion):
        parted = gap_cm(closed + motion.vertices) > 0.5
        weights = np.zeros(52, np.float32)
        strength = wider(motion.vertices) / wider(field)
        weights[BLENDSHAPE_INDEX["mouthPucker"]] = np.clip(strength * (0.7 if parted else 1.0), 0, 1)
        return replace(face, blendshapes=weights)

    response = measure_response(basis, LipFit(basis, closed), mesh, read, own_smile=smile_of(basis, 0))
    weights = np.zeros(52, np.float32)

    def drawn(gap, reads):
        weights[BLENDSHAPE_INDEX["mouthPucker"]] = reads
        vertices = 0.3 * field + apart * np.float32(gap / gap_cm(apart))
        vertices = vertices - apart * np.float32(gap_cm(0.3 * field) / gap_cm(apart))
        motion = FaceMotion(blendshapes=weights, vertices=vertices)
        moved, _ = response.adjust(vertices, np.zeros(2, np.float32), motion, narrower=0.0)
        return wider(moved) / wider(field)

    assert drawn(0.0, 0.4) == pytest.approx(0.4, abs=0.03)
    assert drawn(0.4, 0.4) == pytest.approx((0.4 + 0.4 / 0.7) / 2, abs=0.03)
    assert drawn(1.5, 0.4) == pytest.approx(0.4 / 0.7, abs=0.03)
    assert drawn(1.5, 0.65) == pytest.approx(0.9, abs=0.03)  # at most a quarter is added


def test_a_pucker_is_drawn_together_until_it_reads(mesh, basis):
    face, field = made_face(mesh), basis.field("mouthPucker")

    def read(motion):
        weights = np.zeros(52, np.float32)
        weights[BLENDSHAPE_INDEX["mouthPucker"]] = max(0.8 * wider(motion.vertices) / wider(field), 0)
        return replace(face, blendshapes=weights)

    response = measured(mesh, basis, read)
    for reads, shown, drawn in ((0.6, 0.5, 0.75), (0.02, 0.1, 0.1), (1.0, 0.4, 1.0)):
        now = adjusted(basis, response, np.float32(shown) * field, mouthPucker=reads)
        assert wider(now) / wider(field) == pytest.approx(drawn, abs=0.02)


def test_a_pucker_of_who_smiles_in_the_portrait_is_measured_and_drawn_without_the_smile(mesh, basis):
    """Check that the smile fades as lips purse: kept, it would hide the pucker; removed, it is no pucker itself."""
    face, field, smile = made_face(mesh), basis.field("mouthPucker"), smile_of(basis, 0.8)
    fields = np.stack([field[MOUTH_CORNERS[0]], smile[MOUTH_CORNERS[0]]])

    def read(motion):
        together, smiling = np.linalg.pinv(fields.T) @ motion.vertices[MOUTH_CORNERS[0]]
        weights = np.zeros(52, np.float32)
        weights[BLENDSHAPE_INDEX["mouthPucker"]] = np.clip(0.8 * together - 0.7 * (1 + smiling), 0, 1)
        return replace(face, blendshapes=weights)

    response = measured(mesh, basis, read, own_smile=0.8)
    drawn = adjusted(basis, response, 0.5 * field - smile, narrower=wider(smile), mouthPucker=0.6)
    assert wider(drawn + smile) / wider(field) == pytest.approx(0.75, abs=0.02)


def test_a_mouth_that_is_wide_open_in_the_portrait_closes_with_its_jaw(mesh, basis):
    jaw = basis.field("jawOpen")
    rest = mesh.vertices + jaw * np.float32(2.2 / gap_cm(jaw))
    still = np.zeros_like(jaw)
    fitted = LipFit(basis, rest).fit(still, gap=0.0, wider=0.0)
    assert gap_cm(rest) > 2 and gap_cm(rest + fitted) < 0.1
    assert fitted[CHIN, 1] > 0.7
    slightly = mesh.vertices + jaw * np.float32(0.6 / gap_cm(jaw))
    assert LipFit(basis, slightly).fit(still, gap=0.0, wider=0.0)[CHIN, 1] < 0.5


def test_a_smile_with_closed_lips_is_measured_with_closed_lips(mesh, basis):
    """Check a portrait with parted lips: when they meet, less of its smile is read, and only then more is drawn."""
    smile = basis.field("mouthSmileLeft") + basis.field("mouthSmileRight")
    apart = mesh.vertices + basis.lips_apart
    face = made_face(mesh)

    def read(motion):
        strength = float(motion.vertices[61] @ smile[61] / (smile[61] @ smile[61]))
        met = gap_cm(apart + motion.vertices) < 0.1
        weights = np.zeros(52, np.float32)
        for side in ("Left", "Right"):
            weights[BLENDSHAPE_INDEX[f"mouthSmile{side}"]] = strength * (0.6 if met else 0.9)
        return replace(face, blendshapes=weights)

    response = measure_response(basis, LipFit(basis, apart), mesh, read, own_smile=smile_of(basis, 0))
    weights = np.zeros(52, np.float32)
    weights[[BLENDSHAPE_INDEX[f"mouthSmile{side}"] for side in ("Left", "Right")]] = 0.45

    def drawn(parted):
        vertices = smile * np.float32(0.4) + basis.lips_apart * np.float32(parted)
        motion = FaceMotion(blendshapes=weights, vertices=vertices)
        moved, _ = response.adjust(vertices, np.zeros(2, np.float32), motion, narrower=0.0)
        return float(moved[61, 1] / smile[61, 1])

    parted = [drawn(share) for share in (0.0, 0.2, 1.0)]
    assert parted[0] > parted[1] > parted[2]
    assert parted[2] == pytest.approx(0.5, abs=0.06)
    assert parted[0] == pytest.approx(0.75, abs=0.1)
    assert not LipFit(basis, face_with_closed_lips(mesh, basis)).shows_apart


def face_with_closed_lips(mesh, basis):
    return mesh.vertices - basis.lips_apart * np.float32(gap_cm(mesh.vertices) / gap_cm(basis.lips_apart))


def test_lips_that_are_brought_together_keep_their_rows_in_place(mesh, basis):
    rest = mesh.vertices + basis.lips_apart * np.float32(1.2 / gap_cm(basis.lips_apart))
    met = rest + LipFit(basis, rest).fit(np.zeros_like(rest), gap=0.0, wider=0.0)
    for rows in (UPPER_LIP_ROWS, LOWER_LIP_ROWS):
        was, now = (np.diff([face[list(row[2:-2]), 1] for row in rows], axis=0) for face in (rest, met))
        assert np.abs(now - was).max() < 0.1  # the upper lip's strip at the opening was stretched by 0.4
