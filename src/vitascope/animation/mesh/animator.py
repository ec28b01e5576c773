"""The mesh animator: no network while it draws, the portrait's full resolution, real time on a CPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import cv2
import numpy as np
import numpy.typing as npt

from vitascope.animation.canonical_mesh import CanonicalMesh
from vitascope.animation.expression import basis_of, eyes_of, lids_with_gaze
from vitascope.animation.face import (
    BLENDSHAPE_INDEX,
    BLENDSHAPES,
    FaceMotion,
    FloatArray,
    RgbPicture,
    TrackedFace,
    rotation_from_degrees,
)
from vitascope.animation.mesh.border import widened
from vitascope.animation.mesh.creases import Creases
from vitascope.animation.mesh.deform import Bent, Gains, bend, turns_too_far
from vitascope.animation.mesh.eyes import Eyeball, make_eyeballs
from vitascope.animation.mesh.glasses import with_glasses
from vitascope.animation.mesh.head import CutPortrait, cut_out, find_person, uncut
from vitascope.animation.mesh.layers import Patch, read_at, to_host
from vitascope.animation.mesh.lips import (
    LipFit,
    corners_cm,
    gap_cm,
    level_cm,
    shown_apart,
    thinned_cm,
    unsmiled,
    wider,
)
from vitascope.animation.mesh.maps import (
    COARSER,
    DrawnSamples,
    Feature,
    MapGrid,
    PortraitMaps,
    draw_around,
    draw_folds,
    draw_maps,
    feature_grid,
    find_folds,
    pixel_grid,
    plan_maps,
)
from vitascope.animation.mesh.mouth import Mouth
from vitascope.animation.mesh.response import Curve, Response, measure_response
from vitascope.animation.mesh.rig import PortraitRig, build_rig, with_person
from vitascope.animation.mesh.rims import find_rims
from vitascope.closing import Closing
from vitascope.errors import UsageError

if TYPE_CHECKING:
    from vitascope.animation.mesh.gpu_drawing import GpuDrawing

_TAKEN_SHARE = 0.85
"""Share of the portrait's own expression that is subtracted from the driver's, so that it is not shown twice."""
_RELAXED_SHARE = 0.45
"""Share of its own smile that a portrait loses while a driver whose face at rest shows none does not smile."""
_LEAST_SMILE = 0.3
"""Smile weight of a portrait below which its smile is relaxed by less."""
_AS_BROAD = (0.7, 1.0)
"""Shares of the portrait's own smile at which a driver's begins to count as broad as it, and at which it fully does."""
_OF_A_SMILE = np.array(
    [name.startswith(("mouthSmile", "mouthStretch", "mouthDimple")) for name in BLENDSHAPES]
)
_OF_SOUNDS = [
    BLENDSHAPE_INDEX[name]
    for name in ("jawOpen", "mouthClose", "mouthPucker", "mouthFunnel", "mouthRollLower", "mouthRollUpper")
]
_SHAPED = (0.02, 0.06)
"""Mouth weights at which a mouth begins to count as speaking instead of only smiling, and at which it fully does."""
_KEEPS_APART_CM = (0.8, 2.4)
"""Gaps, for spoken sounds, at which the portrait's own gap begins to be added, and at which it fully is."""
_LEAST_GAP_CM = 0.3
"""Minimum gap between the driver's lips to be compared with another."""
_SMILES = [BLENDSHAPE_INDEX[f"mouthSmile{side}"] for side in ("Right", "Left")]
_KEEPS_ITS_RANGE = [index for index, name in enumerate(BLENDSHAPES) if not name.startswith(("mouth", "jaw"))]


_LEAST_CHANGE = 1.0
"""Minimum change by drawing an eye or a mouth, in codes of 255; below it the feature counts as invisible."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Difference of the GPU's picture from the CPU's."""

    everywhere: float
    """Mean over all that can move, in codes of 255."""
    eyes_and_mouth: tuple[float, float, float]
    """Right eye, left eye, mouth: mean over its rectangle, as a share of what the CPU's eyeball, or inside of the
    mouth, changes there. 1 means that it is missing."""


@dataclass(frozen=True, slots=True, eq=False)
class _Portrait:
    """A portrait, prepared for drawing."""

    rgb: RgbPicture
    """uint8 [H, W, 3]; goes on beyond the border where that cuts the person off."""
    shown: Patch
    """The part of it that is drawn: the portrait as it was given."""
    whole: RgbPicture | None
    """Memory for a picture of that size, which already shows what does not move; None if all of it is shown."""
    cut: CutPortrait
    layer: npt.NDArray[np.uint8]
    """uint8 [H, W, 4]: the person as last drawn, premultiplied colours."""
    rig: PortraitRig
    maps: PortraitMaps
    full: FloatArray
    """float32 [height, width, 2]: the map over ``maps.face`` as last drawn, one sample per pixel."""
    still: FloatArray
    """The identity map over ``maps.around``."""
    eyes: tuple[Eyeball, Eyeball]
    mouth: Mouth
    creases: Creases
    lips: LipFit
    own_smile: FloatArray
    """float32 [468, 3], centimetres: displacement of the smile in the portrait itself."""
    on_gpu: GpuDrawing | None
    """The GPU's drawing; None if the CPU draws."""
    response: Response | None = None
    """Measured response to expressions; None if not measured."""


class MeshAnimator(Closing):
    """Bends a portrait's face; hair, neck and what is near follow, and the rest of the picture stays.

    A ``PortraitAnimator``.

    For each motion, the points of the rig are moved (``deform``), a small map of the source of each place's colour is
    drawn with them (``raster``), and the portrait is sampled through it once at full resolution; eyeballs and the
    inside of the mouth are drawn into their openings.

    Args:
        mesh: The canonical face.
        gains: How strongly the portrait follows; may be changed at any time.
        cuda_device: The GPU that draws; where the rig's points go is still worked out by the CPU. None to draw
            on the CPU.
        keeps_on_gpu: Leave pictures there: CuPy arrays, on the current stream. Else they come down through page-locked
            memory, as NumPy arrays.
    """

    def __init__(
        self,
        mesh: CanonicalMesh,
        *,
        gains: Gains | None = None,
        cuda_device: int | None = None,
        keeps_on_gpu: bool = False,
    ) -> None:
        self.gains = gains or Gains()
        self._cuda_device = cuda_device
        self._keeps_on_gpu = keeps_on_gpu
        self._mesh = mesh
        self._basis = basis_of(mesh)
        self._portrait: _Portrait | None = None

    @property
    def name(self) -> str:
        """``mesh``."""
        return "mesh"

    @property
    def needs_driver_picture(self) -> bool:
        """False: landmarks or blendshapes are enough."""
        return False

    @property
    def has_dark_glasses(self) -> bool:
        """True where dark glasses cover the portrait's eyes, which stay still then."""
        return self._portrait is not None and bool((self._portrait.rig.free_eyes < 0.5).all())

    def close(self) -> None:
        """Forget the portrait.

        Raises:
            DeviceError: The GPU failed meanwhile; the portrait is forgotten all the same.
        """
        portrait, self._portrait = self._portrait, None
        if portrait is not None and portrait.on_gpu is not None:
            portrait.on_gpu.close()

    def set_portrait(self, rgb: RgbPicture, *, face: TrackedFace) -> None:
        """Take a portrait; see ``PortraitAnimator``.

        Raises:
            InputError: The face is too small, or lies outside of the picture.
            MissingDependencyError: A GPU was named, and CuPy is not installed.
            KernelCompileError: The kernels could not be built for that GPU.
            DeviceMemoryError: It has too little memory left.
            DeviceError: It failed in some other way.
        """
        rgb = np.ascontiguousarray(rgb).copy()
        height, width = rgb.shape[:2]
        rig = with_glasses(build_rig(self._mesh, face, size=(height, width)), rgb)
        matte, shown = find_person(rgb, rig), Patch(0, 0, width, height)
        if matte is None:
            cut = uncut(rgb, rig)
        else:
            person, rig = matte, with_person(rig, matte)
            if (wide := widened(rgb, face, rig, matte)) is not None:
                rgb, face, person, matte, shown, box = wide
                rig = with_glasses(build_rig(self._mesh, face, size=matte.shape), rgb)
                rig = replace(with_person(rig, matte), box=box)
            cut = cut_out(rgb, rig, person)
        rims = find_rims(rgb, rig)
        maps, eyes, mouth = plan_maps(rig, self._mesh), make_eyeballs(rgb, rig, rims), Mouth(rgb, rig)
        creases = Creases(rgb, cut, rig, rims=rims)
        on_gpu = None
        if self._cuda_device is not None:
            from vitascope.animation.mesh.gpu_drawing import GpuDrawing

            on_gpu = GpuDrawing(
                rgb,
                cut,
                rig,
                maps,
                eyes,
                mouth,
                creases,
                device=self._cuda_device,
                keeps_on_gpu=self._keeps_on_gpu,
            )
        self.close()
        smile = np.where(_OF_A_SMILE, face.blendshapes, 0).astype(np.float32)
        own_smile = self._basis.displacement(smile)
        own_smile = own_smile - self._basis.upper_lip_higher * np.float32(
            thinned_cm(rig.reading.vertices, own_smile)
        )
        lips = LipFit(self._basis, rig.reading.vertices, bared_cm=mouth.bared_cm, own_smile=own_smile)
        face_grid, step = maps.face, int(maps.face.step)
        full = np.empty((face_grid.height * step, face_grid.width * step, 2), np.float32)
        whole = None if shown.of(rgb).shape == rgb.shape else rgb.copy()
        self._portrait = _Portrait(
            rgb, shown, whole, cut, np.empty_like(cut.rgba), rig, maps, full, maps.around.blank(), eyes, mouth,
            creases, lips, own_smile, on_gpu,
        )  # fmt: skip

    def calibrate(self, find: Callable[[RgbPicture], TrackedFace | None]) -> None:
        """Measure how the portrait's expressions read, so that they read as the driver's do; 55 or 62 pictures.

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
            return find(to_host(self._drawn(portrait, bent, None)[top:bottom, left:right]))

        self._portrait = replace(
            portrait,
            response=measure_response(
                self._basis, portrait.lips, self._mesh, read, own_smile=portrait.own_smile
            ),
        )

    @property
    def curves(self) -> Mapping[str, Curve] | None:
        """Curves that ``calibrate`` measured for this portrait; None without it.

        Raises:
            UsageError: No portrait was set.
        """
        response = self._loaded().response
        return None if response is None else response.curves

    def use_curves(self, curves: Mapping[str, Curve]) -> None:
        """Use curves that ``calibrate`` measured earlier for the same portrait.

        Raises:
            UsageError: No portrait was set.
        """
        self._portrait = replace(self._loaded(), response=Response(self._basis, curves))

    def animate(self, motion: FaceMotion, *, out: RgbPicture | None = None) -> RgbPicture:
        """The portrait in a motion; see ``PortraitAnimator``."""
        return self.draw(self.bent(motion), out=out)

    def bent(self, motion: FaceMotion) -> Bent:
        """Move the portrait's points by a motion.

        Raises:
            UsageError: No portrait was set.
        """
        portrait = self._loaded()
        change = motion.blendshapes - motion.neutral_blendshapes
        # A portrait that smiles already has less of a smile before it.
        weights = -_TAKEN_SHARE * np.minimum(np.maximum(change, 0), portrait.rig.face.blendshapes)
        weights[_KEEPS_ITS_RANGE] = 0
        taken = self._basis.displacement(weights)
        shown = self._basis.displacement(change) if motion.vertices is None else motion.vertices
        if motion.vertices is None:
            closure, gaze = eyes_of(motion.blendshapes, motion.neutral_blendshapes)
            closure = np.clip(closure + lids_with_gaze(gaze), None, 1.0)
            motion = replace(motion, eye_closure=closure, gaze=gaze)
        # Lips that are drawn together do not smile.
        relaxed = 0.0 if motion.vertices is None else _relaxed(portrait.rig.face, motion)
        together = unsmiled(shown)
        gone = max(together, relaxed)
        displacement = shown + taken - portrait.own_smile * np.float32(gone)
        if portrait.response is not None:
            added = replace(motion, blendshapes=motion.blendshapes + np.where(_OF_A_SMILE, weights, 0))
            displacement, closure = portrait.response.adjust(
                displacement, motion.eye_closure, added, narrower=gone * wider(portrait.own_smile)
            )
            motion = replace(motion, eye_closure=closure, gaze=portrait.response.gaze(motion.gaze))
        if motion.vertices is not None:
            gap, width, fuller = max(gap_cm(motion.vertices), 0.0), wider(motion.vertices), 0.0
            lacking = _lacks_smile(portrait.rig.face, motion)
            lacks = min(lacking, portrait.lips.most_unsmiled)
            own, alike = max(wider(portrait.own_smile), 0.0), _smiles_alike(portrait.rig.face, motion)
            # A driver who smiles as broadly as the portrait leaves its mouth as wide as it is, though at rest it was
            # not narrowed by all of that smile.
            as_broad = portrait.lips.surely_broad * float(np.interp(alike, _AS_BROAD, (0, 1)))
            width -= as_broad * (lacking - lacks) * min(max(width, 0.0) / max(lacking, 1e-3), own)
            if portrait.response is not None:
                own_gap = gap_cm(portrait.rig.reading.vertices)
                own_width = lacks * own
                gap, width, fuller = portrait.response.lips(gap, width, own_gap=own_gap, own_width=own_width)
            corners = corners_cm(motion.vertices) * np.float32(_as_wide_open(gap, motion.vertices))
            displacement = portrait.lips.fit(
                displacement,
                gap=gap,
                wider=width,
                corners=corners,
                unsmiled=max(together, lacks),
                still_smiles=max(lacks - gone, 0.0),
                smiles=(1 - together) * alike,
                fuller_cm=fuller,
                share=motion.presence,
            )
        elif (speaks := _speaks(change) * shown_apart(portrait.rig.reading.vertices)) > 0:
            # Lips that a portrait shows apart meet for the sounds that want it, and stay apart in a shout. Of sounds
            # nothing is taken: an own gap that goes leaves nothing of a vowel before it.
            gap, own = max(gap_cm(displacement - taken), 0.0), gap_cm(portrait.rig.reading.vertices)
            gap += own * float(np.interp(gap, _KEEPS_APART_CM, (0, 1)))
            displacement = portrait.lips.fit(displacement, gap=gap, wider=0.0, share=speaks)
        displacement = portrait.lips.levelled(displacement, level=level_cm(shown), unsmiled=together)
        if motion.vertices is None:
            displacement = portrait.lips.touching(displacement)
        return bend(portrait.rig, self._mesh, motion, displacement=displacement, gains=self.gains)

    def eases(self, motion: FaceMotion) -> bool:
        """Tell whether a motion turns the head farther than the portrait can show.

        Raises:
            UsageError: No portrait was set.
        """
        return turns_too_far(self._loaded().rig.pose, motion, self.gains.pose)

    def draw(self, bent: Bent, *, out: RgbPicture | None = None) -> RgbPicture:
        """Draw the portrait with its points moved: ``animate`` in two steps."""
        portrait = self._loaded()
        shown = portrait.shown.of(portrait.rgb)
        if out is not None and (
            out.shape != shown.shape or out.dtype != np.uint8 or not out.flags.c_contiguous
        ):
            raise UsageError(f"out is {out.dtype} {out.shape}, the portrait uint8 {shown.shape}")
        if portrait.whole is None:
            return self._drawn(portrait, bent, out)
        drawn = portrait.shown.of(self._drawn(portrait, bent, None if portrait.on_gpu else portrait.whole))
        if out is None:
            return drawn.copy()
        out[...] = drawn
        return out

    def difference_to_cpu(self) -> Difference | None:
        """Compare the GPU's picture of a turned head that blinks, looks aside and shouts with the CPU's.

        Returns:
            None if the CPU draws.

        Raises:
            UsageError: No portrait was set.
            DeviceMemoryError: The GPU has too little memory left.
            DeviceError: It failed in some other way.
        """
        portrait = self._loaded()
        if portrait.on_gpu is None:
            return None
        displacement = self._basis.field("jawOpen") * np.float32(0.6)
        motion = FaceMotion(
            rotation=rotation_from_degrees(10, -5, 5),
            eye_closure=np.full(2, 0.5, np.float32),
            gaze=np.array([[0.25, 0.1], [0.25, 0.1]], np.float32),
        )
        bent = bend(portrait.rig, self._mesh, motion, displacement=displacement, gains=Gains())
        drawn = to_host(portrait.on_gpu.draw(bent))
        skin = self._skin_by_cpu(portrait, bent, None)
        expected = skin.copy()
        _fill_openings(portrait, bent, expected)
        left, top, right, bottom = portrait.rig.box
        inside = np.s_[top:bottom, left:right]
        shares = []
        for feature in portrait.maps.features:
            patch = feature.patch(bent)
            if patch is None:
                shares.append(0.0)
                continue
            # Eyes and mouth are small: over the whole face, even one that is missing is next to nothing.
            share = _apart(patch.of(drawn), patch.of(expected))
            shares.append(share / max(_apart(patch.of(skin), patch.of(expected)), _LEAST_CHANGE))
        right_eye, left_eye, mouth = shares
        return Difference(_apart(drawn[inside], expected[inside]), (right_eye, left_eye, mouth))

    def _drawn(self, portrait: _Portrait, bent: Bent, out: RgbPicture | None) -> RgbPicture:
        """Draw all of a portrait, with what goes on beyond its border."""
        if portrait.on_gpu is not None:
            drawn: RgbPicture = portrait.on_gpu.draw(bent, out=out)
            return drawn
        return self._drawn_by_cpu(portrait, bent, out)

    def _drawn_by_cpu(self, portrait: _Portrait, bent: Bent, out: RgbPicture | None) -> RgbPicture:
        out = self._skin_by_cpu(portrait, bent, out)
        _fill_openings(portrait, bent, out)
        return out

    def _skin_by_cpu(self, portrait: _Portrait, bent: Bent, out: RgbPicture | None) -> RgbPicture:
        """Draw the bent portrait, including what shows between its lids and lips."""
        rgba = portrait.creases.shaded(bent.vertices)
        rig, maps = portrait.rig, portrait.maps
        # The skin in the order of drawing: what is farther away first.
        order = np.argsort(-bent.depths[rig.skin_triangles].sum(axis=1), kind="stable")
        skin_triangles = rig.skin_triangles[order]
        finer = [
            (feature, patch)
            for feature in maps.features
            if feature.step < maps.face.step and (patch := feature.patch(bent)) is not None
        ]
        drawn = draw_maps(
            bent.sources,
            bent.places,
            [
                (maps.far_triangles, maps.around),
                (np.concatenate((maps.near_triangles, skin_triangles)), maps.face),
                *((skin_triangles[one.of_skin[order]], feature_grid(one, patch)) for one, patch in finer),
            ],
        )
        coarse = self._coarse_map(portrait, *drawn[:2])
        left, top, right, bottom = rig.box
        if out is None:
            out = portrait.rgb.copy()
        elif out is not portrait.whole:
            for still in (np.s_[:top], np.s_[bottom:], np.s_[top:bottom, :left], np.s_[top:bottom, right:]):
                out[still] = portrait.rgb[still]
        step = int(maps.face.step)
        full, layer = _enlarged(coarse, step, into=portrait.full), portrait.layer
        moved = full[step : step + bottom - top, step : step + right - left]
        read_at(rgba, moved, mirrored=True, out=layer[top:bottom, left:right])
        skin = maps.skin(bent)
        folded = None if skin is None else find_folds(coarse, grid=maps.face, within=skin)
        for (feature, patch), samples in zip(finer, drawn[2:], strict=True):
            fine, grid = self._draw_feature(rgba, maps.face, feature, patch, samples, coarse, layer)
            if skin is not None and folded is not None:
                patch.within(skin).of(folded)[...] = find_folds(fine, grid=grid, within=patch)
        if skin is not None and folded is not None and folded.any():
            fine, grid = coarse, maps.face
            if step > 1:
                triangles = np.concatenate((maps.far_triangles, skin_triangles))
                fine = draw_around(folded, bent, triangles, within=skin, coarse=coarse, coarse_grid=grid)
                grid = pixel_grid(skin)
            draw_folds(layer, rgba, folded, fine, grid=grid, within=skin)
        portrait.cut.over_background(layer[top:bottom, left:right], out=out[top:bottom, left:right])
        return out

    def _coarse_map(self, portrait: _Portrait, far: DrawnSamples, near: DrawnSamples) -> FloatArray:
        """Map of the source of each colour in the rig's box, on its grid.

        Args:
            portrait: Whose.
            far: Of its map around the face.
            near: Of that of the face.
        """
        grid = portrait.maps.face
        # Hair, neck and background bend gently: a quarter of the map's detail is enough for them.
        around = portrait.still.copy()
        far.onto(around)
        big = _enlarged(around, COARSER)
        first = COARSER - 1
        coarse = np.ascontiguousarray(big[first : first + grid.height, first : first + grid.width])
        near.onto(coarse)
        return coarse

    def _draw_feature(
        self,
        rgba: npt.NDArray[np.uint8],
        big: MapGrid,
        feature: Feature,
        patch: Patch,
        drawn: DrawnSamples,
        coarse: FloatArray,
        out: npt.NDArray[np.uint8],
    ) -> tuple[FloatArray, MapGrid]:
        """Draw an eye or the mouth again, with a finer map than the coarse one, whose grid is ``big``.

        Returns:
            That map, and its grid.
        """
        grid = feature_grid(feature, patch)
        # What its triangles leave open is as in the coarse map.
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
        drawn.onto(fine)
        step = feature.step
        full = _enlarged(fine, step)
        places = full[step : step + patch.height, step : step + patch.width]
        read_at(rgba, places, mirrored=True, out=patch.of(out))
        return fine, grid

    def _loaded(self) -> _Portrait:
        if self._portrait is None:
            raise UsageError("the animator has no portrait; call set_portrait first")
        return self._portrait


def _speaks(change: FloatArray) -> float:
    """Share, 0..1, to which a change of weights, float32 [52], comes from a mouth that shapes sounds."""
    return float(np.interp(change[_OF_SOUNDS].max(), _SHAPED, (0, 1)))


def _relaxed(portrait: TrackedFace, motion: FaceMotion) -> float:
    """Share of its own smile that a portrait loses, because the driver smiles less."""
    own, *drivers = _smile_weights(portrait, motion)
    lack = max(own - max(drivers), 0.0) / max(own, 2 * _LEAST_SMILE)
    return _RELAXED_SHARE * motion.presence * min(lack, 1.0)


def _lacks_smile(portrait: TrackedFace, motion: FaceMotion) -> float:
    """Share of a portrait's own smile that the driver's face at rest does not show: 0..1."""
    own, rest, _ = _smile_weights(portrait, motion)
    return max(own - rest, 0.0) / max(own, 2 * _LEAST_SMILE)


def _smiles_alike(portrait: TrackedFace, motion: FaceMotion) -> float:
    """Share of a portrait's own smile that the driver shows, too: 0..1."""
    own, *drivers = _smile_weights(portrait, motion)
    return max(min(own, max(drivers)), 0.0) / max(own, 2 * _LEAST_SMILE)


def _smile_weights(portrait: TrackedFace, motion: FaceMotion) -> tuple[float, float, float]:
    """The weights of both sides of a portrait's own smile, of the driver's at rest, and of theirs now, each added up.

    Those of a face that hardly smiles are noise.
    """
    right, left = _SMILES
    own, rest, now = (
        float(weights[right] + weights[left])
        for weights in (portrait.blendshapes, motion.neutral_blendshapes, motion.blendshapes)
    )
    return own, rest, now


def _as_wide_open(gap: float, driver: FloatArray) -> float:
    """A gap as a multiple of the driver's, 0.5 to 1.5; 1 where theirs is too small to tell."""
    asked = gap_cm(driver)
    return 1.0 if asked < _LEAST_GAP_CM else min(max(gap / asked, 0.5), 1.5)


def _fill_openings(portrait: _Portrait, bent: Bent, out: RgbPicture) -> None:
    """Lay eyeballs and the inside of the mouth into their openings, in place."""
    for eye in portrait.eyes:
        eye.draw(out, bent)
    portrait.mouth.draw(out, bent)


def _apart(one: RgbPicture, other: RgbPicture) -> float:
    """Mean difference of two pictures, in codes of 255."""
    return float(np.abs(one.astype(np.int16) - other).mean())


def _enlarged(places: FloatArray, times: int, *, into: FloatArray | None = None) -> FloatArray:
    """A map with ``times`` by ``times`` samples for each of its own, in ``into`` if that is given."""
    if times == 1:
        return places
    size = (places.shape[1] * times, places.shape[0] * times)
    return np.asarray(cv2.resize(places, size, dst=into, interpolation=cv2.INTER_LINEAR), np.float32)
