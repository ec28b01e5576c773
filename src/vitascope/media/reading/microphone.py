"""A microphone: a thread reads it through FFmpeg, and one that was unplugged is waited for."""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import Protocol, Self

import av
import numpy as np
import numpy.typing as npt

from vitascope.errors import InputError
from vitascope.media.libav import describe_av_error, silence_libav
from vitascope.media.reading.sound import OneChannel

__all__ = ["Microphone", "SoundBlock", "SoundCapture", "is_microphone", "open_microphone"]

_RETRY_SECONDS = 1.0
_MOST_BLOCKS = 1000
"""Waiting to be taken: some 20 seconds; who takes nothing for longer loses the oldest."""
_FORMATS = {"darwin": "avfoundation", "win32": "dshow"}
_JOIN_SECONDS = 2.0


@dataclass(frozen=True, slots=True, eq=False)
class SoundBlock:
    """Some milliseconds of sound."""

    samples: npt.NDArray[np.float32]
    """float32 [n], -1..1."""
    end_seconds: float
    """When its last sample was captured, on ``time.monotonic``'s clock."""


class SoundCapture(Protocol):
    """An open microphone, or what stands in for one."""

    def read(self) -> npt.NDArray[np.float32] | None:
        """The next samples, float32 [n], waited for; None when there are no more."""
        ...

    def close(self) -> None:
        """Give it back."""
        ...


def is_microphone(name: str) -> bool:
    """True for ``mic`` and ``mic:DEVICE``."""
    return name == "mic" or name.startswith("mic:")


class _DeviceCapture:
    """A microphone through FFmpeg: ALSA, AVFoundation or DirectShow."""

    def __init__(self, container: av.container.InputContainer, sample_rate: int) -> None:
        self._container = container
        self._packets = container.demux(audio=0)
        self._resampler: av.AudioResampler | None = None
        self._rate = sample_rate
        self._one_channel = OneChannel()

    def read(self) -> npt.NDArray[np.float32] | None:
        try:
            packet = next(self._packets, None)
            if packet is None:
                return None
            blocks = []
            for frame in packet.decode():
                assert isinstance(frame, av.AudioFrame)
                if self._resampler is None:
                    self._resampler = av.AudioResampler("fltp", frame.layout, self._rate)
                frame.pts = None
                blocks += [
                    np.asarray(part.to_ndarray(), np.float32) for part in self._resampler.resample(frame)
                ]
        except (av.FFmpegError, OSError, ValueError):
            return None
        return self._one_channel(np.concatenate(blocks, axis=1)) if blocks else np.zeros(0, np.float32)

    def close(self) -> None:
        self._container.close()


def open_microphone(name: str, *, sample_rate: int) -> SoundCapture:
    """Open a microphone.

    Args:
        name: ``mic`` for the default one, or ``mic:DEVICE`` with a name of the system's: ``hw:1`` (ALSA), ``:1``
            (AVFoundation), ``Microphone (USB)`` (DirectShow).
        sample_rate: Samples a second to give.

    Raises:
        InputError: There is none, another program uses it, or this FFmpeg build reads none.
    """
    silence_libav()
    kind = _FORMATS.get(sys.platform, "alsa")
    device = name.removeprefix("mic").removeprefix(":")
    if kind not in av.formats_available:
        raise InputError(f"{name}: this build of PyAV cannot read microphones ({kind} is not in it)")
    try:
        # A recording device that is asked for a rate and a channel it lacks is converted by ALSA's default device.
        options = {"sample_rate": str(sample_rate), "channels": "1"} if kind == "alsa" and not device else {}
        return _DeviceCapture(av.open(_address(kind, device), format=kind, options=options), sample_rate)
    except (av.FFmpegError, OSError, ValueError, IndexError) as error:
        raise InputError(
            f"{name}: no microphone can be opened ({describe_av_error(error)}): it is not there, or another program "
            "uses it"
        ) from error


def _address(kind: str, device: str) -> str:
    """A device as FFmpeg names it."""
    if kind == "avfoundation":
        return device if device.startswith(":") else f":{device or 'default'}"
    if kind != "dshow":
        return device or "default"
    if device:
        return f"audio={device}"
    sounds = [found for found in av.enumerate_input_devices(kind) if "audio" in found.media_types]
    if not sounds:
        raise ValueError("Windows names none")
    return f"audio={(next((found for found in sounds if found.is_default), sounds[0])).name}"


class Microphone:
    """Sound that is always read, so that nothing waits in the driver. A context manager.

    Args:
        open_one: Opens it; called again when it was unplugged. Its first failure is raised by ``__enter__``.
        ends: What it gives ends for good, as a file does.
        on_lost: Told, from the thread that notices, True when it goes and False when it is back.
        retry_seconds: Between attempts to find it again.
    """

    def __init__(
        self,
        open_one: Callable[[], SoundCapture],
        *,
        ends: bool = False,
        on_lost: Callable[[bool], object] | None = None,
        retry_seconds: float = _RETRY_SECONDS,
    ) -> None:
        self._open_one = open_one
        self._ends = ends
        self._on_lost = on_lost
        self._retry_seconds = retry_seconds
        self._changed = threading.Condition()
        self._blocks: deque[SoundBlock] = deque(maxlen=_MOST_BLOCKS)
        self._is_stopped = False
        self._is_over = False
        self._thread: threading.Thread | None = None

    @property
    def is_over(self) -> bool:
        """True when everything was taken and nothing will come."""
        with self._changed:
            return (self._is_over and not self._blocks) or self._is_stopped

    def take(self, *, timeout_seconds: float | None = None) -> list[SoundBlock]:
        """All that came since the last time, in order, waited for; nothing when nothing came in time, or it is over."""
        with self._changed:
            self._changed.wait_for(
                lambda: bool(self._blocks) or self._is_stopped or self._is_over, timeout_seconds
            )
            taken = list(self._blocks)
            self._blocks.clear()
        return taken

    def __enter__(self) -> Self:
        """Open it and start reading.

        Raises:
            InputError: It cannot be opened.
        """
        capture = self._open_one()
        self._thread = threading.Thread(
            target=self._read, args=(capture,), name="vitascope-microphone", daemon=True
        )
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop reading and give it back; a driver that hangs is left behind."""
        self.close()

    def close(self) -> None:
        """Stop reading."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(_JOIN_SECONDS)

    def _read(self, capture: SoundCapture | None) -> None:
        while capture is not None:
            while not self._is_stopped and (samples := capture.read()) is not None:
                if len(samples):
                    with self._changed:
                        self._blocks.append(SoundBlock(samples, monotonic()))
                        self._changed.notify_all()
            capture.close()
            if self._ends or self._is_stopped:
                break
            capture = self._found_again()
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    def _found_again(self) -> SoundCapture | None:
        """The microphone, once it can be opened again; None when this was closed."""
        if self._on_lost is not None:
            self._on_lost(True)
        while True:
            with self._changed:
                if self._changed.wait_for(lambda: self._is_stopped, self._retry_seconds):
                    return None
            try:
                capture = self._open_one()
            except InputError:
                continue
            if self._on_lost is not None:
                self._on_lost(False)
            return capture
