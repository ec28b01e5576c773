"""The segmentation application: videos in, people cut out."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from os import PathLike
from pathlib import Path
from threading import RLock
from time import perf_counter
from typing import TYPE_CHECKING, Any

from vitascope.closing import Closing, OwnProcess
from vitascope.config import LoadedSettings, OutputKind, vitascope_home
from vitascope.config.loading import checked_gpus, settings_of
from vitascope.errors import UsageError
from vitascope.media.libav import wrap_output_error
from vitascope.media.remote import path_of
from vitascope.models.store.store import ModelStore
from vitascope.observe.report_values import Started
from vitascope.segmentation.capacity import suited_to_device, works_in_processes
from vitascope.segmentation.film_run import FilmRunner, FrameAndAlpha
from vitascope.segmentation.matting.networks import ChosenNetwork, FetchProgress, NetworkFacts
from vitascope.segmentation.output_encoding import check_kinds
from vitascope.segmentation.plan import PlannedVideo, descriptions_of, refuse_clashes
from vitascope.segmentation.report import SegmentReport

if TYPE_CHECKING:
    from vitascope.media.sinks.sink import Sink
    from vitascope.segmentation.live import LiveMatting, LiveMattingReport
    from vitascope.segmentation.processes.crew import ProcessCrew
    from vitascope.segmentation.processes.film_queue import FilmEnded, FilmQueue

__all__ = ["FrameAndAlpha", "Segmenter", "Started"]


class Segmenter(Closing):
    """Cuts people out of videos. Opens its network once; every video has its own recurrent state.

    Process one video at a time, because the network and the CUDA streams serve one job: finish or close a ``stream``
    before the next call.

    With ``gpu.device_ids``, ``processing.use_multiprocessing`` or ``processing.cluster`` the network is open in worker
    processes instead, which share each video; see ``docs/several-gpus.md``.

    Args:
        profile: ``fast``, ``balanced`` or ``quality``; ignored when ``loaded`` is given.
        settings: Values by dotted key, for example ``{"model.name": "selfie", "edges.feather_px": 1.5}``.
        loaded: Loaded settings, instead of ``profile`` and ``settings``.
        store: The store of networks; by default the user's own.
        fetch_progress: Called with the progress of a network's download.

    Raises:
        ConfigError: A setting is unknown or out of range.
        ModelError: The network is not available.
        EngineError: The engine cannot load it.
        DeviceError: A requested GPU is missing.
        WorkerError: A worker process could not be started.
    """

    def __init__(
        self,
        *,
        profile: str | None = None,
        settings: Mapping[str, Any] | None = None,
        loaded: LoadedSettings | None = None,
        store: ModelStore | None = None,
        fetch_progress: FetchProgress | None = None,
    ) -> None:
        self._store, self._fetch_progress = store or ModelStore(vitascope_home()), fetch_progress
        wanted = checked_gpus(settings_of(profile=profile, settings=settings, loaded=loaded))
        self.loaded = suited_to_device(wanted, self._store)
        self.settings = self.loaded.settings
        self._begun: dict[Generator[FrameAndAlpha, None, None], RLock] = {}
        self._process = OwnProcess("the Segmenter")
        self._runner = _open_runner(self.loaded, self._store, fetch_progress)
        self._is_closed = False
        self.device = self._runner.device
        self.chosen: ChosenNetwork[NetworkFacts] = self._runner.chosen

    def close(self) -> None:
        """Free the network, restore OpenCV's threads, and stop worker processes and running streams.

        Idempotent; any thread may call it. It waits until another thread has received its next frame from a stream.
        In a forked process it does nothing.
        """
        if not self._process.is_current:
            return
        self._is_closed = True
        for steps, turn in list(self._begun.items()):
            with turn:
                steps.close()
        self._runner.close()

    def stream(
        self, video: str | PathLike[str], *, device_arrays: bool = False
    ) -> Generator[FrameAndAlpha, None, None]:
        """Matte a video frame by frame, in order; decoding and inference run ahead in their own threads.

        Leaving the loop early stops them. So does closing the segmenter; the next frame then raises an error, because a
        loop that just ended would take a part for the whole video. Nothing is written.

        Args:
            video: The input.
            device_arrays: Leave frame and alpha on the GPU, as CuPy arrays, which other libraries take through DLPack.
                Use them on the CuPy stream that is current in the loop. Before you drop an array that you kept longer
                than one iteration, synchronize that stream.

        Raises:
            UsageError: The segmenter is closed, also before the last frame is read; this process was forked from the
                one that created it; or ``device_arrays`` while the video is matted on the CPU.
            InputError: The video cannot be opened; ``CorruptInputError`` if it cannot be decoded to the end.
            PipelineError: A stage failed.
        """
        self._require_open()
        self._look_for_people(path_of(video))
        return self._while_open(self._runner.stream(path_of(video), device_arrays=device_arrays))

    def _while_open(
        self, steps: Generator[FrameAndAlpha, None, None]
    ) -> Generator[FrameAndAlpha, None, None]:
        self._require_open()
        turn = self._begun[steps] = RLock()
        try:
            while True:
                self._process.require()  # before the lock, which another thread may have held at the fork
                with turn:
                    self._require_open()
                    step = next(steps, None)
                if step is None:
                    return
                yield step
                del step  # while the next step is made, only the caller may hold this one
        finally:
            if self._process.is_current:
                with turn:
                    steps.close()
                del self._begun[steps]

    def write(
        self,
        video: str | PathLike[str],
        outputs: Sequence[tuple[OutputKind, str | PathLike[str]]],
        *,
        preview: str | PathLike[str] | None = None,
        on_start: Callable[[Started], object] | None = None,
        resume: bool = False,
        in_stretches: bool | None = None,
    ) -> SegmentReport:
        """Segment one video into files. A file gets its final name only when it is complete.

        Args:
            video: The input.
            outputs: What to write, and where.
            preview: Path of a contact sheet (PNG) to write; none by default.
            on_start: Called from this thread once everything is open; also before, with ``is_scan``, if the video must
                be scanned for people first.
            resume: Continue with the stretches left by an interrupted run; a video made in one piece starts over.
            in_stretches: Make the video in stretches and keep them, so that the next run only remakes those whose
                corrections changed; by default, if there are hints.

        Raises:
            UsageError: The segmenter is closed, or was created before this process was forked; a kind is unknown or
                lacks its background; an output would replace an input; or two outputs are the same file.
            InputError: The input cannot be read; ``CorruptInputError`` if it cannot be decoded to the end
                (``output.keep_partial`` then keeps what was written as ``.part``).
            OutputError: An output cannot be written.
            PipelineError: A stage failed for another reason.
            KeyboardInterrupt: Ctrl-C; what was written is kept as ``.part``.
        """
        began = perf_counter()
        self._require_open()
        if not all(isinstance(pair, tuple | list) and len(pair) == 2 for pair in outputs):
            raise UsageError(f"outputs is {outputs!r}, expected pairs such as [('key', 'out.mp4')]")
        targets = tuple((kind, path_of(target)) for kind, target in outputs)
        planned = PlannedVideo(
            path_of(video),
            targets,
            None if preview is None else path_of(preview),
            descriptions_of(targets, self.settings),
        )
        replaced = _notes_of_replaced(planned)
        check_kinds([kind for kind, _ in targets], self.settings.output)
        refuse_clashes([planned], settings=self.settings)
        self._look_for_people(planned.video, on_start)
        runner = self._runner
        if in_stretches is None:  # only runs in one piece are profiled
            in_stretches = (
                self.settings.people.hints is not None and not self.settings.debug.profile_performance
            )
        if in_stretches and isinstance(runner, FilmRunner):
            from vitascope.segmentation.processes.crew import (
                ProcessCrew,  # imported here: runs in one piece do not need it
            )

            runner = ProcessCrew(self.loaded, store=self._store, alone=runner, keeps_stretches=True)
        write = runner.write if isinstance(runner, FilmRunner) else partial(runner.write, resume=resume)
        report = write(planned, on_start=on_start, notes=replaced, began=began)
        return self._told_player(report)

    @property
    def shares_many(self) -> bool:
        """True if ``write_all`` can make several videos at once: with several processes, and all people kept."""
        return not isinstance(self._runner, FilmRunner) and not self.settings.people.active

    def write_all(
        self,
        planned: Sequence[PlannedVideo],
        *,
        on_queue: Callable[[FilmQueue], object],
        on_start: Callable[[PlannedVideo, Started], object],
        resume: bool = False,
    ) -> Iterator[FilmEnded]:
        """Segment many videos in several processes at once: longest first, short ones whole.

        Args:
            planned: Inputs and outputs that do not clash.
            on_queue: Called with the queue before it starts; it reports the progress of all videos and places.
            on_start: Called as each video begins, from this thread.
            resume: As for ``write``.

        Yields:
            The outcome of each video, as it ends.

        Raises:
            UsageError: The segmenter is closed; a kind is unknown or lacks its background; or the network is open in
                this process.
            InputError: A node of a cluster cannot see a video.
            OutputError: A node of a cluster cannot see an output folder, or may not write there.
        """
        self._require_open()
        runner = self._runner
        if isinstance(runner, FilmRunner):
            raise UsageError(
                "many videos at once need several processes: set gpu.device_ids or processing.cluster"
            )
        check_kinds([kind for kind, _ in planned[0].outputs], self.settings.output)
        replaced = {id(plan): _notes_of_replaced(plan) for plan in planned if plan.existing()}
        for ended in runner.write_all(planned, on_queue=on_queue, on_start=on_start, resume=resume):
            report = ended.report
            if report is not None:
                report = self._told_player(
                    replace(report, notes=(*report.notes, *replaced.get(id(ended.planned), ())))
                )
            yield replace(ended, report=report)

    def _require_open(self) -> None:
        self._process.require()
        if self._is_closed:
            raise UsageError("the Segmenter is closed; open another one, or work inside its with block")

    def _told_player(self, report: SegmentReport) -> SegmentReport:
        """The report, after writing the VR player's files beside the outputs, if a player is set."""
        if self.settings.output.player is None:
            return report
        # Imported here: most runs have no VR player.
        from vitascope.segmentation.vr.library import tell_player

        return replace(report, notes=(*report.notes, *tell_player(report.outputs, self.settings.output)))

    def _look_for_people(self, video: Path, on_start: Callable[[Started], object] | None = None) -> None:
        """Scan a video for people if some of them are to be kept and it was not scanned before."""
        if not self.settings.people.active:
            return
        if self.settings.people.keep_held:
            progress = self._fetch_progress
            self._store.pull("isnet", progress=partial(progress, "isnet") if progress else None)
        from vitascope.segmentation.people.hinted import needs_scan  # imported here: most runs keep everybody
        from vitascope.segmentation.people.scan import find_people
        from vitascope.segmentation.people.table import known_people

        if needs_scan(self.settings, video) and known_people(video, self.settings.video) is None:
            find_people(
                video,
                self.loaded,
                store=self._store,
                fetch_progress=self._fetch_progress,
                on_start=on_start,
            )

    def live(
        self,
        source: int | str | PathLike[str],
        sinks: Sequence[str | Sink],
        *,
        camera_size: tuple[int, int] | None = None,
        seconds: float | None = None,
        on_start: Callable[[LiveMatting], object] | None = None,
        on_report: Callable[[LiveMattingReport], object] | None = None,
        on_message: Callable[[str], object] | None = None,
    ) -> LiveMattingReport:
        """Cut people out of a camera's picture, live, until the run is stopped or the source ends.

        Late frames are dropped in favour of newer ones. ``output.kinds`` must have a single kind; ``alpha`` needs
        sinks that support transparency.

        Args:
            source: A camera's number or address (``rtsp://…``); a video is played at its own pace.
            sinks: ``window``, ``file:out.mp4``, ``virtualcam``, ``ndi``, ``spout``, ``mjpeg:8890`` or
                ``udp:HOST:PORT``, or your own ``media.sinks.sink.Sink`` objects.
            camera_size: (width, height) to request from the camera; by default the camera chooses.
            seconds: Stop after this time; None runs until stopped.
            on_start: Called with the run before it starts: ``stop()`` ends it from any thread, ``report()`` returns the
                report so far, and ``controls.press`` presses a key.
            on_report: Called with a report when the key R is pressed.
            on_message: Called with messages for the user, one line each: a lost camera, a failed sink.

        Returns:
            The report of the whole run; its ``failure`` says which sinks failed.

        Raises:
            UsageError: The segmenter is closed; several kinds; a sink that does not exist or does not support alpha; a
                start or end for a camera; or the network is open in worker processes.
            InputError: The source cannot be opened, or delivers nothing.
            MissingDependencyError: A sink needs a package that is not installed.
            OutputError: A sink cannot be opened, or every one failed.
            PipelineError: A stage failed.
        """
        from vitascope.segmentation.live import IN_ONE_PROCESS, segment_live  # only live runs need it

        self._require_open()
        if isinstance(sinks, str):
            raise UsageError(f"sinks is {sinks!r}, expected a list such as [{sinks!r}]")
        if not isinstance(self._runner, FilmRunner):
            raise UsageError(IN_ONE_PROCESS)
        return segment_live(
            self._runner,
            str(source),
            sinks,
            camera_size=camera_size,
            seconds=seconds,
            on_start=on_start,
            on_report=on_report,
            on_message=on_message,
        )


def _notes_of_replaced(planned: PlannedVideo) -> list[str]:
    notes = []
    for path in (*(path for _, path in planned.outputs), *planned.descriptions):
        with wrap_output_error(path, "look at it"):  # there may be no permission
            if path.is_file():
                notes.append(f"{path} replaced an earlier file")
    return notes


def _open_runner(
    loaded: LoadedSettings, store: ModelStore, progress: FetchProgress | None
) -> FilmRunner | ProcessCrew:
    if not works_in_processes(loaded.settings):
        return FilmRunner(loaded, store=store, fetch_progress=progress)
    from vitascope.segmentation.processes.crew import ProcessCrew  # one process needs none

    return ProcessCrew(loaded, store=store, progress=progress)
