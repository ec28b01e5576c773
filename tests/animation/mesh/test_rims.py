"""Rims of clear glasses: found by their bridge, and left as they are by the lids behind them."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
from faces import RIMS_SCALE, RIMS_SKIN, SIZE, face_with_rims

from vitascope.animation.canonical_mesh import EYES
from vitascope.animation.face import FaceMotion
from vitascope.animation.mesh.animator import MeshAnimator
from vitascope.animation.mesh.rig import build_rig
from vitascope.animation.mesh.rims import find_rims

SKIN = np.array(RIMS_SKIN, np.float32)


def lids_of(face, drawn):
    """The part of a rim in front of the middles of the lids."""
    near = np.zeros(drawn.shape, np.uint8)
    for eye in EYES:
        row = np.rint(face.landmarks[list(eye.upper_lid)[1:-1], :2]).astype(np.int32)
        cv2.polylines(near, [row], False, 1, round(0.6 * RIMS_SCALE))
    return drawn & (near > 0)


@pytest.mark.parametrize("roll", [0.0, 15.0])
def test_a_rim_stays_bright_where_it_is_as_the_lid_closes_under_it(mesh, roll):
    seen, face, drawn = face_with_rims(mesh, roll=roll)
    on_lids = lids_of(face, drawn)
    assert on_lids.sum() > 150
    with MeshAnimator(mesh) as animator:
        animator.set_portrait(seen, face=face)
        at_rest = animator.animate(FaceMotion())
        for closure in (0.5, 1.0):
            motion = FaceMotion(
                vertices=np.zeros((468, 3), np.float32), eye_closure=np.full(2, closure, np.float32)
            )
            shut = animator.animate(motion)
            kept = shut[on_lids].astype(float).mean(axis=-1) / at_rest[on_lids].mean(axis=-1)
            assert np.percentile(kept, 20) > 0.9
            if closure == 1.0:  # and nowhere else is metal
                below = np.zeros_like(on_lids)
                below[6:] = drawn[:-6] & ~drawn[6:] & lids_of(face, drawn)[:-6]
                assert np.median(shut[below].mean(axis=-1)) < 1.1 * SKIN.mean()


def test_without_a_bridge_there_are_no_glasses(mesh):
    for seen, face, _ in (face_with_rims(mesh, bridge=False), face_with_rims(mesh, rim=RIMS_SKIN)):
        assert find_rims(seen, build_rig(mesh, face, size=seen.shape[:2])) == (None, None)


def test_a_thick_frame_moves_with_the_skin(mesh):
    seen, face, _ = face_with_rims(mesh, rim=(20, 20, 20), thickness=10)
    assert find_rims(seen, build_rig(mesh, face, size=seen.shape[:2])) == (None, None)


def test_both_rims_are_found_in_front_of_the_lids(mesh):
    seen, face, drawn = face_with_rims(mesh)
    for rim in find_rims(seen, build_rig(mesh, face, size=seen.shape[:2])):
        assert rim is not None
        assert not rim.cover[[0, -1]].any() and not rim.cover[:, [0, -1]].any()
        assert rim.cover[rim.patch.of(lids_of(face, drawn))].mean() > 0.7
        assert (
            rim.cover[~rim.patch.of(cv2.dilate(drawn.astype(np.uint8), np.ones((9, 9), np.uint8)) > 0)].max()
            < 0.2
        )
        without = rim.without(rim.patch.of(seen).astype(np.float32), rim.patch)
        assert np.abs(without[rim.patch.of(lids_of(face, drawn))] - SKIN).mean() < 12


def test_a_face_at_the_pictures_edge_is_no_trouble(mesh):
    seen, face, _ = face_with_rims(mesh)
    right = find_rims(seen[:, 300:].copy(), build_rig(mesh, face, size=(SIZE[1], SIZE[0] - 300)))
    assert len(right) == 2
