"""One stream's way from frame to alpha: prepare, infer, refine. Each step is a pipeline stage of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

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
from vitascope.segmentation.shots import ShotInference
from vitascope.vr.stereo import eye_regions

__all__ = [
    "Estimated",
    "Matte",
    "MattingOptions",
    "Prepared",
    "StreamMatting",
    "fit_plain_matte",
    "plain_rgb",
    "upright_size",
]

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
            upright_size(self.regions[0].size, rotation_degrees)
        )
        self.cut_count = 0
        self._rotation: Rotation = rotation_degrees
        self._options = options
        self._shots = ShotInference(network, warm_up_frames=options.warm_up_frames)
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
            dtype=wanted.dtype,
        )
        starts_shot = self._cuts.is_cut(plain_rgb(images[:1], wanted).transpose(0, 2, 3, 1))
        self.cut_count += starts_shot
        return Prepared(frame, images, starts_shot)

    def infer(self, batch: Sequence[Prepared]) -> list[Estimated]:
        """Run the network over consecutive frames; a scene cut inside the batch splits it."""
        images = batch[0].images[None] if len(batch) == 1 else np.stack([one.images for one in batch])
        answers = self._shots.run(images, [prepared.starts_shot for prepared in batch])
        return [Estimated(prepared, answer) for prepared, answer in zip(batch, answers, strict=True)]

    def refine(self, estimated: Estimated) -> Matte:
        """Full-resolution alpha: guided refinement, smoothing over time, then the edge options."""
        frame, estimate = estimated.prepared.frame, estimated.estimate
        if estimated.prepared.starts_shot:
            self._smoother.reset()
        if estimate.gain is not None and estimate.offset is not None:
            gain, offset = estimate.gain[:, 3], estimate.offset[:, 3]
        else:
            assert estimate.alpha is not None  # MatteEstimate holds either form
            gain, offset = fit_plain_matte(estimated.prepared.images, estimate.alpha, self.network_input)
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


def upright_size(size: tuple[int, int], rotation_degrees: Rotation) -> tuple[int, int]:
    """(height, width) of a coded picture once it is turned upright."""
    height, width = size
    return (width, height) if rotation_degrees in (90, 270) else (height, width)


def plain_rgb(images: npt.NDArray[Any], wanted: NetworkInput) -> npt.NDArray[np.float32]:
    """A network's pictures as RGB 0..1, [..., 3, h, w], without its mean, its std and its order of axes.

    Args:
        images: [..., 3, h, w] or [..., h, w, 3], NumPy or CuPy; the result is the same.
        wanted: How they were prepared.
    """
    planes = images if wanted.layout == "NCHW" else images.swapaxes(-1, -2).swapaxes(-2, -3)
    if wanted.mean == (0.0, 0.0, 0.0) and wanted.std == (1.0, 1.0, 1.0):
        return planes
    # Channel by channel, because a CuPy array takes scalars but no NumPy array beside it.
    normal = planes.astype("float32")
    for channel, (mean, std) in enumerate(zip(wanted.mean, wanted.std, strict=True)):
        normal[..., channel, :, :] = normal[..., channel, :, :] * std + mean
    return normal


def fit_plain_matte(
    images: npt.NDArray[Any], alpha: npt.NDArray[np.float32], wanted: NetworkInput
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Guided-filter coefficients of a plain matte.

    Args:
        images: [E, ...] the network's pictures of one frame, in the host's memory.
        alpha: float32 [E, h, w], 0..1.
        wanted: How the pictures were prepared.

    Returns:
        gain and offset, float32 [E, h, w].
    """
    rgb = plain_rgb(images, wanted).astype(np.float32, copy=False)
    if rgb.shape[2:] != alpha.shape[1:]:
        size = (alpha.shape[2], alpha.shape[1])
        rgb = np.stack(
            [[cv2.resize(plane, size, interpolation=cv2.INTER_AREA) for plane in eye] for eye in rgb]
        )
    return guided_coefficients(rgb, alpha, radius=_PLAIN_MATTE_RADIUS, epsilon=_PLAIN_MATTE_EPSILON)
