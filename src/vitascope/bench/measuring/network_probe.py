"""The network of a cell alone: its time without the rest of the pipeline, its work, and its operators."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from math import ceil
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from vitascope.bench.measuring.measured_run import MeasuredSegmenter
from vitascope.bench.measuring.network_work import NetworkWork, count_work
from vitascope.bench.measuring.operations import (
    movers_of_calls,
    operations_of_calls,
    operations_of_kernels,
    trace_network,
)
from vitascope.bench.results import Operation, Operations, PartWork, Row
from vitascope.config import LoadedSettings
from vitascope.config.compute import GpuSettings
from vitascope.device import select_device
from vitascope.errors import InputError, VitascopeError, one_line
from vitascope.frames import StereoLayout
from vitascope.gpu.engines.gpu_arrays import import_cupy
from vitascope.gpu.kernels.preprocess import preprocess
from vitascope.gpu.memory.shortage import memory_errors
from vitascope.media.reading.reader import open_video
from vitascope.models.host_network import HostNetwork
from vitascope.models.network import FloatArray, MattingNetwork
from vitascope.models.selfie.selfie import SelfieState
from vitascope.models.store.store import ModelStore
from vitascope.segmentation.matting.cached_film import opening
from vitascope.segmentation.matting.networks import open_network
from vitascope.segmentation.matting.stream import upright_size
from vitascope.vr.stereo import detect_layout, eye_regions

__all__ = ["NetworkProbe", "ProbeEffort", "ProbedNetwork", "film_pictures", "products_in"]


_WARM_UPS = 2
_SETTLING_FRAMES = 12
"""After them a stream's gate has made up its mind: at first it looks at every frame several times."""
_COUNTED_FRAMES = 4
"""Frames of a call whose work is counted: weights that are read once a call are then a small part of it."""
_HALF = ("fp16", "mixed")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeEffort:
    """How long a network is looked at."""

    fewest_calls: int = 5
    most_calls: int = 50
    seconds: float = 2.0
    """After the fewest calls, no new one begins later than this."""
    traced_calls: int = 3


@dataclass(frozen=True, slots=True)
class ProbedNetwork:
    """What was found."""

    row: Row
    """``network``: milliseconds for a frame, a sample for each call."""
    work: PartWork
    operations: Operations


class NetworkProbe:
    """Looks at the networks of a suite; what does not depend on the cell is counted once.

    Args:
        effort: How long.
    """

    def __init__(self, effort: ProbeEffort) -> None:
        self._effort = effort
        self._counted: dict[tuple[object, ...], tuple[NetworkWork, tuple[Operation, ...]]] = {}

    def look(self, segmenter: MeasuredSegmenter, film: Path, *, batch: int) -> ProbedNetwork:
        """Time the network that is open, count its work, and record its operators.

        Args:
            segmenter: Open, and idle.
            film: Whose first frames the network is shown.
            batch: Frames of a call.

        Raises:
            VitascopeError: The film cannot be read, or the network failed.
        """
        network = opening(segmenter.chosen).network
        on_gpu = segmenter.device.kind == "cuda" and not isinstance(network, HostNetwork)
        pictures = film_pictures(film, network=network, loaded=segmenter.loaded, count=batch)
        index = segmenter.device.index
        times = (
            self._times_on_gpu(network, pictures, index) if on_gpu else self._times_on_host(network, pictures)
        )
        precision = products_in(segmenter.settings.gpu) if on_gpu else "fp32"
        work = PartWork(
            part="network", device="cuda" if on_gpu else "cpu", precision=precision, row="network"
        )
        on_processor = segmenter.loaded.with_values(
            {"gpu.device": "cpu", "gpu.precision": "fp32", "model.backend": "auto"}
        )
        open_plain = partial(_open_on_processor, on_processor, segmenter.store)
        movers: tuple[Operation, ...] = ()
        try:
            shown = pictures[:_COUNTED_FRAMES].astype(np.float32)
            counted, movers = self._count(
                network.name, open_plain, shown, gated=isinstance(network.new_state(), SelfieState)
            )
        except VitascopeError as error:
            work = replace(work, note=f"its work was not counted: {one_line(error)}")
        else:
            share = 0.25 if precision == "int8" else 0.5 if precision in _HALF else 1.0
            work = replace(work, flops=counted.flops, nbytes=counted.nbytes * share)
            movers = tuple(replace(row, mbytes=(row.mbytes or 0.0) * share) for row in movers)
        operations = (
            replace(self._kernels(network, pictures, index), by_memory=movers)
            if on_gpu
            else self._operators(open_plain, pictures.astype(np.float32, copy=False))
        )
        return ProbedNetwork(Row.of("network", "ms", times), work, operations)

    def _count(
        self, name: str, open_plain: Callable[[], MattingNetwork], pictures: FloatArray, *, gated: bool
    ) -> tuple[NetworkWork, tuple[Operation, ...]]:
        key = (name, pictures.shape)
        if key not in self._counted:
            calls = ceil(_SETTLING_FRAMES / len(pictures)) if gated else 1
            sessions = trace_network(
                open_plain,
                pictures,
                calls=calls,
                warm_ups=_warm_ups(pictures) if gated else 0,
                optimised=False,
            )
            frames = calls * len(pictures)
            self._counted[key] = (
                count_work(chain(*sessions), frames=frames),
                movers_of_calls(sessions, frames=frames),
            )
        return self._counted[key]

    def _operators(self, open_plain: Callable[[], MattingNetwork], pictures: FloatArray) -> Operations:
        """The operators of the network on the CPU, whichever engine was measured."""
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
                source=engines[0] if engines else "the network on the processor", missing=one_line(error)
            )
        return operations_of_calls(found, source=engines[0], calls=calls, frames=len(pictures))

    def _kernels(self, network: MattingNetwork, pictures: FloatArray, index: int) -> Operations:
        from vitascope.gpu.profiling.cuda import CUDAProfiler

        cupy = import_cupy()
        with cupy.cuda.Device(index), memory_errors(), cupy.cuda.Stream(non_blocking=True) as stream:
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
        """Milliseconds for a frame, of each call."""
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
        """The same on the GPU's clock; the next call is launched while one computes, as in a job."""
        cupy = import_cupy()
        with cupy.cuda.Device(index), memory_errors(), cupy.cuda.Stream(non_blocking=True) as stream:
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


def products_in(gpu: GpuSettings) -> str:
    """Arithmetic of a network's products on a GPU: whose ceiling bounds them."""
    return "tf32" if gpu.precision == "fp32" and gpu.allow_tf32 else gpu.precision


def film_pictures(film: Path, *, network: MattingNetwork, loaded: LoadedSettings, count: int) -> FloatArray:
    """The first frames of a film as a network takes them, in the host's memory; a shorter film begins anew.

    Args:
        film: Decoded on the processor.
        network: What they are for.
        loaded: Settings of the run: where the film begins, and how it lies in the frame.
        count: Frames.

    Returns:
        [T, E, ...] of the network's dtype, C-contiguous.

    Raises:
        InputError: The film cannot be read, or has no frame there.
    """
    video = loaded.settings.video
    with open_video(
        film, start_seconds=video.start_seconds or None, end_seconds=video.end_seconds, threads=0
    ) as reader:
        info = reader.info
        declared = None if video.stereo == "auto" else StereoLayout(video.stereo)
        regions = eye_regions(info.width, info.height, detect_layout(info, declared).layout)
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
        raise InputError(f"{film}: no picture to show the network")
    return np.stack([pictures[number % len(pictures)] for number in range(count)])


def _warm_ups(pictures: FloatArray) -> int:
    """Calls before anything counts."""
    return max(_WARM_UPS, ceil(_SETTLING_FRAMES / len(pictures)))


def _open_on_processor(loaded: LoadedSettings, store: ModelStore) -> MattingNetwork:
    return open_network(loaded.settings, store, device=select_device("cpu")).network
