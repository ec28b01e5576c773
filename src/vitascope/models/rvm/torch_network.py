"""RobustVideoMatting on PyTorch's own operators, time-batched, on a GPU or the CPU.

It gives what ``RvmNetwork`` gives from the same file, gain and offset at the network's size. ``RvmFusedNetwork`` is
faster in FP16; this one also computes FP32, runs on older GPUs, and can be compiled.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - the name that PyTorch's own documentation uses
from torch import Tensor

from vitascope.errors import ModelError
from vitascope.gpu.engines import TensorSpec
from vitascope.gpu.engines.gpu_arrays import failure, import_cupy
from vitascope.gpu.engines.torch_engine import CompileEffort, TorchEngine, TorchMode
from vitascope.gpu.kernels.cuda_module import is_on_gpu
from vitascope.gpu.kernels.region import Region
from vitascope.models.network import (
    FloatArray,
    MatteEstimate,
    NetworkInput,
    NetworkState,
    SpatialState,
    each_part,
)
from vitascope.models.rvm import coarse_network, structure
from vitascope.models.rvm.coarse_network import RvmCoarseNetwork
from vitascope.models.rvm.state import RvmInput, frame_chunks, state_sizes
from vitascope.models.rvm.structure import state_shapes
from vitascope.models.rvm.weights import RvmWeights, load_rvm_weights

__all__ = ["RvmTorchNetwork", "RvmTorchState", "TorchPrecision"]

TorchPrecision = Literal["fp32", "tf32", "mixed", "fp16"]

_STATES: Final = ("r1", "r2", "r3", "r4")


class RvmTorchState:
    """The recurrent features of one stream: float32 [E, h, w, C] for r1 to r4, on the network's device."""

    __slots__ = ("_device", "on_stream", "tensors")

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self._device = torch.device(device)
        self.on_stream: Callable[[], AbstractContextManager[object]] = nullcontext
        """Makes the stream current that the features are written on: where the network ran last."""
        self.tensors: tuple[Tensor, ...] | None = None
        """None before the first frame."""

    def reset(self) -> None:
        """Forget the past."""
        self.tensors = None

    def window(self, parts: Sequence[Region]) -> RvmTorchState:
        """The features of parts of the pictures, see ``SpatialState``."""
        state = RvmTorchState(self._device)
        state.on_stream = self.on_stream
        if self.tensors is not None:
            with self.on_stream():
                state.tensors = tuple(
                    torch.stack([tensor[eye, at.rows, at.columns] for eye, at in enumerate(places)])
                    for tensor, places in each_part(self.tensors, parts)
                )
        return state

    def put(self, parts: Sequence[Region], state: SpatialState) -> None:
        """Replace the parts' features, see ``SpatialState``."""
        if self.tensors is None or not isinstance(state, RvmTorchState) or state.tensors is None:
            raise ValueError("an empty state has no parts")
        with self.on_stream():
            # Copies: the engine may have given tensors that others hold, too.
            tensors = tuple(tensor.clone() for tensor in self.tensors)
            for (tensor, places), own in zip(each_part(tensors, parts), state.tensors, strict=True):
                for eye, at in enumerate(places):
                    tensor[eye, at.rows, at.columns] = own[eye]
        self.tensors = tensors

    def copy(self) -> RvmTorchState:
        """The features apart, see ``SpatialState``."""
        state = RvmTorchState(self._device)
        state.on_stream = self.on_stream
        if self.tensors is not None:
            with self.on_stream():
                state.tensors = tuple(tensor.clone() for tensor in self.tensors)
        return state

    def take(self, state: SpatialState, share: FloatArray) -> None:
        """Replace features in part, see ``SpatialState``."""
        if self.tensors is None or not isinstance(state, RvmTorchState) or state.tensors is None:
            raise ValueError("an empty state has no features")
        with self.on_stream():
            places = torch.from_numpy(share).to(self._device)[..., None]
            self.tensors = tuple(
                own + _scaled(places, (own.shape[1], own.shape[2])) * (other - own)
                for own, other in zip(self.tensors, state.tensors, strict=True)
            )

    def stretch(self, size: tuple[int, int]) -> None:
        """Scale the features to pictures of (height, width), see ``SpatialState``."""
        if self.tensors is not None:
            with self.on_stream():
                self.tensors = tuple(
                    _scaled(tensor, level)
                    for tensor, level in zip(self.tensors, state_sizes(size), strict=True)
                )

    def arrays(self) -> list[FloatArray]:
        """The features in the host's memory, see ``SpatialState``."""
        with self.on_stream():
            return [tensor.cpu().numpy() for tensor in self.tensors or ()]

    def restore(self, arrays: Sequence[FloatArray]) -> None:
        """Go on from ``arrays``, see ``SpatialState``."""
        self.tensors = tuple(torch.from_numpy(array.copy()).to(self._device) for array in arrays) or None


class RvmTorchNetwork:
    """RobustVideoMatting (MobileNetV3 or ResNet50) in PyTorch.

    Args:
        path: An official ``rvm_*.onnx`` or ``rvm_*.pth``, already verified.
        name: Its name in reports.
        device: ``cuda:N`` or ``cpu``.
        precision: ``fp16``: products in FP16, sums, recurrent states and gates in FP32, results in FP16. ``mixed``: as
            ``fp16``, with the guided filter's coefficients computed and given in FP32. ``fp32``: everything; ``tf32``:
            as ``fp32``, with products of TF32.
        downsample_ratio: Size of the network's picture relative to the region; None chooses it for full bodies.
        longest_side: Bound on the network picture's longest side; sets the ratio when that is None.
        mode: ``eager``, ``compile`` or ``aot``; ``gpu.engines.torch_engine`` says why ``eager`` is the default.
        effort: The effort of the compiled modes.
        cuda_graph: Record calls as CUDA graphs.
        most_frames: Frames in one batch; longer calls are cut. Memory grows with it.
        most_plans: The most combinations of frames, eyes and sizes that are kept ready.
        cache_dir: The folder of the packages of ``aot``.
        cudnn_benchmark: Let cuDNN time its algorithms for each shape: 15 s on an H200 before the first frame.
        cudnn_deterministic: Only algorithms of cuDNN that give the same bits every time.
        on_note: Called with one line when a package is built and why.

    Raises:
        ModelError: The file is not an official RVM network.
        EngineError: The device is not there, or cannot do what is asked.
    """

    recurrent = True
    side_multiple = 16

    def __init__(
        self,
        path: Path,
        *,
        name: str = "rvm",
        device: str = "cuda:0",
        precision: TorchPrecision = "fp16",
        downsample_ratio: float | None = None,
        longest_side: int | None = None,
        mode: TorchMode = "eager",
        effort: CompileEffort = "default",
        cuda_graph: bool = True,
        most_frames: int = 16,
        most_plans: int = 8,
        cache_dir: Path | None = None,
        cudnn_benchmark: bool = False,
        cudnn_deterministic: bool = False,
        on_note: Callable[[str], None] | None = None,
    ) -> None:
        self.name = name
        self._input = RvmInput(downsample_ratio, longest_side)
        self._device = torch.device(device)
        self._on_gpu = self._device.type == "cuda"
        self._most_frames = most_frames
        self._weights: RvmWeights = load_rvm_weights(path)
        exact = precision in ("fp32", "tf32")
        module = RvmCoarseNetwork(
            self._weights,
            precision="fp32" if exact else "fp16" if precision == "fp16" else "mixed",
        )
        self._dtype: Literal["float32", "float16"] = "float32" if exact else "float16"
        self._precision = precision
        # Pictures in another precision than their plan's would be another plan; both are taken.
        pictures = TensorSpec("pictures", np.dtype(self._dtype), ("frames", "eyes", 3, "height", "width"))
        results = np.dtype(np.float16 if precision == "fp16" else np.float32)
        shape = ("frames", "eyes", 4, "height", "width")
        states = [TensorSpec(state, np.dtype(np.float32), ("eyes", None, None, None)) for state in _STATES]
        self._engine = TorchEngine(
            module,
            inputs=[pictures, *states],
            outputs=[TensorSpec("gain", results, shape), TensorSpec("offset", results, shape), *states],
            device=device,
            label=name,
            mode=mode,
            effort=effort,
            cuda_graph=cuda_graph,
            most_plans=most_plans,
            cache_dir=cache_dir,
            fingerprint=f"{_fingerprint(path)} {precision}" if mode == "aot" else None,
            allow_tf32=precision == "tf32",
            cudnn_benchmark=cudnn_benchmark,
            cudnn_deterministic=cudnn_deterministic,
            on_note=on_note,
        )

    @property
    def engine_name(self) -> str:
        """The engine and the arithmetic."""
        return f"{self._engine.name}, {self._precision}"

    @property
    def notes(self) -> tuple[str, ...]:
        """Which packages were built, and why, one line each."""
        return tuple(self._engine.notes)

    @property
    def plan_count(self) -> int:
        """Numbers of frames, eyes and sizes that are ready to run."""
        return self._engine.plan_count

    def input_for(self, region_size: tuple[int, int]) -> NetworkInput:
        """RGB 0..1, NCHW, float16 for ``fp16`` and ``mixed``; mean and std are applied inside the network."""
        return self._input.input_for(region_size, dtype=self._dtype)

    def new_state(self) -> RvmTorchState:
        """A stream that has seen nothing."""
        return RvmTorchState(self._device)

    def infer(self, images: FloatArray, state: NetworkState) -> list[MatteEstimate]:
        """Matte T consecutive frames of E eyes; see ``MattingNetwork.infer``.

        Works on CuPy's current stream; the host does not wait for the GPU. NumPy pictures are copied to the GPU and
        the results back, which does wait.

        Args:
            images: [T, E, 3, h, w], RGB 0..1, of ``input_for``'s dtype; CuPy on the network's GPU, or NumPy.
            state: This stream's; changed in place.

        Returns:
            T estimates in the memory that the pictures are in. Their arrays are slices of one allocation per batch,
            which lives as long as any of them. CuPy: float16 for ``fp16``, else float32. NumPy: float32.

        Raises:
            ModelError: The pictures or the state are not this network's.
            DeviceMemoryError: The GPU has too little memory for the batch.
            EngineError: The engine failed.
        """
        if (
            not isinstance(state, RvmTorchState)
            or images.ndim != 5
            or images.shape[2] != 3
            or 0 in images.shape
        ):
            raise ModelError(
                f"{self.name}: takes [frames, eyes, 3, height, width] and its own state, got {list(images.shape)}"
            )
        if images.dtype != self._dtype:
            raise ModelError(f"{self.name}: got pictures {images.dtype}, expected {self._dtype}")
        on_gpu = is_on_gpu(images)
        if on_gpu and not self._on_gpu:
            raise ModelError(f"{self.name}: pictures lie on a GPU, the network on the CPU")
        expected = state_shapes(self._weights, images.shape[1], (images.shape[3], images.shape[4]))
        before = state.tensors
        if before is not None and tuple(tuple(tensor.shape) for tensor in before) != expected:
            raise ModelError(f"{self.name}: the state is that of pictures of another size; reset it first")
        handle: int | None = import_cupy().cuda.get_current_stream().ptr if on_gpu else None
        estimates: list[MatteEstimate] = []
        with self._engine.on_stream(handle), _named("rvm", self._on_gpu):
            pictures = self._tensor(images)
            tensors = before or self._blank(expected)
            first = 0
            for count in frame_chunks(images.shape[0], self._most_frames):
                inputs = (pictures[first : first + count], *tensors)
                gain, offset, *after = self._engine.run_tensors(inputs)
                tensors = tuple(after)
                estimates += self._estimates(gain, offset, on_gpu=on_gpu)
                first += count
        # Only now: a call that failed leaves the stream where it was.
        state.tensors = tensors
        state.on_stream = partial(self._engine.on_stream, handle)
        return estimates

    def close(self) -> None:
        """Free the engine; idempotent."""
        self._engine.close()

    def _tensor(self, images: Any) -> Tensor:
        if is_on_gpu(images):
            return torch.utils.dlpack.from_dlpack(images).contiguous()
        # torch warns about memory that it may not write, though it only reads it here.
        array = np.ascontiguousarray(images)
        tensor = torch.from_numpy(array if array.flags.writeable else array.copy())
        try:
            return tensor.to(self._device)
        except RuntimeError as error:
            raise failure(error, label=self.name, what="pictures cannot be copied to the GPU") from error

    def _blank(self, shapes: Sequence[tuple[int, ...]]) -> tuple[Tensor, ...]:
        try:
            return tuple(torch.zeros(shape, device=self._device) for shape in shapes)
        except RuntimeError as error:
            raise failure(error, label=self.name, what="the stream's state cannot be made") from error

    def _estimates(self, gain: Tensor, offset: Tensor, *, on_gpu: bool) -> Iterator[MatteEstimate]:
        gains: Any
        offsets: Any
        if on_gpu:
            cupy = import_cupy()
            gains, offsets = cupy.from_dlpack(gain), cupy.from_dlpack(offset)
        else:
            gains, offsets = gain.float().cpu().numpy(), offset.float().cpu().numpy()
        return (MatteEstimate(gain=one, offset=other) for one, other in zip(gains, offsets, strict=True))


def _scaled(features: Tensor, size: tuple[int, int]) -> Tensor:
    """Channels are the last axis of the features, and the second of what PyTorch scales."""
    planes = features.permute(0, 3, 1, 2)
    scaled = F.interpolate(planes, size, mode="bilinear", align_corners=False)
    return scaled.permute(0, 2, 3, 1).contiguous()


def _fingerprint(path: Path) -> str:
    """The checkpoint and the code that a package is made of."""
    digest = hashlib.sha256()
    for file in (path, Path(coarse_network.__file__), Path(structure.__file__)):
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()


def _named(name: str, on_gpu: bool) -> Any:
    """An NVTX range; torch's, because a run with NumPy pictures needs no CuPy."""
    return torch.cuda.nvtx.range(name) if on_gpu else nullcontext()
