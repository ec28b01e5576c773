"""A local web server for one file, which misbehaves on demand."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class FileServer:
    """What to serve, how to misbehave, and the requests so far."""

    content: bytes
    url: str = ""
    honours_range: bool = True
    status: int | None = None
    """Answer everything with this error."""
    redirect_to: str | None = None
    """Redirect ``/old`` to this address."""
    announces_length: bool = True
    cuts: list[int] = field(default_factory=list)
    """Break the n-th connection after this many bytes of its body."""
    silent_after: int | None = None
    """Send this many bytes of a body, then nothing until ``resume`` is set."""
    content_range: str | None = None
    """Report this wrong range."""
    resume: threading.Event = field(default_factory=threading.Event)
    ranges: list[str | None] = field(default_factory=list)
    """The Range header of every request."""

    @property
    def request_count(self) -> int:
        return len(self.ranges)


@contextmanager
def serve(content: bytes, *, tls: ssl.SSLContext | None = None) -> Iterator[FileServer]:
    """Serve ``content`` at ``server.url`` on a free port of 127.0.0.1, encrypted when ``tls`` is given."""
    served = FileServer(content)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            number = served.request_count
            served.ranges.append(self.headers.get("Range"))
            if served.redirect_to is not None and self.path == "/old":
                self.send_response(302)
                self.send_header("Location", served.redirect_to)
                self.end_headers()
                return
            if served.status is not None:
                self.send_error(served.status)
                return
            body = served.content
            asked = self.headers.get("Range")
            if asked and served.honours_range:
                start = int(asked.removeprefix("bytes=").removesuffix("-"))
                if start >= len(body):
                    self.send_error(416)
                    return
                self.send_response(206)
                honest = f"bytes {start}-{len(body) - 1}/{len(body)}"
                self.send_header("Content-Range", served.content_range or honest)
                body = body[start:]
            else:
                self.send_response(200)
            if served.announces_length:
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if number < len(served.cuts):
                body = body[: served.cuts[number]]
            if served.silent_after is not None:
                self.wfile.write(body[: served.silent_after])
                served.resume.wait()
                body = body[served.silent_after :]
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        def handle_error(self, request: object, client_address: object) -> None:
            pass  # some tests are about clients that hang up early

    with Server(("127.0.0.1", 0), Handler) as server:
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        served.url = f"{'https' if tls else 'http'}://127.0.0.1:{server.server_port}/network.onnx"
        thread = threading.Thread(
            target=server.serve_forever, kwargs={"poll_interval": 0.02}, name="file-server"
        )
        thread.start()
        try:
            yield served
        finally:
            served.resume.set()
            server.shutdown()
            thread.join()
