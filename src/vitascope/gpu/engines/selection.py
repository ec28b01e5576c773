"""Choose a network's engine: the requested one, or the fastest that is installed and gives right results.

A driver, a compiler or a GPU can make a network wrong without an error. So before an engine is chosen
automatically, its outputs for random inputs are compared with ONNX Runtime's on the CPU. The verdict is
cached on disk by network, engine and version, GPU, driver, arithmetic and Vitascope version.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar, get_args

import numpy as np
import numpy.typing as npt

from vitascope import __version__
from vitascope.device import probe_gpus
from vitascope.errors import EngineError, MissingDependencyError, VitascopeError, one_line
from vitascope.file_lock import write_atomically
from vitascope.gpu.engines.engine import Engine, Precision, ShapeRange
from vitascope.gpu.engines.onnx_library import ort
from vitascope.gpu.engines.onnx_runtime import PROVIDER_LABELS, OnnxRuntimeEngine, Provider, missing_provider
from vitascope.gpu.engines.trt_plan import load_tensorrt
from vitascope.gpu.kernels.cuda_module import import_cupy

Arrays = Mapping[str, npt.NDArray[Any]]
"""NumPy arrays by name."""

Runner = Callable[[Arrays], Arrays]
"""Maps inputs to outputs, both in host memory."""

_FORMAT = "vitascope-verdict-3"
# Outputs that are almost zero everywhere have no scale.
_SMALLEST_SCALE = 1e-6


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Largest allowed errors, relative to the reference's mean and largest magnitude."""

    mean: float
    largest: float


TOLERANCES: Mapping[Precision, Tolerance] = {
    "fp32": Tolerance(5e-4, 5e-3),
    "tf32": Tolerance(5e-2, 2e-1),
    "mixed": Tolerance(5e-2, 2e-1),
    "fp16": Tolerance(5e-2, 2e-1),
    "int8": Tolerance(2e-1, 1.0),
}
"""Tolerances by arithmetic. They separate wrong results from rounding; they do not grade mattes.

At least 2.5 times the errors of RobustVideoMatting's coefficients of alpha on random pictures of 256x144 and
512x288, our kernels and PyTorch on one H200 against ONNX Runtime: 3e-6 and 2.4e-5 in fp32, 1.2e-2 and 4.4e-2
in tf32, 2e-2 and 6.7e-2 in mixed and fp16. A network that loses its state, swaps colours or repeats a frame
differs by 0.37 of the mean and more. int8 was not measured with any network."""


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine that a verdict applies to."""

    gpu: str
    """Name and compute capability."""
    driver: str

    @classmethod
    def of_gpu(cls, device_id: int) -> Machine:
        """Describe this machine with one of its GPUs.

        Raises:
            MissingDependencyError: CuPy is not installed.
        """
        runtime = import_cupy().cuda.runtime
        properties = runtime.getDeviceProperties(device_id)
        name = properties["name"].decode(errors="replace")
        listed = probe_gpus()  # one driver serves all GPUs; without nvidia-smi, use CUDA's own version
        driver = listed[0].driver if listed else f"CUDA {runtime.driverGetVersion()}"
        return cls(f"{name}, compute capability {properties['major']}.{properties['minor']}", driver)


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """Subject of a verdict; another engine version or driver is another subject."""

    model: str
    """The network's sha256."""
    engine: str
    """Name and version, such as ``onnxruntime 1.31.1 (CUDA, fp16)``."""
    precision: Precision
    machine: Machine


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome, with the evidence on one line."""

    passed: bool
    reason: str


class SelfCheck:
    """Compares engines with a reference.

    Args:
        reference: The network under ONNX Runtime on the CPU; run once, only if a verdict is not cached.
        make_inputs: Makes random inputs.
        cache_dir: Folder of cached verdicts; None disables caching.
    """

    def __init__(
        self, *, reference: Runner, make_inputs: Callable[[], Arrays], cache_dir: Path | None
    ) -> None:
        self._reference = reference
        self._make_inputs = make_inputs
        self._cache_dir = cache_dir
        self._example: tuple[Arrays, Arrays] | None = None

    def verdict(self, subject: Subject, run: Runner) -> Verdict:
        """Look up the verdict on an engine, or reach it by running the engine.

        The runner's exceptions propagate and are not cached: a GPU short of memory now may have some later.
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
    """Look up a verdict cached by this version of Vitascope, or decide and cache it.

    A damaged cache file is removed and the verdict decided again.

    Args:
        about: Everything that the verdict depends on, as JSON values.
        decide: Reaches a verdict; its exceptions propagate and are not cached.
        cache_dir: Folder of cached verdicts; None disables caching.
    """
    if cache_dir is None:
        return decide()
    about = {**about, "vitascope": __version__}  # an engine may run our own kernels
    digest = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()
    path = cache_dir / f"{digest[:32]}.verdict.json"
    if (kept := _load(path, about)) is not None:
        return kept
    verdict = decide()
    content = {"format": _FORMAT, "about": about, **asdict(verdict)}
    # If the folder is not writable, the verdict is lost, and every process decides again.
    with contextlib.suppress(OSError):
        write_atomically(path, (json.dumps(content, indent=1) + "\n").encode())
    return verdict


def compare(outputs: Arrays, expected: Arrays, tolerance: Tolerance) -> Verdict:
    """Compare outputs with the expected ones; the worst output decides."""
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
    """Wrap an engine in a runner, which moves arrays to the GPU and back if necessary."""

    def run(inputs: Arrays) -> Arrays:
        if engine.spec.device == "cpu":
            return engine.run(inputs)
        cupy = import_cupy()
        results = engine.run({name: cupy.asarray(array) for name, array in inputs.items()})
        return {name: cupy.asnumpy(array) for name, array in results.items()}

    return run


def _load(path: Path, about: Mapping[str, Any]) -> Verdict | None:
    """Load a cached verdict; None if there is none. An invalid file is removed."""
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


class Closable(Protocol):
    """An open engine, or a network on its engine."""

    def close(self) -> None:
        """Free its resources."""
        ...


OpenedT = TypeVar("OpenedT", bound=Closable)


# Without slots: a frozen generic class with slots cannot be called as Candidate[X](…).
@dataclass(frozen=True, kw_only=True)
class Candidate(Generic[OpenedT]):
    """An engine that may be able to run a network: not open yet, perhaps not installed."""

    name: str
    """Name to request it by; several ways to run one library share a name."""
    precision: Precision
    open: Callable[[], OpenedT]
    """Opens the engine; raises a ``VitascopeError`` on failure."""
    describe: Callable[[OpenedT], str]
    """Returns engine and version, for reports."""
    runner: Callable[[OpenedT], Runner]
    """Makes the runner for the self-check."""
    is_reference: bool = False
    """True for ONNX Runtime on the CPU, the reference of the self-check."""


@dataclass(frozen=True)
class Chosen(Generic[OpenedT]):
    """The chosen engine, and the reasons."""

    engine: OpenedT
    name: str
    """The candidate's name."""
    reasons: tuple[str, ...]
    """One line per candidate tried, for the report; the last is about ``engine``."""


def choose_engine(
    candidates: Sequence[Candidate[OpenedT]],
    *,
    wanted: str = "auto",
    reference: Runner,
    make_inputs: Callable[[], Arrays],
    model: str,
    machine: Machine,
    cache_dir: Path | None,
) -> Chosen[OpenedT]:
    """Open the first candidate that is installed and passes its self-check.

    Args:
        candidates: Candidates, fastest first.
        wanted: A candidate's name, or ``auto``. One of the candidates with that name has to work.
        reference: The network under ONNX Runtime on the CPU.
        make_inputs: Makes random inputs for the check.
        model: The network's sha256.
        machine: The machine that verdicts apply to.
        cache_dir: Folder of cached verdicts; None checks each time.

    Returns:
        The open engine; the caller closes it.

    Raises:
        EngineError: No candidate works, or none is named ``wanted``.
        MissingDependencyError: None of them is installed; the message names the packages.
        VitascopeError: The error of opening or checking, if only one candidate is named ``wanted``.
    """
    admitted = [candidate for candidate in candidates if wanted in ("auto", candidate.name)]
    if not admitted:
        known = dict.fromkeys(candidate.name for candidate in candidates)
        raise EngineError(f"no engine is called {wanted!r} here; there are {', '.join((*known, 'auto'))}")
    check = SelfCheck(reference=reference, make_inputs=make_inputs, cache_dir=cache_dir)
    reasons: list[str] = []
    all_missing = True
    for candidate in admitted:
        try:
            engine, reason = _open_checked(candidate, check, model=model, machine=machine)
        except VitascopeError as error:
            if len(admitted) == 1:
                raise
            all_missing = all_missing and isinstance(error, MissingDependencyError)
            reasons.append(f"{candidate.name} is not used: {one_line(error)}")
            continue
        return Chosen(engine, candidate.name, (*reasons, reason))
    kind = MissingDependencyError if all_missing else EngineError
    raise kind(f"no engine works here: {'; '.join(dict.fromkeys(reasons))}")


def _open_checked(
    candidate: Candidate[OpenedT], check: SelfCheck, *, model: str, machine: Machine
) -> tuple[OpenedT, str]:
    """Return the open engine and the reason for choosing it."""
    engine = candidate.open()
    try:
        return engine, _reason(candidate, engine, check, model=model, machine=machine)
    except BaseException:
        engine.close()
        raise


def _reason(
    candidate: Candidate[OpenedT], engine: OpenedT, check: SelfCheck, *, model: str, machine: Machine
) -> str:
    """Return the reason that an engine may be used.

    Raises:
        EngineError: It failed its check.
    """
    shown = candidate.describe(engine)
    if candidate.is_reference:
        return f"{shown} is used: the others are checked against it"
    subject = Subject(model=model, engine=shown, precision=candidate.precision, machine=machine)
    verdict = check.verdict(subject, candidate.runner(engine))
    if not verdict.passed:
        raise EngineError(f"{shown} failed its check on {machine.gpu}: {verdict.reason}")
    return f"{shown} is used: {verdict.reason}"


Opener = Callable[[Path | bytes, Mapping[str, ShapeRange]], Engine]
"""Opens a network, given its input sizes, which engines for any size ignore."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuOptions:
    """Options of networks on a GPU, for all engines."""

    cache_dir: Path
    """Folder for TensorRT's built engines."""
    precision: Precision = "tf32"
    tensorrt_precision: Precision | None = None
    """Arithmetic of TensorRT, alone and inside ONNX Runtime; None for ``precision``."""
    workspace_bytes: int | None = None
    """Limit of TensorRT's scratch memory, in bytes; None keeps its own limit."""
    device_id: int = 0
    cuda_graph: bool = False
    """Replay CUDA graphs under ONNX Runtime, which then refuses networks with operators on the CPU."""
    cudnn_benchmark: bool = True
    deterministic: bool = False


def gpu_openers(options: GpuOptions) -> list[tuple[str, Precision, Opener]]:
    """List names, arithmetic and openers: ``tensorrt`` first, then ONNX Runtime's GPU providers.

    Missing packages show only when an opener is called.
    """
    built = options.tensorrt_precision or options.precision
    return [
        ("tensorrt", built, partial(_open_tensorrt, options, built)),
        ("onnxruntime", built, partial(_open_onnx_runtime, options, "tensorrt", built)),
        ("onnxruntime", built, partial(_open_onnx_runtime, options, "tensorrt-rtx", built)),
        ("onnxruntime", options.precision, partial(_open_onnx_runtime, options, "cuda", options.precision)),
    ]


def _open_tensorrt(
    options: GpuOptions, precision: Precision, model: Path | bytes, profiles: Mapping[str, ShapeRange]
) -> Engine:
    from vitascope.gpu.engines.trt_plan import TrtPlan

    return TrtPlan(
        model,
        profiles=profiles,
        precision=precision,
        device_id=options.device_id,
        cache_dir=options.cache_dir,
        workspace_bytes=options.workspace_bytes,
    )


def _open_onnx_runtime(
    options: GpuOptions,
    provider: Provider,
    precision: Precision,
    model: Path | bytes,
    profiles: Mapping[str, ShapeRange],
) -> Engine:
    builds = provider != "cuda"
    return OnnxRuntimeEngine(
        model,
        provider=provider,
        device_id=options.device_id,
        precision=precision,
        cuda_graph=options.cuda_graph,
        cudnn_benchmark=options.cudnn_benchmark,
        deterministic=options.deterministic,
        cache_dir=options.cache_dir if builds else None,
        profiles=profiles if builds else None,
        workspace_bytes=options.workspace_bytes if provider == "tensorrt" else None,
    )


@dataclass(frozen=True, slots=True)
class InstalledEngine:
    """An engine, or a package that engines need."""

    name: str
    version: str | None
    """None if it is missing."""
    missing: str | None
    """Why it cannot be used and how to install it; None if it can be tried."""


def engine_inventory() -> list[InstalledEngine]:
    """List ONNX Runtime with its providers, TensorRT, and the converter for fp16 and int8.

    A listed provider's libraries may still be incompatible: only opening a network shows that. Loads TensorRT
    and the TensorRT-RTX plugin if installed, which takes a second.
    """
    # Imported here: it takes 20 ms, which most runs do not need.
    from importlib.metadata import PackageNotFoundError, version

    listed = [
        _status(f"ONNX Runtime, {PROVIDER_LABELS[provider]}", ort.__version__, missing_provider(provider))
        for provider in get_args(Provider)
    ]
    try:
        listed.append(InstalledEngine("TensorRT", load_tensorrt().__version__, None))
    except MissingDependencyError as error:
        listed.append(InstalledEngine("TensorRT", None, str(error)))
    try:
        listed.append(InstalledEngine("Model Optimizer", version("nvidia-modelopt"), None))
    except PackageNotFoundError:
        reason = "fp16 and int8 ONNX networks cannot be made: pip install 'nvidia-modelopt[onnx]'"
        listed.append(InstalledEngine("Model Optimizer", None, reason))
    return listed


def _status(name: str, installed: str, missing: str | None) -> InstalledEngine:
    return InstalledEngine(name, None if missing else installed, missing)
