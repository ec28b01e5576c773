"""Tests of users' ONNX files: tiny graphs of every kind, whose masks are known exactly."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper
from tiny_networks import FREE, RED, alphas, as_is, pictures, save, weighted

from fake_cupy import fake_cupy
from fake_gpu_engine import FakeGpuEngine
from vitascope.errors import ModelError
from vitascope.models.custom.custom import open_custom_network
from vitascope.models.network import FloatArray

# --- matte -------------------------------------------------------------------------------------------------------


def test_matte_is_the_value(tmp_path: Path) -> None:
    clip = helper.make_node("Clip", ["planes", "low", "high"], ["alpha"])
    path = save(
        tmp_path / "matte.onnx",
        [helper.make_node("Conv", ["picture", "kernel"], ["planes"]), clip],
        input_shape=FREE,
        outputs={"alpha": ["n", 1, "h", "w"]},
        constants={
            "kernel": np.asarray(RED, np.float32)[:, :, None, None],
            "low": np.float32(0).reshape(()),
            "high": np.float32(1).reshape(()),
        },
    )
    with_network = as_is(path, "matte")
    images = pictures(3, 2, 3, 8, 12)
    np.testing.assert_array_equal(alphas(with_network, images), np.clip(images[:, :, 0], 0, 1))
    assert with_network.name == "matte"
    assert "onnxruntime" in with_network.engine_name
    assert not with_network.recurrent


def test_matte_may_lack_the_channel_axis_or_have_it_last(tmp_path: Path) -> None:
    sigmoid = helper.make_node("Sigmoid", ["planes"], ["soft"])
    squeeze = helper.make_node("Squeeze", ["soft", "axis"], ["alpha"])
    kernel = {"kernel": np.asarray(RED, np.float32)[:, :, None, None]}
    convolution = helper.make_node("Conv", ["picture", "kernel"], ["planes"])
    flat = save(
        tmp_path / "flat.onnx",
        [convolution, sigmoid, squeeze],
        input_shape=FREE,
        outputs={"alpha": ["n", "h", "w"]},
        constants=kernel | {"axis": np.array([1], np.int64)},
    )
    last = save(
        tmp_path / "last.onnx",
        [convolution, sigmoid, helper.make_node("Transpose", ["soft"], ["alpha"], perm=[0, 2, 3, 1])],
        input_shape=FREE,
        outputs={"alpha": ["n", "h", "w", 1]},
        constants=kernel,
    )
    images = pictures(1, 2, 3, 9, 16)
    expected = 1 / (1 + np.exp(-images[:, :, 0]))
    for path in (flat, last):
        np.testing.assert_allclose(alphas(as_is(path, "matte"), images), expected, atol=1e-6)


def test_matte_outside_its_range_is_refused_with_advice(tmp_path: Path) -> None:
    network = as_is(
        weighted(tmp_path / "logits.onnx", RED, input_shape=FREE, outputs={"planes": ["n", 1, "h", "w"]}),
        "matte",
    )
    with pytest.raises(
        ModelError, match=r"holds -1\.\.3, expected 0\.\.1 for kind matte; declare kind binary"
    ):
        images = np.zeros((1, 1, 3, 4, 4), np.float32)
        images[0, 0, 0, 0, :2] = 3, -1
        network.infer(images, network.new_state())
    with pytest.raises(ModelError, match="nan"):
        network.infer(np.full((1, 1, 3, 4, 4), np.nan, np.float32), network.new_state())


# --- binary ------------------------------------------------------------------------------------------------------


def test_binary_logits_get_a_sigmoid_and_probabilities_do_not(tmp_path: Path) -> None:
    logits = weighted(tmp_path / "logits.onnx", RED, input_shape=FREE, outputs={"planes": ["n", 1, "h", "w"]})
    soft = weighted(
        tmp_path / "soft.onnx",
        RED,
        nodes=[
            helper.make_node("Sigmoid", ["planes"], ["soft"]),
            helper.make_node("Identity", ["soft"], ["out"]),
        ],
        input_shape=FREE,
        outputs={"out": ["n", 1, "h", "w"]},
    )
    images = pictures(2, 1, 3, 8, 8)
    expected = 1 / (1 + np.exp(-images[:, :, 0]))
    for path in (logits, soft):
        np.testing.assert_allclose(alphas(as_is(path, "binary"), images), expected, atol=1e-6)
    far = np.full((1, 1, 3, 4, 4), -1e30, np.float32)
    assert alphas(as_is(logits, "binary"), far).max() < 1e-30


def test_binary_with_two_channels_is_a_softmax(tmp_path: Path) -> None:
    weights = [[1.0, 0, 0], [0, 1.0, 0]]
    path = weighted(tmp_path / "two.onnx", weights, input_shape=FREE, outputs={"planes": ["n", 2, "h", "w"]})
    images = pictures(2, 2, 3, 6, 10)
    difference = images[:, :, 1] - images[:, :, 0]
    np.testing.assert_allclose(
        alphas(as_is(path, "binary"), images), 1 / (1 + np.exp(-difference)), atol=1e-6
    )
    first = open_custom_network(path, kind="binary", person_class=0, threads=1)
    np.testing.assert_allclose(alphas(first, images), 1 / (1 + np.exp(difference)), atol=1e-6)


# --- semantic ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("class_count", "person"), [(21, 15), (19, 11), (150, 12)])
@pytest.mark.parametrize("inside", ["logits", "softmax"])
def test_semantic_is_the_persons_softmax(tmp_path: Path, class_count: int, person: int, inside: str) -> None:
    weights = np.random.default_rng(1).normal(0, 1, (class_count, 3))
    softmax = [helper.make_node("Softmax", ["planes"], ["out"], axis=1)] if inside == "softmax" else []
    name = "out" if softmax else "planes"
    shape = ["n", class_count, "h", "w"]
    path = weighted(tmp_path / "net.onnx", weights, nodes=softmax, input_shape=FREE, outputs={name: shape})
    images = pictures(1, 2, 3, 5, 7)
    logits = np.einsum("cr,terhw->techw", weights, images)
    expected = np.exp(logits[:, :, person]) / np.exp(logits).sum(axis=2)
    np.testing.assert_allclose(alphas(as_is(path, "semantic"), images), expected, atol=1e-5)


def test_more_classes_than_rows_are_still_classes(tmp_path: Path) -> None:
    weights = np.random.default_rng(1).normal(0, 1, (150, 3))
    path = weighted(
        tmp_path / "ade.onnx", weights, input_shape=[1, 3, 64, 64], outputs={"planes": [1, 150, 64, 64]}
    )
    assert alphas(as_is(path, "semantic"), pictures(1, 1, 3, 64, 64)).shape == (1, 1, 64, 64)


def test_semantic_with_channels_last(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("MatMul", ["picture", "weights"], ["planes"]),
    ]
    weights = np.random.default_rng(2).normal(0, 1, (3, 21)).astype(np.float32)
    path = save(
        tmp_path / "nhwc.onnx",
        nodes,
        input_shape=[1, 16, 16, 3],
        outputs={"planes": [1, 16, 16, 21]},
        constants={"weights": weights},
    )
    network = as_is(path, "semantic")
    assert network.input_for((100, 300)).layout == "NHWC"
    images = pictures(2, 1, 16, 16, 3)
    logits = images @ weights
    expected = np.exp(logits[..., 15]) / np.exp(logits).sum(axis=-1)
    np.testing.assert_allclose(alphas(network, images), expected, atol=1e-5)


@pytest.mark.parametrize("keep", [0, 1])
def test_a_map_of_classes_is_compared(tmp_path: Path, keep: int) -> None:
    weights = np.eye(3)
    shape = ["n", 1, "h", "w"] if keep else ["n", "h", "w"]
    path = weighted(
        tmp_path / "map.onnx",
        weights,
        nodes=[helper.make_node("ArgMax", ["planes"], ["classes"], axis=1, keepdims=keep)],
        input_shape=FREE,
        outputs={"classes": shape},
        output_dtype=TensorProto.INT64,
    )
    network = open_custom_network(path, kind="semantic", person_class=2, threads=1)
    images = pictures(2, 2, 3, 8, 8)
    np.testing.assert_array_equal(alphas(network, images), images.argmax(axis=2) == 2)
    with pytest.raises(ModelError, match=r"map of class numbers; name the person's"):
        open_custom_network(path, kind="semantic", threads=1)


def test_an_unknown_number_of_classes_asks_for_the_person(tmp_path: Path) -> None:
    path = weighted(
        tmp_path / "seven.onnx", np.ones((7, 3)), input_shape=FREE, outputs={"planes": ["n", 7, "h", "w"]}
    )
    with pytest.raises(ModelError, match="which of its 7 classes is the person's"):
        open_custom_network(path, kind="semantic", threads=1)
    with pytest.raises(ModelError, match="person class 7 is not one of its 7 classes"):
        open_custom_network(path, kind="semantic", person_class=7, threads=1)
    open_custom_network(path, kind="semantic", person_class=6, threads=1).close()


# --- yolo-seg ----------------------------------------------------------------------------------------------------


def yolo(path: Path, rows: FloatArray, prototypes: FloatArray, *, class_count: int = 2) -> Path:
    """Answers every 64 x 32 picture with the same detections [4 + classes + k, anchors] and prototypes [k, h, w]."""
    assert rows.shape[0] == 4 + class_count + len(prototypes)
    nodes = [
        helper.make_node("ReduceMax", ["picture"], ["largest"], axes=[1, 2, 3], keepdims=1),
        helper.make_node("Mul", ["largest", "zero"], ["nothing"]),
        helper.make_node("Squeeze", ["nothing", "axis"], ["nothing3"]),
        helper.make_node("Add", ["rows", "nothing3"], ["detections"]),
        helper.make_node("Add", ["planes", "nothing"], ["prototypes"]),
    ]
    return save(
        path,
        nodes,
        input_shape=[1, 3, 32, 64],
        outputs={"detections": [1, *rows.shape], "prototypes": [1, *prototypes.shape]},
        constants={
            "zero": np.zeros(1, np.float32),
            "axis": np.array([3], np.int64),
            "rows": rows[None].astype(np.float32),
            "planes": prototypes[None].astype(np.float32),
        },
    )


def anchor(
    box: tuple[float, float, float, float], scores: tuple[float, float], masks: tuple[float, float]
) -> list[float]:
    return [*box, *scores, *masks]


PROTOTYPES = np.stack([np.full((8, 16), 50.0), np.where(np.arange(16) < 8, 50.0, -50.0)[None].repeat(8, 0)])
YOLO_PICTURES = np.zeros((1, 1, 3, 32, 64), np.float32)


def test_yolo_unites_the_persons_masks_inside_their_boxes(tmp_path: Path) -> None:
    rows = np.array(
        [
            anchor((16, 16, 16, 16), (0.9, 0.1), (1, 0)),  # a person, mask everywhere: its box
            anchor(
                (32, 16, 64, 8), (0.6, 0.1), (0, 1)
            ),  # a person with a mask in the left half: rows 12..20, left half
            anchor((56, 16, 16, 32), (0.1, 0.9), (1, 0)),  # the other class
            anchor((56, 4, 8, 8), (0.2, 0.1), (1, 0)),  # not certain enough
        ],
        np.float32,
    ).T
    network = as_is(yolo(tmp_path / "yolo.onnx", rows, PROTOTYPES), "yolo-seg")
    assert network.input_for((720, 1280)).size == (32, 64)
    expected = np.zeros((8, 16), np.float32)
    expected[2:6, 2:6] = 1  # 8..24 on both axes, at a quarter
    expected[3:5, 0:8] = 1
    np.testing.assert_allclose(alphas(network, YOLO_PICTURES)[0, 0], expected, atol=1e-6)
    other = open_custom_network(tmp_path / "yolo.onnx", kind="yolo-seg", person_class=1, threads=1)
    expected = np.zeros((8, 16), np.float32)
    expected[:, 12:16] = 1
    np.testing.assert_allclose(alphas(other, YOLO_PICTURES)[0, 0], expected, atol=1e-6)


def test_yolo_drops_worse_boxes_of_the_same_person(tmp_path: Path) -> None:
    rows = np.array(
        [
            anchor((16, 16, 18, 16), (0.5, 0), (1, 0)),  # the same person, less certain and wider: dropped
            anchor((16, 16, 16, 16), (0.9, 0), (1, 0)),
        ],
        np.float32,
    ).T
    alpha = alphas(as_is(yolo(tmp_path / "yolo.onnx", rows, PROTOTYPES), "yolo-seg"), YOLO_PICTURES)[0, 0]
    expected = np.zeros((8, 16), np.float32)
    expected[2:6, 2:6] = 1
    np.testing.assert_allclose(alpha, expected, atol=1e-6)


def test_yolo_without_people_is_empty(tmp_path: Path) -> None:
    rows = np.array([anchor((16, 16, 16, 16), (0.1, 0.9), (1, 0))], np.float32).T
    assert not alphas(as_is(yolo(tmp_path / "yolo.onnx", rows, PROTOTYPES), "yolo-seg"), YOLO_PICTURES).any()


# --- engines -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("free_batch", [True, False])
def test_a_gpu_engine_takes_pictures_from_either_side_and_mattes_come_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free_batch: bool
) -> None:
    cupy = fake_cupy()
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    shape = ["n" if free_batch else 1, 3, "h", "w"]
    path = save(
        tmp_path / "matte.onnx",
        [
            helper.make_node("Conv", ["picture", "kernel"], ["planes"]),
            helper.make_node("Sigmoid", ["planes"], ["alpha"]),
        ],
        input_shape=shape,
        outputs={"alpha": [shape[0], 1, "h", "w"]},
        constants={"kernel": np.asarray(RED, np.float32)[:, :, None, None]},
    )
    network = open_custom_network(path, kind="matte", open_engine=FakeGpuEngine)
    assert network.engine_name == "fake GPU engine 1.0"
    images = pictures(3, 2, 3, 8, 12)
    expected = 1 / (1 + np.exp(-images[:, :, 0]))
    for given in (images, cupy.asarray(images)):
        found = alphas(network, given)
        assert type(found) is np.ndarray
        np.testing.assert_allclose(found, expected, atol=1e-6)
    network.close()


def test_pictures_on_the_gpu_are_refused_by_an_engine_on_the_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cupy = fake_cupy()
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    path = weighted(tmp_path / "matte.onnx", RED, input_shape=FREE, outputs={"planes": ["n", 1, "h", "w"]})
    with pytest.raises(ModelError, match="on the CPU"):
        alphas(as_is(path, "matte"), cupy.asarray(pictures(1, 1, 3, 8, 12)))
