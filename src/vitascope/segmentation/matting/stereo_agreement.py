"""Makes left and right mattes agree: where both eyes show the same part of a person, both get the mean.

A network mattes each eye separately, with different errors in each; viewers see the difference as a shimmer around
people. So the disparity of people is found in the network's small pictures, first coarsely over the whole possible
range, then more and more finely, and the eyes' estimates are averaged along it. What only one eye sees keeps its own
estimate: there, the two eyes' disparities or colours contradict each other.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from types import EllipsisType
from typing import Any, Final, Self

import cv2
import numpy as np
import numpy.typing as npt

from vitascope.gpu.kernels.cells import greatest_around
from vitascope.gpu.kernels.cuda_module import array_module, is_on_gpu
from vitascope.gpu.kernels.resize_normalize import resized
from vitascope.gpu.kernels.stereo_match import (
    MATCHING_RULES,
    blend_eyes,
    match_eyes,
    middle_disparity,
    smooth_disparity,
)
from vitascope.gpu.memory.host_arrays import scratch_array
from vitascope.models.network import MatteEstimate, NetworkInput
from vitascope.segmentation.matting.estimates import enlarged, plain_rgb, small_grey
from vitascope.vr.projection import Equirectangular, Fisheye, Lens
from vitascope.vr.stereo import disparity_curves

_COARSE, _FINE = 4, 2
"""Factors by which the first two pictures used to find disparities are smaller than the network's."""
_COARSE_RADIUS, _FINE_RADIUS, _FINEST_RADIUS = 3, 4, 6
_LEAST_DISPARITY, _MOST_DISPARITY = -0.01, 0.17
"""Range of disparities in radians for a known lens: from slightly converging cameras to things 0.38 m away."""
_FLAT_DISPARITIES = -0.04, 0.08
"""Range of disparities as shares of the picture's width for an unknown lens: from behind the screen to close in front
of it."""
_FINE_STEPS = (-2.0, -1.0, 0.0, 1.0, 2.0)
_FINEST_STEPS = (-0.5, -0.25, 0.0, 0.25, 0.5)
"""Disparities to try around those found so far, in quarter samples of the coarse pictures, in which eyes are
made to agree; ``_FINEST_RADIUS`` is in the network's samples. Errors of disparities along outlines were a
fifth smaller than with steps and ``_SMOOTH_SHARE`` twice as large in the network's pictures (six clips of
``benchmarks/vr_stereo``, seeds 51 to 53). A gradient step after it (Lucas and Kanade, 1981) was no better,
nor was smoothing that trusts places with more detail.
"""
_FLAT_RADIUS = 7
"""Radius of the window for flat eyes, in fine samples."""
_START_SHARE, _START_SPACING, _START_RIM = 0.3, 3, 3
"""Smoothing of flat eyes' fine disparities before the last step: sigma, like ``_SMOOTH_SHARE``; spacing, see
``smooth_disparity``; and the margin around people, in fine samples. Windows then follow the shape of people, and
separate two who stand side by side. Flat eyes of 1024 samples were 4 points nearer along outlines than with narrower
windows and no smoothing (nine mattes of five clips of ``benchmarks/vr_stereo``, seed 51); with the true disparities
they would be 6 to 21 nearer. In VR180, which shows people in half as many samples, two who touch were 10 points further
apart with it (seed 42), perhaps because they became one shape."""
_BESIDE, _BESIDE_RADIUS, _BESIDE_STEPS = 3, 1, (-1.0, 0.0, 1.0)
"""Reach, in coarse samples, within which a nearer person's disparity is tried, too: a coarse window that shows two
people close together gives only one disparity. Then radius and steps in the fine pictures: a wider window would show
both people again. With this, VR180 eyes in ``quality`` were 4 to 11 % nearer to each other in three scenes of
``benchmarks/vr_stereo`` (crowd, hide, touch; seed 51); a wider reach gained nothing."""
_SOMEBODY = 0.1
"""Minimum alpha of a person whose disparity is tried beside them."""
_UNKNOWN = -1.0
"""Placeholder for the disparity, or its negative, of empty areas: lower than any that is tried."""
_TRUSTED_MEAN, _MOST_MEAN = 0.026, 0.034
"""Mean misfit along people up to which matches are fully trusted, and above which not at all: on synthetic clips it was
0.006 to 0.018, and 0.035 to 0.09 with the eyes exchanged."""
_CLIPPED_MISFIT = 0.06
"""Maximum misfit of a window in that mean."""
_SMOOTH_SHARE = 0.15
"""Sigma of smoothing: expected difference between disparities of one thing, in half samples of the coarse pictures."""
_LOOKED_AT = _COARSE_RADIUS + 3
"""Margin around people that windows and smoothing need, in coarse samples."""
_NOBODY = 1 / 512
"""Maximum alpha of an empty sample."""
_TOLERANCE, _FLAT_TOLERANCE = 1.0, 0.7
"""Maximum difference of disparities that belong together, in half samples of the coarse pictures; and the same for flat
eyes: with 1, alpha's error where people hide one another was up to 1 % larger (seed 51)."""
_FRAMES_TOGETHER = 4
"""Frames processed at once on a GPU: launches for one frame take longer than the computation."""
_NO_DEPTH = 0.1
"""Mean disparity along outlines, in half samples of the coarse pictures, up to which both eyes count as the same
picture: then all disparities are set to 0."""
AGREEMENT_RULES: Final = (
    (_COARSE, _FINE, _COARSE_RADIUS, _FINE_RADIUS, _FINEST_RADIUS, _FINE_STEPS, _FINEST_STEPS),
    (_BESIDE, _BESIDE_RADIUS, _BESIDE_STEPS, _SOMEBODY),
    (_LEAST_DISPARITY, _MOST_DISPARITY, _FLAT_DISPARITIES),
    (_TRUSTED_MEAN, _MOST_MEAN, _CLIPPED_MISFIT, _SMOOTH_SHARE, _TOLERANCE, _NO_DEPTH),
    (
        "windows follow people in flat eyes",
        _FLAT_RADIUS,
        _FLAT_TOLERANCE,
        _START_SHARE,
        _START_SPACING,
        _START_RIM,
    ),
    MATCHING_RULES,
)
"""Constants that mattes with stereo agreement depend on."""


@dataclass(frozen=True, slots=True)
class StereoAgreement:
    """Makes the two eyes' estimates of one stream agree.

    It works on estimates of the network's pictures, which ``lens`` and ``wanted`` describe: equirectangular eyes are
    compared as fisheye pictures.
    """

    lens: Lens | None
    """Projection of each picture; None for flat or unknown ones."""
    wanted: NetworkInput
    """Format of each picture."""
    right_eye_first: bool = False

    @classmethod
    def of_eyes(cls, lens: Lens | None, wanted: NetworkInput, *, right_eye_first: bool) -> Self:
        """Make the agreement for pictures of eyes; the lens matters only if it bends the path of an approaching thing.

        Args:
            lens: Their projection, if it is known.
            wanted: Their format.
            right_eye_first: True when the first eye is the right one.
        """
        return cls(lens if isinstance(lens, Equirectangular | Fisheye) else None, wanted, right_eye_first)

    def agree(self, estimates: Sequence[MatteEstimate], images: Sequence[Any]) -> list[MatteEstimate]:
        """Estimates of some frames with both eyes in agreement, in the form of ``estimates``.

        Only alpha's planes are kept, or all planes where nobody has an outline. If ``images`` are larger, coefficients
        are made to agree at their size, and have it afterwards: they are applied to pictures with different
        backgrounds, so mattes that agree in small pictures differ in large ones.

        Args:
            estimates: Estimates of one frame each, all of one size and form: the pictures of the first eye,
                then as many of the second.
            images: [2 * count, ...] what the network saw of each, or the same at a larger size.
        """
        if is_on_gpu(images[0]):
            return [
                agreed
                for at in range(0, len(estimates), _FRAMES_TOGETHER)
                for agreed in self._agree_on_gpu(
                    estimates[at : at + _FRAMES_TOGETHER], images[at : at + _FRAMES_TOGETHER]
                )
            ]
        return [self._agree_on_cpu(*each) for each in zip(estimates, images, strict=True)]

    def _agree_on_gpu(
        self, estimates: Sequence[MatteEstimate], images: Sequence[Any]
    ) -> Iterator[MatteEstimate]:
        """Run ``agree`` on whole pictures: to find the people, the host would have to wait for the GPU."""
        arrays = array_module(on_gpu=True)
        joined, pictures = MatteEstimate.joined(estimates), np.concatenate(list(images))
        rgb, grey, size = plain_rgb(pictures, self.wanted), None, joined.size
        if joined.alpha is not None:
            matte = arrays.asarray(joined.alpha)  # some networks return arrays in the host's memory
        else:
            joined = _as_fine(joined, rgb)
            grey = small_grey(joined, pictures, self.wanted)
            matte = _last(joined.gain) * grey + _last(joined.offset)
        agreed = self._agree_everywhere(joined, rgb, matte, grey, size, frames=len(estimates))
        eyes = estimates[0].eye_count
        for at in range(0, len(pictures), eyes):
            yield agreed.of_eyes(slice(at, at + eyes))

    def _agree_on_cpu(self, estimate: MatteEstimate, images: Any) -> MatteEstimate:
        """Run ``agree`` on the part of one frame's pictures that holds everybody."""
        rgb, grey, size = plain_rgb(images, self.wanted), None, estimate.size
        if estimate.alpha is not None:
            matte = np.asarray(estimate.alpha)
        else:
            estimate = _as_fine(estimate, rgb)
            out = scratch_array("grey", (len(rgb), *rgb.shape[2:]))
            grey = small_grey(estimate, images, self.wanted, out=out)
            # Alpha before clipping: the mean of two clipped mattes would not be linear in grey.
            gain = _last(estimate.gain)
            matte = np.multiply(gain, grey, scratch_array("matte", gain.shape))
            matte += _last(estimate.offset)
        clipped = np.clip(matte, 0, 1, out=scratch_array("clipped matte", matte.shape))
        small = resized(clipped[:, None], _smaller(size, _FINE))
        if not _has_outline(small[:, 0]):
            return estimate
        if rgb.shape[2:] != estimate.size or any(side % _COARSE for side in size):
            return self._agree_everywhere(estimate, rgb, matte, grey, size)
        return self._agree_near_people(estimate, rgb, matte, grey, size, small[:, 0])

    def _agree_everywhere(
        self,
        estimate: MatteEstimate,
        rgb: Any,
        matte: Any,
        grey: Any,
        size: tuple[int, int],
        *,
        frames: int = 1,
    ) -> MatteEstimate:
        """``agree`` on whole pictures.

        Args:
            estimate: Estimates of N consecutive frames.
            rgb: [2 * N * count, 3, h, w] what the network saw.
            matte: [2 * N * count, h, w] alpha of both eyes before it is clipped, at the estimate's size.
            grey: Likewise, of ``rgb``; None with a plain matte.
            size: (height, width) that the network answered in.
            frames: N.
        """
        arrays = array_module(on_gpu=is_on_gpu(matte))
        planes = matte[:, None]
        if grey is not None:
            planes = arrays.concatenate([planes, _last(estimate.gain)[:, None]], axis=1)
        pictures = arrays.empty((len(rgb), 4, *estimate.size), "float32")
        pictures[:, :3] = rgb if rgb.shape[2:] == estimate.size else resized(rgb, estimate.size)
        arrays.clip(matte, 0, 1, out=pictures[:, 3])
        geometries = self._geometries(size, estimate.size, device=_device_of(matte))
        parts = [
            self._blended(planes[both], _alike_bright(pictures[both]), geometries)
            for both in _pairs(estimate, frames)
        ]
        # Most have one part, as large as the pictures: copy nothing.
        blended = parts[0] if len(parts) == 1 else arrays.stack(parts, axis=1).reshape(planes.shape)
        if grey is None:
            return MatteEstimate(alpha=blended[:, 0])
        # In place: gain is a view that keeps the matte's memory, so a new offset would take more.
        gain, offset = blended[:, 1:], blended[:, :1]
        offset -= gain * grey[:, None]
        return MatteEstimate(gain=gain, offset=offset)

    def _agree_near_people(
        self, estimate: MatteEstimate, rgb: Any, matte: Any, grey: Any, size: tuple[int, int], small: Any
    ) -> MatteEstimate:
        """``agree`` in the part of the pictures that holds everybody; ``small`` is alpha at the fine size."""
        # Parts must end between samples at all sizes.
        times = [Fraction(full, side // _COARSE) for full, side in zip(estimate.size, size, strict=True)]
        planes = (
            [matte.copy()] if grey is None else [_last(estimate.gain).copy(), _last(estimate.offset).copy()]
        )
        for both in _pairs(estimate):
            alpha = small[both]
            if not _has_outline(alpha):
                continue
            geometries = self._geometries(size, estimate.size, device=None)
            box = _near_people(alpha, [each.denominator for each in times])
            here = _scaled(box, *times)
            own = [matte[both][here]] + ([] if grey is None else [planes[0][both][here]])
            seen = np.concatenate([rgb[both][here], own[0].clip(0, 1)[:, None]], axis=1)
            half = _scaled(box, _COARSE // _FINE, _COARSE // _FINE)
            blended = self._blended(
                np.stack(own, axis=1),
                _alike_bright(seen),
                [geometry.part(part) for geometry, part in zip(geometries, (box, half, here), strict=True)],
            )
            if grey is None:
                planes[0][both][here] = blended[:, 0]
            else:
                planes[0][both][here] = blended[:, 1]
                planes[1][both][here] = blended[:, 0] - blended[:, 1] * grey[both][here]
        if grey is None:
            return MatteEstimate(alpha=planes[0])
        gain, offset = (plane[:, None] for plane in planes)
        return MatteEstimate(gain=gain, offset=offset)

    def _geometries(
        self, size: tuple[int, int], full_size: tuple[int, int], *, device: int | None
    ) -> list[_Geometry]:
        """Places of samples in the other eye: for coarse and fine pictures of the network's, and for the full size."""
        height, width = fine = _smaller(size, _FINE)
        coarse = (-(-height * _FINE // _COARSE), -(-width * _FINE // _COARSE))
        full = _enlarged_geometry(self, size, full_size, device)
        return [_geometry(self, coarse, device), _geometry(self, fine, device), full]

    def _blended(self, planes: Any, pictures: Any, geometries: Sequence[_Geometry]) -> Any:
        """Blend the planes of both eyes of some frames, or of the same part of each.

        Args:
            planes: float32 [2 * N, C, h, w].
            pictures: float32 [2 * N, 4, h, w]: RGB and alpha.
            geometries: Result of ``_geometries``, for that part.
        """
        arrays = array_module(on_gpu=is_on_gpu(pictures))
        coarse, fine, finest = geometries
        fine_size = fine.shown.shape[1:]
        # Half a sample of the coarse picture apart, at the centre.
        step = 0.5 / coarse.samples_per_disparity
        least, most = _FLAT_DISPARITIES if self.lens is None else (_LEAST_DISPARITY, _MOST_DISPARITY)
        steps = [least + number * step for number in range(math.ceil((most - least) / step) + 3)]
        pictures = arrays.ascontiguousarray(pictures)
        smaller = resized(pictures, fine_size)
        small = resized(smaller, coarse.shown.shape[1:])
        found, _ = match_eyes(
            small,
            coarse.curves,
            steps,
            radius=_COARSE_RADIUS,
            is_mutual=True,
        )
        found, misfit = match_eyes(
            smaller,
            fine.curves,
            [quarter * step / 2 for quarter in _FINE_STEPS],
            radius=_FINE_RADIUS,
            start=_with_nearer(middle_disparity(found), small, smaller, fine, step=step),
        )
        finest_steps = [quarter * step / 2 for quarter in _FINEST_STEPS]
        if self.lens is None:
            start = _smooth_near_people(found, smaller[:, 3:], step=step, nobodys=least - 4 * step)
            found, _ = match_eyes(
                pictures, finest.curves, finest_steps, radius=_FLAT_RADIUS, start=start, size=fine_size
            )
        else:
            samples = finest.samples_per_disparity / fine.samples_per_disparity
            found, _ = match_eyes(
                pictures,
                finest.curves,
                finest_steps,
                radius=round(_FINEST_RADIUS * samples / _FINE),
                start=resized(found[:, None], pictures.shape[2:])[:, 0],
            )
            found = resized(found[:, None], fine_size)[:, 0]
        found = smooth_disparity(found, sigma=_SMOOTH_SHARE * step)
        outline = _by_frame(1 - abs(2 * smaller[:, 3] - 1))
        found, misfit = _by_frame(found), _by_frame(misfit)
        total = _sums(outline) + 1e-6
        found *= _sums(abs(found) * outline) / total > _NO_DEPTH * step
        mean = _sums(misfit.clip(0, _CLIPPED_MISFIT) * outline) / total
        # Eyes in the wrong order, or of different scenes, fit badly along people; then nothing is blended.
        shown = (fine.shown * _falling(mean, _TRUSTED_MEAN, _MOST_MEAN)).astype("float32")
        found, shown = (each.reshape(-1, *fine_size) for each in (found, shown))
        tolerance = step * (_FLAT_TOLERANCE if self.lens is None else _TOLERANCE)
        return blend_eyes(
            arrays.ascontiguousarray(planes), smaller, found, fine.curves, shown, tolerance=tolerance
        )


@dataclass(frozen=True, slots=True, eq=False)
class _Geometry:
    """Place of each sample in the other eye, at one size of picture."""

    curves: Any
    """Curves for ``match_eyes``."""
    shown: Any
    """float32 [2, h, w]: 1 where the other eye sees things at any distance."""
    samples_per_disparity: float
    """Samples per unit of disparity, at the centre."""

    def part(self, box: _Box) -> _Geometry:
        """The same, for a part of the pictures."""
        return _Geometry(self.curves[box], self.shown[box], self.samples_per_disparity)

    def on(self, device: int | None) -> Self:
        """The same in the memory of a GPU, given by its number; unchanged for None."""
        if device is None:
            return self
        arrays = array_module(on_gpu=True)
        with arrays.cuda.Device(device):
            return replace(self, curves=arrays.asarray(self.curves), shown=arrays.asarray(self.shown))


def _with_nearer(found: Any, small: Any, smaller: Any, fine: _Geometry, *, step: float) -> Any:
    """Enlarge disparities to the fine size; beside a nearer person, their disparity is used where it fits better.

    Args:
        found: float32 [2 * N, h, w]: disparities at the coarse size.
        small: float32 [2 * N, 4, h, w]: RGB and alpha at that size.
        smaller: Likewise, at the fine size.
        fine: Geometry of the fine size.
        step: Half a sample of the coarse picture.

    Returns:
        float32 [2 * N, h', w'].
    """
    arrays, size = array_module(on_gpu=is_on_gpu(found)), fine.shown.shape[1:]
    start = resized(found[:, None], size)[:, 0]
    is_somebody = greatest_around(small[:, 3:]) > _SOMEBODY
    around = arrays.where(is_somebody, arrays.stack([found, -found], axis=1), _UNKNOWN).astype("float32")
    for _ in range(_BESIDE):
        around = greatest_around(around)
    nearest, opposite_of_farthest = around[:, 0], around[:, 1]
    is_beside = (nearest + opposite_of_farthest > _TOLERANCE * step) & (opposite_of_farthest > _UNKNOWN)
    if not is_on_gpu(found) and not is_beside.any():  # asking a GPU would wait for it
        return start
    nearer = arrays.where(is_beside, nearest, found).astype("float32")
    steps = [quarter * step / 2 for quarter in _BESIDE_STEPS]
    kept, misfit = match_eyes(smaller, fine.curves, steps, radius=_BESIDE_RADIUS, start=start)
    other, misfit_of_other = match_eyes(
        smaller, fine.curves, steps, radius=_BESIDE_RADIUS, start=resized(nearer[:, None], size)[:, 0]
    )
    chosen = middle_disparity(arrays.where(misfit_of_other < misfit, other, kept))
    is_tried = resized(is_beside.astype("float32")[:, None], size)[:, 0] > 0.5
    return arrays.where(is_tried, chosen, start)


def _smooth_near_people(found: Any, alpha: Any, *, step: float, nobodys: float) -> Any:
    """Smooth disparities within people, who are wider than windows; ignore disparities of empty areas.

    Args:
        found: float32 [2 * N, h, w].
        alpha: float32 [2 * N, 1, h, w], 0..1, of the same samples.
        step: Half a sample of the coarse picture.
        nobodys: A disparity far from any person's.

    Returns:
        float32 [2 * N, h, w].
    """
    arrays, around = array_module(on_gpu=is_on_gpu(found)), alpha
    for _ in range(_START_RIM):
        around = greatest_around(around)
    is_near = around[:, 0] > _SOMEBODY
    smooth = smooth_disparity(
        arrays.where(is_near, found, np.float32(nobodys)), sigma=_START_SHARE * step, spacing=_START_SPACING
    )
    return arrays.where(is_near, smooth, found)


_Box = tuple["slice | EllipsisType", ...]
"""Rows and columns of planes; the axes before them are whole."""


def _near_people(alpha: npt.NDArray[np.float32], multiples: Sequence[int]) -> _Box:
    """The part of two pictures that holds everybody in both, and the margin needed around them, in coarse samples.

    Args:
        alpha: float32 [2, h, w], 0..1, at the fine size; somebody is there.
        multiples: The part's rows and columns begin and end at multiples of these, or at the picture's end.
    """
    seen = (alpha.max(axis=0) > _NOBODY).astype(np.uint8)
    times = _COARSE // _FINE
    x, y, width, height = cv2.boundingRect(seen)
    spans = ((y, height, seen.shape[0]), (x, width, seen.shape[1]))
    parts = []
    for (first, length, side), multiple in zip(spans, multiples, strict=True):
        start = max(first // times - _LOOKED_AT, 0) // multiple * multiple
        stop = -(-(-(-(first + length) // times) + _LOOKED_AT) // multiple) * multiple
        parts.append(slice(start, min(stop, side // times)))
    return ..., *parts


def _scaled(box: _Box, down: Fraction | int, across: Fraction | int) -> _Box:
    """Scale a part to a picture that is ``down`` times as high and ``across`` times as wide."""
    *_, rows, columns = box
    assert isinstance(rows, slice)  # rows and columns come last
    assert isinstance(columns, slice)
    return ..., *(
        slice(int(part.start * times), int(part.stop * times))
        for part, times in ((rows, down), (columns, across))
    )


def _smaller(size: tuple[int, int], times: int) -> tuple[int, int]:
    """A size (height, width), reduced by a factor each way."""
    height, width = size
    return max(height // times, 1), max(width // times, 1)


def _as_fine(estimate: MatteEstimate, rgb: Any) -> MatteEstimate:
    """Enlarge coefficients to the size of pictures [..., 3, h, w], if these are larger."""
    gain, offset = estimate.gain, estimate.offset
    assert gain is not None  # coefficients, callers check
    assert offset is not None
    size = (max(estimate.size[0], rgb.shape[-2]), max(estimate.size[1], rgb.shape[-1]))
    if size == estimate.size:
        return estimate
    return MatteEstimate(gain=enlarged(gain[:, -1:], size), offset=enlarged(offset[:, -1:], size))


@lru_cache(maxsize=16)
def _geometry(agreement: StereoAgreement, size: tuple[int, int], device: int | None) -> _Geometry:
    most = _FLAT_DISPARITIES[1] if agreement.lens is None else _MOST_DISPARITY
    curves, shown = disparity_curves(agreement.lens, size, most)
    if agreement.right_eye_first:
        curves, shown = curves[::-1].copy(), shown[::-1].copy()
    height, width = size
    # the mean of both eyes, so that their order does not matter
    ahead = float(abs(curves[:, 0, height // 2, width // 2]).mean())
    return _Geometry(curves, shown, ahead).on(device)


@lru_cache(maxsize=2)  # one for bent pictures, one for others; each takes 0.2 GB for eyes of 2048 samples
def _enlarged_geometry(
    agreement: StereoAgreement, size: tuple[int, int], full_size: tuple[int, int], device: int | None
) -> _Geometry:
    """Enlarge the geometry of the network's pictures: computing a larger one takes seconds and a gigabyte."""
    if size == full_size:
        return _geometry(agreement, size, device)
    known = _geometry(agreement, size, None)  # on a GPU, another stream might read it too early
    times = [full / side for full, side in zip(full_size, size, strict=True)]
    curves = resized(known.curves.reshape(4, 3, *size), full_size).reshape(2, 6, *full_size)
    curves[:, :3] *= times[1]
    curves[:, 3:] *= times[0]
    shown = (resized(known.shown[None], full_size)[0] > 0.999).astype("float32")
    return _Geometry(curves, shown, known.samples_per_disparity * times[1]).on(device)


def _last(planes: Any) -> Any:
    """Alpha's planes among [E, C, h, w], as float32 [E, h, w]."""
    return planes[:, -1].astype("float32", copy=False)


def _pairs(estimate: MatteEstimate, frames: int = 1) -> list[slice]:
    """Slices that select the pictures of one part in both eyes, frame by frame."""
    count = estimate.eye_count // (2 * frames)
    return [slice(number, None, count) for number in range(count)]


def _by_frame(planes: Any) -> Any:
    """Reshape planes [2 * N, h, w] of both eyes of each frame to [N, 2, h, w]."""
    return planes.reshape(-1, 2, *planes.shape[1:])


def _sums(planes: Any) -> Any:
    """Sums over each frame, [N, 1, 1, 1]."""
    return planes.sum(axis=(1, 2, 3), keepdims=True)


def _alike_bright(pictures: Any) -> Any:
    """Give people the mean colour of both eyes, as cameras differ; changes RGB and alpha [2 * N, 4, h, w] in place."""
    colors, alpha = pictures[:, :3], pictures[:, 3:]
    if is_on_gpu(pictures):
        sums = (colors * alpha).sum(axis=-1).sum(axis=-1)  # one reduction to few, long sums is slow
    else:
        sums = np.stack([np.tensordot(*each, axes=2) for each in zip(colors, alpha[:, 0], strict=True)])
    means = (sums / (alpha.sum(axis=-1).sum(axis=-1) + 1e-6)).reshape(-1, 2, 3)
    colors += (means.mean(axis=1, keepdims=True) - means).reshape(-1, 3, 1, 1)
    return pictures


def _device_of(array: Any) -> int | None:
    """The GPU's number; None on the CPU."""
    return int(array.device.id) if is_on_gpu(array) else None


def _falling(value: Any, first: float, last: float) -> Any:
    """Ramp from 1 at ``first`` and below to 0 at ``last`` and above."""
    return ((last - value) / (last - first)).clip(0, 1)


def _has_outline(alpha: npt.NDArray[np.float32]) -> bool:
    """False if there is nobody, or nothing but people: then two eyes agree anyway."""
    return bool(((alpha > 0.02) & (alpha < 0.98)).any())
