"""An MPEG transport stream over UDP: what OBS, VLC and ffplay open as ``udp://@:PORT``."""

from __future__ import annotations

from fractions import Fraction

import av
import av.container
from av.video.stream import VideoStream

from vitascope.errors import OutputError, UsageError
from vitascope.media.sinks.sink import LivePicture, PixelFormat, SinkFormat

__all__ = ["UdpSink", "host_and_port"]

_TIME_BASE = Fraction(1, 90_000)
_BT709, _LIMITED = 1, 1  # AVCOL_SPC_BT709 and its like (ITU-T H.273), AVCOL_RANGE_MPEG
_PACKET_BYTES = 1316
"""Seven transport packets, the most that an Ethernet frame carries whole."""


def host_and_port(target: str, *, default_host: str | None = None, word: str) -> tuple[str, int]:
    """Read ``[HOST:]PORT``.

    Raises:
        UsageError: The port is no number from 1 to 65535, or the host is missing and has no default.
    """
    host, _, port = target.rpartition(":")
    host = host.strip("[]") or default_host or ""
    if not host or not port.isdecimal() or not 1 <= int(port) <= 65535:
        wanted = "HOST:PORT" if default_host is None else "PORT, or HOST:PORT"
        raise UsageError(f"sink {word}:{target}: write {wanted}, the port from 1 to 65535")
    return host, int(port)


class UdpSink:
    """H.264 without reordering, a keyframe every second, so that a receiver can join at any time.

    Args:
        target: ``HOST:PORT``.
    """

    pixel_format: PixelFormat = "yuv420p"
    """4:2:0."""

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
        try:
            self._container = av.open(
                f"udp://{host}:{self._port}?pkt_size={_PACKET_BYTES}", "w", format="mpegts"
            )
            rate = made.frame_rate.limit_denominator(1001)
            stream = self._container.add_stream("libx264", rate=rate)
            assert isinstance(stream, VideoStream)  # of a video codec
            stream.width, stream.height, stream.pix_fmt = made.width, made.height, "yuv420p"
            stream.time_base = stream.codec_context.time_base = _TIME_BASE
            # Untagged video this small would be taken for BT.601.
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
        assert self._container is not None and self._stream is not None  # opened
        if self._origin_seconds is None:
            self._origin_seconds = picture.captured_seconds
        made = picture.as_format("yuv420p")
        frame = av.VideoFrame(made.width, made.height, "yuv420p")
        for target, source in zip(frame.planes, made.planes, strict=True):
            target.update(bytes(source))  # a frame of its own: others share the picture's, and its time
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
        """Send what the encoder holds, and close."""
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
