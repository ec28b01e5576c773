"""Measures a cell's network and its operators, without the rest of the pipeline."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from math import ceil
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic_ns, perf_counter
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from vitascope.bench.measured_run import MeasuredSegmenter
from vitascope.bench.results import Operation, Operations, Row
from vitascope.config import LoadedSettings
from vitascope.device import select_device
from vitascope.errors import InputError, VitascopeError, one_line
from vitascope.gpu.current_stream import on_cuda_stream
from vitascope.gpu.engines.onnx_runtime import OperatorCall, operator_traces
from vitascope.gpu.kernels.cuda_module import import_cupy
from vitascope.gpu.kernels.preprocess import preprocess
from vitascope.gpu.memory.shortage import memory_errors
from vitascope.media.reading.reader import open_video
from vitascope.models.host_network import HostNetwork
from vitascope.models.network import FloatArray, MattingNetwork
from vitascope.models.store.store import ModelStore
from vitascope.segmentation.layout import vr_of
from vitascope.segmentation.matting.cached_film import opening
from vitascope.segmentation.matting.networks import ChosenNetwork, open_network
from vitascope.segmentation.matting.stream import upright_size
from vitascope.vr.stereo import eye_regions

if TYPE_CHECKING:
    from vitascope.gpu.profiling.cuda import CUDAProfiler

TOP = 10
"""Number of operators in a table."""
_WARM_UPS = 2
_SETTLING_FRAMES = 12
"""Frames until a stream's gate has decided; at first it takes several looks at every frame."""
_VIEWS = frozenset({"Flatten", "Identity", "Reshape", "Shape", "Squeeze", "Unsqueeze"})
"""Operators that only rename memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeEffort:
    """Effort of measuring a network."""

    fewest_calls: int = 5
    most_calls: int = 50
    seconds: float = 2.0
    """After the minimum number of calls, none begins later than this."""
    traced_calls: int = 3


@dataclass(frozen=True, slots=True)
class ProbedNetwork:
    """The measurement of a network."""

    row: Row
    """``network``: milliseconds per frame, one sample per call."""
    operations: Operations


class NetworkProbe:
    """Measures the networks of a suite.

    Args:
        effort: Effort per network.
    """

    def __init__(self, effort: ProbeEffort) -> None:
        self._effort = effort

    def look(self, segmenter: MeasuredSegmenter, video: Path, *, batch: int) -> ProbedNetwork:
        """Time the open network, and record its operators.

        Args:
            segmenter: Open and idle.
            video: The video whose first frames the network gets.
            batch: Frames per call.

        Raises:
            VitascopeError: The video cannot be read, or the network failed.
        """
        # a measured run keeps the network in this process
        network = opening(cast("ChosenNetwork[MattingNetwork]", segmenter.chosen)).network
        pictures = video_pictures(video, network=network, loaded=segmenter.loaded, count=batch)
        if segmenter.device.kind == "cuda" and not isinstance(network, HostNetwork):
            index = segmenter.device.index
            times = self._times_on_gpu(network, pictures, index)
            operations = self._kernels(network, pictures, index)
        else:
            times = self._times_on_host(network, pictures)
            open_plain = partial(open_on_cpu, segmenter.loaded, segmenter.store)
            operations = self._operators(open_plain, pictures.astype(np.float32, copy=False))
        return ProbedNetwork(Row.of("network", "ms", times), operations)

    def _operators(self, open_plain: Callable[[], MattingNetwork], pictures: FloatArray) -> Operations:
        """Record the network's operators on the CPU, whichever engine was measured."""
        calls, engines = self._effort.traced_calls, []

        def open_named() -> MattingNetwork:
            network = open_plain()
            engines.append(network.engine_name)
            return network

        try:
            found = trace_network(
                open_named, pictures, calls=calls, warm_ups=_warm_ups(pictures), optimised=True
            )
        except VitascopeError as error:
            return Operations(
                source=engines[0] if engines else "the network on the CPU", missing=one_line(error)
            )
        return operations_of_calls(found, source=engines[0], calls=calls, frames=len(pictures))

    def _kernels(self, network: MattingNetwork, pictures: FloatArray, index: int) -> Operations:
        from vitascope.gpu.profiling.cuda import CUDAProfiler

        cupy = import_cupy()
        with (
            cupy.cuda.Device(index),
            memory_errors(),
            on_cuda_stream(cupy.cuda.Stream(non_blocking=True)) as stream,
        ):
            shown, state = cupy.asarray(pictures), network.new_state()
            network.infer(shown, state)
            stream.synchronize()
            try:
                profiler = CUDAProfiler(device="cuda")
            except VitascopeError as error:
                return Operations(source=network.engine_name, missing=one_line(error))
            with profiler:
                for _ in range(self._effort.traced_calls):
                    network.infer(shown, state)
                stream.synchronize()
        return operations_of_kernels(profiler, calls=self._effort.traced_calls, frames=len(pictures))

    def _times_on_host(self, network: MattingNetwork, pictures: FloatArray) -> list[float]:
        """Milliseconds per frame, for each call."""
        state = network.new_state()
        for _ in range(_warm_ups(pictures)):
            network.infer(pictures, state)
        times: list[float] = []
        began = perf_counter()
        while self._goes_on(len(times), began):
            start = perf_counter()
            network.infer(pictures, state)
            times.append((perf_counter() - start) * 1e3 / len(pictures))
        return times

    def _times_on_gpu(self, network: MattingNetwork, pictures: FloatArray, index: int) -> list[float]:
        """The same by the GPU's clock; the next call is launched while one computes, as in a job."""
        cupy = import_cupy()
        with (
            cupy.cuda.Device(index),
            memory_errors(),
            on_cuda_stream(cupy.cuda.Stream(non_blocking=True)) as stream,
        ):
            shown, state = cupy.asarray(pictures), network.new_state()
            for _ in range(_warm_ups(pictures)):
                network.infer(shown, state)
            stream.synchronize()
            marks: list[tuple[Any, Any]] = []
            began = perf_counter()
            while self._goes_on(len(marks), began):
                start, stop = cupy.cuda.Event(), cupy.cuda.Event()
                start.record()
                network.infer(shown, state)
                stop.record()
                marks.append((start, stop))
            stream.synchronize()
            return [cupy.cuda.get_elapsed_time(start, stop) / len(pictures) for start, stop in marks]

    def _goes_on(self, calls: int, began: float) -> bool:
        effort = self._effort
        return calls < effort.fewest_calls or (
            calls < effort.most_calls and perf_counter() - began < effort.seconds
        )


def video_pictures(video: Path, *, network: MattingNetwork, loaded: LoadedSettings, count: int) -> FloatArray:
    """The first frames of a video as input for a network, in host memory; a shorter video is repeated.

    Args:
        video: Decoded on the CPU.
        network: The network they are for.
        loaded: Settings of the run: where the video begins, and its layout in the frame.
        count: Number of frames.

    Returns:
        [T, E, ...] of the network's dtype, C-contiguous.

    Raises:
        InputError: The video cannot be read, or has no frame at that position.
    """
    part = loaded.settings.video
    with open_video(
        video, start_seconds=part.start_seconds or None, end_seconds=part.end_seconds, threads=0
    ) as reader:
        info = reader.info
        regions = eye_regions(info.width, info.height, vr_of(info, part).layout)
        wanted = network.input_for(upright_size(regions[0].size, info.rotation_degrees))
        pictures = [
            preprocess(
                frame,
                regions=regions,
                size=wanted.size,
                mean=wanted.mean,
                std=wanted.std,
                layout=wanted.layout,
                rotation_degrees=info.rotation_degrees,
                dtype=wanted.dtype,
            )
            for frame in islice(reader, count)
        ]
    if not pictures:
        raise InputError(f"{video}: it has no picture for the network")
    return np.stack([pictures[number % len(pictures)] for number in range(count)])


def _warm_ups(pictures: FloatArray) -> int:
    """Number of calls before the measurement begins."""
    return max(_WARM_UPS, ceil(_SETTLING_FRAMES / len(pictures)))


def open_on_cpu(loaded: LoadedSettings, store: ModelStore) -> MattingNetwork:
    """Open the network of some settings on the CPU, in float32, whatever engine they choose.

    Raises:
        VitascopeError: It cannot be opened.
    """
    plain = loaded.with_values({"gpu.device": "cpu", "gpu.precision": "fp32", "model.backend": "auto"})
    return open_network(plain.settings, store, device=select_device("cpu")).network


def trace_network(
    open_network: Callable[[], MattingNetwork],
    pictures: FloatArray,
    *,
    calls: int,
    warm_ups: int,
    optimised: bool,
) -> list[list[OperatorCall]]:
    """Run a network on the CPU under ONNX Runtime's profiler.

    Args:
        open_network: Opens the network on the CPU; it is closed here.
        pictures: float32 [T, E, ...], the network's input for one call.
        calls: Calls that are recorded.
        warm_ups: Calls of the same stream before them, which are not.
        optimised: As ``operator_traces``.

    Returns:
        For each of its sessions, the operators of the recorded calls.

    Raises:
        VitascopeError: The network cannot be opened, or failed.
    """
    with TemporaryDirectory(prefix="vitascope-operators-") as folder:
        with operator_traces(Path(folder), optimised=optimised) as traces:
            network = open_network()
        try:
            state = network.new_state()
            for _ in range(warm_ups):
                network.infer(pictures, state)
            since = monotonic_ns()
            for _ in range(calls):
                network.infer(pictures, state)
        finally:
            network.close()  # writes the traces
        return traces.calls(since_ns=since)


def operations_of_calls(
    sessions: Sequence[Sequence[OperatorCall]], *, source: str, calls: int, frames: int
) -> Operations:
    """Make tables of the operators that ``trace_network`` recorded.

    Args:
        sessions: Operators of all calls.
        source: What computed them, for the report.
        calls: Calls of the network.
        frames: Frames per call.
    """
    places: dict[tuple[int, str, str], list[OperatorCall]] = defaultdict(list)
    kinds: dict[str, float] = defaultdict(float)
    for number, session in enumerate(sessions):  # networks of one family use the same operator names
        for call in session:
            places[number, call.kind, call.name].append(call)
            kinds[call.kind] += call.seconds
    total = sum(kinds.values())
    rows = [
        Operation(
            name=name,
            kind=kind,
            shape="x".join(map(str, same[0].output_shapes[0])) if same[0].output_shapes else "",
            calls=len(same) / calls,
            ms=sum(call.seconds for call in same) * 1e3 / (calls * frames),
            share=sum(call.seconds for call in same) / total if total else 0.0,
            mbytes=sum(_touched(call) for call in same) / 1e6 / (calls * frames),
        )
        for (_, kind, name), same in places.items()
    ]
    return Operations(
        source=source,
        ms=total * 1e3 / (calls * frames),
        operator_count=len(rows),
        by_time=tuple(sorted(rows, key=lambda row: -row.ms)[:TOP]),
        by_memory=tuple(sorted(rows, key=lambda row: -(row.mbytes or 0.0))[:TOP]),
        share_by_kind={
            kind: seconds / total
            for kind, seconds in sorted(kinds.items(), key=lambda pair: -pair[1])
            if total
        },
    )


def operations_of_kernels(profiler: CUDAProfiler, *, calls: int, frames: int) -> Operations:
    """Tabulate the kernels that PyTorch's profiler recorded on a GPU; it does not report the bytes they move.

    Args:
        profiler: A profiler whose block has ended.
        calls: Calls of the network.
        frames: Frames per call.
    """
    kernels = profiler.kernels()
    rows = tuple(
        Operation(
            name=kernel.name,
            kind="kernel",
            calls=kernel.count / calls,
            ms=kernel.total_seconds * 1e3 / (calls * frames),
            share=kernel.share,
        )
        for kernel in kernels
    )
    return Operations(
        source="PyTorch's profiler, all kernels of the process",
        ms=sum(row.ms for row in rows),
        operator_count=len(rows),
        by_time=rows[:TOP],
        missing="" if rows else "no kernel was recorded",
    )


def _touched(call: OperatorCall) -> int:
    if call.kind in _VIEWS:
        return 0
    return call.activation_bytes + call.parameter_bytes + call.output_bytes
