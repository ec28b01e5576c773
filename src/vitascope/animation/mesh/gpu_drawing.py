"""Draws the mesh animator's picture on a GPU: maps, portrait, eyes and mouth in six launches.

The kernels of ``mesh.cu`` get a portrait's data once (``SCENE``), and that of each picture's motion (``Frame``).
"""

from __future__ import annotations

import math
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from vitascope.animation.face import MESH_VERTEX_COUNT, FloatArray, RgbPicture
from vitascope.animation.mesh.creases import CREASES, Creases
from vitascope.animation.mesh.deform import Bent
from vitascope.animation.mesh.eyes import IRIS_EDGE, Eyeball, EyePlacement
from vitascope.animation.mesh.head import CutPortrait
from vitascope.animation.mesh.lashes import LASHES_BOTTOM, LASHES_LEFT, LASHES_RIGHT, LASHES_TOP
from vitascope.animation.mesh.layers import Patch
from vitascope.animation.mesh.maps import MapGrid, PortraitMaps, feature_grid, pixel_grid
from vitascope.animation.mesh.mouth import TEETH_MIDDLE, Mouth, MouthPlacement
from vitascope.animation.mesh.rig import PortraitRig
from vitascope.errors import DeviceError, DeviceMemoryError, MissingDependencyError, VitascopeError
from vitascope.gpu.kernels.cuda_module import by_value, cuda_kernel, fields, nvtx_range
from vitascope.gpu.memory.pinned_pool import PinnedMemoryPool
from vitascope.gpu.memory.shortage import is_out_of_memory

MAPS = 6
"""Number of maps: surroundings, face, one for each feature, and one as fine as the picture."""
_FEATURES = 3


_MATRIX = np.dtype(("f4", 6))
_PLACE, _COLOUR = np.dtype(("f4", 2)), np.dtype(("f4", 3))
PATCH = np.dtype(fields("i4", "left", "top", "width", "height"))
_MAP = np.dtype([*fields("f4", "left", "top", "step"), *fields("i4", "width", "height", "first", "parent")])
_LASHES = np.dtype(
    [
        *fields("f4", "shown", "reach"),
        *fields(_PLACE, "corner", "along", "down"),
        ("edge_shares", "f4", 9),
        ("edge_heights", "f4", 9),
    ]
)
_EYE = np.dtype(
    [
        ("patch", PATCH),
        *fields("f4", "shown", "apart"),
        ("back", _MATRIX),
        ("gaze_shift", _PLACE),
        ("lashes", _LASHES),
        ("outline", "f4", (64, 2)),
    ]
)
_MOUTH = np.dtype(
    [
        ("patch", PATCH),
        *fields("f4", "shown", "own_share", "light_px", "tongue_light", "cavity_light", "lower_bow"),
        *fields("i4", "is_made", "has_upper_teeth"),
        *fields(_MATRIX, "tongue", "own", "upper_teeth", "lower_teeth"),
        ("outline", "f4", (80, 2)),
    ]
)
_EYE_LOOK = np.dtype(
    [
        *fields("u8", "texture", "ball", "white", "shut_lashes", "rim"),
        ("patch", PATCH),
        ("iris", _PLACE),
        *fields("f4", "radius", "feather"),
        ("lash_colour", _COLOUR),
        *fields("i4", "lash_columns", "lash_rows"),
        ("rim_patch", PATCH),
    ],
    align=True,
)
_CREASE = np.dtype([("rgba", "u8"), ("patch", PATCH)], align=True)
SCENE = np.dtype(
    [
        *fields("u8", "rgba", "behind", "triangles", "offsets"),
        *fields("u8", "upper_teeth", "lower_teeth", "tongue", "own_rgb", "own_cover"),
        *fields("i4", "width", "height", "left", "top", "right", "bottom", "triangle_count"),
        *fields("i4", "teeth_width", "teeth_height", "tongue_width", "tongue_height"),
        *fields("i4", "own_width", "own_height"),
        *fields("f4", "mouth_feather", "teeth_middle", "iris_ends", "white_begins"),
        *fields("f4", "lashes_left", "lashes_top", "lashes_right", "lashes_bottom"),
        ("cavity", _COLOUR),
        ("eyes", _EYE_LOOK, 2),
        ("creases", _CREASE, CREASES),
    ],
    align=True,
)
"""``Scene`` of ``mesh.cu``: a portrait."""


@lru_cache(maxsize=4)
def frame_type(points: int) -> np.dtype[Any]:
    """``Frame`` of ``mesh.cu``: a motion of a rig with this number of points."""
    return np.dtype(
        [
            ("places", "f4", (points, 2)),
            ("sources", "f4", (points, 2)),
            ("depths", "f4", MESH_VERTEX_COUNT),
            ("maps", _MAP, MAPS),
            ("features", PATCH, _FEATURES),
            ("skin", PATCH),
            ("creases", "f4", CREASES),
            # 42 + 12 + 4 + 7 words, and one of padding, as the eyes' float2 needs an even number.
            ("even", "i4"),
            ("eyes", _EYE, 2),
            ("mouth", _MOUTH),
        ]
    )


def fill_frame(
    frame: npt.NDArray[Any],
    bent: Bent,
    maps: PortraitMaps,
    eyes: tuple[EyePlacement | None, ...],
    mouth: MouthPlacement | None,
    creases: FloatArray,
) -> list[int]:
    """Describe a motion.

    Args:
        frame: [1] of ``frame_type``, modified in place.
        bent: The rig's points.
        maps: Of the portrait.
        eyes: Right, left; None for one that is not drawn.
        mouth: None if its inside is not visible.
        creases: float32 [9]: how strongly the skin folds.

    Returns:
        Number of samples of each map.
    """
    told = frame[0]
    told["places"], told["sources"], told["depths"] = bent.places, bent.sources, bent.depths
    told["creases"] = creases
    patches = [feature.patch(bent) for feature in maps.features]
    grids: list[MapGrid | None] = [maps.around, maps.face]
    for feature, patch in zip(maps.features, patches, strict=True):
        grids.append(None if patch is None else feature_grid(feature, patch))
    skin = maps.skin(bent)
    grids.append(None if skin is None or maps.face.step <= 1 else pixel_grid(skin))
    first, counts = 0, []
    for index, grid in enumerate(grids):
        if grid is None:
            told["maps"][index] = (0, 0, 1, 0, 0, first, 1)
            counts.append(0)
            continue
        told["maps"][index] = (
            grid.left, grid.top, grid.step, grid.width, grid.height, first, min(index - 1, 1),
        )  # fmt: skip
        counts.append(grid.width * grid.height)
        first += counts[-1]
    for index, patch in enumerate(patches):
        told["features"][index] = _corners(patch)
    told["skin"] = _corners(skin)
    for index, eye in enumerate(eyes):
        _fill_eye(told["eyes"][index], eye)
    _fill_mouth(told["mouth"], mouth)
    return counts


def _fill_eye(told: Any, eye: EyePlacement | None) -> None:
    told["patch"] = _corners(None if eye is None else eye.patch)
    if eye is None:
        return
    told["shown"], told["outline"] = eye.shown, eye.outline
    told["apart"], told["gaze_shift"] = eye.apart, eye.gaze_shift
    told["back"] = eye.back.reshape(-1)
    lashes = eye.lashes
    if lashes is None:
        told["lashes"]["shown"] = 0
    else:
        told["lashes"] = (
            lashes.shown, lashes.reach_px, lashes.corner, lashes.along, lashes.down,
            lashes.edge_shares, lashes.edge_heights,
        )  # fmt: skip


def _fill_mouth(told: Any, mouth: MouthPlacement | None) -> None:
    told["patch"] = _corners(None if mouth is None else mouth.patch)
    if mouth is None:
        return
    told["shown"], told["light_px"], told["outline"] = mouth.shown, mouth.light_px, mouth.outline
    told["tongue_light"], told["cavity_light"] = mouth.tongue_light, mouth.cavity_light
    told["lower_bow"] = mouth.lower_bow
    told["own_share"] = 0 if mouth.own is None else mouth.own_share
    told["is_made"], told["has_upper_teeth"] = mouth.is_made, mouth.upper_teeth is not None
    for name, matrix in (
        ("own", mouth.own),
        ("tongue", mouth.tongue),
        ("upper_teeth", mouth.upper_teeth),
        ("lower_teeth", mouth.lower_teeth),
    ):
        if matrix is not None:
            told[name] = inverse(matrix)


def inverse(matrix: FloatArray) -> FloatArray:
    """Invert an affine matrix [2, 3]: float32 [6], by rows; a singular one maps everything far away."""
    (a, b, x), (c, d, y) = matrix.astype(np.float64)
    determinant = a * d - b * c
    if abs(determinant) < 1e-3 * 1e-3:
        return np.array([0, 0, 1e6, 0, 0, 1e6], np.float32)
    a, b, c, d = d / determinant, -b / determinant, -c / determinant, a / determinant
    return np.array([a, b, -a * x - b * y, c, d, -c * x - d * y], np.float32)


def _corners(patch: Patch | None) -> tuple[int, int, int, int]:
    return (0, 0, 0, 0) if patch is None else (patch.left, patch.top, patch.width, patch.height)


_SOURCE = str(Path(__file__).with_name("mesh.cu"))
_THREADS = 256
_BLOCK = (32, 8)
_LEVELS = ((0, 1), (1, 2), (2, MAPS))
"""First and end index of maps that are refined from the same one."""
# As in mesh.cu.
_OFFSETS = 32
_GOLDEN_ANGLE = math.pi * (3 - math.sqrt(5))


class GpuDrawing:
    """Draws a portrait's motions on a GPU as ``MeshAnimator`` draws them on a CPU.

    The CPU computes the places of points, eyes and mouth, and sends some 20 kB for each picture. On the GPU soft masks
    are integrals over their polygons, on the CPU blurred pictures: pixels on their edges differ by a few codes.

    Args:
        rgb: uint8 [H, W, 3], the portrait.
        cut: The portrait split into person and background.
        rig: The portrait's rig.
        maps: Of the portrait.
        eyes: Right, left.
        mouth: The inside of the mouth.
        creases: The folds of the skin.
        device: Number of the GPU.
        keeps_on_gpu: True to leave pictures on the GPU.

    Raises:
        MissingDependencyError: CuPy is not installed.
        KernelCompileError: The CUDA source could not be built for this GPU.
        DeviceMemoryError: The GPU has too little memory left.
        DeviceError: CUDA failed in another way.
    """

    def __init__(
        self,
        rgb: RgbPicture,
        cut: CutPortrait,
        rig: PortraitRig,
        maps: PortraitMaps,
        eyes: tuple[Eyeball, Eyeball],
        mouth: Mouth,
        creases: Creases,
        *,
        device: int,
        keeps_on_gpu: bool,
    ) -> None:
        try:
            import cupy
        except ImportError as error:
            raise MissingDependencyError(
                f"drawing on a GPU needs CuPy ({error}); install it with `pip install 'vitascope[cuda]'`"
            ) from error
        self._cupy = cupy
        self._device = device
        self._pool = None if keeps_on_gpu else PinnedMemoryPool(device="cuda", device_id=device)
        self._maps, self._eyes, self._mouth, self._creases = maps, eyes, mouth, creases
        self._box = rig.box
        self._frame = np.zeros(1, frame_type(len(rig.sources)))
        self._frame_address = self._frame.ctypes.data
        triangles, offsets = _triangles_of(maps, rig), _normal_offsets()
        with _OurErrors(cupy, device), cupy.cuda.Device(device):
            self._rgb = cupy.asarray(rgb)
            self._frame_on_gpu = cupy.empty(self._frame.nbytes, np.uint8)
            self._keys, self._samples = cupy.empty(0, np.uint64), cupy.empty((0, 2), np.float32)
            self._kept: list[Any] = []
            self._scene = self._describe(cut, rig, triangles, offsets)
            self._cover, self._resolve, self._paint = (
                cuda_kernel(_SOURCE, name, POINTS=len(rig.sources)) for name in ("cover", "resolve", "paint")
            )
            self._drawn = cupy.cuda.Event(disable_timing=True)
            self._drawn.record()

    def draw(self, bent: Bent, *, out: Any = None) -> Any:
        """Draw a picture.

        Args:
            bent: The rig's moved points.
            out: uint8 [H, W, 3], C-contiguous, on the GPU or the host like the result; a new array when omitted.

        Returns:
            uint8 [H, W, 3]: CuPy, on the current stream, for which the CPU does not wait; or NumPy, in page-locked
            memory that is reused once nothing refers to the picture.

        Raises:
            DeviceMemoryError: The GPU has too little memory left.
            MemoryLimitError: No page-locked memory is left, as too many pictures are held.
            DeviceError: CUDA failed in another way.
        """
        # Outside of the block below, which would take NumPy's lack of memory for the GPU's.
        eyes = tuple(eye.placed(bent) for eye in self._eyes)
        counts = fill_frame(
            self._frame,
            bent,
            self._maps,
            eyes,
            self._mouth.placed(bent),
            self._creases.strengths(bent.vertices),
        )
        with _OurErrors(self._cupy, self._device):
            if self._pool is None:
                return self._drawn_on_gpu(counts, out)
            with self._cupy.cuda.Device(self._device):
                picture = self._pool.download(self._drawn_on_gpu(counts, None)).wait()
        if out is None:
            return picture
        np.copyto(out, picture)
        return out

    def close(self) -> None:
        """Wait until the last picture is drawn, before its data is freed.

        Raises:
            DeviceError: CUDA failed meanwhile.
        """
        with _OurErrors(self._cupy, self._device):
            try:
                self._drawn.synchronize()
            finally:
                if self._pool is not None:
                    self._pool.close()

    def _drawn_on_gpu(self, counts: list[int], out: Any) -> Any:
        """Draw what ``_frame`` describes, with these numbers of samples in the maps."""
        cupy = self._cupy
        sample_count = sum(counts)
        with cupy.cuda.Device(self._device), nvtx_range("animate mesh"):
            stream = cupy.cuda.get_current_stream()
            # Pictures share this object's buffers: one on another stream must not overtake the previous one.
            stream.wait_event(self._drawn)
            if self._keys.size < sample_count:
                # CuPy frees memory in the order of the stream that allocated it, while another one may still read it.
                self._drawn.synchronize()
                size = sample_count + sample_count // 4
                # Both or neither, as kernels expect them to have the same length.
                keys, samples = cupy.empty(size, np.uint64), cupy.empty((size, 2), np.float32)
                self._keys, self._samples = keys, samples
            if out is None:
                out = cupy.empty(self._rgb.shape, np.uint8)
            # Plain copies: CuPy's array operators take three times the CPU time.
            runtime = cupy.cuda.runtime
            # Below 64 kB, CUDA has read the data when the call returns, so the next picture may be described.
            runtime.memcpyAsync(
                self._frame_on_gpu.data.ptr,
                self._frame_address,
                self._frame.nbytes,
                runtime.memcpyHostToDevice,
                stream.ptr,
            )
            runtime.memsetAsync(self._keys.data.ptr, 0, sample_count * self._keys.itemsize, stream.ptr)
            self._launch_maps(counts)
            runtime.memcpyAsync(
                out.data.ptr,
                self._rgb.data.ptr,
                self._rgb.nbytes,
                runtime.memcpyDeviceToDevice,
                stream.ptr,
            )
            left, top, right, bottom = self._box
            grid = (math.ceil((right - left) / _BLOCK[0]), math.ceil((bottom - top) / _BLOCK[1]))
            self._paint(grid, _BLOCK, (self._scene, self._frame_on_gpu, self._samples, out))
            self._drawn.record(stream)
        return out

    def _launch_maps(self, counts: list[int]) -> None:
        scene, frame = self._scene, self._frame_on_gpu
        warps = _THREADS // 32
        self._cover((math.ceil(self._triangle_count / warps),), (_THREADS,), (scene, frame, self._keys))
        for first, end in _LEVELS:
            blocks = max(math.ceil(max(counts[first:end]) / _THREADS), 1)
            self._resolve(
                (blocks, end - first),
                (_THREADS,),
                (scene, frame, self._keys, self._samples, np.int32(first)),
            )

    def _describe(
        self, cut: CutPortrait, rig: PortraitRig, triangles: npt.NDArray[np.int32], offsets: FloatArray
    ) -> npt.NDArray[Any]:
        scene = np.zeros(1, SCENE)
        mouth = self._mouth
        self._triangle_count = len(triangles)
        scene["rgba"], scene["behind"] = self._keep(cut.rgba), self._keep(cut.behind)
        scene["triangles"] = self._keep(triangles)
        scene["offsets"] = self._keep(offsets)
        scene["height"], scene["width"] = rig.size
        for name, edge in zip(("left", "top", "right", "bottom"), rig.box, strict=True):
            scene[name] = edge
        scene["triangle_count"] = len(triangles)
        scene["upper_teeth"] = self._keep(mouth.upper_teeth)
        scene["lower_teeth"] = self._keep(mouth.lower_teeth)
        scene["teeth_height"], scene["teeth_width"] = mouth.upper_teeth.shape[:2]
        scene["teeth_middle"] = TEETH_MIDDLE
        scene["tongue"] = self._keep(mouth.tongue)
        scene["tongue_height"], scene["tongue_width"] = mouth.tongue.shape[:2]
        if mouth.own is not None:
            scene["own_rgb"], scene["own_cover"] = self._keep(mouth.own.rgb), self._keep(mouth.own.cover)
            scene["own_height"], scene["own_width"] = mouth.own.cover.shape
        scene["mouth_feather"] = mouth.feather
        scene["cavity"] = mouth.tones.cavity
        scene["iris_ends"], scene["white_begins"] = IRIS_EDGE
        scene["lashes_left"], scene["lashes_right"] = LASHES_LEFT, LASHES_RIGHT
        scene["lashes_top"], scene["lashes_bottom"] = LASHES_TOP, LASHES_BOTTOM
        for look, eye in zip(scene["eyes"][0], self._eyes, strict=True):
            for layer in ("texture", "ball", "white", "shut_lashes"):
                look[layer] = self._keep(getattr(eye, layer))
            patch = eye.patch
            look["patch"] = (patch.left, patch.top, patch.width, patch.height)
            look["iris"], look["radius"], look["feather"] = eye.iris, eye.radius, eye.feather
            look["lash_colour"] = eye.lash_colour
            look["lash_rows"], look["lash_columns"] = eye.shut_lashes.shape
            if eye.rim is not None:  # else the patch is empty
                look["rim"], look["rim_patch"] = self._keep(eye.rim), _corners(eye.rim_patch)
        for fold, part in zip(scene["creases"][0], self._creases.parts, strict=True):
            if part is not None:  # else the patch is empty
                patch = part.patch
                fold["rgba"] = self._keep(part.rgba)
                fold["patch"] = (patch.left, patch.top, patch.width, patch.height)
        return by_value(scene)

    def _keep(self, array: npt.NDArray[Any]) -> int:
        """Copy an array to the GPU for the life of this object; returns the address."""
        self._kept.append(self._cupy.asarray(np.ascontiguousarray(array)))
        return int(self._kept[-1].data.ptr)


class _OurErrors:
    """Converts CuPy's errors to ours. A class, which is faster than a generator, as it is entered for every picture."""

    __slots__ = ("_cupy", "_device")

    def __init__(self, cupy: Any, device: int) -> None:
        self._cupy = cupy
        self._device = device

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Raise our error instead."""
        if error is None or isinstance(error, VitascopeError):
            return
        if is_out_of_memory(error):
            raise DeviceMemoryError(
                f"GPU {self._device} has too little memory left for the mesh animator ({error}); close other programs "
                "that use it, or set gpu.device=cpu"
            ) from error
        cuda = self._cupy.cuda
        if isinstance(error, cuda.runtime.CUDARuntimeError | cuda.driver.CUDADriverError):
            raise DeviceError(f"GPU {self._device} cannot draw: {error}") from error


def _triangles_of(maps: PortraitMaps, rig: PortraitRig) -> npt.NDArray[np.int32]:
    """Triangles, int32 [T, 4]: three points and the map, in drawing order among equally near ones."""
    skin = rig.skin_triangles
    groups = [maps.far_triangles, np.concatenate((maps.near_triangles, skin))]
    groups += [feature.triangles for feature in maps.features]
    groups.append(np.concatenate((maps.far_triangles, skin)))
    assert int(skin.max()) < MESH_VERTEX_COUNT <= int(maps.far_triangles.min())  # how the kernel tells skin
    return np.concatenate([np.insert(group, 3, index, axis=1) for index, group in enumerate(groups)]).astype(
        np.int32
    )


def _normal_offsets() -> FloatArray:
    """Samples of a normal distribution with deviation 1, on a sunflower's spiral: float32 [32, 2]."""
    share = (np.arange(_OFFSETS) + 0.5) / _OFFSETS
    radius, angle = np.sqrt(-2 * np.log(1 - share)), _GOLDEN_ANGLE * np.arange(_OFFSETS)
    spread = np.stack((radius * np.cos(angle), radius * np.sin(angle)), axis=-1)
    # Mean and deviation are made exact, as the points are few.
    spread -= spread.mean(axis=0)
    return np.asarray(spread / spread.std(axis=0), np.float32)
