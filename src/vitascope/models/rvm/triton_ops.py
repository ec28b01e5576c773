"""RVM's parts on CUDA: launches of the Triton kernels, with weights packed for them and tiles chosen by size.

Convolutions multiply in FP16 and add in FP32. Only ``fp16`` and ``mixed`` networks run here; FP32
takes PyTorch's operators.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import torch
from torch import Tensor, nn

from vitascope.device import available_cores
from vitascope.models.rvm import triton_kernels as kernels
from vitascope.models.rvm.coarse_network import (
    Activation,
    FoldedConvolution,
    GruWeights,
    HeadWeights,
    TorchOps,
)

__all__ = ["TritonOps"]

_ACTIVATIONS: Final = {None: 0, "relu": 1, "hard_swish": 2}
# Rows of a packed weight are padded to the deepest tile of k.
_DEEPEST_TILE: Final = 128
# Tiles (pixels, outputs) of convolutions of few pixels, largest first: the largest that gives every
# multiprocessor work is taken.
_SMALL_TILES: Final = ((64, 64), (64, 32), (32, 32), (32, 16))

_Launch = tuple[Any, tuple[int, ...], tuple[Any, ...], dict[str, Any]]
"""Kernel, grid, arguments, constants."""


class TritonOps(TorchOps):
    """Each part as Triton kernels on the current CUDA stream.

    Tiles were chosen by a sweep on one H200 over all layers at 512x288, 1 and 16 frames (torch 2.11, Triton 3.6).

    Args:
        multiprocessors: The GPU's number of them; tiles shrink until there are as many programs.
    """

    name = "triton"

    def __init__(self, multiprocessors: int) -> None:
        self._multiprocessors = multiprocessors
        self._planned: list[_Launch] | None = None

    def prepare(self, network: nn.Module) -> None:
        """Pack the weights of a network that will run on these kernels."""
        for module in network.modules():
            if isinstance(module, FoldedConvolution):
                _pack(module)
            elif isinstance(module, GruWeights):
                _pack_gates(module)

    def compile_for(self, call: Callable[[], object]) -> None:
        """Compile the kernels of a call on several cores; it allocates what it needs, and launches nothing.

        One H200 with 16 cores compiled all the kernels of a call one after the other in 15 s, and so in 7 s. Later
        starts find them in Triton's cache on disk, and take half a second.
        """
        self._planned = []
        try:
            call()
            launches = {_variant(launch): launch for launch in self._planned}
        finally:
            self._planned = None
        device = torch.cuda.current_device()

        def compile_one(launch: _Launch) -> None:
            kernel, grid, arguments, constants = launch
            with torch.cuda.device(device):
                kernel.warmup(*arguments, grid=grid, **constants)

        with ThreadPoolExecutor(available_cores(), thread_name_prefix="triton") as pool:
            list(pool.map(compile_one, launches.values()))

    def source_pyramid(self, pictures: Tensor, channels: int, dtype: torch.dtype) -> list[Tensor]:
        """As ``TorchOps.source_pyramid``; channel 3 holds the grey, for the guided filter."""
        pictures = pictures.contiguous()
        count, _, height, width = pictures.shape
        source = _empty((count, channels, height, width), pictures, dtype)
        block = 256
        grid = (_ceil_div(height * width, block), 1, count)
        self._launch(kernels.source_kernel, grid, pictures, source, height * width, BLOCK_M=block)
        levels = [source]
        for _ in range(3):
            above = levels[-1]
            size = (-(-above.shape[2] // 2), -(-above.shape[3] // 2))
            half = _empty((count, channels, *size), pictures, dtype)
            grid = (_ceil_div(size[0] * size[1], block), 1, count)
            self._launch(kernels.halve_kernel, grid, above, half, *above.shape[2:], *size, BLOCK_M=block)
            levels.append(half)
        return levels

    def convolve(self, x: Tensor, layer: FoldedConvolution, activation: Activation) -> Tensor:
        """Convolution, bias and activation in one kernel."""
        return self._convolve(x, layer, activation)

    def depthwise(self, x: Tensor, layer: FoldedConvolution, activation: Activation) -> Tensor:
        """One filter a channel, bias and activation in one kernel."""
        return self._depthwise(x, layer, activation, None)[0]

    def depthwise_squeezed(
        self,
        x: Tensor,
        layer: FoldedConvolution,
        activation: Activation,
        squeeze: FoldedConvolution,
        excite: FoldedConvolution,
    ) -> tuple[Tensor, Tensor]:
        """The depthwise kernel leaves sums of its tiles; two small kernels turn them into the factors."""
        count = x.shape[0]
        y, sums = self._depthwise(x, layer, activation, "sums")
        assert sums is not None  # asked for
        squeezed = self._of_mean(sums, y, squeeze, relu=True)
        outputs, inputs = excite.weight.shape[:2]
        scale = torch.empty((count, outputs, 1, 1), dtype=torch.float32, device=x.device)
        block = 32
        self._launch(kernels.excite_kernel, (_ceil_div(outputs, block), count),
            squeezed, excite.weight, excite.packed_bias, scale, inputs, outputs,
            BLOCK_N=block, BLOCK_K=_power_of_two(inputs),
        )  # fmt: skip
        return y, scale

    def project(
        self, x: Tensor, layer: FoldedConvolution, scale: Tensor | None, shortcut: Tensor | None
    ) -> Tensor:
        """The factors scale the weights on their way in; the shortcut is added on the way out."""
        return self._convolve(x, layer, None, in_scale=scale, shortcut=shortcut)

    def attend(self, x: Tensor, layer: FoldedConvolution, attention: FoldedConvolution) -> Tensor:
        """LR-ASPP; the attention scales the outputs on their way out."""
        count, channels, height, width = x.shape
        block_m, block_c = 64, 64
        tiles = _ceil_div(height * width, block_m)
        sums = torch.empty((count, tiles, channels), dtype=torch.float32, device=x.device)
        self._launch(
            kernels.mean_kernel,
            (tiles, _ceil_div(channels, block_c), count),
            x,
            sums,
            height * width,
            channels // 8,
            BLOCK_M=block_m,
            BLOCK_C=block_c,
        )
        weight = self._of_mean(sums, x, attention, relu=False)
        return self._convolve(x, layer, "relu", out_scale=weight)

    def upsample_concat(self, x: Tensor, skip: Tensor | None, source: Tensor) -> Tensor:
        """One kernel writes all channels."""
        count, _, height, width = source.shape
        x_groups, skip_groups = x.shape[1] // 8, 0 if skip is None else skip.shape[1] // 8
        groups = x_groups + skip_groups + 1
        y = _empty((count, 8 * groups, height, width), source, source.dtype)
        block = 128
        self._launch(kernels.upsample_concat_kernel, (_ceil_div(height * width * groups, block), 1, count),
            x, source if skip is None else skip, source, y, height, width, x.shape[2], x.shape[3],
            X_GROUPS=x_groups, SKIP_GROUPS=skip_groups, BLOCK=block,
        )  # fmt: skip
        return y

    def gru(self, x: Tensor, state: Tensor, weights: GruWeights, steps: int) -> tuple[Tensor, Tensor]:
        """Two kernels a step; ``x`` is changed in place: its second half becomes the states."""
        eyes, (height, width), channels = x.shape[0] // steps, x.shape[2:], weights.channels
        shares = self._convolve(x, weights.inputs, None, first_channel=channels)
        after, update = torch.empty_like(state), torch.empty_like(state)
        reset_hidden = torch.empty_like(state, dtype=x.dtype)
        start = torch.empty((eyes, height, width, 2 * channels), dtype=x.dtype, device=x.device)
        start[..., channels:] = state
        frames = x.permute(0, 2, 3, 1).view(steps, eyes, height, width, -1)
        pixels = height * width
        blocks = {"CHANNELS": channels, "COLUMNS": _columns(channels), "BLOCK_K": 32 if channels < 64 else 64}
        gate_block = self._pixels_of(pixels * eyes, most=64)
        candidate_block = self._pixels_of(pixels * eyes // 2, most=64)
        for step in range(steps):
            before = state if step == 0 else after
            joined = start if step == 0 else frames[step - 1]
            first = step * eyes * pixels
            self._launch(
                kernels.gru_gates_kernel, (_ceil_div(pixels, gate_block), 1, eyes),
                joined, before, weights.packed_gates, shares, reset_hidden, update, height, width, first,
                BLOCK_M=gate_block, **blocks,
            )  # fmt: skip
            self._launch(
                kernels.gru_candidate_kernel, (_ceil_div(pixels, candidate_block), 1, eyes),
                reset_hidden, weights.packed_candidate, shares, update, before, after, x, height, width, first,
                BLOCK_M=candidate_block, **blocks,
            )  # fmt: skip
        return x, after

    def guided_head(
        self,
        source: Tensor,
        hidden: Tensor,
        project: FoldedConvolution,
        head: HeadWeights,
        result_dtype: torch.dtype,
    ) -> tuple[Tensor, Tensor]:
        """The matte in FP32, then one kernel for all the rest."""
        count, _, height, width = source.shape
        matte = self._convolve(hidden, project, None, dtype=torch.float32)
        gain = torch.empty((count, 4, height, width), dtype=result_dtype, device=source.device)
        offset = torch.empty_like(gain)
        block = 128
        self._launch(kernels.guided_head_kernel, (_ceil_div(height * width, block), 1, count),
            source, hidden, matte, head.box_filter.packed_weight,
            head.first.exact_weight, head.first.packed_bias,
            head.second.exact_weight, head.second.packed_bias,
            head.third.exact_weight, head.third.packed_bias,
            gain, offset, height, width, EXACT=result_dtype == torch.float32, BLOCK_M=block, num_warps=2,
        )  # fmt: skip
        return gain, offset

    def _launch(self, kernel: Any, grid: tuple[int, ...], *arguments: Any, **constants: Any) -> None:
        """Every launch passes here."""
        if self._planned is not None:
            self._planned.append((kernel, grid, arguments, constants))
        else:
            kernel[grid](*arguments, **constants)

    def _convolve(
        self,
        x: Tensor,
        layer: FoldedConvolution,
        activation: Activation,
        *,
        in_scale: Tensor | None = None,
        out_scale: Tensor | None = None,
        shortcut: Tensor | None = None,
        first_channel: int = 0,
        dtype: torch.dtype | None = None,
    ) -> Tensor:
        count, x_channels, height, width = x.shape
        outputs, inputs, taps = layer.weight.shape[:3]
        size = _out_size(layer, height, width)
        y = _empty((count, outputs, *size), x, dtype or x.dtype)
        block_m, block_n = self._tile(size[0] * size[1], count, outputs)
        columns = layer.packed_weight.shape[1]
        step = 8 if outputs % 8 == 0 else 4
        grid = (_ceil_div(size[0] * size[1], block_m), _ceil_div(outputs, block_n), count)
        self._launch(kernels.convolution_kernel, grid,
            x, layer.packed_weight, layer.packed_bias, y, in_scale, out_scale, shortcut,
            height, width, *size, inputs // 8, outputs // step, columns // 16,
            INPUTS=0 if taps == 1 else inputs, X_FIRST=first_channel, X_PIXEL=0 if taps == 1 else x_channels,
            OUTPUT_STEP=step, TAPS=taps, STRIDE=layer.stride, DILATION=layer.dilation, PADDING=layer.padding,
            ACTIVATION=_ACTIVATIONS[activation], HAS_BIAS=layer.packed_bias is not None,
            HAS_IN_SCALE=in_scale is not None, HAS_OUT_SCALE=out_scale is not None,
            HAS_SHORTCUT=shortcut is not None, OUT_SIGMOID=out_scale is not None,
            BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_K=_depth_tile(taps * taps * inputs), num_warps=4,
            # Few outputs: what overlapping the loads would save goes through the nearer cache instead.
            num_stages=1 if taps > 1 and outputs <= 16 else 3,
        )  # fmt: skip
        return y

    def _depthwise(
        self, x: Tensor, layer: FoldedConvolution, activation: Activation, sums: str | None
    ) -> tuple[Tensor, Tensor | None]:
        count, channels, height, width = x.shape
        size = _out_size(layer, height, width)
        y = _empty((count, channels, *size), x, x.dtype)
        block_m, block_c = (128, 16) if channels <= 16 else (64, 32)
        tiles = _ceil_div(size[0] * size[1], block_m)
        partial = None
        if sums is not None:
            partial = torch.empty((count, tiles, channels), dtype=torch.float32, device=x.device)
        self._launch(kernels.depthwise_kernel, (tiles, _ceil_div(channels, block_c), count),
            x, layer.packed_weight, layer.packed_bias, y, partial, height, width, *size, channels // 8,
            TAPS=layer.weight.shape[2], STRIDE=layer.stride, DILATION=layer.dilation,
            ACTIVATION=_ACTIVATIONS[activation], HAS_SUMS=sums is not None, BLOCK_M=block_m, BLOCK_C=block_c,
        )  # fmt: skip
        return y, partial

    def _of_mean(self, sums: Tensor, x: Tensor, layer: FoldedConvolution, *, relu: bool) -> Tensor:
        """A 1x1 convolution of the pictures' means, float32 [N, outputs]."""
        count, tiles, channels = sums.shape
        outputs = layer.weight.shape[0]
        y = torch.empty((count, outputs), dtype=torch.float32, device=sums.device)
        block = 8
        self._launch(
            kernels.squeeze_kernel, (_ceil_div(outputs, block), count),
            sums, layer.weight, layer.packed_bias, y, tiles, channels, outputs, x.shape[2] * x.shape[3],
            HAS_BIAS=layer.packed_bias is not None, RELU=relu, BLOCK_T=4, BLOCK_N=block,
            BLOCK_C=min(1024, _power_of_two(channels)),
        )  # fmt: skip
        return y

    def _tile(self, pixels: int, pictures: int, outputs: int) -> tuple[int, int]:
        """Pixels and outputs of a convolution's tile."""

        def programs(block_m: int, block_n: int) -> int:
            return _ceil_div(pixels, block_m) * _ceil_div(outputs, block_n) * pictures

        widest = min(128, _columns(outputs))
        if widest == 128 and _round_up(outputs, 64) < _round_up(outputs, 128):
            widest = 64
        large = (64, 128) if widest == 128 else (128, widest)
        for block_m, block_n in (large, *((rows, min(columns, widest)) for rows, columns in _SMALL_TILES)):
            if programs(block_m, block_n) >= self._multiprocessors:
                return block_m, block_n
        return 32, min(16, widest)

    def _pixels_of(self, pixels: int, *, most: int) -> int:
        """Pixels of a GRU's tile."""
        block = most
        while block > 16 and pixels < block * self._multiprocessors:
            block //= 2
        return block


def _columns(outputs: int) -> int:
    """Columns of a tile that holds all outputs: a power of two, as Triton wants it, and enough for a tensor core."""
    return max(16, _power_of_two(outputs))


def _power_of_two(value: int) -> int:
    """The least power of two that is not below a value."""
    return 1 << (value - 1).bit_length()


def _ceil_div(value: int, step: int) -> int:
    return -(-value // step)


def _depth_tile(depth: int) -> int:
    """The part of k that one product sums: little waste behind the last tile, or fewer tiles."""
    return 16 if depth <= 16 else 32 if depth <= 208 else 64


def _variant(launch: _Launch) -> tuple[Any, ...]:
    """The key that tells the compiled kernel of a launch from others."""
    kernel, _, arguments, constants = launch
    types = tuple(getattr(argument, "dtype", type(argument)) for argument in arguments)
    return (kernel, types, *sorted(constants.items()))


def _empty(shape: tuple[int, ...], like: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.empty(shape, dtype=dtype, device=like.device, memory_format=torch.channels_last)


def _out_size(layer: FoldedConvolution, height: int, width: int) -> tuple[int, int]:
    return -(-height // layer.stride), -(-width // layer.stride)


def _padded(matrix: Tensor, rows: int, columns: int) -> Tensor:
    padded = matrix.new_zeros((rows, columns))
    padded[: matrix.shape[0], : matrix.shape[1]] = matrix
    return padded


def _matrix(weight: Tensor) -> Tensor:
    """A weight [O, I, kh, kw] as [k, O], k running over taps and, fastest, inputs."""
    return weight.permute(2, 3, 1, 0).reshape(-1, weight.shape[0])


def _round_up(value: int, step: int) -> int:
    return -(-value // step) * step


def _pack(layer: FoldedConvolution) -> None:
    weight: Tensor = layer.weight
    outputs = weight.shape[0]
    if layer.groups > 1:  # depthwise: [tap, C]
        packed = weight.flatten(1).T.contiguous()
    else:
        matrix = _matrix(weight)
        columns = _columns(outputs) if outputs < 128 else _round_up(outputs, 128)
        packed = _padded(matrix, _round_up(matrix.shape[0], _DEEPEST_TILE), columns)
    layer.register_buffer("packed_weight", packed)
    bias: Any = layer.bias
    layer.register_buffer("packed_bias", None if bias is None else bias.float())
    # The guided filter's convolutions read their weights as they are.
    layer.register_buffer("exact_weight", weight.float().flatten(1).contiguous())


def _pack_gates(gru: GruWeights) -> None:
    columns = _columns(gru.channels)
    rows = _round_up(9 * gru.channels, _DEEPEST_TILE)

    def packed(weight: Tensor) -> Tensor:
        return _padded(_matrix(weight), rows, columns)

    reset, update = gru.gates.weight[: gru.channels], gru.gates.weight[gru.channels :]
    gru.register_buffer("packed_gates", torch.cat([packed(reset), packed(update)], dim=1).contiguous())
    gru.register_buffer("packed_candidate", packed(gru.candidate.weight))
