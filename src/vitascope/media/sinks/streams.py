"""Network sinks: a transport stream over UDP, and a page of JPEG pictures (``multipart/x-mixed-replace``).

The page is only served to this machine unless a host is given: a live picture of a face is private.
"""

from __future__ import annotations

import socket
import threading
from fractions import Fraction

import av
import av.container
import cv2
from av.video.stream import VideoStream

from vitascope.errors import OutputError, UsageError
from vitascope.http_server import GuardedHandler, GuardedServer
from vitascope.media.sinks.sink import LivePicture, PixelFormat, SinkFormat

_TIME_BASE = Fraction(1, 90_000)
_BT709, _LIMITED = 1, 1  # AVCOL_SPC_BT709 and its like (ITU-T H.273), AVCOL_RANGE_MPEG
_PACKET_BYTES = 1316
"""Seven transport packets, the most that fit into an Ethernet frame."""


def host_and_port(target: str, *, default_host: str | None = None, word: str) -> tuple[str, int]:
    """Parse ``[HOST:]PORT``.

    Raises:
        UsageError: The port is not a number from 1 to 65535, or the host is missing and has no default.
    """
    host, _, port = target.rpartition(":")
    host = host.strip("[]") or default_host or ""
    if not host or not port.isdecimal() or not 1 <= int(port) <= 65535:
        wanted = "HOST:PORT" if default_host is None else "PORT, or HOST:PORT"
        raise UsageError(f"sink {word}:{target}: write {wanted}, the port from 1 to 65535")
    return host, int(port)


class UdpSink:
    """Sends H.264 without reordering, with a keyframe every second, so that receivers can join at any time.

    Args:
        target: ``HOST:PORT``.
    """

    pixel_format: PixelFormat = "yuv420p"
    """Always 4:2:0."""

    def __init__(self, target: str) -> None:
        self._host, self._port = host_and_port(target, word="udp")
        self._container: av.container.OutputContainer | None = None
        self._stream: VideoStream | None = None
        self._origin_seconds: float | None = None
        self._last_ticks = -1

    @property
    def name(self) -> str:
        """``udp:HOST:PORT``."""
        return f"udp:{self._host}:{self._port}"

    def open(self, made: SinkFormat) -> None:
        """See ``Sink.open``."""
        if made.width % 2 or made.height % 2:
            raise OutputError(f"{self.name}: pictures of {made.width}x{made.height}; both must be even")
        host = f"[{self._host}]" if ":" in self._host else self._host
        try:  # FFmpeg would only report a failure with the first picture
            socket.getaddrinfo(self._host, self._port, type=socket.SOCK_DGRAM)
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise OutputError(
                f"{self.name} cannot be opened: {self._host} is not found ({reason})"
            ) from error
        try:
            self._container = av.open(
                f"udp://{host}:{self._port}?pkt_size={_PACKET_BYTES}", "w", format="mpegts"
            )
            rate = made.frame_rate.limit_denominator(1001)
            stream = self._container.add_stream("libx264", rate=rate)
            assert isinstance(stream, VideoStream)  # guaranteed by the codec
            stream.width, stream.height, stream.pix_fmt = made.width, made.height, "yuv420p"
            stream.time_base = stream.codec_context.time_base = _TIME_BASE
            # Players would take untagged video of this size for BT.601.
            stream.codec_context.colorspace = _BT709
            stream.codec_context.color_primaries = stream.codec_context.color_trc = _BT709
            stream.codec_context.color_range = _LIMITED
            stream.codec_context.options = {
                "preset": "veryfast",
                "tune": "zerolatency",
                "x264-params": f"keyint={max(round(rate), 1)}:repeat-headers=1",
            }
        except (av.FFmpegError, ValueError) as error:
            raise OutputError(f"{self.name} cannot be opened: {error}") from error
        self._stream, self._origin_seconds, self._last_ticks = stream, None, -1

    def send(self, picture: LivePicture) -> None:
        """Encode and send a picture."""
        assert self._container is not None and self._stream is not None  # set by open()
        if self._origin_seconds is None:
            self._origin_seconds = picture.captured_seconds
        made = picture.as_format("yuv420p")
        frame = av.VideoFrame(made.width, made.height, "yuv420p")
        for target, source in zip(frame.planes, made.planes, strict=True):
            target.update(bytes(source))  # a copy: other sinks share the picture and its time
        ticks = max(
            round((picture.captured_seconds - self._origin_seconds) / _TIME_BASE), self._last_ticks + 1
        )
        frame.pts, frame.time_base, self._last_ticks = ticks, _TIME_BASE, ticks
        try:
            for packet in self._stream.encode(frame):
                self._container.mux(packet)
        except av.FFmpegError as error:
            raise OutputError(f"{self.name} failed: {error}") from error

    def close(self) -> None:
        """Flush the encoder, and close the connection."""
        container, stream = self._container, self._stream
        self._container = self._stream = None
        if container is None:
            return
        try:
            if stream is not None and self._origin_seconds is not None:
                for packet in stream.encode(None):
                    container.mux(packet)
        except av.FFmpegError as error:
            raise OutputError(f"{self.name} failed: {error}") from error
        finally:
            container.close()


_DEFAULT_PORT = "8890"
_QUALITY = 85
_BOUNDARY = "picture"
_PATIENCE_SECONDS = 2.0
"""Time without a new picture after which browsers get the last one again, to keep the stream alive."""
_PAGE = b"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Vitascope</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>html,body{margin:0;height:100%;background:#111}img{width:100%;height:100%;object-fit:contain}</style>
</head><body><img src="/stream.mjpg" alt="The pictures, live"></body></html>
"""


class MjpegSink:
    """Serves a page of JPEG pictures.

    Args:
        target: ``PORT`` or ``HOST:PORT``; empty means port 8890. Without a host, only this machine is served.
    """

    pixel_format: PixelFormat = "rgb24"
    """Format for the JPEG encoder."""

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
        """Compress a picture and send it to every waiting browser; do nothing if there is none."""
        assert self._server is not None  # set by open()
        if not self._server.has_clients:
            return
        done, data = cv2.imencode(
            ".jpg", cv2.cvtColor(picture.rgb, cv2.COLOR_RGB2BGR), [cv2.IMWRITE_JPEG_QUALITY, _QUALITY]
        )
        if not done:
            raise OutputError(f"{self.name}: a picture of {picture.size} could not be compressed")
        self._server.publish(data.tobytes())

    def close(self) -> None:
        """Disconnect the browsers, and free the port."""
        server, thread = self._server, self._thread
        self._server = self._thread = None
        if server is None or thread is None:
            return
        server.stop()
        server.shutdown()
        server.server_close()
        thread.join()


class _Server(GuardedServer):
    """Sends the newest picture to every client."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._changed = threading.Condition()
        self._picture: tuple[int, bytes] = (0, b"")
        self._clients = 0
        self._is_stopped = False
        super().__init__(address, _Handler, name=address[0])

    @property
    def has_clients(self) -> bool:
        """True while a browser is connected."""
        return self._clients > 0

    def publish(self, jpeg: bytes) -> None:
        with self._changed:
            self._picture = (self._picture[0] + 1, jpeg)
            self._changed.notify_all()

    def newer(self, seen: int) -> tuple[int, bytes] | None:
        """Wait for a picture newer than the last one; None once stopped."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._is_stopped or self._picture[0] > seen, timeout=_PATIENCE_SECONDS
            )
            return None if self._is_stopped else self._picture

    def join(self) -> int:
        """Count a client; returns the number of the newest picture."""
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
        """Serve the page or the stream."""
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
