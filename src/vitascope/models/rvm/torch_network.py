"""RobustVideoMatting on PyTorch's own operators, time-batched, on a GPU or the CPU.

It gives what ``RvmNetwork`` gives from the same file, gain and offset at the network's size. ``RvmFusedNetwork`` is
faster in FP16; this one also computes FP32, runs on older GPUs, and can be compiled.

``structure.py`` puts the coarse network together from the parts here (``TorchOps``): inference only, batch norm folded,
several frames in one call. Tensors inside are [N, C, H, W] in channels-last memory.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, cast

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - the name that PyTorch's own documentation uses
from torch import Tensor, nn

from vitascope.errors import ModelError
from vitascope.gpu.engines import TensorSpec
from vitascope.gpu.engines.engine import failure
from vitascope.gpu.engines.torch_engine import CompileEffort, TorchEngine, TorchMode
from vitascope.gpu.kernels.cuda_module import import_cupy, is_on_gpu
from vitascope.gpu.kernels.region import Region
from vitascope.models.network import (
    FloatArray,
    MatteEstimate,
    NetworkInput,
    NetworkState,
    SpatialState,
    each_part,
)
from vitascope.models.rvm import structure
from vitascope.models.rvm.state import RvmInput, frame_chunks, state_sizes
from vitascope.models.rvm.structure import (
    SOURCE_CHANNELS,
    Activation,
    encoder_and_decoder,
    layer_tensors,
    state_shapes,
)
from vitascope.models.rvm.weights import RvmWeights, convolutions, load_rvm_weights

_Arrays = Mapping[str, np.ndarray[Any, Any]]


class FoldedConvolution(nn.Module):
    """A convolution's weight [O, I, kh, kw] in channels-last memory and its bias [O], and how it is applied."""

    weight: Tensor
    bias: Tensor | None

    def __init__(
        self,
        weight: np.ndarray[Any, Any],
        bias: np.ndarray[Any, Any] | None,
        *,
        stride: int,
        padding: int,
        dilation: int,
        groups: int,
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        self.stride, self.padding, self.dilation, self.groups = stride, padding, dilation, groups
        tensor = torch.from_numpy(np.ascontiguousarray(weight, np.float32)).to(dtype)
        self.register_buffer("weight", tensor.contiguous(memory_format=torch.channels_last))
        self.register_buffer(
            "bias", None if bias is None else torch.from_numpy(np.array(bias, np.float32)).to(dtype)
        )

    def forward(self, x: Tensor) -> Tensor:
        """The convolution with its bias."""
        return F.conv2d(x, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups)


class GruWeights(nn.Module):
    """A ConvGRU's convolutions, apart by what they read: the input, or the state.

    ``inputs`` gives the input's share of reset gate, update gate and candidate, [3 C, C, 3, 3] with all biases;
    ``gates`` the state's share of both gates, [2 C, C, 3, 3]; ``candidate`` that of the candidate, [C, C, 3, 3].
    """

    def __init__(self, tensors: _Arrays, name: str, dtype: torch.dtype) -> None:
        super().__init__()
        gates, candidate = tensors[f"{name}.ih.0.weight"], tensors[f"{name}.hh.0.weight"]
        self.channels = candidate.shape[0]

        def layer(
            weight: np.ndarray[Any, Any], bias: np.ndarray[Any, Any] | None = None
        ) -> FoldedConvolution:
            return FoldedConvolution(weight, bias, stride=1, padding=1, dilation=1, groups=1, dtype=dtype)

        bias = np.concatenate([tensors[f"{name}.ih.0.bias"], tensors[f"{name}.hh.0.bias"]])
        self.inputs = layer(np.concatenate([gates, candidate])[:, : self.channels], bias)
        self.gates = layer(gates[:, self.channels :])
        self.candidate = layer(candidate[:, self.channels :])


class HeadWeights(nn.Module):
    """The deep guided filter's learned box filter and 1x1 convolutions; the box filter is always FP32."""

    def __init__(self, tensors: _Arrays, dtype: torch.dtype) -> None:
        super().__init__()

        def layer(name: str, of: torch.dtype = dtype, groups: int = 1) -> FoldedConvolution:
            weight = tensors[f"refiner.{name}.weight"]
            return FoldedConvolution(
                weight,
                tensors.get(f"refiner.{name}.bias"),
                stride=1,
                padding=weight.shape[2] // 2,
                dilation=1,
                groups=groups,
                dtype=of,
            )

        self.box_filter = layer("box_filter", torch.float32, groups=4)
        self.first, self.second, self.third = layer("conv.0"), layer("conv.3"), layer("conv.6")


class TorchOps:
    """Each part as PyTorch's operators."""

    def source_pyramid(self, pictures: Tensor, channels: int, dtype: torch.dtype) -> list[Tensor]:
        """Pictures [N, 3, h, w] with their grey, a 1 and zeros for further channels, and their halves: 1/1 to 1/8.

        A window that hangs over the edge averages what it has.
        """
        grey = pictures.float().mean(1, keepdim=True).to(pictures.dtype)
        ones = torch.ones_like(grey)
        zeros = torch.zeros_like(grey).expand(-1, channels - 5, -1, -1)
        source = torch.cat([pictures, grey, ones, zeros], dim=1).to(dtype, memory_format=torch.channels_last)
        levels = [source]
        for _ in range(3):
            levels.append(F.avg_pool2d(levels[-1], 2, 2, ceil_mode=True, count_include_pad=False))
        return levels

    def convolve(self, x: Tensor, layer: FoldedConvolution, activation: Activation) -> Tensor:
        """Convolution, bias and activation."""
        return _activated(layer(x), activation)

    def depthwise(self, x: Tensor, layer: FoldedConvolution, activation: Activation) -> Tensor:
        """One filter a channel, bias and activation."""
        return _activated(layer(x), activation)

    def depthwise_squeezed(
        self,
        x: Tensor,
        layer: FoldedConvolution,
        activation: Activation,
        squeeze: FoldedConvolution,
        excite: FoldedConvolution,
    ) -> tuple[Tensor, Tensor]:
        """``depthwise``, and the factor [N, C, 1, 1] that squeeze-and-excitation finds for each channel."""
        x = self.depthwise(x, layer, activation)
        mean = x.mean((2, 3), keepdim=True)
        return x, F.hardsigmoid(excite(torch.relu(squeeze(mean))))

    def project(
        self,
        x: Tensor,
        layer: FoldedConvolution,
        scale: Tensor | None,
        shortcut: Tensor | None,
        activation: Activation = None,
    ) -> Tensor:
        """1x1 convolution of ``x * scale``, plus the shortcut, then the activation."""
        x = layer(x if scale is None else x * scale)
        return _activated(x if shortcut is None else x + shortcut, activation)

    def max_pool(self, x: Tensor) -> Tensor:
        """The largest of 3x3, every second pixel."""
        return F.max_pool2d(x, 3, stride=2, padding=1)

    def attend(self, x: Tensor, layer: FoldedConvolution, attention: FoldedConvolution) -> Tensor:
        """LR-ASPP: ``relu(conv(x)) * sigmoid(conv(mean(x)))``."""
        weight = torch.sigmoid(attention(x.mean((2, 3), keepdim=True)))
        return torch.relu(layer(x)) * weight

    def upsample_concat(self, x: Tensor, skip: Tensor | None, source: Tensor) -> Tensor:
        """``x`` doubled bilinearly and cropped to the source's size, then ``skip`` and the source as more channels."""
        height, width = source.shape[2:]
        grown = F.interpolate(x, scale_factor=2.0, mode="bilinear", align_corners=False)
        parts = [grown[:, :, :height, :width], *([] if skip is None else [skip]), source]
        return torch.cat(parts, dim=1)

    def gru(self, x: Tensor, state: Tensor, weights: GruWeights, steps: int) -> tuple[Tensor, Tensor]:
        """T steps of a ConvGRU on the second half of the channels.

        ``r, z = sigmoid(conv[x, h]); c = tanh(conv[x, r h]); h' = (1 - z) h + z c``, gates and state in FP32.

        Args:
            x: [T * E, 2 C, H, W].
            state: float32 [E, H, W, C].
            weights: The convolutions.
            steps: T.

        Returns:
            [T * E, 2 C, H, W] with the state of each step in the second half, and the last state.
        """
        channels = weights.channels
        kept, read = x[:, :channels], x[:, channels:]
        shares = weights.inputs(read.contiguous(memory_format=torch.channels_last)).unflatten(0, (steps, -1))
        hidden = state.permute(0, 3, 1, 2)
        outputs = []
        for share in shares:
            gates = (weights.gates(hidden.to(x.dtype)).float() + share[:, : 2 * channels].float()).sigmoid()
            reset, update = gates[:, :channels], gates[:, channels:]
            seen = weights.candidate((reset * hidden).to(x.dtype)).float()
            candidate = torch.tanh(seen + share[:, 2 * channels :].float())
            hidden = hidden + update * (candidate - hidden)
            outputs.append(hidden.to(x.dtype))
        joined = torch.cat([kept, torch.cat(outputs)], dim=1)
        return joined, hidden.permute(0, 2, 3, 1).contiguous()

    def guided_head(
        self,
        source: Tensor,
        hidden: Tensor,
        project: FoldedConvolution,
        head: HeadWeights,
        result_dtype: torch.dtype,
    ) -> tuple[Tensor, Tensor]:
        """Gain and offset [N, 4, h, w], contiguous, of the deep guided filter (Wu et al., CVPR 2018).

        With x the source and its grey, y foreground residual and alpha, and means by the learned box filter:
        ``gain = conv(mean(xy) - mean(x) mean(y), mean(xx) - mean(x)^2, hidden)``,
        ``offset = mean(y) - gain * mean(x)``.
        """
        y = project(hidden).float()
        rgb = source[:, :3].float()
        x = torch.cat([rgb, rgb.mean(1, keepdim=True)], dim=1)
        mean_x, mean_y = head.box_filter(x), head.box_filter(y)
        covariance = head.box_filter(x * y) - mean_x * mean_y
        variance = head.box_filter(x * x) - mean_x * mean_x
        moments = torch.cat([covariance, variance], dim=1).to(hidden.dtype)
        z = torch.relu(head.first(torch.cat([moments, hidden], dim=1)))
        gain = head.third(torch.relu(head.second(z))).float()
        offset = mean_y - gain * mean_x
        return gain.to(result_dtype).contiguous(), offset.to(result_dtype).contiguous()


def _activated(x: Tensor, activation: Activation) -> Tensor:
    if activation == "relu":
        return torch.relu(x)
    return F.hardswish(x) if activation == "hard_swish" else x


Precision = Literal["fp32", "mixed", "fp16"]


class RvmCoarseNetwork(nn.Module):
    """Encoder, LR-ASPP, recurrent decoder, and the learned half of the deep guided filter.

    Args:
        weights: Folded weights.
        precision: ``fp32``: everything. ``mixed``: convolutions multiply in FP16 and add in FP32; recurrent states,
            gates, the guided filter's moments and coefficients, and the results are FP32. ``fp16``: as ``mixed``, but
            the coefficients are computed and returned in FP16 (half the traffic); the moments stay FP32, because
            variance is a small difference of large numbers.
    """

    def __init__(self, weights: RvmWeights, *, precision: Precision = "fp32") -> None:
        super().__init__()
        self.backbone = weights.backbone
        self.compute_dtype = torch.float32 if precision == "fp32" else torch.float16
        self.result_dtype = torch.float16 if precision == "fp16" else torch.float32
        self.ops = TorchOps()
        self.convolutions = nn.ModuleDict()
        tensors = layer_tensors(weights)
        for conv in convolutions(weights.backbone):
            if not conv.name.startswith("refiner.") and ".gru." not in conv.name:
                self.convolutions[_key(conv.name)] = FoldedConvolution(
                    tensors[f"{conv.name}.weight"],
                    tensors.get(f"{conv.name}.bias"),
                    stride=conv.stride,
                    padding=conv.padding,
                    dilation=conv.dilation,
                    groups=conv.groups,
                    dtype=self.compute_dtype,
                )
        self.grus = nn.ModuleDict(
            {
                str(level): GruWeights(tensors, f"decoder.decode{level}.gru", self.compute_dtype)
                for level in (1, 2, 3, 4)
            }
        )
        self.head = HeadWeights(tensors, self.compute_dtype)

    def forward(
        self, pictures: Tensor, r1: Tensor, r2: Tensor, r3: Tensor, r4: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Matte T frames of E eyes.

        Args:
            pictures: [T, E, 3, h, w], RGB 0..1, float16 or float32.
            r1: float32 [E, h/2, w/2, C], the state of decoder level 1 before the first frame; zeros at the start.
            r2: The state of level 2, [E, h/4, w/4, C].
            r3: The state of level 3.
            r4: The state of level 4.

        Returns:
            gain and offset, [T, E, 4, h, w] of ``result_dtype``, then the four states after the last frame.
        """
        steps, eyes = pictures.shape[:2]
        sources = self.ops.source_pyramid(pictures.flatten(0, 1), SOURCE_CHANNELS, self.compute_dtype)
        hidden, states = encoder_and_decoder(
            self.ops,
            self._layer,
            lambda level: cast("GruWeights", self.grus[str(level)]),
            backbone=self.backbone,
            sources=sources,
            states=(r1, r2, r3, r4),
            steps=steps,
        )
        gain, offset = self.ops.guided_head(
            sources[0], hidden, self._layer("project_mat.conv"), self.head, self.result_dtype
        )
        planes = (steps, eyes, *gain.shape[1:])
        return gain.view(planes), offset.view(planes), states[0], states[1], states[2], states[3]

    def _layer(self, name: str) -> FoldedConvolution:
        return cast("FoldedConvolution", self.convolutions[_key(name)])


def _key(name: str) -> str:
    """Module names hold no dots."""
    return name.replace(".", "_")


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
            # Copies: the engine's tensors may be in use elsewhere.
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

    def take(self, state: SpatialState | None, share: FloatArray) -> None:
        """Replace features in part, see ``SpatialState``."""
        others: Sequence[Tensor | float] | None = [0.0] * len(_STATES)
        if state is not None:
            others = state.tensors if isinstance(state, RvmTorchState) else None
        if self.tensors is None or others is None:
            raise ValueError("an empty state has no features")
        with self.on_stream():
            places = torch.as_tensor(share, device=self._device)[..., None]
            self.tensors = tuple(
                own + _scaled(places, (own.shape[1], own.shape[2])) * (other - own)
                for own, other in zip(self.tensors, others, strict=True)
            )

    def stretch(self, size: tuple[int, int]) -> None:
        """Scale the features to pictures of (height, width), see ``SpatialState``."""
        if self.tensors is not None:
            with self.on_stream():
                self.tensors = tuple(
                    _scaled(tensor, level)
                    for tensor, level in zip(self.tensors, state_sizes(size), strict=True)
                )

    def mirror(self) -> None:
        """Let the features' left and right change places, see ``SpatialState``."""
        if self.tensors is not None:
            with self.on_stream():
                self.tensors = tuple(tensor.flip(2) for tensor in self.tensors)

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
        most_plans: int = 16,
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
        """The packages that were built, and why, one line each."""
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
    for file in (path, Path(__file__), Path(structure.__file__)):
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()


def _named(name: str, on_gpu: bool) -> Any:
    """An NVTX range; torch's, because a run with NumPy pictures needs no CuPy."""
    return torch.cuda.nvtx.range(name) if on_gpu else nullcontext()
