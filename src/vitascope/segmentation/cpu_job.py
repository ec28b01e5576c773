"""One video's way through the processor: decode, preprocess, infer, postprocess, each on a thread of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from vitascope.gpu.pipeline.queues import QueueLimits
from vitascope.gpu.pipeline.stages import Batched, Group, Map, Stage
from vitascope.models.network import NetworkInput
from vitascope.segmentation.capacity import Parallelism
from vitascope.segmentation.matting.levers.options import LeverReport
from vitascope.segmentation.matting.stream import Estimated, StreamMatting
from vitascope.segmentation.render.renderer import Rendered, Renderer
from vitascope.segmentation.report import GpuReport

__all__ = ["CpuJob"]


class CpuJob:
    """Mattes and draws one video on the processor. Its network may be on a GPU: only small pictures go there.

    Args:
        matting: Of this video.
        renderer: Draws its outputs.
        frames_per_call: Consecutive frames for each call of the network.
        limits: Of the queues between stages.
        parallelism: Threads of the stages before and behind the network.
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
        self._matting = matting
        self._renderer = renderer
        self._frames_per_call = frames_per_call
        self._limits = limits
        self._parallelism = parallelism or Parallelism()
        self.notes: list[str] = []

    @property
    def network_input(self) -> NetworkInput:
        """What the network sees."""
        return self._matting.network_input

    @property
    def cut_count(self) -> int:
        """Scene cuts so far."""
        return self._matting.cut_count

    @property
    def cut_pts(self) -> Sequence[int]:
        """Pts of the frames that began a new shot, so far."""
        return self._matting.cut_pts

    @property
    def frames_gathered(self) -> int:
        """Each frame is prepared by itself."""
        return 1

    @property
    def slowest_to_begin(self) -> str | None:
        """The network: its memory settles on the first frame, and all cores compute it."""
        return "infer"

    def stages(self, *, wants_alpha: Callable[[int], bool]) -> list[Stage]:
        """The stages between decoder and encoder; they give ``Rendered``, always with alpha and source.

        Args:
            wants_alpha: Not asked: alpha is there anyway.
        """
        del wants_alpha

        def draw(estimated: Estimated) -> Rendered:
            return self._renderer.render(self._matting.refine(estimated))

        parallelism = self._parallelism
        # Nobody waits for the second picture to see the first.
        infer = Batched(self._matting.infer, size=self._frames_per_call, first_size=1)
        in_order = self._matting.refines_in_order or self._renderer.draws_in_order
        return [
            Map(
                "preprocess",
                self._matting.prepare,
                workers=parallelism.prepare_threads,
                output=parallelism.prepared_limits(self._limits, frames=self._frames_per_call),
            ),
            Group("infer", infer, output=self._limits),
            Map(
                "postprocess",
                draw,
                workers=1 if in_order else parallelism.draw_threads,
                output=self._limits,
            ),
        ]

    def gpu_report(self) -> GpuReport | None:
        """None: no GPU draws."""
        return None

    def keep_mattes(self, *, is_whole: bool) -> None:
        """Complete the cache of mattes, once all frames are through."""
        self.notes += self._matting.source.finish(is_whole=is_whole)

    def lever_report(self) -> LeverReport:
        """What became of the frames, once all are through."""
        return self._matting.source.report(len(self._matting.regions))
