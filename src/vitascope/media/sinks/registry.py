"""Sinks by the words that users type; what a sink needs is imported when it is opened."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from vitascope.errors import UsageError
from vitascope.media.sinks.sink import Sink

__all__ = ["SINKS", "SinkKind", "make_sink"]


@dataclass(frozen=True, slots=True)
class SinkKind:
    """One kind of live output."""

    word: str
    """How it is asked for."""
    target: str
    """What may follow the colon; empty for nothing."""
    shows: str
    """What it does, in a few words."""
    home: str
    """Module and class below ``vitascope.media.sinks``."""
    needs_target: bool = False


SINKS: dict[str, SinkKind] = {
    kind.word: kind
    for kind in (
        SinkKind("window", "", "a window on this screen", "window:WindowSink"),
        SinkKind("file", "PATH", "a video file", "file:FileSink", needs_target=True),
        SinkKind("virtualcam", "DEVICE", "a camera that other programs see", "virtualcam:VirtualCameraSink"),
        SinkKind("ndi", "NAME", "an NDI source in the local network", "ndi:NdiSink"),
        SinkKind("spout", "NAME", "a Spout sender (Windows)", "spout:SpoutSink"),
        SinkKind("mjpeg", "[HOST:]PORT", "a page for browsers", "mjpeg:MjpegSink"),
        SinkKind("udp", "HOST:PORT", "an MPEG transport stream over UDP", "udp:UdpSink", needs_target=True),
        SinkKind("null", "", "nowhere, for measuring", "null:NullSink"),
    )
}


def make_sink(spec: str, **options: Mapping[str, Any]) -> Sink:
    """A sink that is not open yet.

    Args:
        spec: A word of ``SINKS``, and what follows its colon: ``window``, ``file:out.mp4``, ``mjpeg:8080``.
        options: Further arguments of a kind, by its word: ``file={"crf": 20}``.

    Raises:
        UsageError: The word is unknown, or its target is missing, superfluous or malformed.
    """
    word, _, target = spec.partition(":")
    kind = SINKS.get(word)
    if kind is None:
        raise UsageError(
            f"unknown sink {spec!r}; known are {', '.join(_usage(kind) for kind in SINKS.values())}"
        )
    if (kind.needs_target and not target) or (target and not kind.target):
        raise UsageError(f"sink {spec!r}: write {_usage(kind)}")
    module, _, name = kind.home.partition(":")
    make: Callable[..., Sink] = getattr(importlib.import_module(f"vitascope.media.sinks.{module}"), name)
    return make(target, **options.get(word, {}))


def _usage(kind: SinkKind) -> str:
    if not kind.target:
        return kind.word
    return f"{kind.word}:{kind.target}" if kind.needs_target else f"{kind.word}[:{kind.target}]"
