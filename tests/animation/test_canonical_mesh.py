"""Tests of the canonical face from the model's bundle, and of poses measured with it."""

from __future__ import annotations

import zipfile

import numpy as np
import pytest
from faces import made_face
from hypothesis import given, settings
from hypothesis import strategies as st

from vitascope.animation import canonical_mesh
from vitascope.animation.canonical_mesh import (
    EYES,
    FACE_OVAL,
    INNER_LOWER_LIP,
    INNER_UPPER_LIP,
    fit_pose,
    read_canonical_mesh,
)
from vitascope.animation.face import angles_of
from vitascope.errors import ModelError

MEMBER = "geometry_pipeline_metadata_landmarks.binarypb"


def varint(value):
    return bytes([value]) if value < 128 else bytes([value % 128 + 128]) + varint(value // 128)


def test_it_is_mediapipes_mesh(mesh):
    assert mesh.vertices.shape == (468, 3)
    assert mesh.triangles.shape == (898, 3)
    assert (mesh.pose_weights > 0).sum() == 33


def test_it_is_the_mesh_of_the_bundle(mesh, face_model_file):
    """Check that its protocol buffer encoding (GeometryPipelineMetadata) is part of the bundle."""
    with zipfile.ZipFile(face_model_file) as archive:
        data = archive.read(MEMBER)
    assert b"".join(b"\x20" + varint(int(corner)) for corner in mesh.triangles.flat) in data
    begin = data.index(b"\x1d" + mesh.vertices[0, 0].tobytes() + b"\x1d" + mesh.vertices[0, 1].tobytes())
    stored = np.frombuffer(data[begin : begin + 468 * 5 * 5], np.uint8).reshape(
        468, 5, 5
    )  # x, y, z, u, v, with tags
    assert stored[:, :3, 1:].tobytes() == mesh.vertices.tobytes()
    for vertex in np.flatnonzero(mesh.pose_weights):
        assert b"\x08" + varint(int(vertex)) + b"\x15" + mesh.pose_weights[vertex].tobytes() in data
    # A closed surface except for its border: every inner edge belongs to two triangles.
    edges = np.sort(np.concatenate([mesh.triangles[:, [a, b]] for a, b in ((0, 1), (1, 2), (2, 0))]), axis=1)
    _, counts = np.unique(edges, axis=0, return_counts=True)
    assert set(counts) == {1, 2}
    border = {frozenset(pair) for pair in zip(FACE_OVAL, (*FACE_OVAL[1:], FACE_OVAL[0]), strict=True)}
    ends = {
        frozenset(edge) for edge, count in zip(np.unique(edges, axis=0), counts, strict=True) if count == 1
    }
    assert ends == border


def test_landmark_sets_lie_where_their_names_say(mesh):
    right, left = (mesh.vertices[list(eye.upper)].mean(axis=0) for eye in EYES)
    assert right[0] < 0 < left[0]
    for eye in EYES:
        assert (mesh.vertices[list(eye.upper[1:-1]), 1] > mesh.vertices[list(eye.lower[1:-1]), 1]).all()
    upper, lower = mesh.vertices[list(INNER_UPPER_LIP)], mesh.vertices[list(INNER_LOWER_LIP)]
    assert (upper[1:-1, 1] > lower[1:-1, 1]).all()
    assert (np.diff(upper[:, 0]) > 0).all()


@settings(max_examples=25, deadline=None)
@given(st.floats(-40, 40), st.floats(-30, 30), st.floats(-60, 60), st.floats(3, 60))
def test_a_pose_is_found_again(mesh, yaw, pitch, roll, scale):
    face = made_face(mesh, yaw=yaw, pitch=pitch, roll=roll, scale=scale, centre=(100, 50))
    pose = fit_pose(mesh, face.landmarks)
    assert np.allclose(angles_of(pose.rotation), (yaw, pitch, roll), atol=0.05)
    assert pose.scale == pytest.approx(scale, rel=1e-3)
    assert np.allclose(pose.shift[:2], (100, 50), atol=0.05 * scale)
    assert np.allclose(pose.unplace(face.landmarks)[:468], mesh.vertices, atol=0.02)


def test_an_open_mouth_is_no_larger_head(mesh):
    from vitascope.animation.expression import ExpressionBasis

    jaw = ExpressionBasis(mesh).field("jawOpen")
    shut = fit_pose(mesh, made_face(mesh).landmarks)
    wide = fit_pose(mesh, made_face(mesh, displacement=jaw).landmarks)
    assert wide.scale == pytest.approx(shut.scale, rel=0.01)


def test_the_transform_and_the_fit_agree(mesh, astronaut_face):
    pose = fit_pose(mesh, astronaut_face.landmarks)
    # MediaPipe fits with perspective, we without: near the picture's middle they differ by a few degrees.
    assert np.allclose(angles_of(pose.rotation), astronaut_face.angles_degrees, atol=6)


def test_a_mesh_that_is_missing_says_so(monkeypatch, tmp_path):
    path = tmp_path / "canonical_face.npz"
    monkeypatch.setattr(canonical_mesh, "_FILE", path)
    with pytest.raises(ModelError, match="reinstall"):
        read_canonical_mesh()
    path.write_bytes(b"PK\x03\x04 no zip")
    with pytest.raises(ModelError, match="reinstall"):
        read_canonical_mesh()
