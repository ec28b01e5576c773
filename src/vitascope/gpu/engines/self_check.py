"""Checking once that an engine computes on this machine what ONNX Runtime computes on the CPU, and remembering it.

A driver, a compiler or a GPU can make a network wrong without making it fail. So before an engine is chosen by itself,
its outputs for random inputs are compared with those of ONNX Runtime on the CPU. The verdict is kept on disk for this
network, engine and version, GPU, driver, arithmetic and Vitascope.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from vitascope import __version__
from vitascope.device import probe_gpus
from vitascope.file_lock import write_atomically
from vitascope.gpu.engines.engine import Engine, Precision
from vitascope.gpu.engines.gpu_arrays import import_cupy

Arrays = Mapping[str, npt.NDArray[Any]]
"""NumPy arrays by name."""

Runner = Callable[[Arrays], Arrays]
"""Anything that gives outputs for inputs, both in the host's memory."""

_FORMAT = "vitascope-verdict-2"
# Outputs that are all but zero everywhere have no scale of their own.
_SMALLEST_SCALE = 1e-6


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Largest allowed errors, as shares of the reference's mean and largest magnitude."""

    mean: float
    largest: float


TOLERANCES: Mapping[Precision, Tolerance] = {
    "fp32": Tolerance(5e-4, 5e-3),
    "tf32": Tolerance(2e-2, 2e-1),
    "mixed": Tolerance(2e-2, 2e-1),
    "fp16": Tolerance(2e-2, 2e-1),
    "int8": Tolerance(2e-1, 1.0),
}
"""Tolerances by arithmetic. They tell a wrong network from rounding, and do not grade mattes.

At least 2.5 times what RobustVideoMatting's coefficients were off by on random pictures of 256x144 and 512x288, in
PyTorch on one H200 against ONNX Runtime: 2e-6 and 1.5e-5 in fp32, 5e-3 and 4e-2 in tf32, 8e-3 and 6e-2 in mixed and
fp16. A network that forgets its state, swaps colours or sees a frame twice is far outside of all of them but int8's,
which no network has been measured for."""


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine that a verdict holds on."""

    gpu: str
    """Name and compute capability."""
    driver: str

    @classmethod
    def of_gpu(cls, device_id: int) -> Machine:
        """This machine, with one of its GPUs.

        Raises:
            MissingDependencyError: CuPy is not installed.
        """
        runtime = import_cupy().cuda.runtime
        properties = runtime.getDeviceProperties(device_id)
        name = properties["name"].decode(errors="replace")
        listed = probe_gpus()  # one driver serves all GPUs; without its tool CUDA's own number must do
        driver = listed[0].driver if listed else f"CUDA {runtime.driverGetVersion()}"
        return cls(f"{name}, compute capability {properties['major']}.{properties['minor']}", driver)


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """The subject of a verdict; another engine version or driver makes another subject."""

    model: str
    """The network's sha256."""
    engine: str
    """Name and version, for example ``onnxruntime 1.31.1 (CUDA, fp16)``."""
    precision: Precision
    machine: Machine


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome, and one line that says what it rests on."""

    passed: bool
    reason: str


class SelfCheck:
    """Compares engines with one reference.

    Args:
        reference: The network under ONNX Runtime on the CPU; run once, and only when a verdict is not yet known.
        cache_dir: Where verdicts are kept; None keeps none.
    """

    def __init__(
        self, *, reference: Runner, make_inputs: Callable[[], Arrays], cache_dir: Path | None
    ) -> None:
        self._reference = reference
        self._make_inputs = make_inputs
        self._cache_dir = cache_dir
        self._example: tuple[Arrays, Arrays] | None = None

    def verdict(self, subject: Subject, run: Runner) -> Verdict:
        """The verdict on an engine: as it was kept, else by running it.

        What the runner raises passes through, and is not kept: a GPU without memory now may have some tomorrow.
        """

        def decide() -> Verdict:
            if self._example is None:
                inputs = self._make_inputs()
                self._example = (inputs, self._reference(inputs))
            inputs, expected = self._example
            return compare(run(inputs), expected, TOLERANCES[subject.precision])

        about = {"subject": asdict(subject), "tolerance": asdict(TOLERANCES[subject.precision])}
        return kept_verdict(about, decide, cache_dir=self._cache_dir)


def kept_verdict(
    about: Mapping[str, Any], decide: Callable[[], Verdict], *, cache_dir: Path | None
) -> Verdict:
    """The verdict on something: as this version of Vitascope has kept it, else decided now, and kept.

    A damaged verdict is removed and decided again.

    Args:
        about: All that the verdict depends on, as JSON has it.
        decide: Comes to a verdict; what it raises passes through, and is not kept.
        cache_dir: Where verdicts are kept; None keeps none.
    """
    if cache_dir is None:
        return decide()
    about = {**about, "vitascope": __version__}  # an engine may run kernels of ours
    digest = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()
    path = cache_dir / f"{digest[:32]}.verdict.json"
    if (kept := _load(path, about)) is not None:
        return kept
    verdict = decide()
    content = {"format": _FORMAT, "about": about, **asdict(verdict)}
    # In a directory that cannot be written the verdict is lost, and every process decides again.
    with contextlib.suppress(OSError):
        write_atomically(path, (json.dumps(content, indent=1) + "\n").encode())
    return verdict


def compare(outputs: Arrays, expected: Arrays, tolerance: Tolerance) -> Verdict:
    """Compare outputs with what they should be; the worst of them decides."""
    if missing := sorted(set(expected) - set(outputs)):
        return Verdict(False, f"gives no {missing[0]}")
    worst = ("", 0.0, 0.0)
    for name, reference in expected.items():
        output = np.asarray(outputs[name], np.float64)
        if output.shape != reference.shape:
            return Verdict(False, f"gives {name} as {list(output.shape)} instead of {list(reference.shape)}")
        if not np.isfinite(output).all():
            return Verdict(False, f"gives {name} with values that are not numbers")
        magnitude = np.abs(np.asarray(reference, np.float64))
        error = np.abs(output - reference)
        mean = float(error.mean() / max(magnitude.mean(), _SMALLEST_SCALE))
        largest = float(error.max() / max(magnitude.max(), _SMALLEST_SCALE))
        if max(mean / tolerance.mean, largest / tolerance.largest) >= max(
            worst[1] / tolerance.mean, worst[2] / tolerance.largest
        ):
            worst = (name, mean, largest)
    name, mean, largest = worst
    return Verdict(
        mean <= tolerance.mean and largest <= tolerance.largest,
        f"its {name} differs from the CPU's by {mean:.2g} of the mean and {largest:.2g} of the "
        f"largest value ({tolerance.mean:g} and {tolerance.largest:g} are allowed)",
    )


def host_runner(engine: Engine) -> Runner:
    """A runner around an engine, which carries arrays to the GPU and back where it needs them there."""

    def run(inputs: Arrays) -> Arrays:
        if engine.spec.device == "cpu":
            return engine.run(inputs)
        cupy = import_cupy()
        results = engine.run({name: cupy.asarray(array) for name, array in inputs.items()})
        return {name: cupy.asnumpy(array) for name, array in results.items()}

    return run


def _load(path: Path, about: Mapping[str, Any]) -> Verdict | None:
    """Load a kept verdict; None if there is none. A file with anything else is removed."""
    try:
        content = json.loads(path.read_bytes())
    except OSError:
        return None
    except (ValueError, RecursionError):
        content = None
    match content:
        case {"format": str(fmt), "about": dict(kept), "passed": bool(passed), "reason": str(reason)} if (
            fmt == _FORMAT and kept == about
        ):
            return Verdict(passed, reason)
    with contextlib.suppress(OSError):
        path.unlink()
    return None
