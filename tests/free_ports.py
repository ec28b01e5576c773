"""Ports that a program is told to listen at, and that nobody takes before it does."""

from __future__ import annotations

import random
import socket

__all__ = ["free_port"]

_NOT_GIVEN_OUT = range(20_000, 32_000)
"""Systems give connections of their own ports from 32768 on: what was free a moment ago may be taken there."""


def free_port(kind: socket.SocketKind = socket.SOCK_STREAM) -> int:
    """A port of 127.0.0.1 at which nobody listens."""
    for port in random.SystemRandom().sample(_NOT_GIVEN_OUT, 100):
        with socket.socket(socket.AF_INET, kind) as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("a hundred ports are taken")
