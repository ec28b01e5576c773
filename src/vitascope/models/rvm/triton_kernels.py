"""RVM's parts as Triton kernels: what PyTorch does in several passes over memory, in one each.

A picture's activations are [H, W, C] FP16; every kernel reads its input once from memory (and its neighbours' from
cache), adds in FP32, and applies what follows before it writes: bias, activation, the squeeze-and-excitation factor,
the shortcut, a ConvGRU's gates, the guided filter. Grids are (tiles of pixels, tiles of output channels, pictures);
a tile never spans pictures, so that a picture's own factors apply to it.
Sizes are not specialised: one compilation serves every picture size, and every layer of the same kind.

A convolution is one matrix product: row = output pixel, column = output channel, and the summed index k runs over taps
and, fastest, input channels (implicit GEMM; Chetlur et al., cuDNN, 2014). Weights are packed as [k, output] to match.
"""

# ruff: noqa: N803, N806 - constants of a kernel, and the names of its dimensions, are upper-case in Triton's own style
# mypy: ignore-errors
# Triton compiles these functions; their annotations are its own.

from __future__ import annotations

import triton
import triton.language as tl


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
    OUT_SIGMOID: tl.constexpr, LAST_ACTIVATION: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Convolution of TAPS x TAPS, bias, activation, factors, shortcut, and an activation of the sum.

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
    total = _activate(total, LAST_ACTIVATION)
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


@triton.jit(do_not_specialize=["height", "width", "out_height", "out_width"])
def max_pool_kernel(
    x, y, height, width, out_height, out_width, GROUPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The largest of 3 x 3 samples around every second one of each row and column; channels by groups of 8."""
    picture = tl.program_id(2).to(tl.int64)
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    pixels = index // GROUPS
    c = ((index % GROUPS) * 8)[:, None] + tl.arange(0, 8)[None, :]
    count = out_height * out_width
    inside = pixels < count
    out_y = pixels // out_width * 2
    out_x = pixels % out_width * 2
    x += picture * height * width * (GROUPS * 8)
    largest = tl.full([BLOCK, 8], -float("inf"), tl.float32)
    for tap in tl.static_range(9):
        in_y = out_y + (tap // 3 - 1)
        in_x = out_x + (tap % 3 - 1)
        there = inside & (in_y >= 0) & (in_y < height) & (in_x >= 0) & (in_x < width)
        rows = x + ((in_y * width + in_x) * (GROUPS * 8))[:, None] + c
        tile = tl.load(rows, mask=there[:, None], other=-float("inf")).to(tl.float32)
        largest = tl.maximum(largest, tile)
    place = ((picture * count + pixels) * (GROUPS * 8))[:, None] + c
    tl.store(y + place, largest.to(y.dtype.element_ty), mask=inside[:, None])


@triton.jit(do_not_specialize=["count"])
def state_kernel(state, y, count, CHANNELS: tl.constexpr, BLOCK: tl.constexpr):
    """A state of CHANNELS in FP32 as the second half of y's channels in FP16; the first half is not read."""
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = index < count
    place = index // CHANNELS * (2 * CHANNELS) + CHANNELS + index % CHANNELS
    values = tl.load(state + index, mask=inside, other=0.0)
    tl.store(y + place, values.to(y.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["height", "width", "x_height", "x_width"])
def upsample_concat_kernel(
    x, skip, source, y, height, width, x_height, x_width,
    X_GROUPS: tl.constexpr, SKIP_GROUPS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """``x`` doubled bilinearly and cropped, then ``skip``, then the eight source channels; channels by groups of 8.

    Output sample i lies at (i + 0.5) / 2 - 0.5 of the input: a quarter beyond, or a quarter before, a sample.
    """
    GROUPS: tl.constexpr = X_GROUPS + SKIP_GROUPS + 1
    picture = tl.program_id(2).to(tl.int64)
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    pixels = index // GROUPS
    group = index % GROUPS
    count = height * width
    inside = pixels < count
    out_y = pixels // width
    out_x = pixels % width
    c = tl.arange(0, 8)[None, :]
    top = (out_y + 1) // 2 - 1
    left = (out_x + 1) // 2 - 1
    bottom = tl.minimum(top + 1, x_height - 1)
    right = tl.minimum(left + 1, x_width - 1)
    lower = tl.where(out_y % 2 == 0, 0.75, 0.25)[:, None]
    righter = tl.where(out_x % 2 == 0, 0.75, 0.25)[:, None]
    top = tl.maximum(top, 0)
    left = tl.maximum(left, 0)
    base = x + picture * x_height * x_width * X_GROUPS * 8 + (group * 8)[:, None] + c
    grown = (inside & (group < X_GROUPS))[:, None]
    x00 = tl.load(base + ((top * x_width + left) * X_GROUPS * 8)[:, None], mask=grown, other=0.0).to(
        tl.float32
    )
    x01 = tl.load(base + ((top * x_width + right) * X_GROUPS * 8)[:, None], mask=grown, other=0.0).to(
        tl.float32
    )
    x10 = tl.load(base + ((bottom * x_width + left) * X_GROUPS * 8)[:, None], mask=grown, other=0.0).to(
        tl.float32
    )
    x11 = tl.load(base + ((bottom * x_width + right) * X_GROUPS * 8)[:, None], mask=grown, other=0.0).to(
        tl.float32
    )
    upper_row = x00 + (x01 - x00) * righter
    lower_row = x10 + (x11 - x10) * righter
    tile = upper_row + (lower_row - upper_row) * lower
    where = (picture * count + pixels)[:, None]
    if SKIP_GROUPS > 0:
        own = inside & (group >= X_GROUPS) & (group < GROUPS - 1)
        rows = skip + where * (SKIP_GROUPS * 8) + ((group - X_GROUPS) * 8)[:, None] + c
        tile += tl.load(rows, mask=own[:, None], other=0.0).to(tl.float32)
    tile += tl.load(source + where * 8 + c, mask=(inside & (group == GROUPS - 1))[:, None], other=0.0).to(
        tl.float32
    )
    place = where * (GROUPS * 8) + (group * 8)[:, None] + c
    tl.store(y + place, tile.to(y.dtype.element_ty), mask=inside[:, None])


@triton.jit(do_not_specialize=["height", "width", "share_first"])
def gru_gates_kernel(
    joined, hidden, weight, shares, reset_hidden, update, height, width, share_first,
    CHANNELS: tl.constexpr, COLUMNS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """``r, z = sigmoid(conv(h) + share)``: writes ``r h`` in FP16 and z in FP32.

    The convolution reads h rounded to FP16, from the second half of the 2 C channels of ``joined``; ``r h`` is
    formed from FP32. Weight [9 C, 2 COLUMNS]: the reset gate's columns, then the update gate's, each padded to COLUMNS.
    """
    eye = tl.program_id(2).to(tl.int64)
    pixels = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.arange(0, COLUMNS)
    count = height * width
    inside = pixels < count
    out_y = pixels // width
    out_x = pixels % width
    resets = tl.zeros([BLOCK_M, COLUMNS], tl.float32)
    updates = tl.zeros([BLOCK_M, COLUMNS], tl.float32)
    for first in range(0, 9 * CHANNELS, BLOCK_K):
        k = first + tl.arange(0, BLOCK_K)
        tap = k // CHANNELS
        in_y = out_y[:, None] + (tap // 3 - 1)[None, :]
        in_x = out_x[:, None] + (tap % 3 - 1)[None, :]
        there = (in_y >= 0) & (in_y < height) & (in_x >= 0) & (in_x < width)
        there = there & inside[:, None] & (k < 9 * CHANNELS)[None, :]
        place = (eye * count + in_y * width + in_x) * (2 * CHANNELS)
        tile = tl.load(joined + place + (CHANNELS + k % CHANNELS)[None, :], mask=there, other=0.0)
        kernel = weight + k[:, None] * (2 * COLUMNS) + columns[None, :]
        resets = tl.dot(tile, tl.load(kernel), resets)
        updates = tl.dot(tile, tl.load(kernel + COLUMNS), updates)
    known = inside[:, None] & (columns < CHANNELS)[None, :]
    share = shares + (share_first + eye * count + pixels)[:, None] * (3 * CHANNELS) + columns[None, :]
    resets = sigmoid(resets + tl.load(share, mask=known, other=0.0).to(tl.float32))
    updates = sigmoid(updates + tl.load(share + CHANNELS, mask=known, other=0.0).to(tl.float32))
    place = (eye * count + pixels)[:, None] * CHANNELS + columns[None, :]
    before = tl.load(hidden + place, mask=known, other=0.0)
    tl.store(reset_hidden + place, (resets * before).to(reset_hidden.dtype.element_ty), mask=known)
    tl.store(update + place, updates, mask=known)


@triton.jit(do_not_specialize=["height", "width", "share_first"])
def gru_candidate_kernel(
    reset_hidden, weight, shares, update, before, after, y, height, width, share_first,
    CHANNELS: tl.constexpr, COLUMNS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """``h' = h + z (tanh(conv(r h) + share) - h)``: FP32 into ``after``, FP16 into the second half of y's channels.

    ``before`` and ``after`` may be the same: a pixel's state is read by the program that writes it.
    """
    eye = tl.program_id(2).to(tl.int64)
    pixels = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.arange(0, COLUMNS)
    count = height * width
    inside = pixels < count
    out_y = pixels // width
    out_x = pixels % width
    total = tl.zeros([BLOCK_M, COLUMNS], tl.float32)
    for first in range(0, 9 * CHANNELS, BLOCK_K):
        k = first + tl.arange(0, BLOCK_K)
        tap = k // CHANNELS
        in_y = out_y[:, None] + (tap // 3 - 1)[None, :]
        in_x = out_x[:, None] + (tap % 3 - 1)[None, :]
        there = (in_y >= 0) & (in_y < height) & (in_x >= 0) & (in_x < width)
        there = there & inside[:, None] & (k < 9 * CHANNELS)[None, :]
        rows = reset_hidden + (eye * count + in_y * width + in_x) * CHANNELS + (k % CHANNELS)[None, :]
        tile = tl.load(rows, mask=there, other=0.0)
        total = tl.dot(tile, tl.load(weight + k[:, None] * COLUMNS + columns[None, :]), total)
    known = inside[:, None] & (columns < CHANNELS)[None, :]
    where = share_first + eye * count + pixels
    share = shares + where[:, None] * (3 * CHANNELS) + 2 * CHANNELS + columns[None, :]
    total += tl.load(share, mask=known, other=0.0).to(tl.float32)
    candidate = 2.0 * sigmoid(2.0 * total) - 1.0  # tanh
    place = (eye * count + pixels)[:, None] * CHANNELS + columns[None, :]
    old = tl.load(before + place, mask=known, other=0.0)
    new = old + tl.load(update + place, mask=known, other=0.0) * (candidate - old)
    tl.store(after + place, new, mask=known)
    joined = where[:, None] * (2 * CHANNELS) + CHANNELS + columns[None, :]
    tl.store(y + joined, new.to(y.dtype.element_ty), mask=known)


@triton.jit(do_not_specialize=["height", "width"])
def guided_head_kernel(
    source, hidden, matte, box, first, first_bias, second, second_bias, third, third_bias, gain, offset,
    height, width, EXACT: tl.constexpr, BLOCK_M: tl.constexpr,
):  # fmt: skip
    """Moments by the learned box filter, the three 1x1 convolutions, and alpha's gain and offset.

    ``source`` [N, H, W, 8], ``hidden`` [N, H, W, 16], ``matte`` float32 [N, H, W, 4] (foreground residual, alpha);
    ``box`` [9, 4]; ``first`` [16, 24], ``second`` [16, 16], ``third`` [4, 16] as in the checkpoint, FP32. EXACT keeps
    the convolutions in FP32; otherwise they multiply in FP16, the moments, whose range is wider, in TF32.
    Tiles are eight wide: x and y in the first four columns give the covariance, x twice in the others the variance.
    """
    picture = tl.program_id(2).to(tl.int64)
    count = height * width
    pixels = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    inside = pixels < count
    out_y = pixels // width
    out_x = pixels % width
    c = tl.arange(0, 8)[None, :]
    is_matte = c < 4
    mean_x = tl.zeros([BLOCK_M, 8], tl.float32)
    mean_y = tl.zeros([BLOCK_M, 8], tl.float32)
    moments = tl.zeros([BLOCK_M, 8], tl.float32)
    for tap in tl.static_range(9):
        in_y = out_y + (tap // 3 - 1)
        in_x = out_x + (tap % 3 - 1)
        there = (inside & (in_y >= 0) & (in_y < height) & (in_x >= 0) & (in_x < width))[:, None]
        where = (picture * count + in_y * width + in_x)[:, None]
        x = tl.load(source + where * 8 + c % 4, mask=there, other=0.0).to(tl.float32)
        y = tl.load(matte + where * 4 + c % 4, mask=there, other=0.0)
        y = tl.where(is_matte, y, x)
        weighted = tl.load(box + tap * 4 + c % 4) * x
        mean_x += weighted
        mean_y += tl.load(box + tap * 4 + c % 4) * y
        moments += weighted * y
    moments -= mean_x * mean_y
    # A product sums 16 at a time: every second one is zero, and so are the weights' columns of odd outputs.
    moments = tl.reshape(tl.join(moments, tl.zeros_like(moments)), [BLOCK_M, 16])
    k = tl.arange(0, 16)
    own = (picture * count + pixels)[:, None] * 16 + k[None, :]
    features = tl.load(hidden + own, mask=inside[:, None], other=0.0)
    of_moments = tl.load(first + (k // 2)[:, None] + k[None, :] * 24)
    of_features = tl.load(first + 8 + k[:, None] + k[None, :] * 24)
    of_second = tl.load(second + k[:, None] + k[None, :] * 16)
    of_third = tl.load(third + k[:, None] + (k // 2 % 4)[None, :] * 16)
    if EXACT:
        z = tl.dot(moments, of_moments, input_precision="ieee")
        z = tl.dot(features.to(tl.float32), of_features, z, input_precision="ieee")
        z = tl.maximum(z + tl.load(first_bias + k)[None, :], 0.0)
        z = tl.dot(z, of_second, input_precision="ieee")
        z = tl.maximum(z + tl.load(second_bias + k)[None, :], 0.0)
        z = tl.dot(z, of_third, input_precision="ieee")
    else:
        z = tl.dot(moments, of_moments, input_precision="tf32")
        z = tl.dot(features, of_features.to(tl.float16), z)
        z = tl.maximum(z + tl.load(first_bias + k)[None, :], 0.0)
        z = tl.dot(z.to(tl.float16), of_second.to(tl.float16))
        z = tl.maximum(z + tl.load(second_bias + k)[None, :], 0.0)
        z = tl.dot(z.to(tl.float16), of_third.to(tl.float16))
    slope, _ = tl.split(tl.reshape(z, [BLOCK_M, 8, 2]))
    slope += tl.load(third_bias + c % 4)
    bias = mean_y - slope * mean_x
    # Nothing asks for those of the foreground.
    place = (picture * count + pixels)[:, None] + tl.zeros([1, 8], tl.int32)
    written = inside[:, None] & (c == 3)
    tl.store(gain + place, slope.to(gain.dtype.element_ty), mask=written)
    tl.store(offset + place, bias.to(offset.dtype.element_ty), mask=written)
