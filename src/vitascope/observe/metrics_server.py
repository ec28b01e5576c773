"""A small HTTP server for Prometheus: ``http://127.0.0.1:9100/metrics``."""

from __future__ import annotations

import socket
import threading
from types import TracebackType
from typing import Self

from vitascope.errors import OutputError, UsageError
from vitascope.http_server import GuardedHandler, GuardedServer
from vitascope.observe.metrics import Metrics

__all__ = ["LOOPBACK", "MetricsServer"]

LOOPBACK = "127.0.0.1"
_POLL_SECONDS = 0.1


class MetricsServer:
    """Answers every GET with a look at the metrics. A context manager; listens from the start.

    Its threads are called ``vitascope-metrics``; each look is taken on the thread of the one who asks.

    Args:
        metrics: What is shown; not closed here.
        port: 0 takes a free one, see ``url``.
        host: Address to listen at: this machine alone unless told otherwise. Whoever reaches it can read everything.

    Raises:
        UsageError: The port is none.
        OutputError: The port is in use, or the address is not this machine's.
    """

    def __init__(self, metrics: Metrics, *, port: int, host: str = LOOPBACK) -> None:
        from prometheus_client import MetricsHandler

        handler = type("_Handler", (GuardedHandler, MetricsHandler.factory(metrics.registry)), {})
        if not 0 <= port <= 65535:
            raise UsageError(f"a port lies between 0 and 65535, not {port}")
        try:
            family, _, _, _, address = socket.getaddrinfo(
                host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            self._server = GuardedServer(address, handler, family=family, name=host)
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or str(error)
            raise OutputError(
                f"metrics cannot be served at {host}, port {port}: {reason}; "
                "name another --metrics-port or --metrics-host"
            ) from error
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_POLL_SECONDS,), name="vitascope-metrics", daemon=True
        )
        shown = f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{self._server.server_address[1]}/metrics"
        """Where Prometheus finds it."""

    def __enter__(self) -> Self:
        """Begin to answer."""
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop, and free the port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
