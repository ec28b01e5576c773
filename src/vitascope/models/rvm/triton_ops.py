"""RVM's parts as launches of the Triton kernels, with weights packed for them and tiles chosen by size.

Nothing is computed here: launches are recorded on descriptions of arrays (``launch_plan``). Features are
[N, H, W, C] FP16. Convolutions multiply in FP16 and add in FP32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from vitascope.gpu.engines.launch_plan import Array, LaunchPlan, PlanRecorder, TritonKernel, WeightBlock
from vitascope.models.rvm import triton_kernels as kernels
from vitascope.models.rvm.structure import (
    SOURCE_CHANNELS,
    Activation,
    encoder_and_decoder,
    layer_tensors,
    state_shapes,
)
from vitascope.models.rvm.weights import Convolution, RvmWeights, convolutions

_ACTIVATIONS: Final = {None: 0, "relu": 1, "hard_swish": 2}
# Rows of a packed weight are padded to the deepest tile of k.
_DEEPEST_TILE: Final = 128
# Tiles (pixels, outputs) of convolutions of few pixels, largest first: the largest that gives every
# multiprocessor work is taken.
_SMALL_TILES: Final = ((64, 64), (64, 32), (32, 32), (32, 16))

FP16: Final = np.dtype(np.float16)
FP32: Final = np.dtype(np.float32)


def record_network(
    weights: RvmWeights,
    *,
    steps: int,
    eyes: int,
    size: tuple[int, int],
    result_dtype: Literal["float16", "float32"],
    multiprocessors: int,
) -> tuple[LaunchPlan[TritonKernel], npt.NDArray[np.uint8]]:
    """Record a call of T frames of E eyes.

    Inputs are ``pictures`` [T * E, 3, h, w] FP16 and ``r1`` to ``r4`` FP32, as ``structure.state_shapes`` says; outputs
    are ``gain`` and ``offset`` [T * E, 4, h, w] and ``r1`` to ``r4``.

    Args:
        weights: Folded.
        steps: T.
        eyes: E.
        size: (height, width) of the pictures.
        result_dtype: Element type of gain and offset; for ``float32`` they are also computed in it.
        multiprocessors: The GPU's number of them.

    Returns:
        The plan, and the weights that it reads, the same for every size.
    """
    recorder: PlanRecorder[TritonKernel] = PlanRecorder()
    block = WeightBlock()
    ops = TritonOps(recorder, multiprocessors=multiprocessors)
    tensors = layer_tensors(weights)
    described = {conv.name: conv for conv in convolutions(weights.backbone)}

    def layer(name: str) -> Layer:
        return Layer.of(described[name], tensors, block)

    pictures = recorder.input("pictures", (steps * eyes, 3, *size), FP16)
    states = [
        recorder.input(f"r{level}", shape, FP32)
        for level, shape in enumerate(state_shapes(weights, eyes, size), start=1)
    ]
    sources = ops.source_pyramid(pictures)
    hidden, after = encoder_and_decoder(
        ops,
        layer,
        lambda level: GruLayers.of(tensors, f"decoder.decode{level}.gru", block),
        backbone=weights.backbone,
        sources=sources,
        states=states,
        steps=steps,
    )
    head = tuple(layer(f"refiner.{name}") for name in ("box_filter", "conv.0", "conv.3", "conv.6"))
    gain, offset = ops.guided_head(
        sources[0], hidden, layer("project_mat.conv"), head, np.dtype(result_dtype)
    )
    recorder.output("gain", gain)
    recorder.output("offset", offset)
    for level, state in enumerate(after, start=1):
        recorder.output(f"r{level}", state)
    return recorder.plan(), block.content()


@dataclass(frozen=True, eq=False)
class Layer:
    """A convolution, with its weights in the forms that the kernels read; each is packed when it is first asked for."""

    name: str
    weight: npt.NDArray[np.float32]
    """[O, I, kh, kw]."""
    bias_values: npt.NDArray[np.float32] | None
    block: WeightBlock
    stride: int = 1
    padding: int = 0
    dilation: int = 1

    @classmethod
    def of(cls, conv: Convolution, tensors: dict[str, npt.NDArray[np.float32]], block: WeightBlock) -> Layer:
        """A convolution of the network."""
        return cls(
            conv.name,
            tensors[f"{conv.name}.weight"],
            tensors.get(f"{conv.name}.bias"),
            block,
            conv.stride,
            conv.padding,
            conv.dilation,
        )

    @property
    def outputs(self) -> int:
        """Channels that come out."""
        return len(self.weight)

    @property
    def bias(self) -> Array | None:
        """FP32 [O], of values that FP16 holds."""
        values = self.bias_values
        if values is None:
            return None
        return self.block.array((self.name, "bias"), lambda: _rounded(values).astype(FP32))

    @property
    def matrix(self) -> Array:
        """FP16 [k, O]: k runs over taps and, fastest, inputs; both are padded to whole tiles."""

        def make() -> npt.NDArray[Any]:
            columns = _columns(self.outputs) if self.outputs < 128 else _round_up(self.outputs, 128)
            return _padded(_matrix(self.weight), columns)

        return self.block.array((self.name, "matrix"), make)

    @property
    def filters(self) -> Array:
        """One filter a channel, [tap, C]: FP16, or FP32 for the guided filter's, which sums moments."""
        dtype = FP32 if self.name.endswith("box_filter") else FP16
        return self.block.array(
            (self.name, "filters"), lambda: self.weight.reshape(self.outputs, -1).T.astype(dtype)
        )

    @property
    def rows(self) -> Array:
        """FP16 [O, I], of a 1x1 convolution."""
        return self.block.array((self.name, "rows"), lambda: _rounded(self.weight).reshape(self.outputs, -1))

    @property
    def exact_rows(self) -> Array:
        """The same as FP32."""
        return self.block.array(
            (self.name, "exact rows"),
            lambda: _rounded(self.weight).reshape(self.outputs, -1).astype(FP32),
        )

    def size_after(self, size: Sequence[int]) -> tuple[int, int]:
        """(height, width) of what comes out."""
        height, width = size
        return -(-height // self.stride), -(-width // self.stride)


@dataclass(frozen=True, eq=False)
class GruLayers:
    """A ConvGRU's convolutions, apart by what they read: the input, or the state."""

    channels: int
    inputs: Layer
    """The input's share of reset gate, update gate and candidate, [3 C, C, 3, 3] with all biases."""
    gates: Array
    """The state's share of both gates: FP16 [9 C, 2 columns], the reset gate's, then the update gate's."""
    candidate: Array
    """The state's share of the candidate, FP16 [9 C, columns]."""

    @classmethod
    def of(cls, tensors: dict[str, npt.NDArray[np.float32]], name: str, block: WeightBlock) -> GruLayers:
        """Those of a decoder level."""
        gates, candidate = tensors[f"{name}.ih.0.weight"], tensors[f"{name}.hh.0.weight"]
        channels = candidate.shape[0]
        columns = _columns(channels)
        bias = np.concatenate([tensors[f"{name}.ih.0.bias"], tensors[f"{name}.hh.0.bias"]])
        own = np.concatenate([gates, candidate])[:, :channels]

        def packed(weight: npt.NDArray[np.float32]) -> npt.NDArray[Any]:
            return _padded(_matrix(weight[:, channels:]), columns)

        return cls(
            channels,
            Layer(f"{name}.inputs", own, bias, block, padding=1),
            block.array(
                (name, "gates"), lambda: np.hstack([packed(gates[:channels]), packed(gates[channels:])])
            ),
            block.array((name, "candidate"), lambda: packed(candidate)),
        )


class TritonOps:
    """Each part as launches of Triton kernels; ``structure.Parts`` describes them.

    Tiles were chosen by a sweep on one H200 over all layers at 512x288, 1 and 16 frames (torch 2.11, Triton 3.6).

    Args:
        recorder: Notes the launches.
        multiprocessors: The GPU's number of them; tiles shrink until there are as many programs.
    """

    def __init__(self, recorder: PlanRecorder[TritonKernel], *, multiprocessors: int) -> None:
        self._recorder = recorder
        self._multiprocessors = multiprocessors

    def source_pyramid(self, pictures: Array) -> list[Array]:
        """Pictures [N, 3, h, w] as ``SOURCE_CHANNELS`` channels at 1/1 to 1/8.

        R, G, B, their mean, which the guided filter reads, a 1 and zeros. A window over the edge averages what it has.
        """
        count, _, height, width = pictures.shape
        source = self._empty(count, height, width, SOURCE_CHANNELS)
        block = 256
        grid = (_ceil_div(height * width, block), 1, count)
        self._launch(kernels.source_kernel, grid, pictures, source, height * width, BLOCK_M=block)
        levels = [source]
        for _ in range(3):
            above = levels[-1]
            _, height, width, _ = above.shape
            size = (-(-height // 2), -(-width // 2))
            half = self._empty(count, *size, SOURCE_CHANNELS)
            grid = (_ceil_div(size[0] * size[1], block), 1, count)
            self._launch(kernels.halve_kernel, grid, above, half, height, width, *size, BLOCK_M=block)
            levels.append(half)
        return levels

    def convolve(self, x: Array, layer: Layer, activation: Activation) -> Array:
        """One kernel."""
        return self._convolve(x, layer, activation)

    def depthwise(self, x: Array, layer: Layer, activation: Activation) -> Array:
        """One kernel."""
        return self._depthwise(x, layer, activation, with_sums=False)[0]

    def depthwise_squeezed(
        self, x: Array, layer: Layer, activation: Activation, squeeze: Layer, excite: Layer
    ) -> tuple[Array, Array]:
        """The depthwise kernel leaves sums of its tiles; two small kernels turn them into the factors, FP32 [N, C]."""
        y, sums = self._depthwise(x, layer, activation, with_sums=True)
        assert sums is not None  # asked for
        squeezed = self._of_mean(sums, y, squeeze, relu=True)
        count, (outputs, inputs) = x.shape[0], excite.weight.shape[:2]
        scale = self._recorder.empty((count, outputs), FP32)
        block = 32
        self._launch(kernels.excite_kernel, (_ceil_div(outputs, block), count),
            squeezed, excite.rows, excite.bias, scale, inputs, outputs,
            BLOCK_N=block, BLOCK_K=_power_of_two(inputs),
        )  # fmt: skip
        return y, scale

    def project(
        self,
        x: Array,
        layer: Layer,
        scale: Array | None,
        shortcut: Array | None,
        activation: Activation = None,
    ) -> Array:
        """The factors scale the weights on their way in; shortcut and activation are applied on the way out."""
        return self._convolve(x, layer, None, in_scale=scale, shortcut=shortcut, last_activation=activation)

    def max_pool(self, x: Array) -> Array:
        """One kernel."""
        count, height, width, channels = x.shape
        size = (-(-height // 2), -(-width // 2))
        y = self._empty(count, *size, channels)
        block = 128
        groups = channels // 8
        self._launch(kernels.max_pool_kernel, (_ceil_div(size[0] * size[1] * groups, block), 1, count),
            x, y, height, width, *size, GROUPS=groups, BLOCK=block,
        )  # fmt: skip
        return y

    def attend(self, x: Array, layer: Layer, attention: Layer) -> Array:
        """The attention scales the outputs on their way out."""
        count, height, width, channels = x.shape
        block_m, block_c = 64, 64
        tiles = _ceil_div(height * width, block_m)
        sums = self._recorder.empty((count, tiles, channels), FP32)
        self._launch(kernels.mean_kernel, (tiles, _ceil_div(channels, block_c), count),
            x, sums, height * width, channels // 8, BLOCK_M=block_m, BLOCK_C=block_c,
        )  # fmt: skip
        weight = self._of_mean(sums, x, attention, relu=False)
        return self._convolve(x, layer, "relu", out_scale=weight)

    def upsample_concat(self, x: Array, skip: Array | None, source: Array) -> Array:
        """One kernel writes all channels."""
        count, height, width, _ = source.shape
        x_groups, skip_groups = x.shape[3] // 8, 0 if skip is None else skip.shape[3] // 8
        groups = x_groups + skip_groups + 1
        y = self._empty(count, height, width, 8 * groups)
        block = 128
        self._launch(kernels.upsample_concat_kernel, (_ceil_div(height * width * groups, block), 1, count),
            x, source if skip is None else skip, source, y, height, width, *x.shape[1:3],
            X_GROUPS=x_groups, SKIP_GROUPS=skip_groups, BLOCK=block,
        )  # fmt: skip
        return y

    def gru(self, x: Array, state: Array, weights: GruLayers, steps: int) -> tuple[Array, Array]:
        """Two kernels a step; ``x`` is changed in place: its second half becomes the states."""
        eyes, height, width, channels = state.shape
        shares = self._convolve(x, weights.inputs, None, first_channel=channels)
        after = self._recorder.empty(state.shape, FP32)
        update = self._recorder.empty(state.shape, FP32)
        reset_hidden = self._recorder.empty(state.shape, FP16)
        start = self._empty(eyes, height, width, 2 * channels)
        pixels, block = height * width, 256
        self._launch(kernels.state_kernel, (_ceil_div(pixels * eyes * channels, block),),
            state, start, pixels * eyes * channels, CHANNELS=channels, BLOCK=block,
        )  # fmt: skip
        frames = x.view(steps, eyes, height, width, 2 * channels)
        blocks = {"CHANNELS": channels, "COLUMNS": _columns(channels), "BLOCK_K": 32 if channels < 64 else 64}
        gate_block = self._pixels_of(pixels * eyes)
        candidate_block = self._pixels_of(pixels * eyes // 2)
        for step in range(steps):
            before = state if step == 0 else after
            joined = start if step == 0 else frames[step - 1]
            first = step * eyes * pixels
            self._launch(kernels.gru_gates_kernel, (_ceil_div(pixels, gate_block), 1, eyes),
                joined, before, weights.gates, shares, reset_hidden, update, height, width, first,
                BLOCK_M=gate_block, **blocks,
            )  # fmt: skip
            self._launch(kernels.gru_candidate_kernel, (_ceil_div(pixels, candidate_block), 1, eyes),
                reset_hidden, weights.candidate, shares, update, before, after, x, height, width, first,
                BLOCK_M=candidate_block, **blocks,
            )  # fmt: skip
        return x, after

    def guided_head(
        self,
        source: Array,
        hidden: Array,
        project: Layer,
        head: Sequence[Layer],
        result_dtype: np.dtype[Any],
    ) -> tuple[Array, Array]:
        """The matte in FP32, then one kernel for the deep guided filter (Wu et al., CVPR 2018).

        Args:
            source: [N, H, W, 8].
            hidden: [N, H, W, 16].
            project: The matte's convolution.
            head: The box filter and the three 1x1 convolutions behind it.
            result_dtype: Element type of the results.

        Returns:
            gain and offset of alpha, [N, 1, H, W].
        """
        count, height, width, _ = source.shape
        box, first, second, third = head
        matte = self._convolve(hidden, project, None, dtype=FP32)
        gain = self._recorder.empty((count, 1, height, width), result_dtype)
        offset = self._recorder.empty((count, 1, height, width), result_dtype)
        block = 128
        self._launch(kernels.guided_head_kernel, (_ceil_div(height * width, block), 1, count),
            source, hidden, matte, box.filters, first.exact_rows, first.bias, second.exact_rows, second.bias,
            third.exact_rows, third.bias, gain, offset, height, width,
            EXACT=result_dtype == FP32, BLOCK_M=block, num_warps=2,
        )  # fmt: skip
        return gain, offset

    def _launch(
        self, function: Any, grid: Sequence[int], *arguments: Array | int | None, **constants: Any
    ) -> None:
        """Every launch passes here."""
        kernel = TritonKernel.of(function, arguments, constants)
        given = [argument for argument in arguments if argument is not None]
        self._recorder.launch(kernel, grid, given)

    def _empty(self, *shape: int) -> Array:
        return self._recorder.empty(shape, FP16)

    def _convolve(
        self,
        x: Array,
        layer: Layer,
        activation: Activation,
        *,
        in_scale: Array | None = None,
        out_scale: Array | None = None,
        shortcut: Array | None = None,
        last_activation: Activation = None,
        first_channel: int = 0,
        dtype: np.dtype[Any] = FP16,
    ) -> Array:
        count, height, width, x_channels = x.shape
        outputs, inputs, taps = layer.weight.shape[:3]
        size = layer.size_after((height, width))
        y = self._recorder.empty((count, *size, outputs), dtype)
        block_m, block_n = self._tile(size[0] * size[1], count, outputs)
        columns = layer.matrix.shape[1]
        step = 8 if outputs % 8 == 0 else 4
        grid = (_ceil_div(size[0] * size[1], block_m), _ceil_div(outputs, block_n), count)
        self._launch(kernels.convolution_kernel, grid,
            x, layer.matrix, layer.bias, y, in_scale, out_scale, shortcut,
            height, width, *size, inputs // 8, outputs // step, columns // 16,
            INPUTS=0 if taps == 1 else inputs, X_FIRST=first_channel, X_PIXEL=0 if taps == 1 else x_channels,
            OUTPUT_STEP=step, TAPS=taps, STRIDE=layer.stride, DILATION=layer.dilation, PADDING=layer.padding,
            ACTIVATION=_ACTIVATIONS[activation], HAS_BIAS=layer.bias is not None,
            HAS_IN_SCALE=in_scale is not None, HAS_OUT_SCALE=out_scale is not None,
            HAS_SHORTCUT=shortcut is not None, OUT_SIGMOID=out_scale is not None,
            LAST_ACTIVATION=_ACTIVATIONS[last_activation],
            BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_K=_depth_tile(taps * taps * inputs), num_warps=4,
            # Few outputs: what overlapping the loads would save goes through the nearer cache instead.
            num_stages=1 if taps > 1 and outputs <= 16 else 3,
        )  # fmt: skip
        return y

    def _depthwise(
        self, x: Array, layer: Layer, activation: Activation, *, with_sums: bool
    ) -> tuple[Array, Array | None]:
        count, height, width, channels = x.shape
        size = layer.size_after((height, width))
        y = self._empty(count, *size, channels)
        block_m, block_c = (128, 16) if channels <= 16 else (64, 32)
        tiles = _ceil_div(size[0] * size[1], block_m)
        sums = self._recorder.empty((count, tiles, channels), FP32) if with_sums else None
        self._launch(kernels.depthwise_kernel, (tiles, _ceil_div(channels, block_c), count),
            x, layer.filters, layer.bias, y, sums, height, width, *size, channels // 8,
            TAPS=layer.weight.shape[2], STRIDE=layer.stride, DILATION=layer.dilation,
            ACTIVATION=_ACTIVATIONS[activation], HAS_SUMS=with_sums, BLOCK_M=block_m, BLOCK_C=block_c,
        )  # fmt: skip
        return y, sums

    def _of_mean(self, sums: Array, x: Array, layer: Layer, *, relu: bool) -> Array:
        """A 1x1 convolution of the pictures' means, float32 [N, outputs]."""
        count, tiles, channels = sums.shape
        y = self._recorder.empty((count, layer.outputs), FP32)
        block = 8
        self._launch(kernels.squeeze_kernel, (_ceil_div(layer.outputs, block), count),
            sums, layer.rows, layer.bias, y, tiles, channels, layer.outputs, x.shape[1] * x.shape[2],
            HAS_BIAS=layer.bias is not None, RELU=relu, BLOCK_T=4, BLOCK_N=block,
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

    def _pixels_of(self, pixels: int) -> int:
        """Pixels of a GRU's tile."""
        block = 64
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


def _round_up(value: int, step: int) -> int:
    return -(-value // step) * step


def _depth_tile(depth: int) -> int:
    """The part of k that one product sums: little waste behind the last tile, or fewer tiles."""
    return 16 if depth <= 16 else 32 if depth <= 208 else 64


def _rounded(values: npt.NDArray[np.float32]) -> npt.NDArray[np.float16]:
    return values.astype(np.float16)


def _matrix(weight: npt.NDArray[np.float32]) -> npt.NDArray[np.float16]:
    """A weight [O, I, kh, kw] as [k, O], k running over taps and, fastest, inputs."""
    return _rounded(weight).transpose(2, 3, 1, 0).reshape(-1, weight.shape[0])


def _padded(matrix: npt.NDArray[np.float16], columns: int) -> npt.NDArray[np.float16]:
    """Add zeros: rows up to a whole tile, and columns."""
    padded = np.zeros((_round_up(matrix.shape[0], _DEEPEST_TILE), columns), np.float16)
    padded[: matrix.shape[0], : matrix.shape[1]] = matrix
    return padded
