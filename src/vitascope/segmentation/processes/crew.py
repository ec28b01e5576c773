"""Segments with several processes: they make the stretches of each video, and this one joins them."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from time import perf_counter

from vitascope.config import LoadedSettings
from vitascope.errors import ModelUnavailableError, OutputError
from vitascope.media.libav import wrap_output_error
from vitascope.media.reading.reader import VideoReader
from vitascope.media.writing.output_target import picture_folder
from vitascope.models.store.store import ModelStore
from vitascope.observe.report_values import Started
from vitascope.segmentation.film_run import FilmRunner, FrameAndAlpha
from vitascope.segmentation.matting.networks import FetchProgress, is_network_file
from vitascope.segmentation.plan import PlannedVideo
from vitascope.segmentation.processes.film_joiner import FilmJoiner
from vitascope.segmentation.processes.film_queue import FilmEnded, FilmQueue
from vitascope.segmentation.processes.hands import Hands
from vitascope.segmentation.processes.local import LocalProcesses
from vitascope.segmentation.processes.maker import StretchMaker, ThisProcess
from vitascope.segmentation.processes.port import StretchMakers
from vitascope.segmentation.processes.shares import plan_crew, settings_for_one
from vitascope.segmentation.processes.stretch_file import KeptStretches
from vitascope.segmentation.report import SegmentReport
from vitascope.segmentation.run_profile import not_profiled


class ProcessCrew:
    """Worker processes that share videos, each with its own open network.

    Args:
        loaded: Settings of the run.
        store: The store of networks.
        progress: Called with the progress of a network's download.
        alone: A runner in this process that makes all stretches, instead of worker processes.
        keeps_stretches: True keeps stretches for later runs; by default as the settings say.

    Raises:
        VitascopeError: A worker could not open its network or use its device.
        WorkerError: A process could not be started.
    """

    def __init__(
        self,
        loaded: LoadedSettings,
        *,
        store: ModelStore,
        progress: FetchProgress | None = None,
        alone: FilmRunner | None = None,
        keeps_stretches: bool | None = None,
    ) -> None:
        self._alone, self._store = settings_for_one(loaded), store
        self._is_alone = alone is not None
        self._kept = KeptStretches.of(loaded.settings, wanted=keeps_stretches)
        self._makers: StretchMakers
        address, self._note = loaded.settings.processing.cluster, None
        self._open_video: Callable[[Path], VideoReader] | None = None
        if alone is not None:
            maker = StretchMaker(alone)
            self._makers, self._open_video = ThisProcess(maker), maker.open_video
        elif address is None:
            loaded, self._note = _with_fetched_network(loaded, store, progress)
            self._makers = LocalProcesses(plan_crew(loaded), home=store.where().parent)
        else:
            from vitascope.segmentation.processes.cluster import ClusterMakers  # one machine needs no Ray

            self._makers = ClusterMakers(loaded, address=address)
        self._loaded = loaded
        self._settings = loaded.settings
        self._open()
        self.device, self.chosen = self._joiner.device, self._joiner.chosen

    def _open(self) -> None:
        self._joiner = FilmJoiner(
            self._loaded,
            self._makers.open(),
            store=self._store,
            note=self._note,
            kept=self._kept,
            is_alone=self._is_alone,
            open_video=self._open_video,
        )

    def close(self) -> None:
        """End the processes. Idempotent."""
        self._makers.close()

    def stream(self, video: Path, *, device_arrays: bool = False) -> Generator[FrameAndAlpha, None, None]:
        """Matte a video in this process, like ``Segmenter.stream``: frames do not cross processes."""
        with FilmRunner(self._alone, store=self._store) as alone:
            yield from alone.stream(video, device_arrays=device_arrays)

    def write(
        self,
        planned: PlannedVideo,
        *,
        on_start: Callable[[Started], object] | None,
        notes: Sequence[str],
        began: float,
        resume: bool = False,
    ) -> SegmentReport:
        """Segment one video into files; see ``Segmenter.write``.

        Args:
            planned: The input and its outputs, already checked.
            on_start: Called once everything is open.
            notes: Earlier notes.
            began: ``perf_counter`` at the start.
            resume: Continue with the stretches that an earlier run left.
        """
        if not self._makers.is_open:  # without persistent workers, the last run closed them
            self._open()
        try:
            self._makers.check(planned.video.absolute(), _folder_there(planned.outputs[0][1]))
            with Hands(self._makers) as hands:
                return self._joiner.write(
                    hands,
                    planned,
                    on_start=on_start,
                    notes=[*notes, *self._unheard()],
                    began=began,
                    resume=resume,
                )
        finally:
            self._close_unless_kept()

    def write_all(
        self,
        planned: Sequence[PlannedVideo],
        *,
        on_queue: Callable[[FilmQueue], object],
        on_start: Callable[[PlannedVideo, Started], object],
        resume: bool = False,
    ) -> Iterator[FilmEnded]:
        """Segment many videos at once; yields the outcome of each as it ends.

        Args:
            planned: Inputs and outputs, already checked.
            on_queue: Called with the queue before it starts.
            on_start: Called as each video begins, from this thread.
            resume: Continue with the stretches that earlier runs left.
        """
        if not self._makers.is_open:
            self._open()
        try:
            for video, folder in _seen_from_here(planned):
                self._makers.check(video, folder)
            with Hands(self._makers) as hands:
                queue = FilmQueue(
                    hands,
                    planned,
                    stretch_count=self._joiner.stretch_count,
                    gpu_bytes=self._joiner.gpu_bytes,
                    write=lambda hands, plan, rank, started: self._joiner.write(
                        hands,
                        plan,
                        on_start=started,
                        notes=(),
                        began=perf_counter(),
                        resume=resume,
                        rank=rank,
                    ),
                    trim=self._settings.video,
                    resume=resume,
                )
                on_queue(queue)
                notes = (*self._makers.notes, *self._unheard())
                for ended in queue.run(on_start):
                    if ended.report is not None:
                        every = dict.fromkeys((*ended.report.notes, *notes))
                        ended = replace(ended, report=replace(ended.report, notes=tuple(every)))
                    yield ended
        finally:
            self._close_unless_kept()

    def _unheard(self) -> Sequence[str]:
        """Notes on requests that a run with several processes ignores."""
        return not_profiled(wanted=self._settings.debug.profile_performance)

    def _close_unless_kept(self) -> None:
        if not self._settings.dataloader.persistent_workers:
            self._makers.close()


def _folder_there(output: Path) -> Path:
    """The folder of an output, or the nearest existing folder above it."""
    pictures = picture_folder(output)
    target = (output if pictures is None else pictures.folder).absolute()
    with wrap_output_error(output, "look at its folder"):
        folder = next((folder for folder in target.parents if folder.is_dir()), None)
    if folder is None:
        raise OutputError(f"{output}: there is no {target.parents[-1]}")
    return folder


def _seen_from_here(planned: Sequence[PlannedVideo]) -> list[tuple[Path, Path]]:
    """A video and an output folder for each pair of file systems in use."""
    pairs: dict[tuple[int, int], tuple[Path, Path]] = {}
    for plan in planned:
        folder = _folder_there(plan.outputs[0][1])
        try:
            pair = plan.video.stat().st_dev, folder.stat().st_dev
        except OSError:  # whoever opens it reports the error
            continue
        pairs.setdefault(pair, (plan.video.absolute(), folder))
    return list(pairs.values())


def _with_fetched_network(
    loaded: LoadedSettings, store: ModelStore, progress: FetchProgress | None
) -> tuple[LoadedSettings, str | None]:
    """Download the network once, before several processes need it; if that fails, ``auto`` uses the other network.

    Raises:
        ModelError: The network is not available.
    """
    name = loaded.settings.model.name
    wanted = "rvm" if name == "auto" else name
    if is_network_file(wanted) or store.is_cached(wanted):
        return loaded, None
    try:
        store.pull(wanted, progress=None if progress is None else lambda *sizes: progress(wanted, *sizes))
    except ModelUnavailableError as error:
        if name != "auto":
            raise
        return loaded.with_values({"model.name": "selfie"}), f"{error}; continuing with selfie"
    return loaded, None
