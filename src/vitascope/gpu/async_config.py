"""What an ``AsyncPipeline`` is made of, in plain values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Any

from vitascope.errors import ConfigError

__all__ = ["AsyncConfig"]

_MOST = {"batch_size": 4096, "queue_size": 100_000, "timeout_ms": 60_000}
_MOST_THREADS = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class AsyncConfig:
    """Threads, streams, sizes and times of an ``AsyncPipeline``.

    Raises:
        ConfigError: A value is no number, or out of range.
    """

    decode_threads: int = 2
    """Threads that decode what was submitted as bytes or paths (or run ``decode``)."""
    preprocess_streams: int = 2
    """Pictures that are prepared at a time: threads, each with a CUDA stream of its own on a GPU."""
    batch_size: int = 4
    """Most frames in one call of the network."""
    postprocess_threads: int = 1
    """Threads that make a result from the network's answer, each with a CUDA stream of its own on a GPU."""
    encode_threads: int = 2
    """Threads that run ``encode``."""
    queue_size: int = 16
    """Most frames that wait before each stage, and most results that wait to be taken; also bounded in bytes."""
    timeout_ms: float = 10.0
    """Milliseconds after which a batch runs although it is not full; 0 takes what is there."""
    cuda_graphs: bool = True
    """Record a torch module as CUDA graphs, one for each of the batch sizes 1, 2, 4 … up to ``batch_size``; smaller
    batches are filled up. False runs it operation by operation, as a module that waits for the GPU in between needs it.
    Without meaning for engines and callables, and on a CPU."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        if not isinstance(self.cuda_graphs, bool):
            raise ConfigError(f"cuda_graphs is {self.cuda_graphs!r}, expected True or False")
        for item in fields(self):
            if item.name == "cuda_graphs":
                continue
            value, least = getattr(self, item.name), 0 if item.name == "timeout_ms" else 1
            most = _MOST.get(item.name, _MOST_THREADS)
            wanted = (int,) if least else (int, float)
            if (
                isinstance(value, bool)
                or not isinstance(value, wanted)
                or not least <= value <= most
                or math.isnan(value)
            ):
                kind = "a whole number" if least else "a number"
                raise ConfigError(f"{item.name} is {value!r}, expected {kind} from {least} to {most}")

    @classmethod
    def of(cls, config: AsyncConfig | Mapping[str, Any] | None) -> AsyncConfig:
        """From a mapping of the field names; what is missing keeps its default.

        Raises:
            ConfigError: A key is unknown, or a value is out of range.
        """
        if config is None:
            return cls()
        if isinstance(config, AsyncConfig):
            return config
        known = [item.name for item in fields(cls)]
        for key in config:
            if key not in known:
                near = get_close_matches(str(key), known, 1)
                hint = f"; did you mean {near[0]}?" if near else f"; known are {', '.join(known)}"
                raise ConfigError(f"an AsyncPipeline has no setting {key!r}{hint}")
        return cls(**config)
