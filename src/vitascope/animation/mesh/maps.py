"""The maps for sampling a portrait: coarse around the face, finer on it, finest at eyes and mouth.

A map holds, for each sample of its grid, the place in the portrait that the colour comes from. Triangles are drawn into
it with array operations, all spans at once: a mesh of 1500 takes a few milliseconds on one core, without a compiled
extension.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np
import numpy.typing as npt

from vitascope.animation.canonical_mesh import (
    EYES,
    INNER_LOWER_LIP,
    INNER_UPPER_LIP,
    OUTER_LOWER_LIP,
    OUTER_UPPER_LIP,
    CanonicalMesh,
)
from vitascope.animation.face import MESH_VERTEX_COUNT, FloatArray
from vitascope.animation.mesh.deform import Bent
from vitascope.animation.mesh.layers import Patch, patch_around, read_at
from vitascope.animation.mesh.rig import SPOKES, PortraitRig


@dataclass(frozen=True, slots=True)
class MapGrid:
    """A grid of places in a picture: sample (j, i) is the place ``left + i * step, top + j * step``, pixels."""

    left: float
    top: float
    step: float
    width: int
    height: int

    def blank(self) -> FloatArray:
        """Make the identity map, float32 [height, width, 2]: (x, y) in pixels."""
        made = np.empty((self.height, self.width, 2), np.float32)
        made[..., 0] = (self.left + self.step * np.arange(self.width))[None, :]
        made[..., 1] = (self.top + self.step * np.arange(self.height))[:, None]
        return made


@dataclass(frozen=True, slots=True, eq=False)
class DrawnSamples:
    """Samples of a map that triangles cover, in the order of drawing."""

    places: npt.NDArray[np.int64]
    """int64 [N]: flat indices of the samples; of repeated ones, the last counts."""
    shown: FloatArray
    """float32 [N, 2]: the places in the portrait that they show."""

    def onto(self, into: FloatArray) -> None:
        """Write them into their map, float32 [height, width, 2], in place."""
        _pairs(into)[self.places] = _pairs(self.shown)


def draw_triangles(
    sources: FloatArray,
    places: FloatArray,
    triangles: npt.NDArray[np.int32],
    *,
    grid: MapGrid,
    into: FloatArray,
    needed: npt.NDArray[np.int32] | None = None,
) -> None:
    """Draw triangles into a map.

    Args:
        sources: float32 [N, 2]: the place that each vertex shows, in pixels of the portrait.
        places: float32 [N, 2]: where it is drawn, in pixels of the result.
        triangles: int32 [T, 3], in drawing order: later ones cover earlier ones.
        grid: Where the map's samples are.
        into: float32 [height, width, 2], modified in place. A triangle covers the samples inside it, edges included.
        needed: int32 [height + 1, width + 1]: integral image of the needed samples: how many are above and left of a
            place. Rows of a triangle without any are skipped; all samples are needed when omitted.
    """
    for drawn in draw_maps(sources, places, [(triangles, grid)], needed=needed):
        drawn.onto(into)


def draw_maps(
    sources: FloatArray,
    places: FloatArray,
    maps: Sequence[tuple[npt.NDArray[np.int32], MapGrid]],
    *,
    needed: npt.NDArray[np.int32] | None = None,
) -> list[DrawnSamples]:
    """Draw several maps of the same points at once: one by one, five took a third longer.

    Args:
        sources: As in ``draw_triangles``.
        places: The same.
        maps: For each, its triangles, int32 [T, 3], and its grid.
        needed: As in ``draw_triangles``, for a single map.

    Returns:
        The covered samples of each.

    Raises:
        ValueError: ``needed`` is given for several maps.
    """
    if needed is not None and len(maps) != 1:
        raise ValueError(f"needed is for a single map, not for {len(maps)}")
    # One array per coordinate instead of per corner: this is several times as fast.
    corners = np.ascontiguousarray(np.concatenate([triangles for triangles, _ in maps]).T)  # [3, T]
    of_map = np.repeat(np.arange(len(maps)), [len(triangles) for triangles, _ in maps])
    of_grids = np.array([(g.left, g.top, g.step) for _, g in maps])[of_map].T
    sizes = np.array([(g.width, g.height) for _, g in maps], np.int32)[of_map].T
    widths, heights = np.ascontiguousarray(sizes)
    x = ((np.take(places[:, 0], corners) - of_grids[0]) / of_grids[2]).astype(np.float32)
    y = ((np.take(places[:, 1], corners) - of_grids[1]) / of_grids[2]).astype(np.float32)
    # --- one entry for each row that a triangle touches
    first_row = np.maximum(np.ceil(y.min(axis=0)), 0).astype(np.int32)
    last_row = np.minimum(np.floor(y.max(axis=0)), heights - 1).astype(np.int32)
    row_counts = np.maximum(last_row - first_row + 1, 0)
    owner = np.repeat(np.arange(len(widths), dtype=np.int32), row_counts)
    row = _count_up(first_row, row_counts)
    row_f = row.astype(np.float32)
    # --- the span of each: between the edge from a triangle's highest corner to its lowest, and one of the other two
    downward = np.argsort(y, axis=0, kind="stable") * len(widths) + np.arange(len(widths))
    x_down, y_down = np.take(x, downward), np.take(y, downward)
    x_run, rise = (np.subtract(*of_corners[_EDGES]) for of_corners in (x_down, y_down))
    # A horizontal edge is on its row as a whole; its other end belongs to another edge, so the span is complete.
    slopes = np.where(rise < 1e-6, 0, x_run / np.maximum(rise, 1e-6)).astype(np.float32)
    long_at = np.take(x_down[0], owner) + (row_f - np.take(y_down[0], owner)) * np.take(slopes[0], owner)
    short = owner + len(widths) * (row_f >= np.take(y_down[1], owner))
    short_at = np.take(x_down[:2], short) + (row_f - np.take(y_down[:2], short)) * np.take(slopes[1:], short)
    span_left, span_right = np.minimum(long_at, short_at), np.maximum(long_at, short_at)
    first = np.maximum(np.ceil(span_left - 1e-3), 0)
    last = np.minimum(np.floor(span_right + 1e-3), widths[owner] - 1)
    counts = np.maximum(np.where(last >= first, last - first + 1, 0), 0).astype(np.int32)
    kept = np.flatnonzero(counts)
    first = first[kept].astype(np.int32)
    if needed is not None:
        below, end = row[kept] + 1, first + counts[kept]
        held = needed[below, end] - needed[below, first] - needed[below - 1, end] + needed[below - 1, first]
        seen = np.flatnonzero(held)
        kept, first = kept[seen], first[seen]
    owner, row, row_f, counts = owner[kept], row[kept], row_f[kept], counts[kept]
    # --- what a triangle shows is an affine function of the place
    along_x, along_y, origin = _affine(np.take(sources.T, corners, axis=1), x, y)
    steps = np.take(along_x, owner, axis=1)  # [2, rows]
    at_start = np.take(origin, owner, axis=1) + steps * first.astype(np.float32)
    at_start += np.take(along_y, owner, axis=1) * row_f
    # --- all samples of all spans
    along = _count_up(np.zeros(len(owner), np.int32), counts)
    flat_index = np.repeat(row.astype(np.int64) * widths[owner] + first, counts)
    flat_index += along
    shown = np.repeat(_pairs(steps.T), counts).view(np.float32).reshape(-1, 2)
    shown *= along[:, None].astype(np.float32)
    shown += np.repeat(_pairs(at_start.T), counts).view(np.float32).reshape(-1, 2)
    if len(maps) == 1:
        return [DrawnSamples(flat_index, shown)]
    ends = np.cumsum(np.bincount(of_map[owner], weights=counts, minlength=len(maps)).astype(np.int64))
    return [
        DrawnSamples(flat_index[start:end], shown[start:end])
        for start, end in zip((0, *ends[:-1]), ends, strict=True)
    ]


def find_folds(places: FloatArray, *, grid: MapGrid, within: Patch) -> npt.NDArray[np.bool_]:
    """Find the pixels around which neighbouring samples of a map are far apart in the portrait.

    Interpolating between skin and what it covers reads wrong places, which smears; a hard border would show the map's
    samples as a staircase.

    Args:
        places: float32 [grid.height, grid.width, 2]: the map.
        grid: Where its samples are.
        within: The part of the picture to look in.

    Returns:
        bool [within.height, within.width].
    """
    step, limit = int(grid.step), np.float32(_FOLD * grid.step)
    first_row, first_column = (
        max(int((edge - start) / step), 0)
        for edge, start in ((within.top, grid.top), (within.left, grid.left))
    )
    part = places[first_row:, first_column:][: within.height // step + 3, : within.width // step + 3]
    x, y = np.ascontiguousarray(part[..., 0]), np.ascontiguousarray(part[..., 1])
    across = (np.abs(x[:, 1:] - x[:, :-1] - np.float32(step)) > limit) | (
        np.abs(y[:, 1:] - y[:, :-1]) > limit
    )
    down = (np.abs(x[1:] - x[:-1]) > limit) | (np.abs(y[1:] - y[:-1] - np.float32(step)) > limit)
    cells = across[1:] | across[:-1] | down[:, 1:] | down[:, :-1]
    folded = np.zeros((within.height, within.width), np.bool_)
    if cells.any():
        # A cell's pixels start at its first sample; ``within`` may start inside a cell.
        before_row = within.top - math.ceil(grid.top + first_row * step)
        before_column = within.left - math.ceil(grid.left + first_column * step)
        pixels = cells.repeat(step, axis=0).repeat(step, axis=1)
        pixels = pixels[before_row:, before_column:][: within.height, : within.width]
        folded[: pixels.shape[0], : pixels.shape[1]] = pixels
    return folded


def pixel_grid(within: Patch) -> MapGrid:
    """Grid of a map as fine as the picture: the corners of a patch's pixels."""
    return MapGrid(within.left - 0.5, within.top - 0.5, 1.0, within.width + 1, within.height + 1)


def draw_around(
    folded: npt.NDArray[np.bool_],
    bent: Bent,
    triangles: npt.NDArray[np.int32],
    *,
    within: Patch,
    coarse: FloatArray,
    coarse_grid: MapGrid,
) -> FloatArray:
    """Draw a map as fine as the picture around some pixels.

    On the far side of a turned head, the rings are behind the face, and no triangle covers what is beside it.

    Args:
        folded: bool [within.height, within.width]: the pixels.
        bent: The rig's points.
        triangles: int32 [T, 3], in the order of drawing.
        within: The part of the picture that ``folded`` covers.
        coarse: float32 [coarse_grid.height, coarse_grid.width, 2]: the map to read where triangles cover nothing.
        coarse_grid: Where its samples are.

    Returns:
        float32 [within.height + 1, within.width + 1, 2], on ``pixel_grid(within)``; arbitrary except around the pixels.
    """
    grid = pixel_grid(within)
    made = np.empty((grid.height, grid.width, 2), np.float32)
    corners = np.zeros((grid.height, grid.width), np.uint8)
    for below in (0, 1):
        for beside in (0, 1):
            corners[below : below + within.height, beside : beside + within.width] |= folded.view(np.uint8)
    samples, pairs = np.flatnonzero(corners.view(np.bool_)), _pairs(made)
    pairs[samples] = np.nan
    needed = np.asarray(cv2.integral(corners), np.int32)
    near = triangles[_touch(bent.places, triangles, needed, grid)]
    draw_triangles(bent.sources, bent.places, near, grid=grid, into=made, needed=needed)
    bare = samples[np.isnan(pairs[samples])]
    if len(bare):
        rows, columns = np.divmod(bare, grid.width)
        places = np.stack((grid.left + columns, grid.top + rows), -1).astype(np.float32)  # a pixel apart
        made[rows, columns] = _read_map(coarse, coarse_grid, places)
    return made


def _read_map(made: FloatArray, grid: MapGrid, places: FloatArray) -> FloatArray:
    """Interpolate a map, with its border repeated, at places (float [N, 2]): float32 [N, 2]."""
    last = np.array([grid.width - 1, grid.height - 1])
    at = np.clip((places - (grid.left, grid.top)) / grid.step, 0, last)
    first = np.floor(at).astype(np.intp)
    (x0, y0), (x1, y1) = first.T, np.minimum(first + 1, last).T
    right, down = (at - first).T[..., None]
    above = made[y0, x0] + (made[y0, x1] - made[y0, x0]) * right
    below = made[y1, x0] + (made[y1, x1] - made[y1, x0]) * right
    return np.asarray(above + (below - above) * down, np.float32)


def draw_folds(
    out: npt.NDArray[np.uint8],
    rgb: npt.NDArray[np.uint8],
    folded: npt.NDArray[np.bool_],
    places: FloatArray,
    *,
    grid: MapGrid,
    within: Patch,
) -> None:
    """Redraw the pixels at folds through a map as fine as the picture, in place.

    Where that map has folds itself, the colours at the four samples around a pixel are mixed, instead of their places.

    Args:
        out: uint8 [H, W, C], already drawn through a coarser map.
        rgb: uint8 [H, W, C]: the portrait, with its colours times cover.
        folded: bool [within.height, within.width]: the pixels.
        places: float32 [grid.height, grid.width, 2]: the map.
        grid: Where its samples are, a pixel apart.
        within: The part of ``out`` that ``folded`` covers.
    """
    pixels = np.flatnonzero(folded)
    if not len(pixels):
        return
    rows, columns = np.divmod(pixels, within.width)
    first_row, first_column = math.floor(within.top - grid.top), math.floor(within.left - grid.left)
    first = (rows + first_row) * grid.width + (columns + first_column)
    flat = _pairs(places)
    a, b, c, d = (
        flat[first + beyond].view(np.float32).reshape(-1, 2) for beyond in (0, 1, grid.width, grid.width + 1)
    )
    across, down = np.eye(2, dtype=np.float32)
    after = np.array(
        (within.left - grid.left - first_column, within.top - grid.top - first_row), np.float32
    )  # the first sample, pixels
    above = a + (b - a) * after[0]
    colours = _read_along(rgb, above + (c + (d - c) * after[0] - above) * after[1])
    apart = np.abs(b - a - across) > _FOLD
    apart |= np.abs(d - c - across) > _FOLD
    apart |= np.abs(c - a - down) > _FOLD
    apart |= np.abs(d - b - down) > _FOLD
    at_fold = np.flatnonzero(apart[:, 0] | apart[:, 1])
    if len(at_fold):
        samples = ((a, 0), (b, across), (c, down), (d, across + down))
        shown = np.concatenate([sample[at_fold] + (after - beside) for sample, beside in samples])
        each = _read_along(rgb, shown).reshape(len(samples), len(at_fold), -1)
        colours[at_fold] = np.rint(each.sum(axis=0, dtype=np.float32) / len(samples))
    within.of(out)[rows, columns] = colours


def _read_along(rgb: npt.NDArray[np.uint8], places: FloatArray) -> npt.NDArray[np.uint8]:
    """Read a picture (uint8 [H, W, C]), mirrored beyond its border, at places (float32 [N, 2]): uint8 [N, C]."""
    # OpenCV is limited to 32,767 samples a line, so use several, with the last one padded.
    lines = np.resize(places, (len(places) // _LINE + 1, _LINE, 2))
    return read_at(rgb, lines, mirrored=True).reshape(-1, rgb.shape[2])[: len(places)]


def _touch(
    places: FloatArray, triangles: npt.NDArray[np.int32], needed: npt.NDArray[np.int32], grid: MapGrid
) -> npt.NDArray[np.bool_]:
    """True for triangles whose bounding box contains a needed sample, as in ``draw_triangles``: bool [T]."""
    corners = np.take((places - (grid.left, grid.top)).T, triangles.T, axis=1)  # [2, 3, T]
    limit = np.array([[grid.width], [grid.height]], np.float32)
    left, top = np.clip(corners.min(axis=1) - 1, 0, limit).astype(np.int32)
    right, bottom = np.clip(corners.max(axis=1) + 2, 0, limit).astype(np.int32)
    held = needed[bottom, right] - needed[top, right] - needed[bottom, left] + needed[top, left]
    return np.asarray(held > 0, np.bool_)


def _pairs(places: FloatArray) -> npt.NDArray[np.float64]:
    """View places (float32 [..., 2]) as single elements [N] of as many bytes, which are moved in half the time.

    Contiguous places are not copied.
    """
    return np.ascontiguousarray(places).view(np.float64).reshape(-1)


def _count_up(starts: npt.NDArray[np.int32], counts: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """Concatenate ``start, start + 1, …`` of all ranges."""
    ends = np.cumsum(counts)
    shifts = np.repeat((starts - (ends - counts)).astype(np.int32), counts)
    return np.arange(len(shifts), dtype=np.int32) + shifts


def _affine(shown: FloatArray, x: FloatArray, y: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Affine functions that map triangles' corners (x, y; [3, T]) to the places they show ([2, 3, T]).

    Returns:
        Increments for a step along x and along y, and the value at the origin, float32 [2, T] each.
    """
    x1, x2, y1, y2 = x[1] - x[0], x[2] - x[0], y[1] - y[0], y[2] - y[0]
    area = x1 * y2 - y1 * x2
    # A degenerate triangle, which covers at most a row of samples, shows its first corner.
    thin = np.abs(area) < 1e-4
    inverse = np.where(thin, 0, 1 / np.where(thin, 1, area)).astype(np.float32)
    first = shown[:, 0]
    rise1, rise2 = shown[:, 1] - first, shown[:, 2] - first
    along_x = (rise1 * y2 - rise2 * y1) * inverse
    along_y = (rise2 * x1 - rise1 * x2) * inverse
    return along_x, along_y, first - along_x * x[0] - along_y * y[0]


_EDGES = np.array([[2, 1, 2], [0, 0, 1]])
"""Ends and starts of a triangle's edges, with corners numbered downward: the long edge, the one above the middle
corner, and the one below it."""
_FOLD = 0.7
"""Excess distance in the portrait between neighbouring samples, in steps of the map, that counts as a fold."""
_LINE = 256
"""Places read per line."""
COARSER = 4
"""Samples of the face's map per sample of the map around it, along each axis."""
_ROWS_A_FACE = 100
"""Rows of the map between hairline and chin: the mesh's triangles are about 3 rows high there."""
_NEAR_TRIANGLES = 2 * SPOKES * 4
"""Number of triangles of the innermost rings, drawn as finely as the face: a dropping chin compresses them."""
_ROWS_A_FEATURE = 28
"""Rows of the finer map of an eye or a mouth at rest, for details of lids and lips."""
_NEAR_EYE_CM, _NEAR_MOUTH_CM = 2.2, 3.4
"""Maximum distance from an eye's or the mouth's points for triangles to be drawn into its finer map: the tip of the
nose, which hides the lip of a bowed head, is 3.35 cm from the mouth's."""


@dataclass(frozen=True, slots=True, eq=False)
class Feature:
    """A part of the face with finer detail than the rest."""

    outline: list[int]
    """Points whose bounding box is redrawn."""
    triangles: npt.NDArray[np.int32]
    """int32 [T, 3]."""
    of_skin: npt.NDArray[np.bool_]
    """bool [triangles of the skin]: True for these."""
    step: int
    """Pixels per sample of its map."""
    size: tuple[int, int]
    """(height, width) of the portrait."""

    def patch(self, bent: Bent) -> Patch | None:
        """Its rectangle under a motion; None if it is outside the picture."""
        return patch_around(bent.places[self.outline], margin=2, size=self.size)


@dataclass(frozen=True, slots=True, eq=False)
class PortraitMaps:
    """A portrait's maps: their grids, and the triangles that are drawn into each."""

    face: MapGrid
    """Grid over the whole box of the rig."""
    around: MapGrid
    """Grid for what bends gently (hair, neck and background), ``COARSER`` times coarser; refined by ``face``."""
    far_triangles: npt.NDArray[np.int32]
    """int32 [T, 3]: triangles of the rings, drawn into ``around`` before the skin."""
    near_triangles: npt.NDArray[np.int32]
    """int32 [T, 3]: the innermost of these, drawn into ``face`` before the skin."""
    features: tuple[Feature, ...]
    """Right eye, left eye, mouth."""
    edge: npt.NDArray[np.intp]
    """Points of the skin, and of the rings up to the face's edge."""

    def skin(self, bent: Bent) -> Patch | None:
        """Rectangle of the skin under a motion, in which it covers what is behind it; None if outside the picture."""
        return patch_around(bent.places[self.edge], margin=2 * self.face.step, size=self.features[0].size)


def plan_maps(rig: PortraitRig, mesh: CanonicalMesh) -> PortraitMaps:
    """Plan a portrait's maps."""
    left, top, right, bottom = rig.box
    face = _grid_over(left, top, right, bottom, max(1, round(rig.face_height / _ROWS_A_FACE)))
    rings = rig.rings.triangles
    skin = np.ones(MESH_VERTEX_COUNT, bool)
    edge = np.flatnonzero(np.concatenate((skin, rig.rings.expression_weights.ravel() >= 1)))
    return PortraitMaps(face, _coarser(face), rings, rings[-_NEAR_TRIANGLES:], _features(rig, mesh), edge)


def feature_grid(feature: Feature, patch: Patch) -> MapGrid:
    """Grid of a feature's map."""
    return _grid_over(patch.left, patch.top, patch.left + patch.width, patch.top + patch.height, feature.step)


def _grid_over(left: int, top: int, right: int, bottom: int, step: int) -> MapGrid:
    """A grid with a sample in the middle of each square of ``step`` pixels, and a border of one sample.

    ``cv2.resize`` places samples in this way, and with the border it can interpolate everywhere.
    """
    first = (step - 1) / 2 - step
    return MapGrid(
        left + first, top + first, step, -(-(right - left) // step) + 2, -(-(bottom - top) // step) + 2
    )


def _coarser(grid: MapGrid) -> MapGrid:
    """A grid that, enlarged ``COARSER`` times, contains ``grid`` from sample ``COARSER - 1`` on."""
    shift = (COARSER - 1) / 2 * grid.step
    width, height = (-(-(count + COARSER - 1) // COARSER) for count in (grid.width, grid.height))
    return MapGrid(grid.left - shift, grid.top - shift, grid.step * COARSER, width, height)


def _features(rig: PortraitRig, mesh: CanonicalMesh) -> tuple[Feature, ...]:
    mouth = list(OUTER_UPPER_LIP + OUTER_LOWER_LIP + INNER_UPPER_LIP + INNER_LOWER_LIP)
    outlines = [(list(eye.upper_lid + eye.lower_lid + eye.outline), _NEAR_EYE_CM) for eye in EYES]
    made = []
    for outline, near_cm in (*outlines, (mouth, _NEAR_MOUTH_CM)):
        distance = np.linalg.norm(mesh.vertices[:, None] - mesh.vertices[outline][None], axis=-1)
        near = distance.min(axis=1) < near_cm
        extent = np.ptp(rig.sources[outline], axis=0)
        step = max(1, round(float(extent.min()) / _ROWS_A_FEATURE))
        of_skin = near[rig.skin_triangles].all(axis=1)
        made.append(Feature(outline, rig.skin_triangles[of_skin], of_skin, step, rig.size))
    return tuple(made)
