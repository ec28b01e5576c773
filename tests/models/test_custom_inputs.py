"""Tests of the inputs of users' ONNX files, and of files that are refused."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper
from tiny_networks import FREE, RED, Shape, alphas, as_is, pictures, save, weighted

from vitascope.errors import EngineError, ModelError
from vitascope.gpu.engines.onnx_runtime import OnnxRuntimeEngine
from vitascope.models.custom.custom import open_custom_network
from vitascope.models.custom.decoders import NetworkKind
from vitascope.models.selfie.presence import PresenceGate

# --- inputs ------------------------------------------------------------------------------------------------------


def test_free_sizes_follow_the_region_and_fixed_ones_do_not(tmp_path: Path) -> None:
    shape = ["n", 1, "h", "w"]
    free = as_is(weighted(tmp_path / "free.onnx", RED, input_shape=FREE, outputs={"planes": shape}), "binary")
    assert free.input_for((1080, 1920)).size == (288, 512)
    assert free.input_for((1920, 1080)).size == (512, 288)
    assert free.input_for((1000, 1000)).size == (512, 512)
    assert free.input_for((1, 4000)).size == (32, 512)
    fixed = as_is(
        weighted(
            tmp_path / "fixed.onnx", RED, input_shape=[1, 3, 48, 80], outputs={"planes": [1, 1, 48, 80]}
        ),
        "binary",
    )
    assert fixed.input_for((1080, 1920)).size == (48, 80)
    images = pictures(3, 2, 3, 48, 80)  # a fixed batch of one takes six pictures one by one
    np.testing.assert_allclose(alphas(fixed, images), 1 / (1 + np.exp(-images[:, :, 0])), atol=1e-6)


def test_half_precision_networks_get_half_precision_pictures(tmp_path: Path) -> None:
    path = save(
        tmp_path / "half.onnx",
        [helper.make_node("ReduceMean", ["picture"], ["alpha"], axes=[1], keepdims=1)],
        input_shape=FREE,
        outputs={"alpha": ["n", 1, "h", "w"]},
        dtype=TensorProto.FLOAT16,
        output_dtype=TensorProto.FLOAT16,
    )
    images = np.full((1, 1, 3, 32, 32), 0.25, np.float32)
    result = alphas(as_is(path, "matte"), images)
    assert result.dtype == np.float32
    np.testing.assert_array_equal(result, 0.25)


def test_normalisation_is_the_kinds_or_the_users(tmp_path: Path) -> None:
    path = weighted(tmp_path / "net.onnx", RED, input_shape=FREE, outputs={"planes": ["n", 1, "h", "w"]})
    assert as_is(path, "matte").input_for((32, 32)).mean == (0.5, 0.5, 0.5)
    assert as_is(path, "binary").input_for((32, 32)).std == (0.229, 0.224, 0.225)
    own = ((0.1, 0.2, 0.3), (1.0, 2.0, 3.0))
    network = open_custom_network(path, kind="matte", normalisation=own, threads=1)
    assert (network.input_for((32, 32)).mean, network.input_for((32, 32)).std) == own


# --- refusals ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["matte", "binary", "yolo-seg"])
def test_a_wrong_kind_is_refused_when_opened(tmp_path: Path, kind: NetworkKind) -> None:
    path = weighted(
        tmp_path / "voc.onnx", np.ones((21, 3)), input_shape=FREE, outputs={"planes": ["n", 21, "h", "w"]}
    )
    message = rf"voc\.onnx: got outputs planes float32 \[1, 21, 288, 512\], expected .* for kind {kind}$"
    with pytest.raises(ModelError, match=message) as caught:
        open_custom_network(path, kind=kind, threads=1)
    assert "\n" not in str(caught.value)


def test_one_channel_is_not_semantic_and_takes_no_person_class(tmp_path: Path) -> None:
    path = weighted(tmp_path / "one.onnx", RED, input_shape=FREE, outputs={"planes": ["n", 1, "h", "w"]})
    with pytest.raises(ModelError, match="for kind semantic"):
        open_custom_network(path, kind="semantic", threads=1)
    with pytest.raises(ModelError, match="takes no person class"):
        open_custom_network(path, kind="matte", person_class=0, threads=1)


@pytest.mark.parametrize("shape", [[1, 4, 32, 32], [4, 3, 32, 32], [1, 3], ["n", "c", "h", "w"]])
def test_inputs_that_are_not_one_picture_are_refused(tmp_path: Path, shape: Shape) -> None:
    path = save(
        tmp_path / "odd.onnx",
        [helper.make_node("Sigmoid", ["picture"], ["out"])],
        input_shape=shape,
        outputs={"out": shape},
    )
    with pytest.raises(ModelError, match=r"odd\.onnx: got inputs picture .* expected one picture"):
        open_custom_network(path, kind="matte", threads=1)


def test_a_network_that_cannot_take_the_picture_is_refused(tmp_path: Path) -> None:
    path = save(
        tmp_path / "stuck.onnx",
        [helper.make_node("Reshape", ["picture", "shape"], ["out"])],
        input_shape=FREE,
        outputs={"out": [1, 1, 5, 5]},
        constants={"shape": np.array([1, 1, 5, 5], np.int64)},
    )
    with pytest.raises(ModelError, match="does not take a 512x288 picture"):
        open_custom_network(path, kind="matte", threads=1)


def test_files_that_are_no_networks_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"absent\.onnx: no such file"):
        open_custom_network(tmp_path / "absent.onnx", kind="matte")
    text = tmp_path / "text.onnx"
    text.write_text("not a network")
    with pytest.raises(EngineError, match=r"text\.onnx"):
        open_custom_network(text, kind="matte")
    with pytest.raises(ModelError, match="unknown kind 'portrait', expected one of matte, binary"):
        open_custom_network(text, kind="portrait")  # type: ignore[arg-type]


def test_a_foreign_state_a_wrong_picture_and_a_closed_network_are_errors(tmp_path: Path) -> None:
    network = as_is(
        weighted(tmp_path / "net.onnx", RED, input_shape=FREE, outputs={"planes": ["n", 1, "h", "w"]}),
        "binary",
    )
    images = pictures(1, 1, 3, 32, 32)
    with pytest.raises(ModelError, match="made by another network"):
        network.infer(images, PresenceGate())
    with pytest.raises(ModelError, match=r"expected float32 \[frames, eyes, 3, any, any\]"):
        network.infer(images[0], network.new_state())
    network.close()
    network.close()
    with pytest.raises(ModelError, match="closed"):
        network.infer(images, network.new_state())


@pytest.mark.parametrize(("height", "width"), [(65536, 65536), (32, 65536), (8192, 4096)])
def test_a_file_that_declares_a_huge_picture_is_refused_before_it_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, height: int, width: int
) -> None:
    shape: Shape = [1, 3, height, width]
    path = weighted(tmp_path / "huge.onnx", RED, input_shape=shape, outputs={"planes": [1, 1, height, width]})
    monkeypatch.setattr(OnnxRuntimeEngine, "run", lambda *_, **__: pytest.fail("it was run"))
    words = (
        f"pictures of {width}x{height}; a network may take at most 17 million samples, and 16384 along a side"
    )
    with pytest.raises(ModelError, match=words):
        open_custom_network(path, kind="matte")


ENDLESS = """
import sys
from pathlib import Path
from vitascope.models.custom.custom import open_custom_network
sys.stderr.write("opening\\n")
sys.stderr.flush()
open_custom_network(Path(sys.argv[1]), kind="matte")
"""


def endless(path: Path) -> Path:
    """Build a network with a loop whose condition is never false."""
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go"], ["go_on"]),
            helper.make_node("Identity", ["carried"], ["kept"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("turn", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("carried", TensorProto.FLOAT, None),
        ],
        [
            helper.make_tensor_value_info("go_on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("kept", TensorProto.FLOAT, None),
        ],
    )
    constant = helper.make_tensor("always", TensorProto.BOOL, [], [True])
    return save(
        path,
        [
            helper.make_node("Constant", [], ["always"], value=constant),
            helper.make_node("ReduceMean", ["picture"], ["grey"], axes=[1], keepdims=1),
            helper.make_node("Loop", ["", "always", "grey"], ["alpha"], body=body),
        ],
        input_shape=[1, 3, 32, 32],
        outputs={"alpha": [1, 1, 32, 32]},
    )


def test_ctrl_c_ends_a_network_that_never_answers(tmp_path: Path) -> None:
    command = [sys.executable, "-c", ENDLESS, str(endless(tmp_path / "endless.onnx"))]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "opening\n"
        time.sleep(1)
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=120)
    assert "KeyboardInterrupt" in said
    assert process.returncode in (-signal.SIGINT, 130, 1)
