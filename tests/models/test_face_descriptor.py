"""Tests of turning faces upright and describing them, with a network of few channels."""

import json

import cv2
import numpy as np
import pytest

from vitascope.errors import ModelError
from vitascope.models.face_descriptor import FaceDescriptor, upright_face

POINTS = np.array([[47, 47.5], [103, 47.5], [75, 79], [51, 103.5], [99, 103.5]])


def arrays():
    """Build the first block of each kind, with 4 and 8 channels."""
    random = np.random.default_rng(5)
    shapes = {"conv32_down": (7, 3, 4), "conv32_1/conv1": (3, 4, 4), "conv32_1/conv2": (3, 4, 4)}
    for block, inner in (("conv64_down", 4), ("conv128_down", 8), ("conv256_down", 8)):
        shapes |= {f"{block}/conv1": (3, inner, 8), f"{block}/conv2": (3, 8, 8)}
    made = {}
    for name, (side, inner, outer) in shapes.items():
        made[f"{name}/conv/filters"] = random.normal(0, 0.2, (side, side, inner, outer))
        made[f"{name}/conv/bias"] = random.normal(0, 0.1, outer)
        made[f"{name}/scale/weights"] = random.normal(1, 0.1, outer)
        made[f"{name}/scale/biases"] = random.normal(0, 0.1, outer)
    return made | {"fc": random.normal(0, 1, (8, 128))}


def write(path, *, packed):
    listed, content = [], b""
    for name, values in arrays().items():
        entry = {"name": name, "shape": list(values.shape), "dtype": "float32"}
        if packed:
            low, scale = float(values.min()), float(np.ptp(values)) / 255 or 1.0
            entry["quantization"] = {"dtype": "uint8", "scale": scale, "min": low}
            content += np.rint((values - low) / scale).astype(np.uint8).tobytes()
        else:
            content += values.astype("<f4").tobytes()
        listed.append(entry)
    path.write_bytes(json.dumps([{"weights": listed}], indent=1).encode() + content)
    return path


@pytest.fixture
def faces():
    return list(np.random.default_rng(3).integers(0, 255, (3, 150, 150, 3), np.uint8))


def test_each_face_has_a_description_of_its_own(tmp_path, faces):
    with FaceDescriptor(write(tmp_path / "w", packed=False), threads=1) as descriptor:
        together = descriptor.describe(faces)
        alone = np.concatenate([descriptor.describe([face]) for face in faces])
    assert together.shape == (3, 128) and together.dtype == np.float32
    np.testing.assert_allclose(together, alone, atol=1e-4)
    assert np.linalg.norm(together[0] - together[1]) > 1e-3


def test_arrays_of_bytes_are_those_of_numbers_but_for_rounding(tmp_path, faces):
    found = []
    for packed in (False, True):
        with FaceDescriptor(write(tmp_path / "w", packed=packed), threads=1) as descriptor:
            found.append(descriptor.describe(faces))
    assert np.linalg.norm(found[0] - found[1]) < 0.05 * np.linalg.norm(found[0])


@pytest.mark.parametrize(
    "spoil",
    [
        lambda whole: whole[:-1],
        lambda whole: whole + b"0",
        lambda _: b"",
        lambda _: b"[{\n]",
        lambda _: b"[" * 100_000 + b"\n]",
        lambda whole: whole.replace(b'"conv64_down/conv1/conv/bias"', b"3"),
    ],
)
def test_another_file_is_refused(tmp_path, spoil):
    path = write(tmp_path / "w", packed=False)
    path.write_bytes(spoil(path.read_bytes()))
    with pytest.raises(ModelError, match="not the network that describes faces"):
        FaceDescriptor(path)


def test_a_face_is_turned_scaled_and_put_in_its_place():
    rgb = np.zeros((400, 500, 3), np.uint8)
    turn = 0.5 * np.array([[np.cos(0.4), -np.sin(0.4)], [np.sin(0.4), np.cos(0.4)]])
    points = (POINTS - 75) @ turn.T + (300, 200)
    for (x, y), color in zip(points, np.eye(5, 3) * 200 + 55, strict=True):
        rgb[round(y) - 1 : round(y) + 2, round(x) - 1 : round(x) + 2] = color
    upright, off = upright_face(rgb, points)
    assert upright.shape == (150, 150, 3) and off < 1e-6
    for (x, y), color in zip(POINTS, np.eye(5, 3) * 200 + 55, strict=True):
        assert np.abs(upright[round(y), round(x)] - color).max() < 60


def test_who_looks_away_is_off():
    away = POINTS.copy()
    away[2, 0] += 25  # move the nose beside the face
    assert upright_face(np.zeros((150, 150, 3), np.uint8), away)[1] > 6


@pytest.mark.parametrize("pixel_aspect", [2.0, 0.5])
def test_a_face_that_is_squeezed_as_coded_is_upright_as_it_is_shown(pixel_aspect):
    whole = np.repeat(np.repeat(np.random.default_rng(2).integers(0, 255, (20, 20, 3), np.uint8), 8, 0), 8, 1)
    width, height = (80, 160) if pixel_aspect > 1 else (160, 80)
    squeezed = cv2.resize(whole, (width, height), interpolation=cv2.INTER_AREA)
    points = POINTS + 5
    expected, _ = upright_face(whole, points)
    upright, off = upright_face(squeezed, points * (width, height) / 160, pixel_aspect=pixel_aspect)
    assert off < 1e-6
    assert np.abs(upright.astype(int) - expected).mean() < 15
    assert upright_face(squeezed, points * (width, height) / 160)[1] > 8
