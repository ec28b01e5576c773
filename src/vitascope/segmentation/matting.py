"""One stream's way from frame to alpha: prepare, infer, refine. Each step is a pipeline stage of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import cv2
import numpy as np
import numpy.typing as npt

from vitascope.frames import Frame, Plane, Rotation, StereoLayout
from vitascope.gpu.kernels.edges import EdgeOptions, adjust_edges
from vitascope.gpu.kernels.foreground import decontaminate
from vitascope.gpu.kernels.guided import guided_coefficients, refine_alpha
from vitascope.gpu.kernels.preprocess import preprocess
from vitascope.gpu.kernels.region import Region
from vitascope.gpu.kernels.steady import AlphaSmoother
from vitascope.models.network import MatteEstimate, MattingNetwork, NetworkInput
from vitascope.segmentation.scene_cuts import SceneCutDetector
from vitascope.vr.stereo import eye_regions

__all__ = ["Estimated", "Matte", "MattingOptions", "Prepared", "StreamMatting"]

# Of the guided filter that refines a plain matte, in samples of the network's picture and squared grey levels. Chosen
# by eye on full bodies and faces among 1 to 4 and 1e-4 to 3e-2: wider windows leave halos, smaller epsilons let the
# texture of grass and hair into the matte.
_PLAIN_MATTE_RADIUS = 1
_PLAIN_MATTE_EPSILON = 1e-2


@dataclass(frozen=True, slots=True)
class MattingOptions:
    """What a user may set about mattes, in plain values."""

    edges: EdgeOptions = field(default_factory=EdgeOptions)
    decontaminate: bool = False
    temporal_smoothing: float = 0.0
    scene_cut_threshold: float = 0.35
    warm_up_frames: int = 3
    """How often a recurrent network sees the first picture of a shot before its answer counts."""


@dataclass(slots=True, eq=False)
class Prepared:
    """A frame and what the network will see of it."""

    frame: Frame
    images: npt.NDArray[np.float32]
    """[E, 3, h, w] or [E, h, w, 3], as the network wants it."""
    starts_shot: bool
    """True when the network must forget what it saw before."""

    @property
    def nbytes(self) -> int:
        """Bytes held, for the queues."""
        return self.frame.nbytes + self.images.nbytes


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
        options: Edges, smoothing, decontamination, cuts.
    """

    def __init__(
        self,
        network: MattingNetwork,
        *,
        size: tuple[int, int],
        layout: StereoLayout,
        rotation_degrees: Rotation = 0,
        options: MattingOptions,
    ) -> None:
        height, width = size
        self.regions: list[Region] = eye_regions(width, height, layout)
        self.network_input: NetworkInput = network.input_for(
            self._upright(self.regions[0].size, rotation_degrees)
        )
        self.cut_count = 0
        self._network = network
        self._rotation: Rotation = rotation_degrees
        self._options = options
        self._state = network.new_state()
        self._is_cold = network.recurrent
        self._cuts = SceneCutDetector(options.scene_cut_threshold)
        self._smoother = AlphaSmoother(options.temporal_smoothing)

    def prepare(self, frame: Frame) -> Prepared:
        """Make the network's pictures, and notice scene cuts."""
        wanted = self.network_input
        images = preprocess(
            frame,
            regions=self.regions,
            size=wanted.size,
            mean=wanted.mean,
            std=wanted.std,
            layout=wanted.layout,
            rotation_degrees=self._rotation,
        )
        starts_shot = self._cuts.is_cut(self._rgb(images[:1]).transpose(0, 2, 3, 1))
        self.cut_count += starts_shot
        return Prepared(frame, images, starts_shot)

    def infer(self, batch: Sequence[Prepared]) -> list[Estimated]:
        """Run the network over consecutive frames; a scene cut inside the batch splits it."""
        estimates: list[Estimated] = []
        shot: list[Prepared] = []
        for prepared in batch:
            if prepared.starts_shot:
                estimates += self._infer_shot(shot)
                shot = []
                self._state.reset()
                self._is_cold = self._network.recurrent
            shot.append(prepared)
        return estimates + self._infer_shot(shot)

    def refine(self, estimated: Estimated) -> Matte:
        """Full-resolution alpha: guided refinement, smoothing over time, then the edge options."""
        frame, estimate = estimated.prepared.frame, estimated.estimate
        if estimated.prepared.starts_shot:
            self._smoother.reset()
        if estimate.gain is not None and estimate.offset is not None:
            gain, offset = estimate.gain[:, 3], estimate.offset[:, 3]
        else:
            gain, offset = self._fit(estimated)
        alpha = refine_alpha(
            frame, regions=self.regions, gain=gain, offset=offset, rotation_degrees=self._rotation
        )
        foreground = frame
        if self._options.decontaminate and estimate.gain is not None and estimate.offset is not None:
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

    def _infer_shot(self, shot: Sequence[Prepared]) -> list[Estimated]:
        if not shot:
            return []
        if self._is_cold:
            # A recurrent network doubts what it sees for the first time: whole torsos are missing from the first
            # frames of a shot. Its memory settles when it is shown the same picture a few times.
            for _ in range(self._options.warm_up_frames):
                self._network.infer(shot[0].images[None], self._state)
            self._is_cold = False
        images = shot[0].images[None] if len(shot) == 1 else np.stack([prepared.images for prepared in shot])
        answers = self._network.infer(images, self._state)
        return [Estimated(prepared, answer) for prepared, answer in zip(shot, answers, strict=True)]

    def _fit(self, estimated: Estimated) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """Guided-filter coefficients of a plain matte."""
        alpha = estimated.estimate.alpha
        assert alpha is not None  # MatteEstimate holds either form
        rgb = self._rgb(estimated.prepared.images)
        if rgb.shape[2:] != alpha.shape[1:]:
            size = (alpha.shape[2], alpha.shape[1])
            rgb = np.stack(
                [[cv2.resize(plane, size, interpolation=cv2.INTER_AREA) for plane in eye] for eye in rgb]
            )
        return guided_coefficients(rgb, alpha, radius=_PLAIN_MATTE_RADIUS, epsilon=_PLAIN_MATTE_EPSILON)

    def _rgb(self, images: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """The network's pictures as RGB 0..1, [E, 3, h, w]."""
        wanted = self.network_input
        planes = images if wanted.layout == "NCHW" else np.moveaxis(images, -1, 1)
        if wanted.mean == (0.0, 0.0, 0.0) and wanted.std == (1.0, 1.0, 1.0):
            return planes
        mean, std = (np.array(value, np.float32)[:, None, None] for value in (wanted.mean, wanted.std))
        return np.asarray(planes * std + mean, np.float32)

    @staticmethod
    def _upright(size: tuple[int, int], rotation_degrees: Rotation) -> tuple[int, int]:
        height, width = size
        return (width, height) if rotation_degrees in (90, 270) else (height, width)
