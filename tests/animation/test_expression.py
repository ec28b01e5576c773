"""Check that blendshape displacements move what they name, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest

from vitascope.animation.canonical_mesh import (
    CHIN,
    EYES,
    INNER_LOWER_LIP,
    INNER_UPPER_LIP,
    LEFT_BROW,
    LOWER_LIP_ROWS,
    UPPER_LIP_ROWS,
)
from vitascope.animation.expression import ExpressionBasis, eyes_of, lids_with_gaze
from vitascope.animation.face import BLENDSHAPE_INDEX, BLENDSHAPES
from vitascope.animation.motion import Mirror


@pytest.fixture(scope="module")
def basis(mesh):
    return ExpressionBasis(mesh)


def weights(**named):
    made = np.zeros(len(BLENDSHAPES), np.float32)
    for name, value in named.items():
        made[BLENDSHAPE_INDEX[name]] = value
    return made


def test_jaw_open_parts_the_lips_and_leaves_the_brow(basis):
    field = basis.field("jawOpen")
    assert field[CHIN, 1] < -2
    assert field[13, 1] - field[14, 1] > 2.5
    assert np.abs(field[[9, 151, 33, 263, 6, 1]]).max() < 0.15


def test_lips_that_close_over_an_open_jaw_meet_along_their_whole_length(basis):
    field = basis.field("jawOpen") + basis.field("mouthClose")
    upper, lower = list(INNER_UPPER_LIP), list(INNER_LOWER_LIP)
    assert np.abs(field[upper] - field[lower]).max() < 0.05
    # The lips move along, equally far, and the chin further.
    assert np.ptp(field[upper, 1]) < 0.1
    assert field[CHIN, 1] < field[upper, 1].min() - 1


def test_a_smile_pulls_its_own_corner(basis):
    left = basis.field("mouthSmileLeft")
    assert left[291, 0] > 0.8 and left[291, 1] > 0.5
    assert np.abs(left[61]).max() < 0.05
    assert np.abs(left[list(EYES[0].outline)]).max() < 0.1


def test_sides_mirror_each_other(basis, mesh):
    partners = Mirror(mesh)._partners
    for name in BLENDSHAPES:
        if name.endswith("Left"):
            other = basis.field(name.removesuffix("Left") + "Right")[partners] * (-1, 1, 1)
            assert np.allclose(basis.field(name), other, atol=0.08), name


def test_every_expression_of_the_skin_moves_something_and_stays_in_reach(basis):
    silent = {"_neutral", *(name for name in BLENDSHAPES if name.startswith("eye"))}
    for name in BLENDSHAPES:
        moved = np.abs(basis.field(name)).max()
        assert (moved == 0) if name in silent else (0.1 < moved < 4), name


def test_brows_go_where_they_are_told(basis):
    brow = list(LEFT_BROW)
    assert basis.field("browOuterUpLeft")[brow, 1].mean() > 0.2
    assert basis.field("browDownLeft")[brow, 1].mean() < -0.2


def test_weights_add_up(basis):
    both = basis.displacement(weights(jawOpen=0.5, mouthSmileLeft=1.0))
    apart = 0.5 * basis.field("jawOpen") + basis.field("mouthSmileLeft")
    assert np.allclose(both, apart, atol=1e-4)


def test_eyes_of_weights():
    still = weights()
    closure, gaze = eyes_of(weights(eyeBlinkRight=0.62, eyeLookOutLeft=1, eyeLookInRight=1), still)
    assert closure[0] == pytest.approx(1.0) and closure[1] == 0
    assert (gaze[:, 0] > 0.1).all()  # both look to the person's left, on the picture's right
    assert eyes_of(weights(eyeLookDownLeft=1), still)[1][1, 1] > 0.05
    assert eyes_of(weights(eyeWideLeft=1), still)[0][1] < 0


def test_mirroring_twice_changes_nothing(mesh, basis):
    from vitascope.animation.face import FaceMotion, rotation_from_degrees

    mirror = Mirror(mesh)
    motion = FaceMotion(
        rotation=rotation_from_degrees(20, 5, -8),
        translation=np.array([1, 2], np.float32),
        blendshapes=weights(eyeBlinkLeft=1),
        vertices=basis.field("mouthSmileLeft"),
        eye_closure=np.array([0, 1], np.float32),
        gaze=np.array([[0.1, 0.2], [0.1, 0.2]], np.float32),
    )
    once = mirror(motion)
    assert once.angles_degrees == pytest.approx((-20, 5, 8), abs=0.01)
    assert once.expression("eyeBlinkRight") == 1 and once.eye_closure[0] == 1
    assert once.vertices[61, 0] < -0.8
    assert once.gaze[0, 0] < 0
    twice = mirror(once)
    assert np.allclose(twice.rotation, motion.rotation) and np.allclose(
        twice.vertices, motion.vertices, atol=0.05
    )


def test_lids_go_with_a_look_down_and_up():
    down, up = (lids_with_gaze(np.full((2, 2), [0.1, y], np.float32)) for y in (0.1, -0.1))
    assert down == pytest.approx([0.4, 0.4])
    assert up == pytest.approx([-0.2, -0.2])
    assert not lids_with_gaze(np.array([[0.2, 0], [-0.2, 0]], np.float32)).any()


@pytest.mark.parametrize("rows", [UPPER_LIP_ROWS, LOWER_LIP_ROWS], ids=["upper", "lower"])
def test_a_lips_points_move_between_those_of_its_edges(basis, rows):
    """Check that the other lip, which is as near, has no effect: a jaw's points moved half as far as the chin."""
    outer, inner = list(rows[0][1:-1]), list(rows[-1][1:-1])
    for name in ("jawOpen", "mouthClose", "mouthPucker", "mouthUpperUpLeft", "mouthLowerDownRight"):
        field = basis.field(name)
        low, high = np.minimum(field[outer], field[inner]), np.maximum(field[outer], field[inner])
        for row in rows[1:-1]:
            moved = field[list(row[1:-1])]
            assert (moved > low - 1e-4).all() and (moved < high + 1e-4).all(), name
