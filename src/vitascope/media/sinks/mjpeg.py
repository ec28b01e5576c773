"""A page for browsers, and the stream on it: JPEG pictures, one behind the other (``multipart/x-mixed-replace``).

The page is served to this machine alone unless a host is named: a stream of one's face is nobody else's business.
"""

from __future__ import annotations

import threading

import cv2

from vitascope.errors import OutputError
from vitascope.http_server import GuardedHandler, GuardedServer
from vitascope.media.sinks.sink import LivePicture, PixelFormat, SinkFormat
from vitascope.media.sinks.udp import host_and_port

__all__ = ["MjpegSink"]

_DEFAULT_PORT = "8890"
_QUALITY = 85
_BOUNDARY = "picture"
_PATIENCE_SECONDS = 2.0
"""A browser that gets no new picture for so long gets the last one again, and so knows that the stream goes on."""
_PAGE = b"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Vitascope</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>html,body{margin:0;height:100%;background:#111}img{width:100%;height:100%;object-fit:contain}</style>
</head><body><img src="/stream.mjpg" alt="The pictures, live"></body></html>
"""


class MjpegSink:
    """A small web server.

    Args:
        target: ``PORT`` or ``HOST:PORT``; empty is port 8890. Without a host only this machine is served.
    """

    pixel_format: PixelFormat = "rgb24"
    """The JPEG encoder takes it."""

    def __init__(self, target: str = "") -> None:
        self._host, self._port = host_and_port(
            target or _DEFAULT_PORT, default_host="127.0.0.1", word="mjpeg"
        )
        self._server: _Server | None = None
        self._thread: threading.Thread | None = None

    @property
    def name(self) -> str:
        """``mjpeg:HOST:PORT``."""
        return f"mjpeg:{self._host}:{self._port}"

    @property
    def url(self) -> str:
        """The address of the page."""
        return f"http://{self._host}:{self._port}/"

    def open(self, made: SinkFormat) -> None:
        """See ``Sink.open``."""
        del made
        try:
            self._server = _Server((self._host, self._port))
        except OSError as error:
            raise OutputError(f"{self.name} cannot be opened: {error.strerror or error}") from error
        self._thread = threading.Thread(
            target=self._server.serve_forever,
            kwargs={"poll_interval": 0.1},
            name="vitascope-mjpeg",
            daemon=True,
        )
        self._thread.start()

    def send(self, picture: LivePicture) -> None:
        """Compress a picture and hand it to every browser that waits; nothing is done while none does."""
        assert self._server is not None  # opened
        if not self._server.has_clients:
            return
        done, data = cv2.imencode(
            ".jpg", cv2.cvtColor(picture.rgb, cv2.COLOR_RGB2BGR), [cv2.IMWRITE_JPEG_QUALITY, _QUALITY]
        )
        if not done:
            raise OutputError(f"{self.name}: a picture of {picture.size} could not be compressed")
        self._server.publish(data.tobytes())

    def close(self) -> None:
        """Let the browsers go, and free the port."""
        server, thread = self._server, self._thread
        self._server = self._thread = None
        if server is None or thread is None:
            return
        server.stop()
        server.shutdown()
        server.server_close()
        thread.join()


class _Server(GuardedServer):
    """Hands the newest picture to every client."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._changed = threading.Condition()
        self._picture: tuple[int, bytes] = (0, b"")
        self._clients = 0
        self._is_stopped = False
        super().__init__(address, _Handler, name=address[0])

    @property
    def has_clients(self) -> bool:
        """True while a browser watches."""
        return self._clients > 0

    def publish(self, jpeg: bytes) -> None:
        with self._changed:
            self._picture = (self._picture[0] + 1, jpeg)
            self._changed.notify_all()

    def newer(self, seen: int) -> tuple[int, bytes] | None:
        """The newest picture, waited for where it was seen already; None once this was stopped."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._is_stopped or self._picture[0] > seen, timeout=_PATIENCE_SECONDS
            )
            return None if self._is_stopped else self._picture

    def join(self) -> int:
        """Count a client; which picture it has seen."""
        with self._changed:
            self._clients += 1
            return self._picture[0]

    def leave(self) -> None:
        with self._changed:
            self._clients -= 1

    def stop(self) -> None:
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()


class _Handler(GuardedHandler):
    server: _Server

    def do_GET(self) -> None:  # noqa: N802 - http.server's name for it
        """The page, or the stream."""
        if self.path == "/":
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.send_header("Content-Length", str(len(_PAGE)))
            self.end_headers()
            self.wfile.write(_PAGE)
        elif self.path == "/stream.mjpg":
            self._stream()
        else:
            self.send_error(404)

    def _stream(self) -> None:
        self.send_response(200)
        self.send_header("Cache-Control", "no-store")
        self.send_header("Content-Type", f"multipart/x-mixed-replace; boundary={_BOUNDARY}")
        self.end_headers()
        seen = self.server.join()
        try:
            while (newest := self.server.newer(seen)) is not None:
                seen, jpeg = newest
                if not jpeg:  # none was made yet
                    continue
                head = f"--{_BOUNDARY}\r\nContent-Type: image/jpeg\r\nContent-Length: {len(jpeg)}\r\n\r\n"
                self.wfile.write(head.encode() + jpeg + b"\r\n")
        finally:
            self.server.leave()
