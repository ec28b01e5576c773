"""The live loop: capture, process and output pictures, a thread for each, newest picture first.

::

    camera ──> the run's own stages ──> sinks
          newest                  newest

At most one picture waits between two stages; a newer one replaces it. So latency is that of the stages alone,
and slow stages drop pictures instead of falling behind. The report of the loop's counts is shown on the key R
and at the end.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from time import monotonic, strftime
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

import cv2

from vitascope.errors import OutputError
from vitascope.gpu.pipeline.pipeline import Pipeline, describe_item
from vitascope.gpu.pipeline.queues import QueueLimits
from vitascope.gpu.pipeline.report import Latency, LatencyHistogram, PipelineReport
from vitascope.gpu.pipeline.stages import Sink, Source, Stage
from vitascope.gpu.profiling.pipeline_profile import PipelineProfile
from vitascope.gpu.profiling.utilisation import Utilisation, UtilisationSampler
from vitascope.media.sinks.outlet import OutletReport, SinkOutlet, started_outlets
from vitascope.media.sinks.sink import LivePicture

_WARM_UP_SECONDS = 10.0
"""Time to settle after opening; pictures may take 20 seconds each (LivePortrait on a CPU)."""


class LiveFigures:
    """Counts and latencies of a live run.

    The first stage calls ``begin``, ``pause`` and ``go_on``, the last one ``hand_over``; any thread may read.

    Args:
        captured_count: Returns the number of pictures from the camera.
        warm_up_pictures: First pictures to exclude from figures, while networks open and memory is allocated.
        warm_up_seconds: Time after which warm-up ends with the next picture.
    """

    def __init__(
        self,
        captured_count: Callable[[], int],
        *,
        warm_up_pictures: int = 0,
        warm_up_seconds: float = _WARM_UP_SECONDS,
    ) -> None:
        self._captured_count = captured_count
        self._captured_before = captured_count()
        self._warm_up_pictures, self._warm_up_seconds = warm_up_pictures, warm_up_seconds
        self._latency = LatencyHistogram()
        self._counted_from: float | None = None
        self._paused_at: tuple[float, int] | None = None  # the time, and the camera's pictures until then
        self._paused_seconds = 0.0
        self.began: float | None = None
        """Capture time of the first picture, on ``time.monotonic``; None before."""
        self.shown = 0
        """Number of pictures passed to the sinks."""
        self.repeated = 0
        """Number of pictures shown again."""
        self.lost = 0
        """Number of pictures without a face."""

    @property
    def seconds(self) -> float:
        """Seconds since the first counted picture; 0 before."""
        return 0.0 if self._counted_from is None else monotonic() - self._counted_from

    @property
    def seconds_shown(self) -> float:
        """``seconds`` without pauses."""
        paused_at = self._paused_at
        now_paused = 0.0 if paused_at is None else monotonic() - paused_at[0]
        return max(self.seconds - self._paused_seconds - now_paused, 0.0)

    @property
    def captured(self) -> int:
        """Pictures from the camera since the first counted one, without pauses."""
        paused_at = self._paused_at
        count = self._captured_count() if paused_at is None else paused_at[1]
        return max(count - self._captured_before, 0)

    def latency(self) -> Latency:
        """Latency from capture to the sinks."""
        return LatencyHistogram.summary([self._latency])

    def begin(self, captured_seconds: float) -> None:
        """Record the first picture's capture; further calls do nothing."""
        if self.began is None:
            self.began = captured_seconds
            if not self._warm_up_pictures:
                self._counted_from = captured_seconds

    def pause(self) -> None:
        """Start a pause; further calls do nothing."""
        if self._paused_at is None and self._counted_from is not None:
            self._paused_at = monotonic(), self._captured_count()

    def go_on(self) -> None:
        """End the pause, if any."""
        if self._paused_at is not None:
            since, count = self._paused_at
            self._captured_before += self._captured_count() - count
            self._paused_seconds += monotonic() - since
            self._paused_at = None

    def hand_over(self, captured_seconds: float, *, is_repeat: bool = False, is_lost: bool = False) -> None:
        """Record a picture passed to the sinks."""
        if self._warm_up_pictures:
            now = monotonic()
            is_long = self.began is not None and now - self.began >= self._warm_up_seconds
            self._warm_up_pictures = 0 if is_long else self._warm_up_pictures - 1
            if not self._warm_up_pictures:
                self._captured_before = self._captured_count()
                self._counted_from = now
            return
        self.shown += 1
        self.repeated += is_repeat
        self.lost += is_lost
        self._latency.add(max(monotonic() - captured_seconds, 0.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """Report of a live run, so far or complete."""

    seconds: float
    """Seconds since the first picture."""
    size: tuple[int, int]
    """(width, height) of the pictures."""
    captured: int
    """Pictures from the camera."""
    shown: int
    """Pictures passed to the sinks."""
    repeated: int = 0
    """Shown pictures that repeated the last one, because the driver had barely moved."""
    lost: int = 0
    """Shown pictures without a face, if one is tracked."""
    target_fps: float
    latency: Latency
    """Latency from capture to the sinks."""
    sinks: tuple[OutletReport, ...]
    pipeline: PipelineReport
    utilisation: Utilisation | None
    max_latency_ms: float | None = None
    """Limit in milliseconds for 95 % of the pictures, from capture to the sinks."""
    device: str | None = None
    """Device that rendered the pictures, such as ``CPU (2 cores)``."""

    @property
    def frames_per_second(self) -> float:
        """Pictures shown per second."""
        return self.shown / self.seconds if self.seconds > 0 else 0.0

    @property
    def captured_per_second(self) -> float:
        """Pictures from the camera per second."""
        return self.captured / self.seconds if self.seconds > 0 else 0.0

    @property
    def dropped(self) -> int:
        """Pictures from the camera replaced by newer ones before processing."""
        return max(self.captured - self.shown, 0)

    @property
    def failure(self) -> str | None:
        """Name failed sinks with their errors, on one line; None if none failed."""
        return "; ".join(sink.failure for sink in self.sinks if sink.failure is not None) or None

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; times in seconds."""
        return asdict(self) | {"frames_per_second": self.frames_per_second, "dropped": self.dropped}

    def over_limit(self) -> str | None:
        """Warn in one line if too many pictures are late; None if they are not, or there is no limit."""
        most_ms, p95_ms = self.max_latency_ms, self.latency.p95_seconds * 1e3
        if not self.shown or most_ms is None or p95_ms <= most_ms:
            return None
        return f"over the limit: 5 % of the pictures are later than {p95_ms:.0f} ms; wanted: {most_ms:.0f}"

    def where_it_went(self) -> list[str]:
        """Format stages, sinks and GPU, one line each."""
        lines = [
            "stages: "
            + ", ".join(
                f"{stage.name} {stage.latency.p50_seconds * 1e3:.1f} ms"
                for stage in self.pipeline.stages
                if stage.latency.count
            ),
        ]
        for sink in self.sinks:
            state = f"failed: {sink.error}" if sink.state == "failed" else sink.state
            if sink.restarts:
                times = "once" if sink.restarts == 1 else f"{sink.restarts} times"
                state += f"; started again {times}, after: {sink.earlier_error}"
            lines.append(
                f"{sink.name}: {sink.sent} sent, {sink.dropped} dropped, {sink.send.p50_seconds * 1e3:.1f} ms each, "
                f"{sink.age.p50_seconds * 1e3:.1f} ms after capture; {state}"
            )
        used = self.utilisation
        if used is not None and used.gpu_percent is not None:
            memory = (used.memory_used_bytes_max or 0) / 2**30
            lines.append(
                f"GPU {used.gpu_percent:.0f} %, {memory:.1f} GiB, {used.temperature_celsius_max or 0:.0f} °C"
            )
        return lines


def in_milliseconds(latency: Latency) -> str:
    """Percentiles in words, for example ``12.3 ms p50, 14.0 p95, 15.1 p99``."""
    p50, p95, p99 = (
        seconds * 1e3 for seconds in (latency.p50_seconds, latency.p95_seconds, latency.p99_seconds)
    )
    return f"{p50:.1f} ms p50, {p95:.1f} p95, {p99:.1f} p99"


RUN_KEYS: dict[str, str] = {
    "r": "performance report",
    "p": "pause",
    "s": "snapshot",
    "t": "try failed sinks again",
    "q": "quit",
    "?": "this list",
}
"""Effect of each key of every live run."""


class RunControls:
    """Requests to a live run. Thread-safe: keys come from sinks, consoles and programs.

    Args:
        on_message: Called with a few words on what a key did.
    """

    keys: ClassVar[Mapping[str, str]] = RUN_KEYS
    """Effect of each key."""
    _asks: ClassVar[Mapping[str, str]] = {"r": "report", "s": "snapshot", "t": "restart", "q": "quit"}
    """Keys for requests that a stage handles when it reaches them."""

    def __init__(self, *, on_message: Callable[[str], object] | None = None) -> None:
        self._lock = threading.Lock()
        self._requests: set[str] = set()
        self._on_message = on_message
        self.paused = False
        """True while paused."""

    def in_words(self) -> str:
        """List all keys, on one line."""
        return ", ".join(f"{key.upper()} {what}" for key, what in self.keys.items())

    def press(self, key: str) -> bool:
        """Perform the action of a key.

        Args:
            key: A character of ``keys``; ``=`` is ``+``, and ``_`` is ``-``.

        Returns:
            False if the key has no action.
        """
        key = {"=": "+", "_": "-"}.get(key, key.lower())
        if key not in self.keys:
            return False
        with self._lock:
            said = self._do(key)
        if said and self._on_message is not None:
            self._on_message(said)
        return True

    def request(self, wanted: str) -> None:
        """Request an action that a stage performs later. Does not wait: it is called by Ctrl-C's handler."""
        self._requests.add(wanted)

    def is_asked(self, wanted: str) -> bool:
        """True while the request is pending."""
        return wanted in self._requests

    def take(self, wanted: str) -> bool:
        """True once for each request."""
        with self._lock:
            if wanted in self._requests:
                self._requests.discard(wanted)
                return True
            return False

    def _do(self, key: str) -> str:
        """Perform a key's action; returns a message for the user, or an empty string."""
        if key in self._asks:
            self._requests.add(self._asks[key])
            return ""
        if key == "p":
            self.paused = not self.paused
            return "paused" if self.paused else "going on"
        return f"keys: {self.in_words()}"


NEWEST = QueueLimits(items=1, nbytes=None, overflow="drop_oldest")
"""Limits of the queue between two stages of a live run."""
_WAIT_SECONDS = 0.1
_STOP_SECONDS = 5.0
"""Time for the threads of an abandoned run to end."""


class Captured(Protocol):
    """One picture of a source, such as ``media.reading.camera.CameraPicture``."""

    @property
    def captured_seconds(self) -> float:
        """Capture time, on ``time.monotonic``."""
        ...

    @property
    def index(self) -> int:
        """Number from 0 over all captured pictures, including dropped ones."""
        ...


Picture = TypeVar("Picture", bound=Captured)
Given = TypeVar("Given", bound=Captured, covariant=True)


class PictureSource(Protocol[Given]):
    """Source of pictures, such as ``media.reading.camera.Camera``."""

    @property
    def captured_count(self) -> int:
        """Captured pictures, including dropped ones."""
        ...

    @property
    def is_over(self) -> bool:
        """True if no more pictures will come."""
        ...

    def take(self, *, timeout_seconds: float | None = None) -> Given | None:
        """Take the newest picture that was not taken yet; None if none comes in time."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """Options of a live run."""

    target_fps: float = 30.0
    """Target rate; the report says whether it was reached."""
    max_latency_ms: float | None = None
    """Limit for the delay of 95 % of the pictures; the report warns if it is exceeded."""
    snapshot_folder: Path = Path()
    """Folder for snapshots."""
    seconds: float | None = None
    """Length of the run, from the first counted picture; None runs until stopped."""
    warm_up_pictures: int = 0
    """Number of first pictures to exclude from figures and from ``seconds``."""
    ending_seconds: float = 60.0
    """Time for a stopped run to finish its pictures, one of which may take 20 seconds (LivePortrait on a CPU); then
    the run is abandoned."""


class LiveLoop(ABC, Generic[Picture]):
    """One live run. ``run`` works until stopped; other methods may be called meanwhile.

    A subclass defines the stages between capture and sinks: it calls ``_set_stages`` once, and its ``_shown`` takes
    the output of the last stage.

    Args:
        source: The open source of pictures.
        outlets: The sinks: started ones, which the caller closes, or others for ``run_shown``.
        controls: Keyboard controls.
        options: Options of the loop.
        on_report: Called with a report when one was requested.
        on_message: Called with messages that the user should see at once, one line each.
        sampler: Samples the load of CPU and GPU; already started.
    """

    _snapshot_name: ClassVar[str]
    """First part of a snapshot's name."""

    def __init__(
        self,
        source: PictureSource[Picture],
        *,
        outlets: Sequence[SinkOutlet],
        controls: RunControls,
        options: RunOptions,
        on_report: Callable[[Any], object] | None = None,
        on_message: Callable[[str], object] | None = None,
        sampler: UtilisationSampler | None = None,
    ) -> None:
        self._source = source
        self._outlets = list(outlets)
        self._run_controls = controls
        self._run_options = options
        self._on_report = on_report
        self._on_message = on_message
        self._sampler = sampler
        self._figures = LiveFigures(lambda: source.captured_count, warm_up_pictures=options.warm_up_pictures)
        self._last_shown: LivePicture | None = None
        self.has_opened_sinks = False
        """True once ``run_shown`` has opened all sinks."""
        self._has_ended = threading.Event()
        self._pipeline: Pipeline

    def _set_stages(
        self,
        stages: Sequence[Stage],
        show: Callable[[Any], object],
        *,
        describe: Callable[[Any], str] = describe_item,
        with_spans: Callable[[Sequence[Stage]], Sequence[Stage]] = list,
    ) -> None:
        """Create the pipeline.

        Args:
            stages: The stages between capture and sinks; their queues are ``NEWEST``.
            show: Takes the last stage's output, and calls ``_hand_over``.
            describe: Describes an item in an exception's note.
            with_spans: Wraps the stages in a profiler's spans.
        """
        whole = [Source("capture", self._captured(), output=NEWEST), *stages, Sink("output", show)]
        self._pipeline = Pipeline(
            with_spans(whole),
            describe=describe,
            stop_timeout_seconds=_STOP_SECONDS,
            on_halt=self.stop,  # a camera without pictures must not delay the end of a failed run
        )

    def run(self) -> Any:
        """Run until the key Q, ``stop``, the end of the time or of the source; returns the report.

        Raises:
            PipelineError: A stage failed, or hung after the run was stopped.
            OutputError: Every sink has failed.
        """
        watch = threading.Thread(target=self._give_up_in_time, name="vitascope-ending", daemon=True)
        try:
            watch.start()
            self._pipeline.run()
        finally:
            self._has_ended.set()
            if watch.ident is not None:
                watch.join()
        if self._has_no_sink():
            raise OutputError("; ".join(str(outlet.error) for outlet in self._outlets))
        return self.report()

    def run_shown(self, profile: PipelineProfile, *, on_start: Callable[[Self], object] | None) -> Any:
        """Open the sinks, run, close them, and save the profile; returns the report, with sinks that failed to close.

        Args:
            profile: The profile, entered.
            on_start: Called with the run once all sinks are open.

        Raises:
            PipelineError: As ``run``.
            OutputError: A sink cannot be opened, or every one failed.
        """
        with started_outlets(self._outlets):
            # Before, a failure ends the command, which reports it. Outlets must not keep the run alive.
            for outlet in self._outlets:
                outlet.on_failure = partial(_tell_failure, self._on_message)
            self.has_opened_sinks = True
            if on_start is not None:
                on_start(self)
            report = self.run()
        # The first stage only waits for the camera, so it says nothing about speed.
        ours = replace(report.pipeline, stages=report.pipeline.stages[1:], queues=report.pipeline.queues[1:])
        for line in profile.save(ours):
            self._say(line)
        return replace(report, sinks=tuple(outlet.report() for outlet in self._outlets))

    def stop(self) -> None:
        """End the run; returns at once."""
        self._run_controls.request("quit")

    def snapshot(self) -> PipelineReport:
        """The stages' report so far."""
        return self._pipeline.snapshot()

    @abstractmethod
    def report(self) -> RunReport:
        """The report of the run so far."""

    def _reported(self) -> dict[str, Any]:
        """The fields that all reports share."""
        options, figures = self._run_options, self._figures
        return {
            "seconds": figures.seconds_shown,
            "captured": figures.captured,
            "shown": figures.shown,
            "repeated": figures.repeated,
            "lost": figures.lost,
            "target_fps": options.target_fps,
            "max_latency_ms": options.max_latency_ms,
            "latency": figures.latency(),
            "sinks": tuple(outlet.report() for outlet in self._outlets),
            "pipeline": self.snapshot(),
            "utilisation": self._utilisation(),
        }

    def _utilisation(self) -> Utilisation | None:
        if self._sampler is None or len(self._sampler.samples()) < 2:  # a load needs two samples
            return None
        return self._sampler.summary()

    # --- the first stage and the last, each on its own thread -----------------------------------------------

    def _captured(self) -> Iterator[Any]:
        last: Picture | None = None
        while not self._is_over():
            self._obey_at_once()
            picture = self._source.take(timeout_seconds=_WAIT_SECONDS)
            if picture is None and self._source.is_over:
                return
            last, picture = picture or last, picture or self._absence(last)
            if self._run_controls.paused:
                self._figures.pause()
                continue
            self._figures.go_on()
            if picture is None:
                continue
            self._figures.begin(picture.captured_seconds)
            yield self._first_item(picture)

    def _first_item(self, picture: Picture) -> Any:
        """The input of the first of the run's own stages."""
        return picture

    def _absence(self, last: Picture | None) -> Picture | None:
        """A picture to show while none arrives; None to wait."""
        del last
        return None

    def _obey_at_once(self) -> None:
        """Handle requests that must not wait for a picture to pass through."""
        if self._run_controls.take("restart"):
            names = [outlet.name for outlet in self._outlets if outlet.restart()]
            self._say(f"started again: {', '.join(names)}" if names else "no sink has failed")
        if self._run_controls.paused:
            self._obey_at_the_end()

    def _is_over(self) -> bool:
        if self._run_controls.is_asked("quit") or self._has_no_sink():
            return True
        limit = self._run_options.seconds
        return limit is not None and self._figures.seconds >= limit

    def _give_up_in_time(self) -> None:
        """End a run whose stage hangs, and so cannot end with the others."""
        while not (self._is_over() or self._source.is_over):
            if self._has_ended.wait(_WAIT_SECONDS):
                return
        if not self._has_ended.wait(self._run_options.ending_seconds):
            self._pipeline.stop(drain=False)

    def _has_no_sink(self) -> bool:
        return bool(self._outlets) and all(outlet.has_failed for outlet in self._outlets)

    def _hand_over(self, picture: LivePicture, *, is_repeat: bool = False, is_lost: bool = False) -> None:
        """Pass a picture to the sinks; called by the last stage."""
        for outlet in self._outlets:
            outlet.offer(picture)
        self._last_shown = picture
        self._figures.hand_over(picture.captured_seconds, is_repeat=is_repeat, is_lost=is_lost)
        self._obey_at_the_end()

    def _obey_at_the_end(self) -> None:
        """Handle requests about the pictures that were shown."""
        if self._last_shown is not None and self._run_controls.take("snapshot"):
            self._snapshot(self._last_shown)
        if self._run_controls.take("report") and self._on_report is not None:
            self._on_report(self.report())

    def _snapshot(self, picture: LivePicture) -> None:
        name = f"{self._snapshot_name}-{strftime('%Y%m%d-%H%M%S')}-{self._figures.shown}.png"
        path = self._run_options.snapshot_folder / name
        if cv2.imwrite(str(path), picture.for_png()):
            self._say(f"snapshot: {path}")
        else:
            self._say(f"cannot write the snapshot to {path}")

    def _say(self, line: str) -> None:
        if self._on_message is not None:
            self._on_message(line)


def _tell_failure(on_message: Callable[[str], object] | None, outlet: SinkOutlet, error: Exception) -> None:
    if on_message is not None:
        reason = " ".join(str(error).split()).removeprefix(f"{outlet.name} failed: ")
        on_message(f"{outlet.name} stopped: {reason}")
