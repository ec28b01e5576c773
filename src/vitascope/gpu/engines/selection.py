"""Choosing the engine for a network: the fastest that is installed and right, or the one that was requested."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Generic, Protocol, TypeVar, get_args

from vitascope.errors import EngineError, MissingDependencyError, VitascopeError, one_line
from vitascope.gpu.engines.engine import Engine, Precision, ShapeRange
from vitascope.gpu.engines.onnx_library import ort
from vitascope.gpu.engines.onnx_runtime import PROVIDER_LABELS, OnnxRuntimeEngine, Provider, missing_provider
from vitascope.gpu.engines.self_check import Arrays, Machine, Runner, SelfCheck, Subject
from vitascope.gpu.engines.trt_plan import load_tensorrt


class Closable(Protocol):
    """An opened engine, or a network on its engine."""

    def close(self) -> None:
        """Free it."""
        ...


OpenedT = TypeVar("OpenedT", bound=Closable)


# Without slots: with them, a frozen generic class cannot be called as Candidate[X](…).
@dataclass(frozen=True, kw_only=True)
class Candidate(Generic[OpenedT]):
    """An engine that could run a network: not opened yet, perhaps not installed."""

    name: str
    """The name that one asks for it by; several ways to run one library share a name."""
    precision: Precision
    open: Callable[[], OpenedT]
    """Opens it; raises one of Vitascope's errors where that cannot be."""
    describe: Callable[[OpenedT], str]
    """Engine and version, as reports show it."""
    runner: Callable[[OpenedT], Runner]
    """Makes the runner that the self-check calls."""
    is_reference: bool = False
    """True for ONNX Runtime on the CPU, which the others are checked against."""


@dataclass(frozen=True)
class Chosen(Generic[OpenedT]):
    """The engine that was chosen, and why."""

    engine: OpenedT
    name: str
    """Its candidate's name."""
    reasons: tuple[str, ...]
    """One line for each candidate that was looked at, for the report; the last one is about ``engine``."""


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
        candidates: The fastest first.
        wanted: A name: one of the candidates that bear it has to work; or ``auto``.
        reference: The network under ONNX Runtime on the CPU.
        model: The network's sha256.
        cache_dir: Where verdicts are kept; None checks again each time.

    Returns:
        The opened engine; the caller closes it.

    Raises:
        EngineError: No candidate works, or none is called ``wanted``.
        MissingDependencyError: None of them is installed; the message names the packages.
        VitascopeError: What opening or checking raises, where one candidate alone is called ``wanted``.
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
    """An opened engine and the reason for taking it."""
    engine = candidate.open()
    try:
        return engine, _reason(candidate, engine, check, model=model, machine=machine)
    except BaseException:
        engine.close()
        raise


def _reason(
    candidate: Candidate[OpenedT], engine: OpenedT, check: SelfCheck, *, model: str, machine: Machine
) -> str:
    """The reason that an engine may be used.

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
"""Opens a network, given the sizes of its inputs; engines that take any size as it comes ignore them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuOptions:
    """Options of networks on a GPU, whichever engine runs them."""

    cache_dir: Path
    """Folder for what TensorRT builds."""
    precision: Precision = "tf32"
    tensorrt_precision: Precision | None = None
    """Arithmetic of TensorRT, alone and inside of ONNX Runtime, where that is not ``precision``."""
    workspace_bytes: int | None = None
    """Most scratch memory of TensorRT; None leaves its own limit."""
    device_id: int = 0
    cuda_graph: bool = False
    """Replay CUDA graphs under ONNX Runtime, which takes no network with operators on the CPU then."""
    cudnn_benchmark: bool = True
    deterministic: bool = False


def gpu_openers(options: GpuOptions) -> list[tuple[str, Precision, Opener]]:
    """Names, arithmetic and openers: of ``tensorrt``, then of ONNX Runtime's GPU providers.

    What is missing shows when an opener is called.
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
    """One engine, or a package that engines need."""

    name: str
    version: str | None
    """None when it is missing."""
    missing: str | None
    """The reason that it cannot be used, and what installs it; None when it can be tried."""


def engine_inventory() -> list[InstalledEngine]:
    """ONNX Runtime with each of its providers, TensorRT, and the converter for fp16 and int8.

    That a provider is there does not mean that its libraries fit: that shows when a network is opened. Loads TensorRT
    and the TensorRT-RTX plugin where they are installed, which takes a second.
    """
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
