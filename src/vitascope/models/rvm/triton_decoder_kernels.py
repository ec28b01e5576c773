"""RVM's decoder as Triton kernels: upsampling, the ConvGRU's two halves of a step, the deep guided filter's head.

Layouts, grids and the convolution as a matrix product are those of ``rvm_torch_kernels``.
"""

# ruff: noqa: N803, N806 - constants of a kernel, and the names of its dimensions, are upper-case in Triton's own style
# mypy: ignore-errors
# Triton compiles these functions; their annotations are its own.

from __future__ import annotations

import triton
import triton.language as tl

from vitascope.models.rvm.triton_kernels import sigmoid

__all__ = ["gru_candidate_kernel", "gru_gates_kernel", "guided_head_kernel", "upsample_concat_kernel"]


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
    """Moments by the learned box filter, the three 1x1 convolutions, and gain and offset as planes.

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
    place = (picture * 4 + c) * count + pixels[:, None]
    written = inside[:, None] & is_matte
    tl.store(gain + place, slope.to(gain.dtype.element_ty), mask=written)
    tl.store(offset + place, bias.to(offset.dtype.element_ty), mask=written)
