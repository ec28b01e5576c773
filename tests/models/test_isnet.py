"""Tests of making ISNet's file accept all picture sizes, with a small network of the same structure."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from vitascope.errors import ModelError
from vitascope.models.finders import SalientObjects


def network() -> onnx.ModelProto:
    """Halves a picture, enlarges it to a size written in the file, and takes red; a second output is not used."""
    size = numpy_helper.from_array(np.array([1024, 1024], np.int64))
    first = helper.make_node("Constant", [], ["size"], value=size)
    nodes = [
        first,
        helper.make_node("AveragePool", ["input"], ["half"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Shape", ["half"], ["shape"]),
        helper.make_node("Slice", ["shape", "zero", "two"], ["front"]),
        helper.make_node("Concat", ["front", "size"], ["wanted"], axis=0),
        helper.make_node("Resize", ["half", "", "", "wanted"], ["large"], mode="linear"),
        helper.make_node("Slice", ["large", "zero", "one", "channel"], ["red"]),
        helper.make_node("Add", ["red", "level"], ["output"]),
    ]
    picture = helper.make_tensor_value_info("input", TensorProto.FLOAT, [1, 3, 1024, 1024])
    outputs = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, channels, side, side])
        for name, channels, side in (("output", 1, 1024), ("half", 3, 512))
    ]
    constants = [
        numpy_helper.from_array(np.array([value], np.int64), name)
        for name, value in (("zero", 0), ("one", 1), ("two", 2), ("channel", 1))
    ]
    constants.append(numpy_helper.from_array(np.array([0.5], np.float32), "level"))
    graph = helper.make_graph(nodes, "tiny", [picture], outputs, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 15)], ir_version=8)


def test_what_stands_out_comes_at_the_pictures_own_size(tmp_path: Path) -> None:
    path = tmp_path / "isnet.onnx"
    onnx.save(network(), path)
    rgb = np.zeros((90, 160, 3), np.uint8)
    rgb[:, 80:] = 250, 10, 10
    with SalientObjects(path, threads=1) as salient:
        found = salient.find(rgb)
    assert found.shape == (90, 160)
    assert found.dtype == np.float32
    assert np.allclose(found[:, :70], 0, atol=0.01)  # (0 - 128) / 256 + 0.5
    assert np.allclose(found[:, 90:], 250 / 256, atol=0.01)


def test_another_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "isnet.onnx"
    path.write_bytes(b"no network")
    with pytest.raises(ModelError, match=r"isnet\.onnx: not ISNet"):
        SalientObjects(path)
