"""One stream's way from frame to alpha: prepare, infer, refine. Each step is a pipeline stage of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby

import numpy as np
import numpy.typing as npt

from vitascope.frames import Frame, Plane, Rotation, StereoLayout
from vitascope.gpu.kernels.edges import EdgeOptions, adjust_edges
from vitascope.gpu.kernels.foreground import decontaminate
from vitascope.gpu.kernels.guided import refine_alpha
from vitascope.gpu.kernels.preprocess import preprocess
from vitascope.gpu.kernels.region import Region
from vitascope.gpu.kernels.steady import AlphaSmoother
from vitascope.models.network import MatteEstimate, MattingNetwork, NetworkInput
from vitascope.segmentation.matting.cache import MatteCache
from vitascope.segmentation.matting.levers.alpha import as_coefficients
from vitascope.segmentation.matting.levers.options import InferenceOptions
from vitascope.segmentation.matting.levers.pictures import Pictures, Views, tile_means
from vitascope.segmentation.matting.plain_matte import fit_plain_matte, plain_rgb
from vitascope.segmentation.matting.scene_cuts import SceneCutDetector
from vitascope.segmentation.matting.shots import ShotInference
from vitascope.segmentation.matting.source import MatteSource
from vitascope.vr.stereo import eye_regions

__all__ = [
    "Estimated",
    "Matte",
    "MattingOptions",
    "Prepared",
    "StreamMatting",
    "upright_size",
]


@dataclass(frozen=True, slots=True)
class MattingOptions:
    """What a user may set about mattes, in plain values."""

    edges: EdgeOptions = field(default_factory=EdgeOptions)
    decontaminate: bool = False
    temporal_smoothing: float = 0.0
    scene_cut_threshold: float = 0.35
    warm_up_frames: int = 3
    """How often a recurrent network sees the first picture of a shot before its answer counts."""
    inference: InferenceOptions = field(default_factory=InferenceOptions)


@dataclass(slots=True, eq=False)
class Prepared:
    """A frame and what the network will see of it."""

    frame: Frame
    images: npt.NDArray[np.float32] | None
    """[E, 3, h, w] or [E, h, w, 3], as the network wants it; None where the matte is known."""
    starts_shot: bool
    """True when the network must forget what it saw before."""
    tiles: npt.NDArray[np.float32] | None = None
    """float32 [3 E, rows, columns]: ``tile_means``, where a lever wants them."""
    histogram: npt.NDArray[np.float32] | None = None
    """float32 [64], by which cuts are noticed; None where none is looked for."""

    @property
    def nbytes(self) -> int:
        """Bytes held, for the queues."""
        return self.frame.nbytes + (0 if self.images is None else self.images.nbytes)


@dataclass(slots=True, eq=False)
class Estimated:
    """A frame and the network's low-resolution answer."""

    prepared: Prepared
    estimate: MatteEstimate

    @property
    def nbytes(self) -> int:
        """Bytes held, for the queues."""
        return self.prepared.nbytes


@dataclass(slots=True, eq=False)
class Matte:
    """A frame and its finished alpha."""

    frame: Frame
    alpha: Plane
    """uint8 [H, W] 0..255 for 8-bit frames, uint16 0..65535 for deeper ones."""
    foreground: Frame
    """The frame with the old background's colour taken out of soft edges; the frame itself when not asked for."""


class StreamMatting:
    """Mattes one video: owns its recurrent state, its eyes, and its smoothing.

    ``prepare``, ``infer`` and ``refine`` may run on three threads, each called in frame order by one thread.

    Args:
        network: Shared with other streams if need be; only this object's state is changed.
        size: (height, width) of the frames as coded.
        layout: How two eyes share the frame.
        rotation_degrees: Clockwise turn that makes the picture upright.
        options: Edges, smoothing, decontamination, cuts, levers.
        first_network: What looks first where ``options.inference`` asks for another network.
        cache: Mattes of this stretch of the film, known and to be kept.

    Raises:
        UsageError: The network cannot do what ``options.inference`` asks for.
    """

    def __init__(
        self,
        network: MattingNetwork,
        *,
        size: tuple[int, int],
        layout: StereoLayout,
        rotation_degrees: Rotation = 0,
        options: MattingOptions,
        first_network: MattingNetwork | None = None,
        cache: MatteCache | None = None,
    ) -> None:
        height, width = size
        self.regions: list[Region] = eye_regions(width, height, layout)
        eye_size = upright_size(self.regions[0].size, rotation_degrees)
        self.cut_count = 0
        self.cut_pts: list[int] = []
        """pts of the frames that began a new shot, so far."""
        self._rotation: Rotation = rotation_degrees
        self._options = options
        self.source = MatteSource(
            network,
            ShotInference.run,
            views=Views(self.regions, rotation_degrees),
            eye_size=eye_size,
            options=options.inference,
            warm_up_frames=options.warm_up_frames,
            with_foreground=options.decontaminate,
            first_network=first_network,
            cache=cache,
        )
        self.network_input: NetworkInput = self.source.network_input
        self._cuts = SceneCutDetector(options.scene_cut_threshold)
        self._looks_for_cuts = options.scene_cut_threshold > 0
        self._smoother = AlphaSmoother(options.temporal_smoothing)

    def prepare(self, frame: Frame) -> Prepared:
        """Make the network's pictures; not of frames whose mattes are known. Any thread, any order."""
        if not self.source.needs_pictures(frame.index):
            return Prepared(frame, None, self.source.starts_shot(frame.index))
        wanted = self.network_input
        images = preprocess(
            frame,
            regions=self.regions,
            size=wanted.size,
            mean=wanted.mean,
            std=wanted.std,
            layout=wanted.layout,
            rotation_degrees=self._rotation,
            dtype=wanted.dtype,
        )
        rgb = plain_rgb(images, wanted)
        histogram = self._cuts.histogram(rgb[:1].transpose(0, 2, 3, 1)) if self._looks_for_cuts else None
        starts_shot = self.source.is_known(frame.index) and self.source.starts_shot(frame.index)
        tiles = tile_means(rgb[None])[0] if self._options.inference.wants_tiles else None
        return Prepared(frame, images, starts_shot, tiles, histogram)

    def infer(self, batch: Sequence[Prepared]) -> list[Estimated]:
        """Notice scene cuts, and run the network over consecutive frames; a cut inside the batch splits it."""
        for prepared in batch:
            self._notice_cut(prepared)
        answers: list[MatteEstimate] = []
        for known, group in groupby(batch, lambda prepared: self.source.is_known(prepared.frame.index)):
            part = list(group)
            frames, starts = [one.frame for one in part], [one.starts_shot for one in part]
            if known:
                answers += self.source.estimate(Pictures(frames, None, starts))
                continue
            pictures = [one.images for one in part if one.images is not None]
            images = pictures[0][None] if len(part) == 1 else np.stack(pictures)
            tiles = [one.tiles for one in part if one.tiles is not None]
            new = self.source.estimate(Pictures(frames, images, starts, np.stack(tiles) if tiles else None))
            answers += new if self.source.cache is None else self._kept(part, new, self.source.cache)
        return [Estimated(prepared, answer) for prepared, answer in zip(batch, answers, strict=True)]

    def _kept(
        self, part: Sequence[Prepared], estimates: Sequence[MatteEstimate], cache: MatteCache
    ) -> list[MatteEstimate]:
        """New estimates as coefficients, once the cache has them."""
        memory = self.source.memory(len(part))
        kept: dict[int, MatteEstimate] = {}
        answers = []
        for index, (prepared, estimate) in enumerate(zip(part, estimates, strict=True)):
            # A plain matte is fitted to every picture that it serves.
            if id(estimate) not in kept or estimate.alpha is not None:
                assert prepared.images is not None  # the network saw it
                kept[id(estimate)] = as_coefficients(
                    estimate, prepared.images, self.network_input, with_foreground=self.source.with_foreground
                )
            answers.append(kept[id(estimate)])
            cache.keep(
                answers[-1],
                starts_shot=prepared.starts_shot,
                wanted=self.network_input,
                memory=memory if index == len(part) - 1 else None,
            )
        return answers

    def _notice_cut(self, prepared: Prepared) -> None:
        if prepared.histogram is not None:
            is_cut = self._cuts.is_cut_histogram(prepared.histogram)
            if not self.source.is_known(prepared.frame.index):
                prepared.starts_shot = is_cut
        self.cut_count += prepared.starts_shot
        if prepared.starts_shot:
            self.cut_pts.append(prepared.frame.pts)

    @property
    def refines_in_order(self) -> bool:
        """True when ``refine`` must be called in the order of frames: it smooths over time. Else any thread may."""
        return self._options.temporal_smoothing > 0

    def refine(self, estimated: Estimated) -> Matte:
        """Full-resolution alpha: guided refinement, smoothing over time, then the edge options."""
        frame, estimate = estimated.prepared.frame, estimated.estimate
        if self.refines_in_order and estimated.prepared.starts_shot:
            self._smoother.reset()
        if estimate.gain is not None and estimate.offset is not None:
            gain, offset = estimate.gain[:, -1], estimate.offset[:, -1]
        else:
            assert estimate.alpha is not None  # MatteEstimate holds either form
            assert estimated.prepared.images is not None  # from the cache come coefficients
            gain, offset = fit_plain_matte(estimated.prepared.images, estimate.alpha, self.network_input)
        alpha = refine_alpha(
            frame, regions=self.regions, gain=gain, offset=offset, rotation_degrees=self._rotation
        )
        foreground = frame
        if (
            self._options.decontaminate
            and estimate.gain is not None
            and estimate.offset is not None
            and estimate.gain.shape[1] == 4
        ):
            foreground = decontaminate(
                frame,
                alpha,
                regions=self.regions,
                gain=estimate.gain[:, :3],
                offset=estimate.offset[:, :3],
                rotation_degrees=self._rotation,
            )
        if self._options.temporal_smoothing > 0:
            alpha = self._smoother.smooth(frame, alpha)
        if self._options.edges.active:
            alpha = adjust_edges(alpha, self._options.edges, regions=self.regions)
        return Matte(frame, alpha, foreground)


def upright_size(size: tuple[int, int], rotation_degrees: Rotation) -> tuple[int, int]:
    """(height, width) of a coded picture once it is turned upright."""
    height, width = size
    return (width, height) if rotation_degrees in (90, 270) else (height, width)
