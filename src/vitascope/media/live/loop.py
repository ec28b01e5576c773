"""The live loop: capture, whatever a run does with a picture, and hand over; a thread for each, the newest first.

::

    camera ──> the run's own stages ──> sinks
          newest                  newest

Between two stages waits at most one picture; a newer one takes its place. So the delay is that of the stages alone,
and what is too slow costs pictures, not time.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import strftime
from typing import Any, ClassVar, Generic, Protocol, TypeVar

import cv2

from vitascope.errors import OutputError
from vitascope.gpu.pipeline.pipeline import Pipeline, describe_item
from vitascope.gpu.pipeline.queues import QueueLimits
from vitascope.gpu.pipeline.report import PipelineReport
from vitascope.gpu.pipeline.stages import Sink, Source, Stage
from vitascope.gpu.profiling.utilisation import Utilisation, UtilisationSampler
from vitascope.media.live.report import LiveFigures, RunReport
from vitascope.media.sinks.outlet import SinkOutlet
from vitascope.media.sinks.sink import LivePicture

__all__ = ["NEWEST", "RUN_KEYS", "Captured", "LiveLoop", "PictureSource", "RunControls", "RunOptions"]

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
    """Keys that ask for something that a stage does when it comes to it."""

    def __init__(self, *, on_message: Callable[[str], object] | None = None) -> None:
        self._lock = threading.Lock()
        self._requests: set[str] = set()
        self._on_message = on_message
        self.paused = False
        """True while pictures are held."""

    def in_words(self) -> str:
        """List all keys, on one line."""
        return ", ".join(f"{key.upper()} {what}" for key, what in self.keys.items())

    def press(self, key: str) -> bool:
        """Do what a key stands for.

        Args:
            key: A character of ``keys``; ``=`` is ``+``, and ``_`` is ``-``.

        Returns:
            False when the key stands for nothing.
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
        """Request something that a stage does later. Does not wait: Ctrl-C's handler calls it."""
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
        """Do what one of ``keys`` stands for; what to say of it, if anything."""
        if key in self._asks:
            self._requests.add(self._asks[key])
            return ""
        if key == "p":
            self.paused = not self.paused
            return "paused" if self.paused else "going on"
        return f"keys: {self.in_words()}"


NEWEST = QueueLimits(items=1, nbytes=None, overflow="drop_oldest")
"""The queue between two stages of a live run."""
_WAIT_SECONDS = 0.1
_STOP_SECONDS = 5.0
"""For threads of a run that was given up."""


class Captured(Protocol):
    """One picture of a source, such as ``media.reading.camera.CameraPicture``."""

    @property
    def captured_seconds(self) -> float:
        """When it came, on ``time.monotonic``'s clock."""
        ...

    @property
    def index(self) -> int:
        """Counted from 0 over all that came, also those that nobody took."""
        ...


Picture = TypeVar("Picture", bound=Captured)
Given = TypeVar("Given", bound=Captured, covariant=True)


class PictureSource(Protocol[Given]):
    """Source of pictures, such as ``media.reading.camera.Camera``."""

    @property
    def captured_count(self) -> int:
        """Pictures that came, also those that nobody took."""
        ...

    @property
    def is_over(self) -> bool:
        """True when no picture will come any more."""
        ...

    def take(self, *, timeout_seconds: float | None = None) -> Given | None:
        """The newest picture that was not taken yet; None when none came in time."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """Options of a live run."""

    target_fps: float = 30.0
    """Rate to reach; the report says whether it was met."""
    max_latency_ms: float | None = None
    """Limit for the delay of 95 % of the pictures; the report says when it does not."""
    snapshot_folder: Path = Path()
    """Folder of snapshots."""
    seconds: float | None = None
    """Length after which it stops by itself; None runs on."""
    warm_up_pictures: int = 0
    """The first pictures, which figures leave out, and with which ``seconds`` does not begin."""
    ending_seconds: float = 60.0
    """Time that a stopped run has for the pictures on their way, of which one may take 20 seconds (LivePortrait on a
    CPU); then it is given up."""


class LiveLoop(ABC, Generic[Picture]):
    """One live run. ``run`` works until it is stopped; everything else may be called meanwhile.

    A subclass says what happens between capture and sinks: it calls ``_set_stages`` once, with stages of which the
    last one before the sinks gives what its ``_shown`` takes.

    Args:
        source: Where pictures come from; open.
        outlets: Started sinks; not closed here.
        controls: Keys.
        options: How to go about it.
        on_report: Called with a report when one was requested.
        on_message: Called with one line that the user should see at once.
        sampler: Measures CPU and GPU; started.
    """

    _snapshot_name: ClassVar[str]
    """Beginning of a snapshot's name."""

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
        """Make the pipeline.

        Args:
            stages: Between capture and sinks; what they pass on waits as ``NEWEST`` says.
            show: Takes what the last of them gives, and calls ``_hand_over``.
            describe: Names an item in the note of an exception.
            with_spans: Lays a profiler's spans around the work of the stages.
        """
        whole = [Source("capture", self._captured(), output=NEWEST), *stages, Sink("output", show)]
        self._pipeline = Pipeline(
            with_spans(whole),
            describe=describe,
            stop_timeout_seconds=_STOP_SECONDS,
            on_halt=self.stop,  # a camera that gives nothing must not hold a run of which a stage failed
        )

    def run(self) -> Any:
        """Work until the key Q, ``stop``, the end of the time given, or of the source; gives the report.

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

    def stop(self) -> None:
        """End the run; returns at once."""
        self._run_controls.request("quit")

    def snapshot(self) -> PipelineReport:
        """The stages' report so far."""
        return self._pipeline.snapshot()

    @abstractmethod
    def report(self) -> RunReport:
        """The run so far."""

    def _reported(self) -> dict[str, Any]:
        """The common part of every report."""
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
        if (
            self._sampler is None or len(self._sampler.samples()) < 2
        ):  # nothing lies between one look and the next
            return None
        return self._sampler.summary()

    # --- the first stage and the last, each on a thread of its own ------------------------------------------

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
        """The input of the run's first own stage."""
        return picture

    def _absence(self, last: Picture | None) -> Picture | None:
        """What stands in for pictures that do not come; None waits for them."""
        del last
        return None

    def _obey_at_once(self) -> None:
        """Do what must not wait for a picture to come through."""
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
        """End a run in which a stage hangs, and so cannot end with the others."""
        while not (self._is_over() or self._source.is_over):
            if self._has_ended.wait(_WAIT_SECONDS):
                return
        if not self._has_ended.wait(self._run_options.ending_seconds):
            self._pipeline.stop(drain=False)

    def _has_no_sink(self) -> bool:
        return bool(self._outlets) and all(outlet.has_failed for outlet in self._outlets)

    def _hand_over(self, picture: LivePicture, *, is_repeat: bool = False, is_lost: bool = False) -> None:
        """Give a picture to the sinks; the last stage's."""
        for outlet in self._outlets:
            outlet.offer(picture)
        self._last_shown = picture
        self._figures.hand_over(picture.captured_seconds, is_repeat=is_repeat, is_lost=is_lost)
        self._obey_at_the_end()

    def _obey_at_the_end(self) -> None:
        """Do what is about the pictures that were shown."""
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
            self._say(f"the snapshot cannot be written to {path}")

    def _say(self, line: str) -> None:
        if self._on_message is not None:
            self._on_message(line)
