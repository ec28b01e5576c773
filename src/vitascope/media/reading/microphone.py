"""A microphone: a thread reads it through PortAudio, and waits for an unplugged one.

Uses python-sounddevice.readthedocs.io, which MediaPipe depends on. The FFmpeg in PyAV's wheels supports neither
PulseAudio nor PipeWire, and does not find a Linux system's ALSA settings.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import Any, Protocol, Self

import av
import numpy as np
import numpy.typing as npt

from vitascope.errors import InputError, MissingDependencyError
from vitascope.media.reading.sound import OneChannel, finite

_RETRY_SECONDS = 1.0
_MOST_BLOCKS = 1000
"""Maximum number of waiting blocks, ten seconds; then the oldest are dropped."""
_BLOCKS_A_SECOND = 100
_JOIN_SECONDS = 2.0


@dataclass(frozen=True, slots=True, eq=False)
class SoundBlock:
    """Some milliseconds of sound."""

    samples: npt.NDArray[np.float32]
    """float32 [n], -1..1."""
    end_seconds: float
    """Capture time of its last sample, on ``time.monotonic``."""
    is_first: bool
    """True for the first block after the microphone was opened or reopened."""


class SoundCapture(Protocol):
    """An open microphone, or a substitute for one."""

    def read(self) -> npt.NDArray[np.float32] | None:
        """Wait for the next samples, float32 [n]; None at the end."""
        ...

    def close(self) -> None:
        """Release the microphone."""
        ...


def is_microphone(name: str) -> bool:
    """True for ``mic`` and ``mic:DEVICE``."""
    return name == "mic" or name.startswith("mic:")


class _DeviceCapture:
    """A microphone through PortAudio."""

    def __init__(self, sounddevice: Any, stream: Any, *, rate: int, channels: int, sample_rate: int) -> None:
        self._failure = sounddevice.PortAudioError
        self._stream = stream
        self._rate = rate
        self._layout = "mono" if channels == 1 else "stereo"
        self._block = max(rate // _BLOCKS_A_SECOND, 1)
        self._resampler = av.AudioResampler("fltp", self._layout, sample_rate)
        self._one_channel = OneChannel()

    def read(self) -> npt.NDArray[np.float32] | None:
        try:
            samples, _ = self._stream.read(self._block)
        except self._failure:  # unplugged
            return None
        frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(finite(samples).T), "fltp", self._layout)
        frame.sample_rate = self._rate
        parts = [part.to_ndarray() for part in self._resampler.resample(frame)]
        if not parts:
            return np.zeros(0, np.float32)
        return self._one_channel(np.asarray(np.concatenate(parts, axis=1), np.float32))

    def close(self) -> None:
        self._stream.close()


def open_microphone(name: str, *, sample_rate: int) -> SoundCapture:
    """Open a microphone.

    Args:
        name: ``mic`` for the system's default one, or ``mic:DEVICE`` with a part of a device's name, or its number.
        sample_rate: Samples per second.

    Raises:
        InputError: There is no microphone, or another program uses it.
        MissingDependencyError: ``sounddevice``, or PortAudio itself, is not installed.
    """
    sounddevice = _require_sounddevice()
    wanted = name.removeprefix("mic").removeprefix(":")
    device = int(wanted) if wanted.isdecimal() else wanted or None
    try:
        found = sounddevice.query_devices(device, "input")
        rate, channels = int(found["default_samplerate"]), min(int(found["max_input_channels"]), 2)
        stream = sounddevice.InputStream(
            device=device, samplerate=rate, channels=channels, dtype="float32", latency="low"
        )
        stream.start()
    except (sounddevice.PortAudioError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise InputError(
            f"{name}: no microphone can be opened ({reason}): it does not exist, or another program uses it"
        ) from error
    return _DeviceCapture(sounddevice, stream, rate=rate, channels=channels, sample_rate=sample_rate)


def _require_sounddevice() -> Any:
    try:
        import sounddevice
    except ImportError as error:
        raise MissingDependencyError(
            f"a microphone needs sounddevice ({error}); install it with `pip install 'vitascope[voice]'`"
        ) from error
    except OSError as error:  # how sounddevice reports that PortAudio is missing
        raise MissingDependencyError(
            "a microphone needs PortAudio, which is a separate package on Linux: apt install libportaudio2"
        ) from error
    return sounddevice


class Microphone:
    """Reads a microphone continuously, so that the driver's buffer stays empty. A context manager.

    Args:
        open_one: Opens it; called again after it was unplugged. Its first failure is raised by ``__enter__``.
        ends: True if the source ends for good, as a file does.
        on_lost: Called from the reading thread with True when it is lost and False when it is back.
        retry_seconds: Time between attempts to reopen it.
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
        self._is_lost = False
        self._thread: threading.Thread | None = None

    @property
    def is_over(self) -> bool:
        """True if everything was taken and no more will come."""
        with self._changed:
            return (self._is_over and not self._blocks) or self._is_stopped

    @property
    def is_lost(self) -> bool:
        """True while the microphone is gone."""
        return self._is_lost

    def take(self, *, timeout_seconds: float | None = None) -> list[SoundBlock]:
        """Wait for the sound since the last call, in order; empty on timeout, or at the end."""
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
            InputError: The microphone cannot be opened.
        """
        capture = self._open_one()
        self._thread = threading.Thread(
            target=self._read, args=(capture,), name="vitascope-microphone", daemon=True
        )
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop reading and release the microphone; a hanging driver is abandoned."""
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
            is_first = True
            while not self._is_stopped and (samples := capture.read()) is not None:
                if len(samples):
                    with self._changed:
                        self._blocks.append(SoundBlock(samples, monotonic(), is_first))
                        self._changed.notify_all()
                    is_first = False
            capture.close()
            if self._ends or self._is_stopped:
                break
            capture = self._found_again()
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    def _found_again(self) -> SoundCapture | None:
        """Wait until the microphone can be reopened; None if this object was closed."""
        self._is_lost = True
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
            self._is_lost = False
            if self._on_lost is not None:
                self._on_lost(False)
            return capture
