"""The frame that passes through all stages: native YUV planes, colour, and time.

A frame is not converted to full-resolution RGB unless requested (``Frame.to_rgb``). Kernels read the decoder's planes
and write planes of the same kind for the encoder, so colour, bit depth and timing are preserved.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field, replace
from enum import StrEnum
from fractions import Fraction
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

from vitascope.errors import UsageError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

Plane: TypeAlias = "npt.NDArray[Any]"
"""One plane of samples: uint8 or uint16 ``[H, W]``, or ``[H, W, 2]`` for the interleaved chroma of NV12 and P010.

A NumPy array on the CPU; a CuPy array on the GPU. Rows may be padded (any row stride), but the samples within a row
are contiguous.
"""

_MOST_ASPECT = 8
"""If a tag makes pixels less square than this, it is damaged."""


class DeviceEvent(Protocol):
    """A CUDA event, such as ``cupy.cuda.Event``."""

    @property
    def ptr(self) -> int:
        """The event's handle."""
        ...

    @property
    def done(self) -> bool:
        """True if the work before the event is done."""
        ...

    def synchronize(self) -> None:
        """Wait on the host until the work before the event is done."""
        ...


Matrix = Literal["bt601", "bt709", "bt2020"]
ChromaLocation = Literal["left", "center", "topleft"]
Rotation = Literal[0, 90, 180, 270]
"""Clockwise turn in degrees that makes a coded picture upright."""


class StereoLayout(StrEnum):
    """How the two eyes share a frame; ``MONO`` is one eye."""

    MONO = "mono"
    SIDE_BY_SIDE = "side-by-side"
    TOP_BOTTOM = "top-bottom"


class Projection(StrEnum):
    """The projection of a picture."""

    FLAT = "flat"
    EQUIRECTANGULAR = "equirectangular"
    HALF_EQUIRECTANGULAR = "half-equirectangular"
    FISHEYE = "fisheye"


@dataclass(frozen=True, slots=True)
class YuvFormat:
    """Layout of a frame's planes, with FFmpeg's name."""

    name: str
    """FFmpeg's pixel format, for example ``yuv420p10le``."""
    chroma_shift_x: int
    """log2 of the horizontal chroma subsampling: 1 for 4:2:0 and 4:2:2, 0 for 4:4:4."""
    chroma_shift_y: int
    """log2 of the vertical chroma subsampling: 1 for 4:2:0, otherwise 0."""
    bit_depth: int
    """Significant bits of a sample: 8, 10 or 12."""
    sample_shift: int = 0
    """Bits by which a sample is shifted up inside its word: 6 for P010, otherwise 0."""
    semi_planar: bool = False
    """True if U and V share one interleaved plane (NV12, P010)."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """uint8 for 8 bits, otherwise uint16."""
        import numpy as np  # settings name layouts, and --help should not wait for NumPy

        return np.dtype(np.uint8 if self.bit_depth == 8 else np.uint16)

    def chroma_size(self, width: int, height: int) -> tuple[int, int]:
        """Width and height of the chroma planes of a picture; odd sizes round up."""
        return -(-width >> self.chroma_shift_x), -(-height >> self.chroma_shift_y)


PIXEL_FORMATS: dict[str, YuvFormat] = {
    fmt.name: fmt
    for fmt in (
        YuvFormat("yuv420p", 1, 1, 8),
        YuvFormat("yuv422p", 1, 0, 8),
        YuvFormat("yuv444p", 0, 0, 8),
        YuvFormat("yuv420p10le", 1, 1, 10),
        YuvFormat("yuv422p10le", 1, 0, 10),
        YuvFormat("yuv444p10le", 0, 0, 10),
        YuvFormat("yuv420p12le", 1, 1, 12),
        YuvFormat("yuv422p12le", 1, 0, 12),
        YuvFormat("yuv444p12le", 0, 0, 12),
        YuvFormat("nv12", 1, 1, 8, semi_planar=True),
        YuvFormat("p010le", 1, 1, 10, sample_shift=6, semi_planar=True),
    )
}
"""The layouts that kernels read and write. A reader converts all others to the nearest of these."""


@dataclass(frozen=True, slots=True)
class ColorSpec:
    """The meaning of code values as colour (ITU-T H.273), and the position of chroma samples."""

    matrix: Matrix = "bt709"
    """Luma coefficients. BT.2020 means the non-constant-luminance matrix."""
    full_range: bool = False
    """True if black is code 0 and white the largest code; False for 16..235 (scaled to the bit depth)."""
    chroma_location: ChromaLocation = "left"
    """Position of the chroma sample of 4:2:0 in its 2x2 block."""
    primaries: int = 2
    """H.273 ColourPrimaries code point, passed through unchanged; 2 is unspecified."""
    transfer: int = 2
    """H.273 TransferCharacteristics code point, passed through unchanged; 2 is unspecified."""
    matrix_code: int = 2
    """H.273 MatrixCoefficients code point from the file; 2 if ``matrix`` was assumed from the size."""
    range_tagged: bool = True
    """False if the file has no tag, so that limited range was assumed."""

    @staticmethod
    def assumed_matrix(width: int, height: int) -> Matrix:
        """The matrix that players assume for an untagged video: BT.709 from 1280x577 up, otherwise BT.601."""
        return "bt709" if width >= 1280 or height > 576 else "bt601"


@dataclass(frozen=True, slots=True, eq=False)
class Frame:
    """One picture in its native planes, with its time.

    Raises:
        ValueError: The shapes of the planes do not fit the format and size.
    """

    planes: tuple[Plane, ...]
    """(Y, U, V), or (Y, UV) for semi-planar formats."""
    format: YuvFormat
    color: ColorSpec
    index: int
    """Position in presentation order, from 0, without gaps."""
    pts: int
    """Presentation time in ticks of ``time_base``."""
    time_base: Fraction
    """Seconds per tick."""
    duration: int = 0
    """Display duration in ticks; 0 if the container does not contain it."""
    keyframe: bool = False
    """True if decoding can start here."""
    ready: DeviceEvent | None = None
    """GPU event to wait for before reading the planes; None if they can be read at once."""

    def __post_init__(self) -> None:
        """Check the planes against the format."""
        chroma_width, chroma_height = self.format.chroma_size(self.width, self.height)
        chroma: tuple[int, ...] = (chroma_height, chroma_width)
        expected: tuple[tuple[int, ...], ...] = (chroma, chroma)
        if self.format.semi_planar:
            expected = ((*chroma, 2),)
        if tuple(plane.shape for plane in self.planes[1:]) != expected:
            shapes = [plane.shape for plane in self.planes]
            raise ValueError(f"planes {shapes} do not fit {self.format.name} at {self.width}x{self.height}")

    @property
    def width(self) -> int:
        """Luma samples per row."""
        return int(self.planes[0].shape[1])

    @property
    def height(self) -> int:
        """Luma rows."""
        return int(self.planes[0].shape[0])

    @property
    def pts_seconds(self) -> float:
        """Presentation time in seconds."""
        return float(self.pts * self.time_base)

    @property
    def nbytes(self) -> int:
        """Bytes of all planes."""
        return sum(int(plane.nbytes) for plane in self.planes)

    def to_rgb(self, *, dtype: Literal["uint8", "float16", "float32"] = "uint8") -> npt.NDArray[Any]:
        """Convert the picture to gamma-encoded R'G'B' at full resolution, on the frame's device.

        Args:
            dtype: uint8 is 0..255, rounded; floats are 0..1.

        Returns:
            [H, W, 3], C-contiguous: NumPy, or CuPy on the current stream for a frame on a GPU.

        Raises:
            KernelCompileError: The CUDA source could not be built for this GPU.
            UsageError: The dtype is another one.
        """
        if getattr(dtype, "__name__", str(dtype)) not in ("uint8", "float16", "float32"):
            raise UsageError(f"dtype is {dtype!r}, expected uint8, float16 or float32")
        # Kernels import this module, so the kernel is imported here, on use.
        kernel = import_module("vitascope.gpu.kernels.rgb")
        rgb: npt.NDArray[Any] = kernel.nv12_to_rgb(self, dtype=dtype)[0]
        return rgb

    def with_planes(
        self, planes: tuple[Plane, ...], *, format: YuvFormat | None = None, color: ColorSpec | None = None
    ) -> Frame:
        """A frame with other pixels but the same index, pts, time base and duration."""
        return replace(self, planes=planes, format=format or self.format, color=color or self.color)

    def __repr__(self) -> str:
        """Shape and time, not pixels."""
        return (
            f"Frame({self.width}x{self.height} {self.format.name}, index={self.index}, "
            f"pts={self.pts}, t={self.pts_seconds:.3f}s)"
        )


DOLBY_VISION_5 = "Dolby Vision profile 5"
"""Its picture has its own colour space (IPT), which the colour tags cannot describe."""


@dataclass(frozen=True, slots=True)
class VideoHeaders:
    """What a video's headers say, before a picture is decoded."""

    path: Path
    _: KW_ONLY
    codec: str = "rawvideo"
    """FFmpeg's decoder name, for example ``h264``; ``rawvideo`` for pictures that are not from a file."""
    container: str = "images"
    """FFmpeg's demuxer name, for example ``mov,mp4,m4a,3gp,3g2,mj2``; ``images`` for image sequences."""
    time_base: Fraction
    average_frame_rate: Fraction
    """Frames per second; an average if the frame rate varies."""
    frame_count_estimate: int | None = None
    """Frames according to the header, or duration times rate; None if neither is known."""
    duration_seconds: float | None = None
    sample_aspect_ratio: Fraction = Fraction(1)
    interlaced: bool = False
    has_alpha_beside: bool = False
    """True if alpha is stored apart from the picture, as WebM does for VP8 and VP9: decoded frames do not have it."""
    audio_stream_count: int = 0
    audio_codec: str | None = None
    """FFmpeg's decoder name for the first sound track; None without sound, or for an unknown codec."""
    subtitle_stream_count: int = 0
    metadata: dict[str, str] = field(default_factory=dict)
    """Container tags."""


@dataclass(frozen=True, slots=True)
class VideoInfo(VideoHeaders):
    """A video's description, read before the first frame is decoded."""

    width: int
    """Luma samples per row, as coded (before ``rotation_degrees``)."""
    height: int
    format: YuvFormat
    """The layout of the reader's frames."""
    source_format: str
    """FFmpeg's name of the layout in the file; differs from ``format.name`` if the reader converts."""
    color: ColorSpec
    _: KW_ONLY
    rotation_degrees: Rotation = 0
    """From the display matrix."""
    stereo: StereoLayout | None = None
    """From the container's stereo box; None without one."""
    projection: Projection | None = None
    """From the container's spherical box; None without one."""
    right_eye_first: bool = False
    """True if the container says that the left or upper half belongs to the right eye."""
    fov_degrees: float | None = None
    """Horizontal field of view of an eye, from the container's ``hfov`` box; None without one."""
    has_layered_eyes: bool = False
    """True if the container has two eyes in layers of the stream (MV-HEVC): frames show only the first."""
    has_hdr_side_data: bool = False
    """True if mastering display or content light levels are present."""
    dynamic_hdr: tuple[str, ...] = ()
    """HDR metadata that varies from frame to frame: ``Dolby Vision``, ``DOLBY_VISION_5``, ``HDR10+``, ``HDR Vivid``."""

    @property
    def pixel_aspect(self) -> float:
        """Display width of a coded pixel over its height; square if the tag is damaged."""
        aspect = float(self.sample_aspect_ratio)
        return aspect if 1 / _MOST_ASPECT <= aspect <= _MOST_ASPECT else 1.0

    def in_square_pixels(self, size: tuple[int, int]) -> tuple[int, int]:
        """(height, width) at which a coded picture of ``size`` is displayed undistorted, without losing samples."""
        height, width = size
        return round(height / min(self.pixel_aspect, 1.0)), round(width * max(self.pixel_aspect, 1.0))
