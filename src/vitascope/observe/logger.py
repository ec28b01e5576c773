"""A logger that also measures time: ``with logger.timer("model_inference"): ...``."""

from __future__ import annotations

import logging
import threading
from contextlib import AbstractContextManager
from typing import Any

from vitascope.gpu.profiling.profiler import Profiler

_loggers: dict[str, TimingLogger] = {}
_lock = threading.Lock()


class TimingLogger(logging.LoggerAdapter[logging.Logger]):
    """A standard logger with timers; ``logging`` decides where its messages go.

    Timers are spans of a ``Profiler``: they nest, work in any thread, and also time the GPU if one is used.

    Args:
        logger: The underlying standard logger.
    """

    def __init__(self, logger: logging.Logger) -> None:
        super().__init__(logger, {})
        self.profiler = Profiler(logger.name, keep_spans=0)
        """Holds the timers; ``print_summary`` prints them."""

    def timer(self, name: str) -> AbstractContextManager[object]:
        """Time a block.

        Args:
            name: Name of the timer; durations of the same name are summed.
        """
        return self.profiler.profile(name)

    def get_stats(self) -> dict[str, dict[str, dict[str, Any]]]:
        """The measurements of the timers, in seconds.

        Returns:
            ``{"timers": {name: {...}}}`` with ``count``, ``total``, ``mean``, ``min``, ``max``, and within 2.2 %
            ``p50``, ``p95`` and ``p99``; ``gpu_mean`` and ``gpu_total`` are None if no GPU was timed.
        """
        timers: dict[str, dict[str, Any]] = {}
        for name, row in self.profiler.by_name().items():
            timers[name] = {
                "count": row.count,
                "total": row.total_seconds,
                "mean": row.mean_seconds,
                "min": row.min_seconds,
                "max": row.max_seconds,
                "p50": row.p50_seconds,
                "p95": row.p95_seconds,
                "p99": row.p99_seconds,
                "gpu_total": None if row.gpu is None else row.gpu.total_seconds,
                "gpu_mean": None if row.gpu is None else row.gpu.mean_seconds,
            }
        return {"timers": timers}

    def reset_stats(self) -> None:
        """Reset the timers."""
        self.profiler.reset()


def get_logger(name: str = "vitascope") -> TimingLogger:
    """Return the logger with a name, always the same object.

    Args:
        name: Name as for ``logging.getLogger``.
    """
    with _lock:
        if name not in _loggers:
            _loggers[name] = TimingLogger(logging.getLogger(name))
        return _loggers[name]
