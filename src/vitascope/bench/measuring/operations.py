"""Which operators a network spends its time and its memory traffic on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic_ns
from typing import TYPE_CHECKING

from vitascope.bench.measuring.network_work import bytes_of
from vitascope.bench.results import Operation, Operations
from vitascope.gpu.engines.operator_trace import OperatorCall, operator_traces
from vitascope.models.network import FloatArray, MattingNetwork

if TYPE_CHECKING:
    from vitascope.gpu.profiling.cuda import CUDAProfiler

__all__ = ["TOP", "movers_of_calls", "operations_of_calls", "operations_of_kernels", "trace_network"]

TOP = 10
"""Operators of a table."""
_VIEWS = frozenset({"Flatten", "Identity", "Reshape", "Shape", "Squeeze", "Unsqueeze"})
"""They name the same memory anew."""


def trace_network(
    open_network: Callable[[], MattingNetwork],
    pictures: FloatArray,
    *,
    calls: int,
    warm_ups: int,
    optimised: bool,
) -> list[list[OperatorCall]]:
    """Run a network on the processor under ONNX Runtime's profiler.

    Args:
        open_network: Opens it on the processor; it is closed here.
        pictures: float32 [T, E, ...] as the network takes them, one call's.
        calls: That are kept.
        warm_ups: Calls before them, of one stream with them, which are left out.
        optimised: As ``operator_traces``.

    Returns:
        For each of its sessions the operators of the calls that are kept.

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
    """Tables of what ``trace_network`` saw.

    Args:
        sessions: Operators of all calls.
        source: Who computed, for the report.
        calls: Of the network.
        frames: Of one call.
    """
    places: dict[tuple[int, str, str], list[OperatorCall]] = defaultdict(list)
    kinds: dict[str, float] = defaultdict(float)
    for number, session in enumerate(sessions):  # networks of one family name their operators alike
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


def movers_of_calls(sessions: Sequence[Sequence[OperatorCall]], *, frames: int) -> tuple[Operation, ...]:
    """The operators that must move most, as ``network_work`` counts it; of no use as times, so they have none.

    Args:
        sessions: Operators of all calls of the graph as it is, in float32.
        frames: Of all calls.
    """
    places: dict[tuple[int, str, str], list[OperatorCall]] = defaultdict(list)
    for number, session in enumerate(sessions):
        for call in session:
            places[number, call.kind, call.name].append(call)
    rows = [
        Operation(
            name=name,
            kind=kind,
            shape="x".join(map(str, same[0].output_shapes[0])) if same[0].output_shapes else "",
            calls=1.0,
            ms=0.0,
            share=0.0,
            mbytes=sum(map(bytes_of, same)) / 1e6 / frames,
        )
        for (_, kind, name), same in places.items()
    ]
    return tuple(sorted(rows, key=lambda row: -(row.mbytes or 0.0))[:TOP])


def operations_of_kernels(profiler: CUDAProfiler, *, calls: int, frames: int) -> Operations:
    """What PyTorch's profiler saw of a GPU. Kernels do not say what they move: ``movers_of_calls`` does.

    Args:
        profiler: Whose block has ended.
        calls: Of the network.
        frames: Of one call.
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
