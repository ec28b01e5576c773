"""The cost of each operator of an ONNX network: ONNX Runtime's own profile of its sessions, as plain rows.

ONNX Runtime writes one JSON file for each session, in Chrome's trace format, with time, shapes and sizes of every
operator: https://onnxruntime.ai/docs/performance/tune-performance/profiling-tools.html
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from time import monotonic_ns, time_ns
from typing import Any

from vitascope.gpu.engines.onnx_library import ort

_SUFFIX = "_kernel_time"
"""Ending of the names of events that time an operator's computation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorCall:
    """One operator, computed once."""

    kind: str
    """The operator, for example ``Conv``."""
    name: str
    """ONNX Runtime's name of this place in the network."""
    seconds: float
    """On the host: where a GPU computes, the launch alone."""
    input_shapes: tuple[tuple[int, ...], ...]
    """Weights and biases behind what flows through the network, in the operator's own order."""
    output_shapes: tuple[tuple[int, ...], ...]
    activation_bytes: int
    """Bytes of the inputs that other operators made."""
    parameter_bytes: int
    """Bytes of the inputs that are the network's own."""
    output_bytes: int


class OperatorTraces:
    """Sessions that are profiled; made by ``operator_traces``."""

    def __init__(self, folder: Path, *, optimised: bool) -> None:
        self._folder = folder
        self._optimised = optimised
        self._began_ns: list[int] = []

    def ask(self, options: ort.SessionOptions) -> None:
        """Profile the next session."""
        options.enable_profiling = True
        options.profile_file_prefix = str(self._folder / self._prefix(len(self._began_ns)))
        if not self._optimised:
            options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL

    def opened(self, session: ort.InferenceSession) -> None:
        """Record when its profile began, on C++'s finest clock, which differs between systems."""
        began = session.get_profiling_start_time_ns()
        ages = [now() - began for now in (monotonic_ns, time_ns)]
        self._began_ns.append(monotonic_ns() - min(age for age in ages if age >= 0))

    def calls(self, *, since_ns: int = 0) -> list[list[OperatorCall]]:
        """For each session, once it is closed, its operators in the order in which they began.

        Args:
            since_ns: Moment of ``time.monotonic_ns``; what began earlier is left out.
        """
        found = []
        for number, began in enumerate(self._began_ns):
            (path,) = self._folder.glob(f"{self._prefix(number)}_*.json")
            events = json.loads(path.read_text(encoding="utf-8"))
            found.append(_calls(events, since_microseconds=(since_ns - began) / 1e3))
        return found

    @staticmethod
    def _prefix(number: int) -> str:
        return f"session-{number}"


_TRACES: ContextVar[OperatorTraces | None] = ContextVar("vitascope_operator_traces", default=None)


@contextmanager
def operator_traces(folder: Path, *, optimised: bool = True) -> Iterator[OperatorTraces]:
    """Profile every session that this thread opens in the block; each writes its file when it is closed.

    Args:
        folder: Where the files go; it exists.
        optimised: False runs the network's nodes as the file has them, none fused and none laid out again: for
            counting, not for timing.
    """
    traces = OperatorTraces(folder, optimised=optimised)
    token = _TRACES.set(traces)
    try:
        yield traces
    finally:
        _TRACES.reset(token)


def traces_wanted() -> OperatorTraces | None:
    """The traces that a session opened now reports to; None for none."""
    return _TRACES.get()


def _calls(events: Sequence[Mapping[str, Any]], *, since_microseconds: float) -> list[OperatorCall]:
    timed = [event for event in events if event.get("cat") == "Node" and event["name"].endswith(_SUFFIX)]
    kept = [event for event in timed if float(event["ts"]) >= since_microseconds]
    return [_call(event) for event in sorted(kept, key=lambda event: float(event["ts"]))]


def _call(event: Mapping[str, Any]) -> OperatorCall:
    details = event["args"]
    return OperatorCall(
        kind=details["op_name"],
        name=event["name"].removesuffix(_SUFFIX),
        seconds=float(event["dur"]) / 1e6,
        input_shapes=_shapes(details["input_type_shape"]),
        output_shapes=_shapes(details["output_type_shape"]),
        activation_bytes=int(details["activation_size"]),
        parameter_bytes=int(details["parameter_size"]),
        output_bytes=int(details["output_size"]),
    )


def _shapes(tensors: Sequence[Mapping[str, Sequence[int]]]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(shape) for tensor in tensors for shape in tensor.values())
