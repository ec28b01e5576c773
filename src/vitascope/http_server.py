"""The small HTTP server behind the metrics and the live page: for this machine or this network, never for the web.

It adds three protections that Python's own server leaves to its user:

- Pages of other sites must not read it. If a browser was told that ``stranger.example`` is 127.0.0.1 (DNS rebinding),
it sends that name as ``Host``; names that only a public name server can resolve are refused (RFC 9110, 7.4: 421).
- A connection that sends nothing is closed after a few seconds.
- The number of connections is limited. A new one replaces the oldest that has not sent a request yet; if all are
being answered, the new one is closed.
"""

from __future__ import annotations

import ipaddress
import socket
import sys
import threading
import time
from collections.abc import Container
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MOST_CONNECTIONS = 32
PATIENCE_SECONDS = 10.0
_PAUSE_SECONDS = 0.2


def is_own_name(host: str, names: Container[str]) -> bool:
    """False for a name that only a public name server can resolve, so that it may be another site's.

    Args:
        host: The header ``Host``.
        names: The server's other names, in lower case; ``*.example.org`` stands for one label before the rest.
    """
    name = _without_port(host.strip()).lower().rstrip(".")
    _, dot, rest = name.partition(".")
    if not dot or name in names or f"*.{rest}" in names:  # public names have a dot
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return name.endswith((".localhost", ".local"))
    return True


class GuardedServer(ThreadingHTTPServer):
    """A server with one daemon thread per connection.

    Args:
        address: Address from ``socket.getaddrinfo``; port 0 takes a free one.
        handler: A ``GuardedHandler``.
        family: Address family.
        name: The host given by the user, which requests may use as the server's name.

    Raises:
        OSError: The address cannot be used.
    """

    daemon_threads = True
    block_on_close = False  # a slow reader must not block the server's end
    request_queue_size = 128  # with the usual 5, connections in a burst wait a second for their next attempt
    # On Windows the option would let two servers share a port.
    allow_reuse_address = sys.platform != "win32"

    def __init__(
        self,
        address: Any,
        handler: type[GuardedHandler],
        *,
        family: socket.AddressFamily = socket.AF_INET,
        name: str = "",
    ) -> None:
        self.address_family = family
        self._names = {name.lower(), socket.gethostname().lower()}
        self._lock = threading.RLock()
        self._silent: dict[socket.socket, None] = {}  # connected without a request so far; oldest first
        self._answered: set[socket.socket] = set()
        super().__init__(address, handler)

    def server_bind(self) -> None:
        """Bind without looking up the host's name, which is not needed and can take many seconds."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, int(self.allow_reuse_address))
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def get_request(self) -> tuple[socket.socket, Any]:
        """Return the next connection; waits a moment if the process has no file descriptor left."""
        try:
            return super().get_request()
        except OSError:
            time.sleep(_PAUSE_SECONDS)  # or the waiting connection would be requested again and again
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer a connection on its own thread, if there is room."""
        with self._lock:
            if len(self._silent) + len(self._answered) >= MOST_CONNECTIONS:
                if not self._silent:
                    self.shutdown_request(request)
                    return
                oldest = next(iter(self._silent))
                del self._silent[oldest]
                _hang_up(oldest)  # its thread sees the end of the request
            self._silent[request] = None
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # no thread available
            self.shutdown_request(request)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection."""
        with self._lock:
            self._silent.pop(request, None)
            self._answered.discard(request)
        super().shutdown_request(request)

    def note_request(self, request: socket.socket) -> None:
        """Note that a connection has sent a request."""
        with self._lock:
            if request in self._silent:
                del self._silent[request]
                self._answered.add(request)

    def is_known_as(self, host: str) -> bool:
        """False for a host name that may be another site's.

        Args:
            host: The header ``Host``; empty if a program sends none, which no browser does.
        """
        return is_own_name(host, self._names)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore clients that disconnect or do not read; report anything else, since it is a bug."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class GuardedHandler(BaseHTTPRequestHandler):
    """Handles requests that use the server's own name and do not stall."""

    server: GuardedServer
    timeout = PATIENCE_SECONDS

    def parse_request(self) -> bool:
        """False, after an error response, for refused requests."""
        if not super().parse_request():
            return False
        if not self.server.is_known_as(self.headers.get("Host", "")):
            self.send_error(421, explain="Use the address of this server.")
            return False
        self.server.note_request(self.connection)
        return True

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing: the terminal shows the report."""


def _without_port(host: str) -> str:
    if host.startswith("["):  # an IPv6 address
        return host[1:].partition("]")[0]
    return host.rpartition(":")[0] if ":" in host else host


def _hang_up(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:  # already closed
        return
