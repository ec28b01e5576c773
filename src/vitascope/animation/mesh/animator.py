"""The mesh animator: no network, the portrait's full resolution, real time on a processor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from types import TracebackType
from typing import TYPE_CHECKING, Self

import cv2
import numpy as np
import numpy.typing as npt

from vitascope.animation.canonical_mesh import CanonicalMesh
from vitascope.animation.expression import ExpressionBasis, eyes_of
from vitascope.animation.face import BLENDSHAPES, FaceMotion, FloatArray, RgbPicture, TrackedFace
from vitascope.animation.landmarks import (
    EYES,
    INNER_LOWER_LIP,
    INNER_UPPER_LIP,
    OUTER_LOWER_LIP,
    OUTER_UPPER_LIP,
)
from vitascope.animation.mesh.deform import Bent, Gains, bend
from vitascope.animation.mesh.eyes import Eyeball, make_eyeballs
from vitascope.animation.mesh.layers import Patch, patch_around, read_at, to_host
from vitascope.animation.mesh.mouth import Mouth
from vitascope.animation.mesh.raster import MapGrid, draw_triangles
from vitascope.animation.mesh.response import Response, measure_response
from vitascope.animation.mesh.rig import SPOKES, PortraitRig, build_rig
from vitascope.errors import UsageError

if TYPE_CHECKING:
    from vitascope.animation.mesh.gpu_canvas import GpuCanvas

__all__ = ["MeshAnimator"]

_ROWS_A_FACE = 100
"""Rows of the map between hairline and chin: the mesh's triangles are about 3 rows high there."""
_COARSER = 4
_NEAR_TRIANGLES = 2 * SPOKES * 4
"""Of the innermost rings, which are drawn as finely as the face: a chin that drops presses them together."""
_ROWS_A_FEATURE = 28
"""Rows of the finer map of an eye or a mouth at rest, whose lids and lips are finer than that."""
_NEAR_FEATURE_CM = 2.2
"""Triangles so near to an eye's or mouth's points are drawn into its finer map."""
_TAKEN_SHARE = 0.85
"""How much of an expression that the portrait shows itself is not added a second time."""
_KEEPS_ITS_RANGE = [index for index, name in enumerate(BLENDSHAPES) if not name.startswith(("mouth", "jaw"))]


@dataclass(frozen=True, slots=True, eq=False)
class _Feature:
    """A part of the face with finer detail than the rest."""

    outline: list[int]
    """Points whose rectangle is drawn anew."""
    triangles: npt.NDArray[np.int32]
    step: int
    """Pixels a sample of its map."""


@dataclass(frozen=True, slots=True, eq=False)
class _Portrait:
    """What is kept of a portrait."""

    rgb: RgbPicture
    rig: PortraitRig
    grid: MapGrid
    """Of the map."""
    around: MapGrid
    """Of what lies around the face, ``_COARSER`` times coarser."""
    still: FloatArray
    """The map over ``around`` that moves nothing."""
    features: tuple[_Feature, ...]
    eyes: tuple[Eyeball, Eyeball]
    mouth: Mouth
    canvas: GpuCanvas | None
    """Where it is drawn, when not by the processor."""
    response: Response | None = None
    """How its expressions read; None when that was not measured."""


class MeshAnimator:
    """Bends a portrait's face; hair, neck and what is near follow, the rest of the picture stays. An ``Animator``.

    For each motion the points of the rig are moved (``deform``), a small map of where each place's colour comes from
    is drawn with them (``raster``), and the portrait is read through it once at full resolution; eyeballs and the
    inside of the mouth are laid into their openings.

    Args:
        mesh: The canonical face.
        gains: How strongly the portrait follows; may be changed at any time.
        cuda_device: The GPU that reads the portrait through the map, and on which pictures are made (CuPy arrays, on
            the current stream); the map itself, eyes and mouth are drawn by the processor. None for NumPy arrays.
    """

    def __init__(
        self, mesh: CanonicalMesh, *, gains: Gains | None = None, cuda_device: int | None = None
    ) -> None:
        self.gains = gains or Gains()
        self._cuda_device = cuda_device
        self._mesh = mesh
        self._basis = ExpressionBasis(mesh)
        self._portrait: _Portrait | None = None

    @property
    def name(self) -> str:
        """``mesh``."""
        return "mesh"

    @property
    def needs_driver_picture(self) -> bool:
        """False: landmarks or blendshapes are enough."""
        return False

    def __enter__(self) -> Self:
        """Use as a context manager."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        self.close()

    def close(self) -> None:
        """Forget the portrait."""
        self._portrait = None

    def set_portrait(self, rgb: RgbPicture, *, face: TrackedFace) -> None:
        """Take a portrait; see ``Animator``."""
        rgb = np.ascontiguousarray(rgb).copy()
        height, width = rgb.shape[:2]
        rig = build_rig(self._mesh, face, size=(height, width))
        step = max(1, round(rig.face_height / _ROWS_A_FACE))
        canvas = None
        if self._cuda_device is not None:
            from vitascope.animation.mesh.gpu_canvas import GpuCanvas

            canvas = GpuCanvas(rgb, rig.box, step=step, device=self._cuda_device)
        grid = _grid_over(*rig.box, step, on_corners=canvas is not None)
        around = _coarser(grid)
        self._portrait = _Portrait(
            rgb,
            rig,
            grid,
            around,
            around.blank(),
            self._features(rig),
            make_eyeballs(rgb, rig),
            Mouth(rgb, rig),
            canvas,
        )

    def calibrate(self, find: Callable[[RgbPicture], TrackedFace | None]) -> None:
        """Measure how the portrait's expressions read, so that they read as the driver's do; 27 pictures.

        Args:
            find: A tracker for single pictures: the face in a picture, or None.

        Raises:
            UsageError: No portrait was set.
        """
        portrait = replace(self._loaded(), response=None)
        self._portrait = portrait
        left, top, right, bottom = portrait.rig.box

        def read(motion: FaceMotion) -> TrackedFace | None:
            assert motion.vertices is not None  # the probes are displacements
            bent = bend(portrait.rig, self._mesh, motion, displacement=motion.vertices, gains=Gains())
            return find(to_host(self.draw(bent)[top:bottom, left:right]))

        self._portrait = replace(portrait, response=measure_response(self._basis, read))

    def animate(self, motion: FaceMotion, *, out: RgbPicture | None = None) -> RgbPicture:
        """The portrait in a motion; see ``Animator``."""
        return self.draw(self.bent(motion), out=out)

    def bent(self, motion: FaceMotion) -> Bent:
        """Where a motion takes the portrait's points.

        Raises:
            UsageError: No portrait was set.
        """
        portrait = self._loaded()
        displacement = motion.vertices
        if displacement is None:
            displacement = self._basis.displacement(motion.blendshapes - motion.neutral_blendshapes)
            closure, gaze = eyes_of(motion.blendshapes, motion.neutral_blendshapes)
            motion = replace(motion, eye_closure=closure, gaze=gaze)
        # A portrait that smiles already has less of a smile before it.
        taken = np.maximum(motion.blendshapes - motion.neutral_blendshapes, 0) * portrait.rig.face.blendshapes
        taken[_KEEPS_ITS_RANGE] = 0
        displacement = displacement - self._basis.displacement((_TAKEN_SHARE * taken).astype(np.float32))
        if portrait.response is not None:
            displacement, closure = portrait.response.adjust(displacement, motion.eye_closure, motion)
            motion = replace(motion, eye_closure=closure)
        return bend(portrait.rig, self._mesh, motion, displacement=displacement, gains=self.gains)

    def draw(self, bent: Bent, *, out: RgbPicture | None = None) -> RgbPicture:
        """Draw the portrait with its points moved: ``animate`` in two steps."""
        portrait = self._loaded()
        rgb, canvas = portrait.rgb, portrait.canvas
        if out is not None and (
            out.shape != rgb.shape or out.dtype != np.uint8 or not out.flags.c_contiguous
        ):
            raise UsageError(f"out is {out.dtype} {out.shape}, the portrait uint8 {rgb.shape}")
        coarse = self._coarse_map(portrait, bent)
        if canvas is not None:
            # On the processor's side only the patches count; what lies between them is never looked at.
            self._draw_patches(portrait, bent, coarse, canvas.scratch)
            on_gpu: RgbPicture = canvas.draw(coarse[1:, 1:], self._patches(portrait, bent), out=out)
            return on_gpu
        if out is None:
            out = rgb.copy()
        else:
            np.copyto(out, rgb)
        left, top, right, bottom = portrait.rig.box
        step = int(portrait.grid.step)
        full = _enlarged(coarse, step)
        out[top:bottom, left:right] = read_at(
            rgb, full[step : step + bottom - top, step : step + right - left]
        )
        self._draw_patches(portrait, bent, coarse, out)
        return out

    def _coarse_map(self, portrait: _Portrait, bent: Bent) -> FloatArray:
        """Where the colours of the rig's box come from, on its grid."""
        rig, grid = portrait.rig, portrait.grid
        order = np.argsort(-bent.depths[rig.skin_triangles].sum(axis=1), kind="stable")
        skin = rig.skin_triangles[order]
        # Hair, neck and background bend gently: a quarter of the map's detail is enough for them.
        around = portrait.still.copy()
        triangles = np.concatenate((rig.rings.triangles, skin))
        draw_triangles(bent.sources, bent.places, triangles, grid=portrait.around, into=around)
        big = _enlarged(around, _COARSER)
        first = _COARSER - 1
        coarse = np.ascontiguousarray(big[first : first + grid.height, first : first + grid.width])
        near = np.concatenate((rig.rings.triangles[-_NEAR_TRIANGLES:], skin))
        draw_triangles(bent.sources, bent.places, near, grid=grid, into=coarse)
        return coarse

    def _draw_patches(self, portrait: _Portrait, bent: Bent, coarse: FloatArray, out: RgbPicture) -> None:
        """Draw eyes and mouth, with what lies behind lids and lips."""
        for feature in portrait.features:
            self._draw_feature(portrait, feature, bent, coarse, out)
        for eye in portrait.eyes:
            eye.draw(out, bent)
        portrait.mouth.draw(out, bent)

    def _patches(self, portrait: _Portrait, bent: Bent) -> list[Patch]:
        """Where eyes and mouth are drawn."""
        found = (_patch_of(portrait, feature, bent) for feature in portrait.features)
        return [patch for patch in found if patch is not None]

    def _draw_feature(
        self, portrait: _Portrait, feature: _Feature, bent: Bent, coarse: FloatArray, out: RgbPicture
    ) -> None:
        """Draw an eye or the mouth anew, with a finer map."""
        patch = _patch_of(portrait, feature, bent)
        if patch is None:
            return
        right, bottom = patch.left + patch.width, patch.top + patch.height
        grid = _grid_over(patch.left, patch.top, right, bottom, feature.step)
        # What its triangles leave open is as in the coarse map.
        big = portrait.grid
        scale = grid.step / big.step
        matrix = np.array(
            [[scale, 0, (grid.left - big.left) / big.step], [0, scale, (grid.top - big.top) / big.step]]
        )
        fine: FloatArray = np.empty((grid.height, grid.width, 2), np.float32)
        cv2.warpAffine(
            coarse,
            matrix,
            (grid.width, grid.height),
            fine,
            flags=cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP,
            borderMode=cv2.BORDER_REPLICATE,
        )
        order = np.argsort(-bent.depths[feature.triangles].sum(axis=1), kind="stable")
        draw_triangles(bent.sources, bent.places, feature.triangles[order], grid=grid, into=fine)
        step = feature.step
        full = _enlarged(fine, step)
        patch.of(out)[...] = read_at(
            portrait.rgb, full[step : step + patch.height, step : step + patch.width]
        )

    def _features(self, rig: PortraitRig) -> tuple[_Feature, ...]:
        outlines = [list(eye.upper_lid + eye.lower_lid + eye.outline) for eye in EYES]
        outlines.append(list(OUTER_UPPER_LIP + OUTER_LOWER_LIP + INNER_UPPER_LIP + INNER_LOWER_LIP))
        made = []
        for outline in outlines:
            distance = np.linalg.norm(
                self._mesh.vertices[:, None] - self._mesh.vertices[outline][None], axis=-1
            )
            near = distance.min(axis=1) < _NEAR_FEATURE_CM
            extent = np.ptp(rig.sources[outline], axis=0)
            step = max(1, round(float(extent.min()) / _ROWS_A_FEATURE))
            made.append(_Feature(outline, rig.skin_triangles[near[rig.skin_triangles].all(axis=1)], step))
        return tuple(made)

    def _loaded(self) -> _Portrait:
        if self._portrait is None:
            raise UsageError("the animator has no portrait; call set_portrait first")
        return self._portrait


def _patch_of(portrait: _Portrait, feature: _Feature, bent: Bent) -> Patch | None:
    return patch_around(bent.places[feature.outline], margin=2, size=portrait.rig.size)


def _grid_over(
    left: int, top: int, right: int, bottom: int, step: int, *, on_corners: bool = False
) -> MapGrid:
    """The grid whose samples are the middles of squares of ``step`` pixels, and a border of one sample around it.

    ``cv2.resize`` places samples like that, and with the border it has something to interpolate everywhere. The GPU's
    kernel wants them on the squares' first pixels instead (``on_corners``).
    """
    first = -step if on_corners else (step - 1) / 2 - step
    return MapGrid(
        left + first, top + first, step, -(-(right - left) // step) + 2, -(-(bottom - top) // step) + 2
    )


def _coarser(grid: MapGrid) -> MapGrid:
    """A grid that ``_enlarged`` turns into one which holds ``grid`` from its sample ``_COARSER - 1`` on."""
    shift = (_COARSER - 1) / 2 * grid.step
    width, height = (-(-(count + _COARSER - 1) // _COARSER) for count in (grid.width, grid.height))
    return MapGrid(grid.left - shift, grid.top - shift, grid.step * _COARSER, width, height)


def _enlarged(places: FloatArray, times: int) -> FloatArray:
    """A map with ``times`` by ``times`` samples for each of its own."""
    if times == 1:
        return places
    size = (places.shape[1] * times, places.shape[0] * times)
    return np.asarray(cv2.resize(places, size, interpolation=cv2.INTER_LINEAR), np.float32)
