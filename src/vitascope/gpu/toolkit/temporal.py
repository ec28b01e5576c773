"""Temporal coherence: repeats the last result while the picture barely changes.

The decision is made where the picture is: it is averaged down to a thumbnail, and one number, the mean absolute
difference of two thumbnails, comes to the host. It is measured against the picture that the last result was computed
from, not against the picture before: slow drift adds up and ends the reuse.
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
"""Longest side of what is compared."""
_CHANNELS_AT_MOST = 4


def change(previous: Any, current: Any, *, tiles: tuple[int, int] = (1, 1)) -> float:
    """Mean absolute difference of two pictures, as a fraction of full scale.

    Computed in float32 on the device of the pictures; only the result comes to the host, which waits for it.

    Args:
        previous: NumPy, CuPy or torch array of any shape. Integers count from 0 to the largest of their type,
            floating-point numbers as they are.
        current: The same kind, shape and dtype, on the same device.
        tiles: (rows, columns) that the last two axes are cut into: the largest mean of any tile is returned, so that
            a hand that moves before a still wall is not averaged away. At most one for each sample.

    Returns:
        0 where nothing changed; for pictures of 0..1 at most 1. NaN where either holds a NaN.

    Raises:
        ValueError: Shapes or dtypes differ, there is nothing to compare, or the tiles do not fit.
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
    """A picture or batch, averaged down to at most 128 samples a side, on its device.

    Args:
        frame: A ``Frame``; or a NumPy, CuPy or torch array [H, W], [H, W, C], [C, H, W] or [N, ...] of these, C being
            4 at most. The last axis is taken for channels where it has at most 4 entries and there are three axes or
            more. Anything but uint8, uint16, float16 and float32 costs a copy.

    Returns:
        float32 [N, C, h, w] in 0..1 (integers) or in the picture's own range; never a view of ``frame``. CuPy for
        anything on a GPU, else NumPy.

    Raises:
        ValueError: The array is no such picture.
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
    return resize_normalize(  # always fresh memory
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
        skip_threshold: Mean absolute difference, in shares of the full scale, below which a picture counts as still; 0
            never reuses.
        most_reuses: After this many reuses in a row the next picture is always computed; None is no limit.
        tiles: As for ``change``: the tile that changed most decides.

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
        """The change measured for the last picture; None if there was nothing to compare it with."""
        self._reference: Any = None
        self._reuses = 0

    def is_still(self, small: Any) -> bool:
        """True if the last result can be reused; otherwise the picture becomes the reference.

        Args:
            small: The result of ``thumbnail``, or any array that is not written to later.

        Returns:
            True when the last result will do.
        """
        reference, self.last_change = self._reference, None
        if reference is not None and reference.shape == small.shape and reference.dtype == small.dtype:
            rows, columns = self.tiles
            fitting = (min(rows, small.shape[-2]), min(columns, small.shape[-1]))
            self.last_change = change(reference, small, tiles=fitting)
            # A NaN is below nothing: such a picture is computed.
            within_bound = self.most_reuses is None or self._reuses < self.most_reuses
            if within_bound and self.last_change < self.skip_threshold:
                self._reuses += 1
                return True
        self._reference, self._reuses = small, 0
        return False

    def forget(self) -> None:
        """Force the next picture to be computed: after a cut, a seek, or a lost result."""
        self._reference, self._reuses, self.last_change = None, 0, None


class TemporalOptimizer(Generic[Result]):
    """Runs ``model`` on pictures that changed, and repeats the last result for the others.

    Each stream (a camera, a video, an eye) has a state of its own. Not thread-safe: one thread, or one optimizer for
    each.

    Other arguments are ``StillnessGate``'s.

    Args:
        model: What computes a result from a picture; may be set later, as ``model``.

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
        self._new_gate()  # so that bad numbers are refused here, not at the first picture
        self.computed = 0
        """Pictures that the model saw."""
        self.reused = 0
        """Pictures that got the result of an earlier one."""

    def process(self, frame: Any, *, stream: Hashable = None) -> Result:
        """The model's result for this picture, or for an earlier one that looks the same.

        Args:
            frame: As for ``thumbnail``. It is not kept: its memory may be written again.
            stream: Which state to use; anything hashable.

        Returns:
            The model's result; the same object where it is reused.

        Raises:
            UsageError: There is no model.
        """
        if self.model is None:
            raise UsageError("TemporalOptimizer has nothing to compute results with: give it a model")
        small = thumbnail(frame)
        known = self._streams.get(stream)
        gate = self._new_gate() if known is None else known[0]
        if gate.is_still(small) and known is not None:
            self.reused += 1
            return known[1]
        # Where the model fails, the reference must not stand for a result that never was.
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

        if frame.dtype == torch.bfloat16:  # which NumPy and CuPy do not know
            frame = frame.float()
    return to_cupy(frame) if lies_on_gpu(frame) else to_numpy(frame)


def _full_scale(array: Any) -> Any:
    """float32, integers brought to 0..1."""
    if kind_of(array) == "torch":
        import torch

        wide = array.detach().to(torch.float32)
        is_whole = not array.dtype.is_floating_point and array.dtype != torch.bool
        return wide / torch.iinfo(array.dtype).max if is_whole else wide
    return array.astype(np.float32) * np.float32(full_scale(array.dtype))
