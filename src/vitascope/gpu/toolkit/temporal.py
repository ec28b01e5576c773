"""Temporal coherence: reuse the last result if a picture barely changed.

Pictures are compared on their own device: each is averaged down to a thumbnail, and only the mean absolute
difference of two thumbnails is copied to the host. The reference is the picture of the last computed result,
not the previous picture, so slow drift adds up and ends the reuse.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

import numpy as np

from vitascope.errors import UsageError
from vitascope.frames import Frame
from vitascope.gpu.interchange import kind_of, lies_on_gpu, to_cupy, to_numpy
from vitascope.gpu.kernels.batch_normalize import INPUT_DTYPES
from vitascope.gpu.kernels.cuda_module import array_module, is_on_gpu
from vitascope.gpu.kernels.preprocess import preprocess
from vitascope.gpu.kernels.region import whole_frame
from vitascope.gpu.kernels.resize_normalize import resize_normalize
from vitascope.gpu.number_checks import check_count, check_number
from vitascope.gpu.toolkit.pictures import full_scale

Result = TypeVar("Result")

THUMBNAIL_PX = 128
"""Longest side of the compared thumbnails."""
_CHANNELS_AT_MOST = 4


def change(previous: Any, current: Any, *, tiles: tuple[int, int] = (1, 1)) -> float:
    """Mean absolute difference of two pictures, as a share of the full scale.

    Computed in float32 on the pictures' device; only the result is copied to the host, which waits for it.

    Args:
        previous: NumPy, CuPy or torch array of any shape. Integers are scaled by their dtype's maximum;
            floats are used as they are.
        current: An array of the same type, shape and dtype, on the same device.
        tiles: (rows, columns) to split the last two axes into: the result is the largest mean of any tile, so
            that a hand moving before a still wall is not averaged away. At most one tile per sample.

    Returns:
        0 for equal pictures; at most 1 for pictures in 0..1. NaN if either holds a NaN.

    Raises:
        ValueError: Shapes or dtypes differ, the arrays are empty, or there are more tiles than samples.
    """
    if tuple(previous.shape) != tuple(current.shape) or previous.dtype != current.dtype:
        raise ValueError(
            f"cannot compare {previous.dtype} {tuple(previous.shape)} with {current.dtype} {tuple(current.shape)}"
        )
    if 0 in current.shape:
        raise ValueError(f"there is nothing to compare in pictures of shape {tuple(current.shape)}")
    difference = abs(_full_scale(current) - _full_scale(previous))
    if tiles == (1, 1):
        return float(difference.mean())
    height, width = difference.shape[-2:]
    rows, columns = tiles
    if difference.ndim < 2 or not (1 <= rows <= height and 1 <= columns <= width):
        raise ValueError(f"{rows} x {columns} tiles do not fit a picture of shape {tuple(current.shape)}")
    flat = difference.reshape(-1, height, width).mean(0)
    if tiles == (height, width):
        return float(flat.max())
    means = [
        flat[
            row * height // rows : (row + 1) * height // rows,
            column * width // columns : (column + 1) * width // columns,
        ].mean()
        for row in range(rows)
        for column in range(columns)
    ]
    if kind_of(flat) == "torch":
        import torch

        return float(torch.stack(means).max())
    return float(array_module(on_gpu=is_on_gpu(flat)).stack(means).max())


def thumbnail(frame: Any) -> Any:
    """Average pictures down to at most 128 samples per side, on their own device.

    Args:
        frame: A ``Frame``; or a NumPy, CuPy or torch array [H, W], [H, W, C], [C, H, W] or [N, ...] of these,
            with C up to 4. With three or more axes, a last axis of at most 4 entries is taken as channels.
            Dtypes other than uint8, uint16, float16 and float32 cost a copy.

    Returns:
        float32 [N, C, h, w] in 0..1 (integers) or the picture's own range; never a view of ``frame``. CuPy
        for pictures on a GPU, else NumPy.

    Raises:
        ValueError: The array is not a picture.
    """
    if isinstance(frame, Frame):
        return preprocess(frame, regions=[whole_frame(frame)], size=_small_size(frame.height, frame.width))
    array = _as_picture_array(frame)
    if array.dtype.name not in INPUT_DTYPES:
        array = _full_scale(array)
    if not 2 <= array.ndim <= 4:
        raise ValueError(f"a picture has 2 to 4 axes, not shape {tuple(array.shape)}")
    channels_last = array.ndim >= 3 and array.shape[-1] <= _CHANNELS_AT_MOST
    if array.ndim == 2:
        images = array[None, None]
    elif array.ndim == 3 and not channels_last and array.shape[0] > _CHANNELS_AT_MOST:
        images = array[:, None]  # a batch of single planes
    else:
        images = array if array.ndim == 4 else array[None]
    channels = images.shape[3] if channels_last else images.shape[1]
    height, width = images.shape[1:3] if channels_last else images.shape[2:]
    return resize_normalize(  # always new memory
        images,
        size=_small_size(height, width),
        mean=(0.0,) * channels,
        std=(1.0,) * channels,
        scale=full_scale(images.dtype),
        layout_in="NHWC" if channels_last else "NCHW",
    )


class StillnessGate:
    """Decides for each picture of a stream whether the last result can be reused.

    Args:
        skip_threshold: Mean absolute difference, as a share of the full scale, below which a picture counts
            as still; 0 disables reuse.
        most_reuses: Most reuses in a row before a picture is computed again; None for no limit.
        tiles: See ``change``: the tile that changed most decides.

    Raises:
        ValueError: A number is out of range.
    """

    def __init__(
        self, skip_threshold: float = 0.01, *, most_reuses: int | None = 30, tiles: tuple[int, int] = (1, 1)
    ) -> None:
        check_number("skip_threshold", skip_threshold, least=0, most=1)
        check_count("most_reuses", most_reuses, optional=True)
        for direction in tiles:
            check_count("tiles in each direction", direction)
        self.skip_threshold = skip_threshold
        self.most_reuses = most_reuses
        self.tiles = tiles
        self.last_change: float | None = None
        """Change measured for the last picture; None without a reference."""
        self._reference: Any = None
        self._reuses = 0

    def is_still(self, small: Any) -> bool:
        """Decide for one picture, which becomes the reference if it has to be computed.

        Args:
            small: Result of ``thumbnail``, or any array that will not be modified.

        Returns:
            True if the last result can be reused.
        """
        reference, self.last_change = self._reference, None
        if reference is not None and reference.shape == small.shape and reference.dtype == small.dtype:
            rows, columns = self.tiles
            fitting = (min(rows, small.shape[-2]), min(columns, small.shape[-1]))
            self.last_change = change(reference, small, tiles=fitting)
            # A NaN compares as not below: such a picture is computed.
            within_bound = self.most_reuses is None or self._reuses < self.most_reuses
            if within_bound and self.last_change < self.skip_threshold:
                self._reuses += 1
                return True
        self._reference, self._reuses = small, 0
        return False

    def forget(self) -> None:
        """Force computing the next picture: after a cut, a seek, or a lost result."""
        self._reference, self._reuses, self.last_change = None, 0, None


class TemporalOptimizer(Generic[Result]):
    """Runs ``model`` on pictures that changed, and returns the last result for those that did not.

    Each stream (a camera, a video, an eye) has its own state. Not thread-safe: use one optimizer per thread.

    For further arguments see ``StillnessGate``.

    Args:
        model: Computes a result from a picture; can be set later, as ``model``.

    Raises:
        ValueError: A number is out of range.
    """

    def __init__(
        self,
        skip_threshold: float = 0.01,
        *,
        model: Callable[[Any], Result] | None = None,
        most_reuses: int | None = 30,
        tiles: tuple[int, int] = (1, 1),
    ) -> None:
        self._options: dict[str, Any] = {"most_reuses": most_reuses, "tiles": tiles}
        self._skip_threshold = skip_threshold
        self.model = model
        """Computes a result from a picture."""
        self._streams: dict[Hashable, tuple[StillnessGate, Result]] = {}
        self._new_gate()  # validates the numbers now rather than at the first picture
        self.computed = 0
        """Pictures that the model computed."""
        self.reused = 0
        """Pictures that reused a result."""

    def process(self, frame: Any, *, stream: Hashable = None) -> Result:
        """Compute a picture's result, or reuse that of an equal-looking earlier one.

        Args:
            frame: See ``thumbnail``. It is not kept: its memory may be overwritten.
            stream: Selects the state; anything hashable.

        Returns:
            The model's result; the same object if reused.

        Raises:
            UsageError: ``model`` is not set.
        """
        if self.model is None:
            raise UsageError("TemporalOptimizer has nothing to compute results with: give it a model")
        small = thumbnail(frame)
        known = self._streams.get(stream)
        gate = self._new_gate() if known is None else known[0]
        if gate.is_still(small) and known is not None:
            self.reused += 1
            return known[1]
        # If the model fails, the reference must not stand for a result that does not exist.
        self._streams.pop(stream, None)
        result = self.model(frame)
        self._streams[stream] = gate, result
        self.computed += 1
        return result

    def reset(self, *, stream: Hashable = None) -> None:
        """Reset a stream: its next picture is computed."""
        self._streams.pop(stream, None)

    def _new_gate(self) -> StillnessGate:
        return StillnessGate(self._skip_threshold, **self._options)


def _small_size(height: int, width: int) -> tuple[int, int]:
    factor = max(max(height, width) / THUMBNAIL_PX, 1.0)
    return max(round(height / factor), 1), max(round(width / factor), 1)


def _as_picture_array(frame: Any) -> Any:
    if is_on_gpu(frame):
        return frame
    if kind_of(frame) == "torch":
        import torch

        if frame.dtype == torch.bfloat16:  # unknown to NumPy and CuPy
            frame = frame.float()
    return to_cupy(frame) if lies_on_gpu(frame) else to_numpy(frame)


def _full_scale(array: Any) -> Any:
    """Convert to float32, scaling integers to 0..1."""
    if kind_of(array) == "torch":
        import torch

        wide = array.detach().to(torch.float32)
        is_whole = not array.dtype.is_floating_point and array.dtype != torch.bool
        return wide / torch.iinfo(array.dtype).max if is_whole else wide
    return array.astype(np.float32) * np.float32(full_scale(array.dtype))
