"""Ports for programs to listen on, which nobody takes before."""

from __future__ import annotations

import random
import socket

__all__ = ["free_port"]

_NOT_GIVEN_OUT = range(20_000, 32_000)
"""Above these, systems assign ports to outgoing connections, from 32768 on: a free port may be taken there."""


def free_port(kind: socket.SocketKind = socket.SOCK_STREAM) -> int:
    """Return a port of 127.0.0.1 on which nobody listens."""
    for port in random.SystemRandom().sample(_NOT_GIVEN_OUT, 100):
        with socket.socket(socket.AF_INET, kind) as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("a hundred ports are taken")
