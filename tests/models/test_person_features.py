"""Tests of the pose detector's trunk, as shipped."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import onnx
import pytest
from skimage import data

from vitascope.errors import EngineError, ModelError
from vitascope.models.selfie.presence import FEATURE_COUNT, TRUNK_PATH, PersonFeatures


def picture(values: np.ndarray) -> np.ndarray:
    return cv2.resize(values, (256, 256), interpolation=cv2.INTER_AREA).astype(np.float32) / 255


def test_features_are_the_mean_over_the_views() -> None:
    features, astronaut, coffee = PersonFeatures(threads=1), picture(data.astronaut()), picture(data.coffee())
    alone = [features.of([view]) for view in (astronaut, coffee)]
    both = features.of([astronaut, coffee])
    assert both.shape == (FEATURE_COUNT,)
    assert both.dtype == np.float32
    np.testing.assert_allclose(both, np.mean(alone, axis=0), atol=1e-4)
    assert np.abs(alone[0] - alone[1]).max() > 1
    features.close()


def test_features_are_means_and_then_maxima_of_a_clipped_rectifier() -> None:
    features = PersonFeatures(threads=1)
    found = features.of([picture(data.astronaut())])
    mean, largest = found[: FEATURE_COUNT // 2], found[FEATURE_COUNT // 2 :]
    assert found.min() >= 0
    assert found.max() <= 6
    assert (mean <= largest + 1e-6).all()
    assert largest.max() > 1
    features.close()


def test_the_size_of_a_view_matters_little() -> None:
    features = PersonFeatures(threads=1)
    view = picture(data.astronaut())
    small = cv2.resize(view, (224, 224), interpolation=cv2.INTER_AREA)
    np.testing.assert_allclose(features.of([view]), features.of([small]), atol=1e-6)
    features.close()


def test_weights_lie_as_half_floats_and_no_operator_is_special() -> None:
    model = onnx.load(str(TRUNK_PATH))
    large = [t for t in model.graph.initializer if int(np.prod(t.dims)) > 8]
    assert {tensor.data_type for tensor in large} == {onnx.TensorProto.FLOAT16}
    assert {node.domain for node in model.graph.node} <= {"", "ai.onnx"}
    assert [output.name for output in model.graph.output] == ["mean", "max"]
    assert TRUNK_PATH.stat().st_size < 5.2e6


def test_closing_twice_is_harmless_and_asking_afterwards_is_an_error() -> None:
    features = PersonFeatures(threads=1)
    features.close()
    features.close()
    with pytest.raises(ModelError, match="closed"):
        features.of([np.zeros((256, 256, 3), np.float32)])


def test_a_file_that_is_not_a_network_is_refused_when_it_is_needed(tmp_path: Path) -> None:
    path = tmp_path / "text.onnx"
    path.write_text("not a network")
    features = PersonFeatures(path)
    with pytest.raises(EngineError, match=r"text\.onnx"):
        features.of([np.zeros((256, 256, 3), np.float32)])
