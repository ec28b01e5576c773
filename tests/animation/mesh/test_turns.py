"""Tests of how far heads turn, and of what mouths show when they open."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from faces import made_face

from vitascope.animation.canonical_mesh import (
    INNER_LOWER_LIP,
    INNER_UPPER_LIP,
    MOUTH_CORNERS,
    TO_PICTURE,
    CanonicalMesh,
)
from vitascope.animation.expression import ExpressionBasis
from vitascope.animation.face import BLENDSHAPE_INDEX, FaceMotion, angles_of, rotation_from_degrees
from vitascope.animation.mesh.deform import Gains, bend, turns_too_far
from vitascope.animation.mesh.lips import gap_cm
from vitascope.animation.mesh.mouth import Mouth, draw_teeth
from vitascope.animation.mesh.rig import build_rig

SIZE = (480, 640)


def rig_of(mesh: CanonicalMesh, yaw: float):
    return build_rig(mesh, made_face(mesh, yaw=yaw, scale=20), size=SIZE)


def turned_by(mesh, rig, yaw):
    motion = FaceMotion(rotation=rotation_from_degrees(yaw, 0, 0), vertices=np.zeros((468, 3), np.float32))
    bent = bend(rig, mesh, motion, displacement=motion.vertices, gains=Gains())
    return angles_of(bent.pose.rotation @ rig.pose.rotation.T)[0], motion


def test_a_turned_portrait_turns_less_far_towards_the_camera_and_says_so(mesh):
    frontal, turned = rig_of(mesh, 0), rig_of(mesh, -32)
    assert turned_by(mesh, frontal, 19)[0] == pytest.approx(19, abs=0.5)
    towards, motion = turned_by(mesh, turned, 19)
    assert 10 < towards < 15.5
    assert turns_too_far(turned.pose, motion, 1.0) and not turns_too_far(frontal.pose, motion, 1.0)
    away, _ = turned_by(mesh, turned, -8)
    assert away == pytest.approx(-8, abs=1)


@pytest.mark.parametrize("angles", [*itertools.product((-90, 0, 90), repeat=3)])
def test_no_head_turns_so_far_that_its_eyes_are_seen_from_the_side(mesh, angles):
    rig = rig_of(mesh, -32)
    motion = FaceMotion(rotation=rotation_from_degrees(*angles), vertices=np.zeros((468, 3), np.float32))
    bent = bend(rig, mesh, motion, displacement=motion.vertices, gains=Gains(pose=3.0))
    seen = np.linalg.det((bent.pose.rotation @ rig.pose.rotation.T)[:2, :2])
    assert seen > 0.8


@pytest.mark.parametrize("direction", [(0, -1), (1, 0), (-0.6, 0.8)])
def test_shoulders_go_along_with_a_head_only_where_a_neck_would_stretch(mesh, direction):
    rig = rig_of(mesh, 0)
    chin = int(np.argmax(rig.rings.directions[:, 1]))

    def moved(length_cm):
        motion = FaceMotion(
            translation=length_cm * np.float32(direction), vertices=np.zeros((468, 3), np.float32)
        )
        bent = bend(rig, mesh, motion, displacement=motion.vertices, gains=Gains())
        rings = bent.places[468:].reshape(*rig.rings.weights.shape, 2) - rig.rings.sources
        return rings[:, chin] @ np.float32(direction) / rig.pose.scale

    little, much = moved(1.0), moved(5.0)
    assert little[0] == pytest.approx(1, abs=0.02)
    assert little[5:].max() < 0.15
    assert much[0] == pytest.approx(5, abs=0.1)
    assert much[5] > 2
    assert np.diff(much).min() > -1.2  # the stretch is shared out
    assert much[-1] == 0


@pytest.mark.parametrize("yaw", [5, 12])
def test_what_a_turned_portrait_hides_stays_behind_what_it_shows(mesh, yaw):
    rig = rig_of(mesh, -32)
    bent = bend(
        rig,
        mesh,
        FaceMotion(rotation=rotation_from_degrees(yaw, 0, 0), vertices=np.zeros((468, 3), np.float32)),
        displacement=np.zeros((468, 3), np.float32),
        gains=Gains(),
    )
    faces_away = rig.normals[:, 2] > 0
    assert faces_away.sum() > 20
    at_rest, now = rig.sources[:468, 0], bent.places[:468, 0]
    # At the outline of the far side, nothing from behind it appears.
    far = at_rest < np.median(at_rest)
    seen, hidden = far & ~faces_away, far & faces_away
    assert now[hidden].min() > now[seen].min() - 0.01 * rig.face_height
    # Rings around it begin where it ends, so that the outline shows once.
    for spoke, vertex in enumerate(rig.rings.rim):
        if rig.carried.shares[vertex] < 1:
            continue
        part_of_face = rig.rings.expression_weights[:, spoke] >= 1
        ring = bent.places[468:].reshape(*rig.rings.weights.shape, 2)[part_of_face, spoke]
        moved = bent.places[vertex] - rig.sources[vertex]
        assert ring[1:] - rig.rings.sources[part_of_face, spoke][1:] == pytest.approx(
            np.broadcast_to(moved, ring[1:].shape), abs=0.05 * rig.face_height
        )


def test_the_outline_of_a_cheek_stays_where_the_seen_skin_beside_it_can_widen(mesh):
    """Check that a turning ball keeps its outline; a face that is turned far has no skin to widen."""
    widened = {}
    for own_yaw in (-16, -34):
        rig = rig_of(mesh, own_yaw)
        motion = FaceMotion(rotation=rotation_from_degrees(12, 0, 0), vertices=np.zeros((468, 3), np.float32))
        places = []
        for given in (
            rig,
            replace(rig, carried=replace(rig.carried, outline=np.zeros_like(rig.carried.outline))),
        ):
            bent = bend(given, mesh, motion, displacement=motion.vertices, gains=Gains())
            places.append(bent.places[:468])
        moved = places[0] - places[1]
        assert np.abs(moved[[1, 4, 48, 278, 98, 327]]).max() < 0.01  # the nose has its own outline
        assert np.abs(moved[:, 1]).max() < 0.1 * np.abs(moved[:, 0]).max() + 0.01
        widened[own_yaw] = (places[1][:, 0].min() - places[0][:, 0].min()) / rig.pose.scale  # centimetres
    assert 0.06 < widened[-16] < 0.3
    assert widened[-34] == 0


def test_a_turn_takes_no_part_of_the_outline_off(mesh):
    """Check that rings beside it move like a vertex that bulges beyond a hidden border."""
    rig = rig_of(mesh, -32)
    alone = int(rig.rings.rim[28])
    shares = rig.carried.shares.copy()
    shares[alone] = 0  # it is clearly visible
    places = []
    for given in (rig, replace(rig, carried=replace(rig.carried, shares=shares))):
        motion = FaceMotion(rotation=rotation_from_degrees(12, 0, 0), vertices=np.zeros((468, 3), np.float32))
        bent = bend(given, mesh, motion, displacement=motion.vertices, gains=Gains())
        places.append(bent.places[468:].reshape(*rig.rings.weights.shape, 2)[1:6])
    assert np.abs(places[1] - places[0]).max() < 0.04 * rig.face_height


@pytest.mark.parametrize("yaw", [0, -14])
def test_rims_of_pressed_lips_go_with_their_own_lip_when_the_head_rises_and_the_mouth_opens(mesh, yaw):
    """Check rims of pressed lips, which face one another, not the camera."""
    basis = ExpressionBasis(mesh)
    pressed = basis.lips_apart * np.float32(-gap_cm(mesh.vertices) / gap_cm(basis.lips_apart))
    rims = [*INNER_UPPER_LIP[1:-1], *INNER_LOWER_LIP[1:-1]]
    pressed[rims, 2] -= 0.5
    rig = build_rig(mesh, made_face(mesh, yaw=yaw, pitch=-4, scale=20, displacement=pressed), size=SIZE)
    assert rig.carried.shares[rims].max() > 0.5
    motion = FaceMotion(rotation=rotation_from_degrees(0, 12, 0), vertices=np.zeros((468, 3), np.float32))
    bent = bend(rig, mesh, motion, displacement=basis.field("jawOpen"), gains=Gains())
    own = bent.pose.place(bent.vertices)[rims, :2]
    assert np.abs(bent.places[rims] - own).max() / rig.pose.scale < 0.3  # centimetres


@pytest.mark.parametrize("yaw", [-38, 0, 38])
def test_corners_that_go_back_around_the_teeth_stay_level_in_a_bowed_head(mesh, yaw):
    rig = build_rig(mesh, made_face(mesh, yaw=yaw, pitch=-22, scale=20), size=SIZE)
    basis = ExpressionBasis(mesh)
    smile = basis.field("mouthSmileLeft") + basis.field("mouthSmileRight")
    bent = bend(rig, mesh, FaceMotion(vertices=smile), displacement=smile, gains=Gains())
    up = (rig.pose.rotation @ TO_PICTURE)[:2, 1] * rig.pose.scale
    risen = (bent.places[:468] - rig.sources[:468]) @ up / (up @ up)  # centimetres
    for corner in MOUTH_CORNERS:
        # In every face that looks straight ahead, depth shows as a little height.
        assert risen[corner] - risen[13] == pytest.approx(smile[corner, 1] - smile[13, 1], abs=0.2)


def test_teeth_far_back_are_no_blacker_than_what_is_behind_them():
    for row in ("upper", "lower"):
        light, cover = draw_teeth(row)
        assert light[cover > 0.5].min() > 0.2
        assert cover[:, : round(0.8 * 64)].max() < 0.05  # 3.2 cm and more from the middle


def test_speech_hides_the_lower_teeth_that_a_grin_bares(mesh):
    basis = ExpressionBasis(mesh)
    # The canonical face has parted lips.
    closed = basis.lips_apart * np.float32(-gap_cm(mesh.vertices) / gap_cm(basis.lips_apart))
    rig = build_rig(mesh, made_face(mesh, scale=20, displacement=closed), size=SIZE)
    rgb = np.full((*SIZE, 3), (200, 160, 140), np.uint8)
    mouth = Mouth(rgb, rig)
    assert mouth.own is None

    def lower_edge(displacement):
        """Return the height of the lower teeth above the lower lip, in centimetres."""
        motion = FaceMotion(vertices=displacement)
        bent = bend(rig, mesh, motion, displacement=displacement, gains=Gains())
        placed = mouth.placed(bent)
        assert placed is not None
        middle = placed.lower_teeth @ np.array([4.0 * 64, 0.7 * 64, 1])
        return (bent.places[14, 1] - middle[1]) / rig.pose.scale

    grin = basis.lips_apart * 0.8 + sum(
        basis.field(f"{name}{side}") for name in ("mouthSmile", "mouthStretch") for side in ("Left", "Right")
    )
    assert lower_edge(basis.field("jawOpen") * np.float32(0.35)) < 0
    assert lower_edge(np.asarray(grin, np.float32)) > 0.2


def test_speech_hides_the_lower_teeth_of_portraits_that_show_theirs(mesh):
    basis = ExpressionBasis(mesh)
    smile = basis.field("mouthSmileLeft") + basis.field("mouthSmileRight")
    face = made_face(
        mesh, scale=20, displacement=smile * np.float32(0.8) + basis.lips_apart * np.float32(0.5)
    )
    weights = face.blendshapes.copy()
    weights[[BLENDSHAPE_INDEX[f"mouthSmile{side}"] for side in ("Left", "Right")]] = 0.8
    rig = build_rig(mesh, replace(face, blendshapes=weights), size=SIZE)
    mouth = Mouth(np.full((*SIZE, 3), 220, np.uint8), rig)
    assert mouth.own is not None

    def lower_edge(displacement):
        """Return the height of the lower teeth above the lower lip, in centimetres."""
        displacement = np.asarray(displacement, np.float32)
        bent = bend(rig, mesh, FaceMotion(vertices=displacement), displacement=displacement, gains=Gains())
        placed = mouth.placed(bent)
        assert placed is not None
        middle = placed.lower_teeth @ np.array([4.0 * 64, 0.7 * 64, 1])
        return (bent.places[14, 1] - middle[1]) / rig.pose.scale

    unsmiling, jaw = smile * np.float32(-0.8), basis.field("jawOpen") * np.float32(0.3)
    assert lower_edge(unsmiling + jaw) < 0
    assert lower_edge(jaw) > 0.2


def test_teeth_do_not_shrink_with_lips_that_a_portrait_draws_together(mesh):
    basis = ExpressionBasis(mesh)
    closed = basis.lips_apart * np.float32(-gap_cm(mesh.vertices) / gap_cm(basis.lips_apart))
    face = made_face(mesh, scale=20, displacement=closed + basis.field("mouthPucker"))
    weights = face.blendshapes.copy()
    weights[BLENDSHAPE_INDEX["mouthPucker"]] = 0.95
    rgb = np.full((*SIZE, 3), (200, 160, 140), np.uint8)

    def tooth(face):
        """Return a centimetre of the upper row, in pixels."""
        rig = build_rig(mesh, face, size=SIZE)
        opened = basis.field("jawOpen") * np.float32(0.5)
        bent = bend(rig, mesh, FaceMotion(vertices=opened), displacement=opened, gains=Gains())
        placed = Mouth(rgb, rig).placed(bent)
        assert placed is not None and placed.upper_teeth is not None
        return np.linalg.norm(placed.upper_teeth[:, 0])

    narrow, drawn_together = tooth(face), tooth(replace(face, blendshapes=weights))
    assert drawn_together > 1.3 * narrow
