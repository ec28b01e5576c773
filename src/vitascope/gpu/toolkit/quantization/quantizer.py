"""``ModelQuantizer``: quantises PyTorch modules and ONNX networks.

A gate keeps a quantised network only if it is accurate enough and worth it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Generic, Literal, TypeAlias, TypeVar, get_args

import numpy as np

from vitascope.errors import DeviceError, EngineError, UsageError, VitascopeError
from vitascope.gpu.number_checks import check_count
from vitascope.gpu.toolkit.quantization import onnx_networks
from vitascope.gpu.toolkit.quantization.calibration import CalibrationMethod, FloatArray, named_frames

Comparable: TypeAlias = Any
"""A PyTorch module, an ONNX network (path or bytes), an engine (``run(dict) -> dict``), or a function of one
NumPy array that returns one."""

Run = Callable[[Mapping[str, FloatArray]], Mapping[str, FloatArray]]


def is_module(model: object) -> bool:
    """Whether it is a PyTorch module. Does not import PyTorch: a module's owner has done so."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(model, torch.nn.Module)


@contextmanager
def opened(model: Comparable, *, threads: int = 0) -> Iterator[tuple[Run, tuple[str, ...] | None]]:
    """Open a network; yields a function that runs it, and the names of its inputs, if known.

    Args:
        model: See ``Comparable``. ONNX networks open under ONNX Runtime on the CPU and are closed on exit.
        threads: Threads of ONNX Runtime; 0 uses every core.

    Raises:
        UsageError: It cannot be run.
        EngineError: It is not an ONNX network.
    """
    if is_module(model):
        yield _module_runner(model), None
    elif isinstance(model, bytes | str | PathLike):
        from vitascope.gpu.engines.onnx_runtime import OnnxRuntimeEngine

        source = model if isinstance(model, bytes) else Path(model)
        with OnnxRuntimeEngine(source, threads=threads) as engine:
            yield engine.run, tuple(tensor.name for tensor in engine.spec.inputs)
    elif hasattr(model, "run") and hasattr(model, "spec"):
        yield model.run, tuple(tensor.name for tensor in model.spec.inputs)
    elif callable(model):
        yield _callable_runner(model), None
    else:
        raise UsageError(f"{type(model).__name__} is not a module, ONNX network, engine or callable")


@contextmanager
def _failures_named(inputs: Mapping[str, FloatArray]) -> Iterator[None]:
    """Turn an exception of the user's network into an error that describes its inputs."""
    try:
        yield
    except VitascopeError:
        raise
    except Exception as error:
        shapes = ", ".join(str(list(array.shape)) for array in inputs.values())
        reason = str(error).strip().partition("\n")[0]
        raise EngineError(
            f"the network does not take {shapes}: {reason} (frames are along the first axis, one per call)"
        ) from error


def _module_runner(model: Any) -> Run:
    import torch

    example = next(
        (p for p in [*model.parameters(), *model.buffers()] if p.is_floating_point()), torch.zeros(())
    )

    def run(inputs: Mapping[str, FloatArray]) -> Mapping[str, FloatArray]:
        tensors = [
            torch.from_numpy(np.ascontiguousarray(array)).to(example.device, example.dtype)
            for array in inputs.values()
        ]
        with torch.inference_mode(), _failures_named(inputs):
            results = model(*tensors)
        named = _named(results)
        return {name: tensor.float().cpu().numpy() for name, tensor in named.items()}

    return run


def _callable_runner(call: Callable[[Any], Any]) -> Run:
    def run(inputs: Mapping[str, FloatArray]) -> Mapping[str, FloatArray]:
        with _failures_named(inputs):
            results = call(*inputs.values())
        return {name: np.asarray(array) for name, array in _named(results).items()}

    return run


def _named(results: Any) -> dict[str, Any]:
    if isinstance(results, Mapping):
        return dict(results)
    if isinstance(results, tuple | list):
        return {f"output_{index}": result for index, result in enumerate(results)}
    return {"output": results}


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Accuracy and speed of a network relative to its reference, on the same frames."""

    frames: int
    mean_error: float
    """Mean absolute difference of the outputs, in their own units."""
    worst_frame_error: float
    """Mean absolute difference of the worst frame."""
    max_error: float
    """Largest difference of a single value."""
    relative_error: float
    """Mean absolute difference as a share of the reference's mean magnitude."""
    reference_ms: float
    """Median time of one call with one frame."""
    quantized_ms: float
    finite: bool
    """False if an output holds NaN or infinity; the errors are meaningless then."""

    @property
    def speedup(self) -> float:
        """Above 1 if the quantised network is faster."""
        return self.reference_ms / self.quantized_ms


def _counted(
    expected: Mapping[str, FloatArray], got: Mapping[str, FloatArray], outputs: Sequence[str] | None
) -> list[str]:
    names = list(expected) if outputs is None else list(outputs)
    for name in names:
        if name not in expected or name not in got:
            raise UsageError(f"no output is called {name!r} in both networks")
        if np.shape(expected[name]) != np.shape(got[name]):
            raise UsageError(
                f"{name!r} is {np.shape(got[name])}, and {np.shape(expected[name])} in the reference"
            )
    return names


def _times_ms(
    runs: tuple[Run, Run], entries: Sequence[Mapping[str, FloatArray]], iterations: int
) -> tuple[float, float]:
    samples: tuple[list[float], list[float]] = ([], [])
    for turn in range(-1, iterations):
        entry = entries[turn % len(entries)]
        for run, times in zip(runs, samples, strict=True):
            begun = time.perf_counter()
            run(entry)
            if turn >= 0:
                times.append((time.perf_counter() - begun) * 1e3)
    return float(np.median(samples[0])), float(np.median(samples[1]))


NetworkT = TypeVar("NetworkT")


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizationLimits:
    """Limits for a quantised network; None for no limit.

    Raises:
        UsageError: A limit is negative.
    """

    mean_error: float | None = None
    """Largest mean absolute difference, in the outputs' units: 1/255 is one code of an 8-bit matte."""
    worst_frame_error: float | None = None
    """The same for every frame."""
    relative_error: float | None = 0.02
    """Largest mean difference as a share of the reference's mean magnitude."""
    speedup: float | None = 1.0
    """Smallest ratio of reference time to quantised time; 1 requires that it is no slower."""
    size_ratio: float | None = None
    """Smallest ratio of reference size to quantised size."""

    def __post_init__(self) -> None:
        """Check the range."""
        for name in ("mean_error", "worst_frame_error", "relative_error", "speedup", "size_ratio"):
            value = getattr(self, name)
            if value is not None and not value >= 0:
                raise UsageError(f"the limit {name} is {value}, expected 0 or more")


@dataclass(frozen=True, slots=True)
class GateVerdict:
    """Whether to keep a quantised network, and the limits it exceeded."""

    accepted: bool
    reasons: tuple[str, ...]
    """Measured value and limit, one line each; empty if accepted."""

    def __bool__(self) -> bool:
        return self.accepted

    def __str__(self) -> str:
        return "accepted" if self.accepted else f"refused: {'; '.join(self.reasons)}"


@dataclass(frozen=True)
class Gated(Generic[NetworkT]):
    """The network chosen by the gate, and the reasons."""

    model: NetworkT
    """The quantised network if accepted, else the reference."""
    comparison: Comparison
    verdict: GateVerdict


Frames = Mapping[str, Any] | Sequence[Any] | FloatArray

_FP8_CAPABILITY = (8, 9)
"""Ada and Hopper; NVIDIA, "CUDA C++ Programming Guide", table of features by compute capability."""


class ModelQuantizer:
    """Makes quantised copies of networks. Models are not modified, and no state is kept between calls.

    Each method takes a PyTorch module and returns a module, or takes an ONNX network (path or bytes) and
    returns its bytes.
    """

    @staticmethod
    def quantize_fp16(model: Any) -> Any:
        """Convert weights and activations to half precision: half the size.

        Args:
            model: A module, whose copy takes and returns FP16; or an ONNX network, whose inputs and outputs
                keep their types.

        Raises:
            UsageError: It is neither.
            EngineError: The network cannot be converted.
        """
        if is_module(model):
            from vitascope.gpu.toolkit.quantization.torch_layers import half_module

            return half_module(model)
        return onnx_networks.half_network(_network(model))

    @staticmethod
    def quantize_int8(
        model: Any,
        calibration: Frames,
        *,
        method: CalibrationMethod = "percentile",
        percentile: float = 99.99,
        per_channel: bool = True,
        target: Literal["cpu", "gpu"] = "cpu",
        skip: Sequence[str] = (),
    ) -> Any:
        """Quantise convolutions and matrix products to static INT8: weights and activations, scales from calibration.

        Args:
            model: A module or an ONNX network, in FP32.
            calibration: Typical inputs along the first axis, one array per input: some dozens of pictures
                from real frames, preprocessed like the network's inputs.
            method: How to choose an activation's range: ``entropy``, ``percentile`` (closest to FP32 on the
                networks measured in ``benchmarks/quantization.py``) or ``minmax``.
            percentile: For ``percentile``: share of magnitudes to keep, in per cent.
            per_channel: One weight scale per output channel, instead of one per layer.
            target: For ONNX networks; ``gpu`` writes what TensorRT reads. Modules run on both.
            skip: Names of layers (of a module) or nodes (of an ONNX network) to leave alone.

        Raises:
            UsageError: Frames, names or words are invalid.
            EngineError: The network cannot be quantised.
        """
        if not 0 < percentile <= 100:
            raise UsageError(f"percentile is {percentile}, expected more than 0 and at most 100")
        _check_method(method)
        if target not in ("cpu", "gpu"):
            raise UsageError(f"target is {target!r}, expected cpu or gpu")
        if is_module(model):
            from vitascope.gpu.toolkit.quantization.torch_layers import quantized_module

            names = tuple(calibration) if isinstance(calibration, Mapping) else ("input",)
            return quantized_module(
                model,
                named_frames(calibration, names),
                number="int8",
                method=method,
                percentile=percentile,
                per_channel=per_channel,
                skip=skip,
            )
        return onnx_networks.static_network(
            _network(model),
            calibration,
            method=method,
            percentile=percentile,
            per_channel=per_channel,
            target=target,
            skip=skip,
        )

    @staticmethod
    def quantize_dynamic(model: Any, *, per_channel: bool = True) -> Any:
        """Quantise weights to INT8, and scale activations at run time: no calibration, but slower.

        Raises:
            UsageError: It is neither a module nor an ONNX network.
            EngineError: The network cannot be quantised.
        """
        if is_module(model):
            from vitascope.gpu.toolkit.quantization.torch_layers import quantized_module

            return quantized_module(model, None, number="int8", per_channel=per_channel)
        return onnx_networks.dynamic_network(_network(model), per_channel=per_channel)

    @staticmethod
    def quantize_fp8(
        model: Any,
        calibration: Frames | None = None,
        *,
        method: CalibrationMethod = "minmax",
        device_id: int = 0,
        skip: Sequence[str] = (),
    ) -> Any:
        """Quantise a module's linear layers and 1x1 convolutions to FP8 (e4m3), for Ada, Hopper and newer GPUs.

        Larger convolutions stay unchanged: PyTorch has no FP8 convolution.

        Args:
            model: A module.
            calibration: See ``quantize_int8``; None scales activations at run time.
            method: How to choose an activation's range. FP8 is precise over a wide range, so the largest
                value is the natural end.
            device_id: Number of the GPU to run on.
            skip: Names of layers to leave alone.

        Raises:
            DeviceError: The GPU does not exist, or does not support FP8.
            UsageError: It is not a module, or frames or names are invalid.
        """
        if not is_module(model):
            raise UsageError("FP8 is for PyTorch modules; ONNX networks take quantize_fp16 or quantize_int8")
        _check_method(method)
        import torch

        if not torch.cuda.is_available() or device_id >= torch.cuda.device_count():
            raise DeviceError(
                f"FP8 needs an NVIDIA GPU, and there is no GPU {device_id} that PyTorch can use"
            )
        capability = torch.cuda.get_device_capability(device_id)
        if capability < _FP8_CAPABILITY:
            name = torch.cuda.get_device_name(device_id)
            raise DeviceError(
                f"{name} has compute capability {capability[0]}.{capability[1]}; FP8 needs 8.9 (Ada, 2022) or newer"
            )
        from vitascope.gpu.toolkit.quantization.torch_layers import quantized_module

        frames = None
        if calibration is not None:
            names = tuple(calibration) if isinstance(calibration, Mapping) else ("input",)
            frames = named_frames(calibration, names)
        return quantized_module(model, frames, number="fp8", method=method, only_products=True, skip=skip)

    @staticmethod
    def measure_model_size(model: Any) -> int:
        """Size of a network's weights in bytes: a module's parameters and buffers, or an ONNX network's constants.

        Raises:
            UsageError: It is neither.
            EngineError: The network cannot be read.
        """
        if is_module(model):
            tensors = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
            return sum(int(tensor.numel() * tensor.element_size()) for tensor in tensors.values())
        return onnx_networks.weight_bytes(_network(model))

    @staticmethod
    def compare(
        reference: Comparable,
        quantized: Comparable,
        frames: Frames,
        *,
        outputs: Sequence[str] | None = None,
        iterations: int = 10,
        threads: int = 0,
    ) -> Comparison:
        """Run both networks on frames, one at a time, then time them alternately.

        Args:
            reference: A PyTorch module, an ONNX network, an engine, or a callable.
            quantized: The quantised network.
            frames: Inputs along the first axis: by input name, or one array.
            outputs: Names of the outputs to compare; all if omitted.
            iterations: Timed calls of each network after one warm-up call; alternating, so that both see the
                same conditions.
            threads: Threads of ONNX Runtime; 0 uses every core.

        Raises:
            UsageError: The frames do not match the inputs, or an output is missing.
            EngineError: A network failed.
        """
        check_count("iterations", iterations)
        with (
            opened(reference, threads=threads) as (run_reference, names),
            opened(quantized, threads=threads) as (run_quantized, others),
        ):
            known = names or others or (tuple(frames) if isinstance(frames, Mapping) else ("input",))
            given = named_frames(frames, known)
            entries = [
                {name: array[index : index + 1] for name, array in given.items()}
                for index in range(len(next(iter(given.values()))))
            ]
            means, largest, magnitudes, finite = [], 0.0, [], True
            for entry in entries:
                expected, got = run_reference(entry), run_quantized(entry)
                differences = [
                    np.abs(np.asarray(got[name], np.float64) - np.asarray(expected[name], np.float64))
                    for name in _counted(expected, got, outputs)
                ]
                count = sum(difference.size for difference in differences)
                means.append(sum(float(difference.sum()) for difference in differences) / count)
                largest = max(largest, *(float(difference.max(initial=0)) for difference in differences))
                finite = finite and bool(np.isfinite(means[-1]))
                magnitudes.append(
                    sum(float(np.abs(expected[name]).sum()) for name in _counted(expected, got, outputs))
                    / count
                )
            times = _times_ms((run_reference, run_quantized), entries, iterations)
        mean = float(np.mean(means))
        return Comparison(
            frames=len(entries),
            mean_error=mean,
            worst_frame_error=max(means),
            max_error=largest,
            relative_error=mean / max(float(np.mean(magnitudes)), 1e-12),
            reference_ms=times[0],
            quantized_ms=times[1],
            finite=finite,
        )

    @staticmethod
    def accept(
        comparison: Comparison, limits: QuantizationLimits | None = None, *, size_ratio: float | None = None
    ) -> GateVerdict:
        """Check a comparison against limits.

        Args:
            comparison: Result of ``compare``.
            limits: Limits; the defaults of ``QuantizationLimits`` if omitted.
            size_ratio: Reference size / quantised size; required if ``limits`` has one.

        Raises:
            UsageError: ``limits`` has a size ratio, but ``size_ratio`` is missing.
        """
        limits = limits or QuantizationLimits()
        reasons = []
        if not comparison.finite:
            reasons.append("its outputs contain NaN or infinity")
        for name, what in (
            ("mean_error", "mean error"),
            ("worst_frame_error", "error of the worst frame"),
            ("relative_error", "error relative to the outputs"),
        ):
            most, met = getattr(limits, name), getattr(comparison, name)
            if most is not None and not met <= most:  # rejects NaN
                reasons.append(f"{what} {met:.3g}, but at most {most:.3g} is allowed")
        if limits.speedup is not None and not comparison.speedup >= limits.speedup:
            reasons.append(
                f"{comparison.speedup:.2f}x the reference's speed ({comparison.quantized_ms:.3g} ms against "
                f"{comparison.reference_ms:.3g} ms), at least {limits.speedup:.2f}x is required"
            )
        if limits.size_ratio is not None:
            if size_ratio is None:
                raise UsageError("the limits include a size_ratio, but no sizes were given")
            if not size_ratio >= limits.size_ratio:
                reasons.append(f"{size_ratio:.2f}x smaller, at least {limits.size_ratio:.2f}x is required")
        return GateVerdict(not reasons, tuple(reasons))

    @staticmethod
    def gate(
        reference: NetworkT,
        quantized: NetworkT,
        frames: Frames,
        limits: QuantizationLimits | None = None,
        *,
        outputs: Sequence[str] | None = None,
        iterations: int = 10,
        threads: int = 0,
    ) -> Gated[NetworkT]:
        """Choose the quantised network if its error and speed are within limits, else the reference; with reasons.

        Args:
            reference: See ``compare``.
            quantized: See ``compare``.
            frames: Frames not used for calibration.
            limits: Limits; the defaults of ``QuantizationLimits`` if omitted.
            outputs: See ``compare``.
            iterations: See ``compare``.
            threads: See ``compare``.
        """
        limits = limits or QuantizationLimits()
        comparison = ModelQuantizer.compare(
            reference, quantized, frames, outputs=outputs, iterations=iterations, threads=threads
        )
        ratio = None
        if limits.size_ratio is not None:
            size = ModelQuantizer.measure_model_size
            ratio = size(reference) / max(size(quantized), 1)
        verdict = ModelQuantizer.accept(comparison, limits, size_ratio=ratio)
        return Gated(quantized if verdict else reference, comparison, verdict)


def _check_method(method: str) -> None:
    if method not in get_args(CalibrationMethod):
        raise UsageError(f"method is {method!r}, expected one of {', '.join(get_args(CalibrationMethod))}")


def _network(model: Any) -> Path | bytes:
    if isinstance(model, bytes):
        return model
    if isinstance(model, str | PathLike):
        return Path(model)
    raise UsageError(
        f"a PyTorch module or an ONNX network (path or bytes) is expected, got {type(model).__name__}"
    )
