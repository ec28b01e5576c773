"""LivePortrait's networks, opened from their checkpoints and ready to run."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, Self

import numpy as np
import torch
from torch import Tensor, nn

from vitascope.closing import Closing
from vitascope.device import Device
from vitascope.gpu.engines.engine import TensorSpec
from vitascope.gpu.engines.torch_engine import TorchEngine
from vitascope.models.liveportrait.fast import FastGenerator, FastWarping, TorchWarpOps
from vitascope.models.liveportrait.motion import KEYPOINTS, MotionExtractor, RawMotion
from vitascope.models.liveportrait.published import PublishedNetworks

CROP_SIDE = 256
"""Side of the square that the networks see, pixels."""
PAINTED_SIDE = 512
"""Side of the square that they paint, pixels."""


class LivePortraitNetworks(Closing):
    """The five networks on one device. A context manager; used by one thread at a time.

    On a GPU, the motion extractor runs in FP32, because FP16 makes keypoints jitter, and everything else in FP16, each
    in its own CUDA graphs. ``compile`` takes a minute at the start, and makes a picture take 4.9 ms on one H100 instead
    of 9.8. On a CPU, a picture takes some 20 seconds.

    Args:
        networks: The networks with their weights; owned by this object, and modified.
        device: The device that they run on.
        mode: ``compile`` fuses the operations between convolutions; ``eager`` starts at once.
        half_precision: FP16 for all networks but the motion extractor; ignored on a CPU.
    """

    def __init__(
        self,
        networks: PublishedNetworks,
        *,
        device: Device,
        mode: Literal["eager", "compile"] = "compile",
        half_precision: bool = True,
    ) -> None:
        for network in networks:
            network.eval()
        appearance, motion, warping, generator, stitching, lips = networks
        on_gpu = device.kind == "cuda"
        self.device = torch.device(f"cuda:{device.index}" if on_gpu else "cpu")
        """The device of all tensors."""
        self.dtype = torch.float16 if on_gpu and half_precision else torch.float32
        """The dtype of appearance volumes and painted pictures."""
        painter = _Painter(
            FastWarping(warping, _warp_ops(on_gpu=on_gpu), dtype=self.dtype),
            FastGenerator(generator, dtype=self.dtype),
        )
        place = str(self.device)
        self._appearance = TorchEngine(
            appearance.to(self.dtype),
            inputs=[_spec("picture", self.dtype)],
            outputs=[_spec("volume", self.dtype)],
            device=place,
            label="LivePortrait's appearance extractor",
        )
        self._motion = TorchEngine(
            motion,
            inputs=[_spec("picture", torch.float32)],
            outputs=[
                _spec(name, torch.float32) for name in ("kp", "exp", "scale", "t", "pitch", "yaw", "roll")
            ],
            device=place,
            label="LivePortrait's motion extractor",
            mode=mode,
            allow_tf32=False,
        )
        self._painter = TorchEngine(
            painter,
            inputs=[
                _spec("volume", self.dtype),
                _spec("driving", torch.float32),
                _spec("source", torch.float32),
            ],
            outputs=[_spec("picture", self.dtype)],
            device=place,
            label="LivePortrait's warping network and generator",
            mode=mode,
        )
        self._stitching, self._lips = stitching.to(self.device), lips.to(self.device)

    @classmethod
    def open(
        cls,
        folder: Path,
        *,
        device: Device,
        mode: Literal["eager", "compile"] = "compile",
        half_precision: bool = True,
    ) -> Self:
        """Read the authors' checkpoints.

        Args:
            folder: Holds ``base_models`` and ``retargeting_models``, as their ``pretrained_weights/liveportrait`` does.
            device: The device that they run on.
            mode: See the class.
            half_precision: See the class.

        Raises:
            ModelError: A file is missing, damaged, or of another network.
        """
        networks = PublishedNetworks.read(folder)
        return cls(networks, device=device, mode=mode, half_precision=half_precision)

    @property
    def name(self) -> str:
        """Networks, precision and engine, for reports."""
        return f"LivePortrait, {'fp16, motion fp32' if self.dtype == torch.float16 else 'fp32'}, {self._painter.name}"

    def appearance(self, picture: Tensor) -> Tensor:
        """The appearance volume [B, 32, 16, 64, 64] of portraits, float32 [B, 3, 256, 256], RGB 0..1."""
        (volume,) = self._appearance.run_tensors([picture.to(self.device, self.dtype).contiguous()])
        return volume.contiguous(memory_format=torch.channels_last_3d)

    def motion(self, picture: Tensor) -> RawMotion:
        """Keypoints, expression and pose of faces, float32 [B, 3, 256, 256], RGB 0..1."""
        return MotionExtractor.motion_of(
            self._motion.run_tensors([picture.to(self.device, torch.float32).contiguous()])
        )

    def stitched(self, source: Tensor, driving: Tensor) -> Tensor:
        """Adjust driving keypoints [B, 21, 3] so that the shoulders stay at the source's."""
        with torch.inference_mode():
            delta = self._stitching(source, driving)
            moved = driving + delta[:, : 3 * KEYPOINTS].view(-1, KEYPOINTS, 3)
            moved[..., :2] += delta[:, None, 3 * KEYPOINTS :]
            result: Tensor = moved
            return result

    def closed_lips(self, source: Tensor, openness: float) -> Tensor:
        """Deltas of the keypoints that close the lips, [B, 21, 3].

        Args:
            source: Keypoints of the portrait, [B, 21, 3].
            openness: Current openness of the lips: their gap over the mouth's width.
        """
        with torch.inference_mode():
            wanted = torch.tensor([[openness, 0.0]], device=self.device).expand(len(source), 2)
            delta: Tensor = self._lips(source, wanted).view(-1, KEYPOINTS, 3)
            return delta

    def paint(self, volume: Tensor, driving: Tensor, source: Tensor) -> Tensor:
        """Paint the portrait with its keypoints moved.

        Args:
            volume: From ``appearance``.
            driving: Float32 [B, 21, 3].
            source: Float32 [B, 21, 3].

        Returns:
            [B, 3, 512, 512], RGB 0..1, of ``dtype``.
        """
        (picture,) = self._painter.run_tensors([volume, driving.contiguous(), source.contiguous()])
        return picture

    def release_idle_memory(self) -> None:
        """Free the GPU memory that PyTorch keeps in reserve; does nothing on a CPU."""
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def close(self) -> None:
        """Free the engines; idempotent."""
        for engine in (self._appearance, self._motion, self._painter):
            engine.close()


class _Painter(nn.Module):
    """W and G in one graph."""

    def __init__(self, warping: FastWarping, generator: FastGenerator) -> None:
        super().__init__()
        self.warping, self.generator = warping, generator

    def forward(self, volume: Tensor, driving: Tensor, source: Tensor) -> Tensor:
        picture: Tensor = self.generator(self.warping(volume, driving, source))
        return picture


def _warp_ops(*, on_gpu: bool) -> TorchWarpOps:
    if not on_gpu:
        return TorchWarpOps()
    from vitascope.models.liveportrait.warp_triton import TritonWarpOps

    return TritonWarpOps()


def _spec(name: str, dtype: torch.dtype) -> TensorSpec:
    return TensorSpec(name, np.dtype(np.float16 if dtype == torch.float16 else np.float32), ())
