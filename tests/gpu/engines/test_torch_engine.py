"""Tests of PyTorch networks behind the engine interface, on the CPU: modes, plans, packages, switches."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from vitascope.errors import EngineError
from vitascope.gpu.engines import TensorSpec
from vitascope.gpu.engines.torch_engine import TorchEngine, torch_flags

FLOAT = np.dtype(np.float32)
INPUTS = (TensorSpec("x", FLOAT, ("n", 3, "w")), TensorSpec("state", FLOAT, ("n", 1)))
OUTPUTS = (TensorSpec("y", FLOAT, ("n", 3, "w")), TensorSpec("after", FLOAT, ("n", 1)))

needs_compiler = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("g++") is None, reason="the compiler needs g++"),
    pytest.mark.skipif(sys.platform != "linux", reason="packages are built on Linux"),
    # torch's own code warns inside the compiler; ours must not.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"),
]


class Recurrent(torch.nn.Module):
    """``y = w x + state``, and the state's running sum."""

    def __init__(self):
        super().__init__()
        self.register_buffer("weight", torch.tensor([[1.0], [2.0], [3.0]]))

    def forward(self, x, state):
        y = x * self.weight + state[:, None]
        return y, state + x.sum((1, 2))[:, None]


def engine(**options):
    return TorchEngine(Recurrent(), inputs=INPUTS, outputs=OUTPUTS, label="sum", **options)


def arrays(width=5, count=2):
    rng = np.random.default_rng(width)
    return {
        "x": rng.random((count, 3, width), dtype=np.float32),
        "state": rng.random((count, 1), dtype=np.float32),
    }


def assert_right(results, inputs):
    weight = np.float32([[1], [2], [3]])
    np.testing.assert_allclose(results["y"], inputs["x"] * weight + inputs["state"][:, None], rtol=1e-6)
    after = inputs["state"] + inputs["x"].sum((1, 2))[:, None]
    np.testing.assert_allclose(results["after"], after, rtol=1e-5)


def test_eager_runs_any_shape_and_keeps_few_plans():
    with engine(most_plans=2) as running:
        for width in (1, 5, 9, 5, 1):
            inputs = arrays(width)
            assert_right(running.run(inputs), inputs)
            assert running.plan_count <= 2
        assert list(running.run(arrays(), ["after"])) == ["after"]
        assert running.spec.device == "cpu"
        assert running.name.startswith(f"torch {torch.__version__} (cpu")


def test_read_only_arrays_are_taken_and_left_alone():
    inputs = arrays()
    for array in inputs.values():
        array.flags.writeable = False
    with engine() as running:
        assert_right(running.run(inputs), inputs)


def test_a_module_of_one_result_and_an_exported_program():
    spec = TensorSpec("x", FLOAT, (4,))
    x = {"x": np.arange(4, dtype=np.float32) - 2}
    with TorchEngine(torch.nn.ReLU(), inputs=[spec], outputs=[TensorSpec("y", FLOAT, (4,))]) as running:
        np.testing.assert_array_equal(running.run(x)["y"], [0, 0, 0, 1])
    exported = torch.export.export(Recurrent(), (torch.zeros(2, 3, 5), torch.zeros(2, 1)))
    with TorchEngine(exported, inputs=INPUTS, outputs=OUTPUTS) as running:
        assert_right(running.run(arrays()), arrays())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": None}, "'x' is nothing"),
        ({"x": np.zeros((2, 3, 5))}, "float64"),
        ({"x": np.zeros((2, 3), np.float32)}, r"\[2, 3\]"),
        ({"x": np.zeros((2, 4, 5), np.float32)}, "inference of"),
    ],
)
def test_wrong_inputs_are_named(change, message):
    inputs = {name: array for name, array in {**arrays(), **change}.items() if array is not None}
    with engine() as running, pytest.raises(EngineError, match=message):
        running.run(inputs)


def test_streams_unknown_outputs_and_closed_engines_are_refused():
    running = engine()
    with pytest.raises(EngineError, match="cannot use a CUDA stream"):
        running.run(arrays(), stream=1)
    with pytest.raises(EngineError, match="no output is called 'z'"):
        running.run(arrays(), ["z"])
    running.close()
    running.close()
    with pytest.raises(EngineError, match="closed"):
        running.run(arrays())


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_missing_gpu_is_an_engine_error():
    with pytest.raises(EngineError, match="cuda:0"):
        engine(device="cuda:0")


class SeesFlags(torch.nn.Module):
    """Returns the switches that it runs under."""

    def forward(self, x):
        cudnn = torch.backends.cudnn
        flags = [
            torch.backends.cuda.matmul.allow_tf32,
            cudnn.allow_tf32,
            cudnn.benchmark,
            cudnn.deterministic,
        ]
        return x + torch.tensor([float(flag) for flag in flags])


@pytest.mark.parametrize("allow_tf32", [False, True])
@pytest.mark.parametrize("cudnn_benchmark", [False, True])
@pytest.mark.parametrize("cudnn_deterministic", [False, True])
def test_switches_act_inside_and_nowhere_else(allow_tf32, cudnn_benchmark, cudnn_deterministic):
    flags = {
        "allow_tf32": allow_tf32,
        "cudnn_benchmark": cudnn_benchmark,
        "cudnn_deterministic": cudnn_deterministic,
    }
    spec = TensorSpec("x", FLOAT, (4,))
    zeros = {"x": np.zeros(4, np.float32)}
    with torch_flags(allow_tf32=not allow_tf32, cudnn_benchmark=False, cudnn_deterministic=False):
        with TorchEngine(SeesFlags(), inputs=[spec], outputs=[spec], **flags) as running:
            seen = running.run(zeros)["x"]
        assert torch.backends.cuda.matmul.allow_tf32 is (not allow_tf32)
        assert torch.backends.cudnn.deterministic is False
    assert seen.tolist() == [allow_tf32, allow_tf32, cudnn_benchmark, cudnn_deterministic]


def test_packages_need_a_directory_and_a_fingerprint(tmp_path):
    with pytest.raises(EngineError, match="directory"):
        engine(mode="aot", fingerprint="one")
    with pytest.raises(EngineError, match="fingerprint"):
        engine(mode="aot", cache_dir=tmp_path)


class TestCompiled:
    pytestmark = needs_compiler

    def test_compile_gives_the_same(self, capfd, monkeypatch):
        for name, value in (
            ("cpp_cache_precompile_headers", False),
            ("cpp.vec_isa_ok", True),
        ):  # as for packages
            monkeypatch.setattr(f"torch._inductor.config.{name}", value)
        with engine(mode="compile") as running:
            for width in (5, 9):
                inputs = arrays(width)
                assert_right(running.run(inputs), inputs)
            assert "compile" in running.name
        assert capfd.readouterr() == ("", "")


BUILT_AFTER_BOTH = """
import importlib.util
import json
import sys
from pathlib import Path

importlib.util.find_spec("pip")
import distutils.core

sys.path.insert(0, sys.argv[1])
from test_torch_engine import aot, arrays, assert_right
from torch._inductor import config

config.aot_inductor.precompile_headers = False  # gain time from the second package on
config.cpp.vec_isa_ok = True  # else small programs are compiled first, to see what the processor can do
config.aot_inductor.compile_wrapper_opt_level = "O0"  # of what calls the kernels
notes = []
with aot(Path(sys.argv[2]), notes) as running:
    assert_right(running.run(arrays()), arrays())
print(json.dumps(notes))
"""
SETUPTOOLS_AFTER = """
import importlib.util
import sys

{before}
from vitascope.gpu.engines.torch_engine import _import_setuptools

_import_setuptools()
assert "setuptools" in sys.modules
print("vitascope" in sys.modules["setuptools"].find_packages(sys.argv[1]))
"""


def said_by(program, *words):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program, *words], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Build the package of one shape, and return its directory and the notes.

    The compiler takes ten seconds. So it runs once, under the hardest conditions: in a process that met both
    pip and distutils.
    """
    directory = tmp_path_factory.mktemp("packages")
    return directory, json.loads(said_by(BUILT_AFTER_BOTH, str(Path(__file__).parent), str(directory)))


@pytest.fixture
def packages(built, tmp_path):
    return shutil.copytree(built[0], tmp_path / "packages")


@pytest.fixture
def compiled_again(built, monkeypatch):
    """Replace the compiler, which takes ten seconds, with one that copies an earlier package; returns its calls."""
    (package,) = built[0].glob("*.pt2")
    written = []

    def compile_and_package(_, *, package_path, **__):
        written.append(shutil.copy(package, package_path))
        return package_path

    monkeypatch.setattr(torch._inductor, "aoti_compile_and_package", compile_and_package)
    return written


def aot(directory, notes, fingerprint="one"):
    return engine(mode="aot", cache_dir=directory, fingerprint=fingerprint, on_note=notes.append)


@pytest.mark.parametrize("before", ["import distutils.core", "importlib.util.find_spec('pip')"])
def test_the_builder_finds_setuptools_in_a_process_that_met_distutils_or_pip_first(before):
    sources = Path(__file__).parents[3] / "src"
    assert said_by(SETUPTOOLS_AFTER.format(before=before), str(sources)) == "True"


class TestPackages:
    pytestmark = needs_compiler

    def test_a_package_is_built_once(self, built):
        directory, notes = built
        assert len(notes) == 1
        assert "not there yet: built" in notes[0]
        again = []
        with aot(directory, again) as running:
            assert_right(running.run(arrays()), arrays())
            assert running.notes == again == []
        assert sorted(path.suffix for path in directory.iterdir()) == [".json", ".pt2"]

    def test_other_weights_are_another_package(self, packages, compiled_again):
        notes = []
        with aot(packages, notes, fingerprint="two") as running:
            assert_right(running.run(arrays()), arrays())
        assert "not there yet" in notes[0]
        assert len(compiled_again) == 1
        assert len(list(packages.glob("*.pt2"))) == 2

    @pytest.mark.parametrize(
        ("field", "value"), [("torch", "1.0"), ("device", "GPU of old"), ("capability", "2.0")]
    )
    def test_a_package_of_another_machine_is_rebuilt_and_said_so(
        self, packages, compiled_again, field, value
    ):
        (note,) = packages.glob("*.json")
        note.write_text(json.dumps({**json.loads(note.read_text()), field: value}))
        notes = []
        with aot(packages, notes) as running:
            assert_right(running.run(arrays()), arrays())
        assert len(notes) == 1
        assert "rebuilt" in notes[0]
        assert value in notes[0]
        assert value not in note.read_text()
        assert len(compiled_again) == 1

    @pytest.mark.parametrize("damage", ["truncated", "garbage", "no note", "garbage with its sum"])
    def test_a_damaged_package_is_removed_and_rebuilt(self, packages, compiled_again, damage):
        (package,), (note,) = packages.glob("*.pt2"), packages.glob("*.json")
        if damage == "truncated":
            package.write_bytes(package.read_bytes()[:-100])
        elif damage == "no note":
            note.unlink()
        else:
            package.write_bytes(b"not a package")
        if damage == "garbage with its sum":
            from vitascope.gpu.engines.torch_engine import _sha256

            note.write_text(json.dumps({**json.loads(note.read_text()), "sha256": _sha256(package)}))
        notes = []
        with aot(packages, notes) as running:
            assert_right(running.run(arrays()), arrays())
        assert len(notes) == 1
        assert "removed and rebuilt" in notes[0]
        again = []
        with aot(packages, again) as running:
            assert_right(running.run(arrays()), arrays())
        assert again == []
        assert len(compiled_again) == 1

    def test_a_build_that_fails_leaves_nothing(self, tmp_path, monkeypatch):
        def fail(*_, package_path, **__):
            with open(package_path, "wb") as file:  # noqa: PTH123 - what the compiler had written so far
                file.write(b"half")
            raise RuntimeError("no compiler")

        monkeypatch.setattr(torch._inductor, "aoti_compile_and_package", fail)
        with aot(tmp_path, []) as running, pytest.raises(EngineError, match="no compiler"):
            running.run(arrays())
        assert list(tmp_path.iterdir()) == []

    def test_a_directory_that_cannot_be_made_is_named(self, tmp_path):
        (tmp_path / "file").write_text("")
        with aot(tmp_path / "file" / "packages", []) as running, pytest.raises(EngineError, match="packages"):
            running.run(arrays())
