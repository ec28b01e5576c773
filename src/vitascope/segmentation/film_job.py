"""The stages between decoder and encoders: the interface of every job, and the job on the CPU."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence

from vitascope.errors import UsageError
from vitascope.frames import Frame
from vitascope.gpu.pipeline.queues import QueueLimits
from vitascope.gpu.pipeline.stages import Batched, Group, Map, Stage
from vitascope.segmentation.capacity import Parallelism
from vitascope.segmentation.matting.batch import Batch, Matted
from vitascope.segmentation.matting.stream import StreamMatting
from vitascope.segmentation.render.renderer import Renderer
from vitascope.segmentation.report import GpuReport


def every_frame(_: Frame) -> bool:
    """True: every frame of a whole video is drawn."""
    return True


class FilmJob(ABC):
    """Mattes and composites one video.

    Args:
        matting: The matting of this video.
        renderer: Draws the outputs; has no outputs if a run only needs alpha.
        limits: Limits of the queues between stages.
        parallelism: Threads and streams before and after the network.
        notes: Notes for the user, one line each; the job appends to it.
    """

    def __init__(
        self,
        matting: StreamMatting,
        renderer: Renderer,
        *,
        limits: QueueLimits,
        parallelism: Parallelism | None = None,
        notes: list[str] | None = None,
    ) -> None:
        self.matting = matting
        self.renderer = renderer
        self.notes = [] if notes is None else notes
        self.notes += renderer.notes
        self._limits = limits
        self._parallelism = parallelism or Parallelism()

    @property
    @abstractmethod
    def frames_gathered(self) -> int:
        """Frames that the first stage collects before it starts work on them."""

    @property
    @abstractmethod
    def slowest_to_begin(self) -> str | None:
        """The stage up to which the first frame has all cores to itself; see ``Source.first_alone_until``."""

    @abstractmethod
    def stages(
        self,
        *,
        wants_alpha: Callable[[int], bool],
        draws: Callable[[Frame], bool] = every_frame,
        on_device: bool = False,
    ) -> list[Stage]:
        """Make the stages between decoder and encoder, from frames to ``Rendered`` in host memory.

        Args:
            wants_alpha: Called with a frame's index; True to return alpha and the frame, too.
            draws: False for a frame that only updates the state of network and smoother.
            on_device: Yield ``PicturesOnGpu`` instead, without copying to the host.

        Raises:
            UsageError: ``on_device`` for a job on the CPU.
        """

    @abstractmethod
    def gpu_report(self) -> GpuReport | None:
        """Time and memory of the GPU; None for a job on the CPU."""

    def keep_mattes(self, *, is_whole: bool) -> None:
        """Complete the cache of mattes, once all frames are done.

        Args:
            is_whole: True if the video or stretch was completed, and not interrupted.
        """
        self.notes += self.matting.finish(is_whole=is_whole)


class CpuJob(FilmJob):
    """Mattes and composites on the CPU. The network may run on a GPU; then only its small input is copied there.

    Args:
        matting: As for ``FilmJob``.
        renderer: As for ``FilmJob``.
        frames_per_call: Consecutive frames for each call of the network.
        limits: As for ``FilmJob``.
        parallelism: As for ``FilmJob``.
    """

    def __init__(
        self,
        matting: StreamMatting,
        renderer: Renderer,
        *,
        frames_per_call: int,
        limits: QueueLimits,
        parallelism: Parallelism | None = None,
    ) -> None:
        super().__init__(matting, renderer, limits=limits, parallelism=parallelism)
        self._frames_per_call = frames_per_call

    @property
    def frames_gathered(self) -> int:
        """1: each frame is prepared on its own."""
        return 1

    @property
    def slowest_to_begin(self) -> str | None:
        """The network: it runs repeatedly on the first frame, on all cores, until its state settles."""
        return "infer"

    def stages(
        self,
        *,
        wants_alpha: Callable[[int], bool],
        draws: Callable[[Frame], bool] = every_frame,
        on_device: bool = False,
    ) -> list[Stage]:
        """As ``FilmJob.stages``."""
        if on_device:
            raise UsageError(
                "device_arrays needs a GPU and 4:2:0 video of 8 or 10 bits; the frames of this video are on the CPU"
            )
        parallelism = self._parallelism
        matted: list[Stage] = [
            Map(
                "preprocess",
                lambda frame: self.matting.prepare([frame]),
                workers=parallelism.prepare_threads,
                output=parallelism.prepared_limits(self._limits, frames=self._frames_per_call),
            ),
            Group(
                "infer",
                _Inferring(self, size=self._frames_per_call),
                output=self._limits,
            ),
        ]
        if self._limits.overflow == "drop_oldest":
            # In a live run, input prepared ahead would mostly be dropped, and would take time from the
            # network.
            matted = [
                Map(
                    "infer",
                    lambda frame: self.infer([self.matting.find_cuts(self.matting.prepare([frame]))])[0],
                    output=self._limits,
                )
            ]
        return [
            *matted,
            Map(
                "postprocess",
                lambda matted: self.renderer.render(
                    matted, with_source=wants_alpha(matted.frame.index), draws=draws(matted.frame)
                ),
                workers=1 if self.renderer.draws_in_order else parallelism.draw_threads,
                output=self._limits,
            ),
        ]

    def gpu_report(self) -> GpuReport | None:
        """None: nothing is drawn on a GPU."""
        return None

    def infer(self, batches: Sequence[Batch]) -> list[Matted]:
        """As ``StreamMatting.infer``; new mattes go to the cache."""
        return self._stored(self.matting.infer(batches))

    def infer_rest(self) -> list[Matted]:
        """As ``StreamMatting.infer_rest``, likewise."""
        return self._stored(self.matting.infer_rest())

    def _stored(self, matted: list[Matted]) -> list[Matted]:
        self.matting.store()
        return matted


class _Inferring:
    """Finds cuts, and gathers frames for calls of the network; ``flush`` sends the rest."""

    def __init__(self, job: CpuJob, *, size: int) -> None:
        self._job = job
        # The first frame goes alone, so that it is not delayed by the second.
        self._batched = Batched(job.infer, size=size, first_size=1)

    def accumulate(self, batch: Batch, /) -> Iterable[Matted]:
        """Add one frame; return mattes when a call is full."""
        return _handed_on([*self._batched.accumulate(self._job.matting.find_cuts(batch))])

    def flush(self) -> Iterable[Matted]:
        """Return the mattes of all remaining frames."""
        return _handed_on([*self._batched.flush(), *self._job.infer_rest()])


def _handed_on(matted: list[Matted]) -> Iterator[Matted]:
    """Yield all in order and drop the references: once drawn, a frame also holds colours beside its matte."""
    matted.reverse()
    while matted:
        yield matted.pop()
