"""RVM's parts as Triton kernels: what PyTorch does in several passes over memory, in one each.

A picture's activations are [H, W, C] FP16; every kernel reads its input once from memory (and its neighbours' from
cache), adds in FP32, and applies what follows before it writes: bias, activation, the squeeze-and-excitation factor,
the shortcut, a ConvGRU's gates, the guided filter. Grids are (tiles of pixels, tiles of output channels, pictures);
a tile never spans pictures, so that a picture's own factors apply to it.
Sizes are not specialised: one compilation serves every picture size, and every layer of the same kind.

A convolution is one matrix product: row = output pixel, column = output channel, and the summed index k runs over taps
and, fastest, input channels (implicit GEMM; Chetlur et al., cuDNN, 2014). Weights are packed as [k, output] to match.
"""

# ruff: noqa: N803 - constants of a kernel, and the names of its dimensions, are upper-case in Triton's own style
# mypy: ignore-errors
# Triton compiles these functions; their annotations are its own.

from __future__ import annotations

import triton
import triton.language as tl

__all__ = [
    "convolution_kernel",
    "depthwise_kernel",
    "excite_kernel",
    "halve_kernel",
    "mean_kernel",
    "sigmoid",
    "source_kernel",
    "squeeze_kernel",
]


@triton.jit
def _activate(x, ACTIVATION: tl.constexpr):
    """0: none, 1: ReLU, 2: hard swish."""
    if ACTIVATION == 1:
        x = tl.maximum(x, 0.0)
    if ACTIVATION == 2:
        x = x * (tl.minimum(tl.maximum(x + 3.0, 0.0), 6.0) * (1.0 / 6.0))
    return x


@triton.jit
def sigmoid(x):
    """The sigmoid of FP32, to its last bits: no approximation of the exponential."""
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit(
    do_not_specialize=[
        "height",
        "width",
        "out_height",
        "out_width",
        "inputs8",
        "output_steps",
        "weight_columns16",
    ]
)
def convolution_kernel(
    x, weight, bias, y, in_scale, out_scale, shortcut,
    height, width, out_height, out_width, inputs8, output_steps, weight_columns16,
    INPUTS: tl.constexpr, X_FIRST: tl.constexpr, X_PIXEL: tl.constexpr, OUTPUT_STEP: tl.constexpr,
    TAPS: tl.constexpr, STRIDE: tl.constexpr, DILATION: tl.constexpr, PADDING: tl.constexpr, ACTIVATION: tl.constexpr,
    HAS_BIAS: tl.constexpr, HAS_IN_SCALE: tl.constexpr, HAS_OUT_SCALE: tl.constexpr, HAS_SHORTCUT: tl.constexpr,
    OUT_SIGMOID: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Convolution of TAPS x TAPS, bias, activation, factors and shortcut.

    1x1 convolutions take their channel counts as arguments, so that one compilation serves many layers; others need
    theirs as constants to split k into tap and channel cheaply. There are ``output_steps`` times OUTPUT_STEP outputs:
    what is a multiple of 8 by construction is stored 16 bytes at a time.
    """
    outputs = output_steps * OUTPUT_STEP
    weight_columns = weight_columns16 * 16
    picture = tl.program_id(2).to(tl.int64)
    pixels = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    count = out_height * out_width
    inside = pixels < count
    if TAPS == 1:
        channels = inputs8 * 8
        x_pixel = channels
        depth = channels
    else:
        channels = INPUTS
        x_pixel = X_PIXEL
        depth = TAPS * TAPS * INPUTS
    x += picture * height * width * x_pixel
    out_y = pixels // out_width
    out_x = pixels % out_width
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for first in range(0, depth, BLOCK_K):
        k = first + tl.arange(0, BLOCK_K)
        if TAPS == 1:
            where = pixels if STRIDE == 1 else out_y * STRIDE * width + out_x * STRIDE
            rows = x + where[:, None] * x_pixel + k[None, :]
            tile = tl.load(rows, mask=inside[:, None] & (k < depth)[None, :], other=0.0)
        else:
            tap = k // channels
            in_y = out_y[:, None] * STRIDE + (tap // TAPS * DILATION - PADDING)[None, :]
            in_x = out_x[:, None] * STRIDE + (tap % TAPS * DILATION - PADDING)[None, :]
            there = (in_y >= 0) & (in_y < height) & (in_x >= 0) & (in_x < width)
            rows = x + (in_y * width + in_x) * x_pixel + (X_FIRST + k % channels)[None, :]
            tile = tl.load(rows, mask=there & inside[:, None] & (k < depth)[None, :], other=0.0)
        kernel = tl.load(weight + k[:, None] * weight_columns + columns[None, :])
        if HAS_IN_SCALE:
            factor = tl.load(in_scale + picture * channels + k, mask=k < depth, other=0.0)
            kernel = (kernel * factor[:, None]).to(kernel.dtype)
        total = tl.dot(tile.to(kernel.dtype), kernel, total)
    known = columns < outputs
    if HAS_BIAS:
        total += tl.load(bias + columns, mask=known, other=0.0)[None, :]
    total = _activate(total, ACTIVATION)
    if HAS_OUT_SCALE:
        factor = tl.load(out_scale + picture * outputs + columns, mask=known, other=0.0)
        total *= sigmoid(factor)[None, :] if OUT_SIGMOID else factor[None, :]
    place = (picture * count + pixels)[:, None] * outputs + columns[None, :]
    written = inside[:, None] & known[None, :]
    if HAS_SHORTCUT:
        total += tl.load(shortcut + place, mask=written, other=0.0).to(tl.float32)
    tl.store(y + place, total.to(y.dtype.element_ty), mask=written)


@triton.jit(do_not_specialize=["height", "width", "out_height", "out_width", "channels8"])
def depthwise_kernel(
    x, weight, bias, y, sums, height, width, out_height, out_width, channels8,
    TAPS: tl.constexpr, STRIDE: tl.constexpr, DILATION: tl.constexpr, ACTIVATION: tl.constexpr,
    HAS_SUMS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """One TAPS x TAPS filter a channel, weight [tap, C]; with the sums of each tile's outputs, [N, tiles, C]."""
    picture = tl.program_id(2).to(tl.int64)
    channels = channels8 * 8
    pixels = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    known = c < channels
    count = out_height * out_width
    inside = pixels < count
    x += picture * height * width * channels
    out_y = pixels // out_width * STRIDE - TAPS // 2 * DILATION
    out_x = pixels % out_width * STRIDE - TAPS // 2 * DILATION
    total = tl.zeros([BLOCK_M, BLOCK_C], tl.float32)
    for tap in tl.static_range(TAPS * TAPS):
        in_y = out_y + tap // TAPS * DILATION
        in_x = out_x + tap % TAPS * DILATION
        there = inside & (in_y >= 0) & (in_y < height) & (in_x >= 0) & (in_x < width)
        rows = x + ((in_y * width + in_x) * channels)[:, None] + c[None, :]
        tile = tl.load(rows, mask=there[:, None] & known[None, :], other=0.0)
        kernel = tl.load(weight + tap * channels + c, mask=known, other=0.0)
        total += tile.to(tl.float32) * kernel.to(tl.float32)[None, :]
    total += tl.load(bias + c, mask=known, other=0.0)[None, :]
    total = _activate(total, ACTIVATION)
    place = (picture * count + pixels)[:, None] * channels + c[None, :]
    written = inside[:, None] & known[None, :]
    tl.store(y + place, total.to(y.dtype.element_ty), mask=written)
    if HAS_SUMS:
        tile_sum = tl.sum(tl.where(written, total, 0.0), axis=0)
        tl.store(
            sums + (picture * tl.num_programs(0) + tl.program_id(0)) * channels + c, tile_sum, mask=known
        )


@triton.jit(do_not_specialize=["count", "channels8"])
def mean_kernel(x, sums, count, channels8, BLOCK_M: tl.constexpr, BLOCK_C: tl.constexpr):
    """Sums of each tile of BLOCK_M pixels, [N, tiles, C]."""
    picture = tl.program_id(2).to(tl.int64)
    channels = channels8 * 8
    pixels = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    c = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    rows = x + (picture * count + pixels)[:, None] * channels + c[None, :]
    tile = tl.load(rows, mask=(pixels < count)[:, None] & (c < channels)[None, :], other=0.0)
    total = tl.sum(tile.to(tl.float32), axis=0)
    tl.store(
        sums + (picture * tl.num_programs(0) + tl.program_id(0)) * channels + c, total, mask=c < channels
    )


@triton.jit
def _products(kernel, vector, there):
    """Products of a matrix's rows and a vector in float32, rounded, for ``tl.sum`` over the rows' places.

    Without the ``where`` the compiler fuses a product with the first addition, in which two threads add each other's:
    each rounds its partner's product and not its own, so that threads which stand for one sum differ in its last bit.
    """
    return tl.where(there, kernel.to(tl.float32) * vector[None, :], 0.0)


@triton.jit(do_not_specialize=["tiles", "channels", "outputs", "count"])
def squeeze_kernel(
    sums, weight, bias, y, tiles, channels, outputs, count,
    HAS_BIAS: tl.constexpr, RELU: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """A 1x1 convolution of a picture's mean: weight [outputs, C], from tile sums to float32 [N, outputs]."""
    picture = tl.program_id(1).to(tl.int64)
    rows = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    known = rows < outputs
    total = tl.zeros([BLOCK_N], tl.float32)
    for first in range(0, channels, BLOCK_C):
        c = first + tl.arange(0, BLOCK_C)
        partial = tl.zeros([BLOCK_T, BLOCK_C], tl.float32)
        for tile in range(0, tiles, BLOCK_T):
            t = tile + tl.arange(0, BLOCK_T)
            there = (t < tiles)[:, None] & (c < channels)[None, :]
            partial += tl.load(
                sums + (picture * tiles + t)[:, None] * channels + c[None, :], mask=there, other=0.0
            )
        mean = tl.sum(partial, axis=0) / count
        there = known[:, None] & (c < channels)[None, :]
        kernel = tl.load(weight + rows[:, None] * channels + c[None, :], mask=there, other=0.0)
        total += tl.sum(_products(kernel, mean, there), axis=1)
    if HAS_BIAS:
        total += tl.load(bias + rows, mask=known, other=0.0)
    if RELU:
        total = tl.maximum(total, 0.0)
    tl.store(y + picture * outputs + rows, total, mask=known)


@triton.jit(do_not_specialize=["inputs", "outputs"])
def excite_kernel(x, weight, bias, y, inputs, outputs, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
    """Hard sigmoid of a 1x1 convolution of float32 [N, inputs], weight [outputs, inputs]: float32 [N, outputs]."""
    picture = tl.program_id(1).to(tl.int64)
    rows = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    known = rows < outputs
    k = tl.arange(0, BLOCK_K)
    vector = tl.load(x + picture * inputs + k, mask=k < inputs, other=0.0)
    there = known[:, None] & (k < inputs)[None, :]
    kernel = tl.load(weight + rows[:, None] * inputs + k[None, :], mask=there, other=0.0)
    total = tl.sum(_products(kernel, vector, there), axis=1)
    total += tl.load(bias + rows, mask=known, other=0.0)
    total = tl.minimum(tl.maximum(total * (1.0 / 6.0) + 0.5, 0.0), 1.0)
    tl.store(y + picture * outputs + rows, total, mask=known)


@triton.jit(do_not_specialize=["count"])
def source_kernel(pictures, y, count, BLOCK_M: tl.constexpr):
    """Planar RGB to eight channels: R, G, B, their mean, 1, zeros."""
    picture = tl.program_id(2).to(tl.int64)
    pixels = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    inside = pixels < count
    plane = pictures + picture * 3 * count + pixels
    red = tl.load(plane, mask=inside, other=0.0).to(tl.float32)
    green = tl.load(plane + count, mask=inside, other=0.0).to(tl.float32)
    blue = tl.load(plane + 2 * count, mask=inside, other=0.0).to(tl.float32)
    grey = (red + green + blue) * (1.0 / 3.0)
    c = tl.arange(0, 8)[None, :]
    tile = tl.where(c == 0, red[:, None], 0.0)
    tile = tl.where(c == 1, green[:, None], tile)
    tile = tl.where(c == 2, blue[:, None], tile)
    tile = tl.where(c == 3, grey[:, None], tile)
    tile = tl.where(c == 4, 1.0, tile)
    place = (picture * count + pixels)[:, None] * 8 + c
    tl.store(y + place, tile.to(y.dtype.element_ty), mask=inside[:, None])


@triton.jit(do_not_specialize=["height", "width", "out_height", "out_width"])
def halve_kernel(x, y, height, width, out_height, out_width, BLOCK_M: tl.constexpr):
    """Mean of 2 x 2 samples of eight channels; a window that hangs over the edge averages what it has."""
    picture = tl.program_id(2).to(tl.int64)
    pixels = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    count = out_height * out_width
    inside = pixels < count
    out_y = pixels // out_width * 2
    out_x = pixels % out_width * 2
    c = tl.arange(0, 8)[None, :]
    x += picture * height * width * 8
    total = tl.zeros([BLOCK_M, 8], tl.float32)
    for tap in tl.static_range(4):
        in_y = out_y + tap // 2
        in_x = out_x + tap % 2
        there = inside & (in_y < height) & (in_x < width)
        total += tl.load(x + ((in_y * width + in_x) * 8)[:, None] + c, mask=there[:, None], other=0.0).to(
            tl.float32
        )
    rows = tl.minimum(height - out_y, 2)
    columns = tl.minimum(width - out_x, 2)
    total = total / (rows * columns).to(tl.float32)[:, None]
    place = (picture * count + pixels)[:, None] * 8 + c
    tl.store(y + place, total.to(y.dtype.element_ty), mask=inside[:, None])
