"""Tests of what a head uncovers when it moves away from its picture's border."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from vitascope.animation.face import FaceMotion, rotation_from_degrees
from vitascope.animation.mesh.animator import MeshAnimator
from vitascope.animation.mesh.border import widened
from vitascope.animation.mesh.head import find_person
from vitascope.animation.mesh.rig import build_rig

TOP, LEFT, BOTTOM, RIGHT = 62, 160, 240, 300
"""A crop of the astronaut that cuts off her hair at the top, and nothing on the left."""
DOWN = FaceMotion(translation=np.array([0.0, 3.0], np.float32))


@pytest.fixture(scope="module")
def crop(astronaut):
    return np.ascontiguousarray(astronaut[TOP:BOTTOM, LEFT:RIGHT])


@pytest.fixture(scope="module")
def face(astronaut_face):
    moved = astronaut_face.landmarks - np.array([LEFT, TOP, 0], np.float32)
    return replace(astronaut_face, landmarks=moved, picture_size=(RIGHT - LEFT, BOTTOM - TOP))


@pytest.fixture(scope="module")
def animator(mesh, crop, face):
    with MeshAnimator(mesh) as made:
        made.set_portrait(crop, face=face)
        yield made


def made_wide(mesh, rgb, face, matte):
    return widened(rgb, face, build_rig(mesh, face, size=matte.shape), matte)


def test_a_picture_goes_on_where_the_person_is_near_its_border(mesh, crop, face):
    height, width = crop.shape[:2]
    matte = np.zeros((height, width), np.float32)
    matte[:, 60:90] = 1
    wide = made_wide(mesh, crop, face, matte)
    assert wide.shown.top > 0 and wide.rgb.shape[0] > height + wide.shown.top
    assert wide.shown.left == 0 or matte[:, : wide.shown.left].any()
    assert (wide.shown.of(wide.rgb) == crop).all()
    np.testing.assert_allclose(wide.shown.of(wide.person), matte, atol=1e-5)
    assert (wide.shown.of(wide.person_seen) == matte).all() and wide.person_seen.sum() == matte.sum()
    assert wide.person[wide.shown.top - 5].max() > 0.9 and wide.person[0, 0] < 0.1
    offset = [wide.shown.left, wide.shown.top, 0]
    np.testing.assert_allclose(wide.face.landmarks, face.landmarks + offset, atol=1e-3)
    assert wide.face.picture_size == wide.rgb.shape[1::-1]


def test_a_picture_stays_where_nobody_is_near_its_border(mesh, crop, face):
    matte = np.zeros(crop.shape[:2], np.float32)
    assert made_wide(mesh, crop, face, matte) is None
    matte[-1, 66:72] = 1
    wide = made_wide(mesh, crop, face, matte)
    assert (wide.shown.left, wide.shown.top) == (0, 0)
    assert wide.rgb.shape[0] > len(crop) and wide.rgb.shape[1] == crop.shape[1]


@pytest.mark.parametrize("turns", range(4))
def test_nothing_is_seen_twice(mesh, crop, face, turns):
    plain = np.full_like(crop, 120)
    matte = np.ones(crop.shape[:2], np.float32)
    side = np.rot90(plain, turns)  # a view with each side at the top in turn
    side[12:30, 20:-20] = 0
    wide = made_wide(mesh, plain, face, matte)
    beyond = np.ones(wide.rgb.shape[:2], bool)
    wide.shown.of(beyond)[...] = False
    assert beyond.any() and abs(wide.rgb[beyond].astype(int) - 120).max() < 12


def test_colours_go_on_and_grow_even(mesh, crop, face):
    stripes = np.repeat(np.where(np.arange(crop.shape[1]) % 8 < 4, 60, 180)[None], len(crop), axis=0)
    rgb = np.repeat(stripes[..., None], 3, axis=2).astype(np.uint8)
    wide = made_wide(mesh, rgb, face, np.ones(crop.shape[:2], np.float32))
    above = wide.shown.of(wide.rgb)[0], wide.rgb[wide.shown.top - 1], wide.rgb[0]
    columns = slice(wide.shown.left + 20, wide.shown.left + 100)
    before, beside, far = (row if len(row) == crop.shape[1] else row[columns] for row in above)
    assert np.abs(beside.astype(int) - before[20:100]).mean() < 30
    assert far.std() < 8 and abs(far.mean() - 120) < 8


def test_at_rest_the_portrait_is_as_it_was(animator, crop):
    assert animator._portrait.rgb.shape != crop.shape
    still = animator.animate(FaceMotion())
    assert still.shape == crop.shape and still.flags.c_contiguous
    # Except for eyes and mouth, which are redrawn.
    assert (still[:15] == crop[:15]).all() and (np.abs(still.astype(int) - crop) > 24).mean() < 0.01


def test_hair_goes_on_above_a_head_that_moves_down(animator, crop):
    moved = animator.animate(DOWN).astype(int)
    hair, strip = crop[:6, 50:90].reshape(-1, 3).mean(axis=0), moved[:8, 50:90].reshape(-1, 3).mean(axis=0)
    assert np.abs(strip - hair).max() < 25
    skin = crop[60:70, 60:75].reshape(-1, 3).mean(axis=0)
    assert np.abs(strip - hair).max() < np.abs(strip - skin).max()


def test_pictures_are_drawn_into_memory_of_the_portraits_size(animator, crop):
    turned = FaceMotion(rotation=rotation_from_degrees(12, 5, 0))
    out = np.empty_like(crop)
    assert animator.animate(turned, out=out) is out
    first = animator.animate(turned)
    assert (out == first).all()
    animator.animate(DOWN)
    assert (out == first).all()  # it belongs to the caller


def test_a_portrait_without_a_person_at_its_border_is_not_widened(mesh, astronaut, astronaut_face):
    grown = np.pad(astronaut, ((300, 0), (0, 0), (0, 0)), mode="edge")
    face = replace(astronaut_face, landmarks=astronaut_face.landmarks + np.array([0, 300, 0], np.float32))
    rig = build_rig(mesh, face, size=grown.shape[:2])
    assert widened(grown, face, rig, find_person(grown, rig)) is None
