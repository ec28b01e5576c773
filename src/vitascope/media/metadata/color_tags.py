"""Colour and HDR tags: read from decoded frames, and written for encoders and players.

*Reading*: H.273 code points become a ``ColorSpec``, side data becomes ``HdrMetadata``. Sources: ITU-T H.273 (code
points), SMPTE ST 2086 (mastering display), CTA-861.3 (content light level). Untagged files are read as players read
them: limited range, and a matrix chosen by the picture size.

PyAV 18.1 does not expose FFmpeg's chroma location, so the sequence parameter set is parsed here up to
``chroma_loc_info``: ITU-T H.264 clauses 7.3.2.1.1 and E.1.1, ITU-T H.265 clauses 7.3.2.2 and E.2.1, and the ``av1C``
record of the AV1 ISO-BMFF binding, section 2.3. HDR10 needs it: BT.2100 places chroma at the top left.

*Writing*: encoders that can write HDR10 metadata into the bitstream get it as parameters; MP4 and QuickTime files
also get ``mdcv`` and ``clli`` boxes, because players look there first.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
from av.sidedata.sidedata import SideDataContainer
from av.sidedata.sidedata import Type as SideDataType

from vitascope.errors import InputError
from vitascope.frames import DOLBY_VISION_5, ChromaLocation, ColorSpec, Matrix, Projection, StereoLayout
from vitascope.media.libav import open_input, wrap_input_error
from vitascope.media.metadata.mp4_boxes import Box, described_track, rewrite_moov
from vitascope.media.planes import RGB_COLOR, layout_of, pixel_format_name

_H264_PROFILES_WITH_CHROMA_FORMAT = frozenset({44, 83, 86, 100, 110, 118, 122, 128, 134, 135, 138, 139, 244})
# Types 3 (top), 4 (bottom left) and 5 (bottom) are not supported; each becomes the type with the same horizontal
# position.
_H26X_LOCATIONS: tuple[ChromaLocation, ...] = ("left", "center", "topleft", "center", "left", "center")
_AV1_LOCATIONS: dict[int, ChromaLocation] = {1: "left", 2: "topleft"}


def read_chroma_location(codec: str, extradata: bytes | None) -> ChromaLocation | None:
    """Read the chroma location that a stream's headers declare.

    Args:
        codec: FFmpeg's decoder name.
        extradata: The decoder configuration: ``avcC``, ``hvcC`` or ``av1C`` records, or Annex B byte streams.

    Returns:
        The location; None if the headers do not say, end early, or belong to another codec.
    """
    if not extradata:
        return None
    try:
        if codec == "h264":
            return _first(_h264_location(nal[1:]) for nal in _nal_units(extradata) if nal[0] & 31 == 7)
        if codec == "hevc":
            return _first(_hevc_location(nal[2:]) for nal in _nal_units(extradata) if nal[0] >> 1 & 63 == 33)
        if codec in ("av1", "libdav1d", "libaom-av1") and extradata[0] == 0x81:
            return _AV1_LOCATIONS.get(extradata[2] & 3)
    except (EOFError, IndexError):
        # The record is truncated. Whether the stream can be decoded is for the decoder to find out.
        return None
    return None


def _first(locations: Iterator[ChromaLocation | None]) -> ChromaLocation | None:
    return next((location for location in locations if location is not None), None)


def _nal_units(extradata: bytes) -> Iterator[bytes]:
    """The NAL units of an Annex B stream or of an avcC/hvcC record, without emulation prevention bytes."""
    if extradata.startswith((b"\0\0\1", b"\0\0\0\1")):
        raw = [unit.rstrip(b"\0") for unit in extradata.split(b"\0\0\1")]
    else:
        # Both records store the units with 16-bit lengths, and a start code cannot occur inside a unit. So only
        # finding the units, by walking the record's arrays, differs between the two.
        raw = list(_hvcc_units(extradata) if _is_hvcc(extradata) else _avcc_units(extradata))
    for unit in raw:
        if len(unit) > 2:
            yield unit.replace(b"\0\0\3", b"\0\0")


def _is_hvcc(record: bytes) -> bool:
    """Tell the records apart: avcC sets 6 reserved bits of byte 4, hvcC 4 reserved bits of byte 13."""
    return len(record) > 22 and record[13] & 0xF0 == 0xF0 and record[4] & 0xFC != 0xFC


def _avcc_units(record: bytes) -> Iterator[bytes]:
    offset = 6
    for _ in range(record[5] & 31):
        length = int.from_bytes(record[offset : offset + 2])
        yield record[offset + 2 : offset + 2 + length]
        offset += 2 + length


def _hvcc_units(record: bytes) -> Iterator[bytes]:
    offset = 23
    for _ in range(record[22]):
        count = int.from_bytes(record[offset + 1 : offset + 3])
        offset += 3
        for _ in range(count):
            length = int.from_bytes(record[offset : offset + 2])
            yield record[offset + 2 : offset + 2 + length]
            offset += 2 + length


class _Bits:
    """A bit reader with the descriptors of H.264 clause 7.2."""

    def __init__(self, data: bytes) -> None:
        self._value = int.from_bytes(data)
        self._left = 8 * len(data)

    def u(self, count: int) -> int:
        """Unsigned, ``count`` bits."""
        if count > self._left:
            raise EOFError("the parameter set ends early")
        self._left -= count
        return self._value >> self._left & ((1 << count) - 1)

    def ue(self, times: int = 1) -> int:
        """Unsigned Exp-Golomb; reads ``times`` values and returns the last."""
        value = 0
        for _ in range(times):
            zeros = 0
            while not self.u(1):
                zeros += 1
            value = (1 << zeros) - 1 + self.u(zeros)
        return value

    def se(self) -> int:
        """Signed Exp-Golomb."""
        code = self.ue()
        return (code + 1) // 2 if code % 2 else -(code // 2)


def _h264_location(sps: bytes) -> ChromaLocation | None:
    bits = _Bits(sps)
    profile = bits.u(8)
    bits.u(16)
    bits.ue()  # seq_parameter_set_id
    if profile in _H264_PROFILES_WITH_CHROMA_FORMAT:
        chroma_format = bits.ue()
        if chroma_format == 3:
            bits.u(1)
        bits.ue(2)  # bit depths
        bits.u(1)
        if bits.u(1):
            for index in range(12 if chroma_format == 3 else 8):
                if bits.u(1):
                    _skip_h264_scaling_list(bits, 16 if index < 6 else 64)
    bits.ue()  # log2_max_frame_num
    order_count_type = bits.ue()
    if order_count_type == 0:
        bits.ue()
    elif order_count_type == 1:
        bits.u(1)
        bits.ue(2)
        bits.ue(bits.ue())
    bits.ue()  # max_num_ref_frames
    bits.u(1)
    bits.ue(2)  # size in macroblocks
    if not bits.u(1):  # frame_mbs_only
        bits.u(1)
    bits.u(1)
    if bits.u(1):  # frame_cropping
        bits.ue(4)
    return _vui_location(bits) if bits.u(1) else None


def _skip_h264_scaling_list(bits: _Bits, size: int) -> None:
    last = following = 8
    for _ in range(size):
        if following:
            following = (last + bits.se()) % 256
        last = following or last


def _hevc_location(sps: bytes) -> ChromaLocation | None:
    bits = _Bits(sps)
    bits.u(4)
    sub_layers = bits.u(3)  # minus 1
    bits.u(1)
    _skip_profile_tier_level(bits, sub_layers)
    bits.ue()  # sps_seq_parameter_set_id
    if bits.ue() == 3:  # chroma_format_idc
        bits.u(1)
    bits.ue(2)  # size
    if bits.u(1):  # conformance window
        bits.ue(4)
    bits.ue(2)  # bit depths
    order_count_bits = bits.ue() + 4
    for _ in range(sub_layers + 1 if bits.u(1) else 1):
        bits.ue(3)
    bits.ue(6)  # block sizes and transform depths
    if bits.u(1) and bits.u(1):
        _skip_hevc_scaling_lists(bits)
    bits.u(2)  # amp, sao
    if bits.u(1):  # pcm
        bits.u(8)
        bits.ue(2)
        bits.u(1)
    _skip_reference_sets(bits)
    if bits.u(1):  # long-term reference pictures
        for _ in range(bits.ue()):
            bits.u(order_count_bits + 1)
    bits.u(2)  # temporal motion vectors, strong intra smoothing
    return _vui_location(bits) if bits.u(1) else None


def _skip_profile_tier_level(bits: _Bits, sub_layers: int) -> None:
    bits.u(96)
    present = [(bits.u(1), bits.u(1)) for _ in range(sub_layers)]
    if sub_layers:
        bits.u(2 * (8 - sub_layers))
    for profile, level in present:
        bits.u(88 * profile + 8 * level)


def _skip_hevc_scaling_lists(bits: _Bits) -> None:
    for size in range(4):
        for _ in range(0, 6, 3 if size == 3 else 1):
            if not bits.u(1):
                bits.ue()
                continue
            bits.ue(min(64, 1 << (4 + 2 * size)) + (size > 1))


def _skip_reference_sets(bits: _Bits) -> None:
    """Skip short-term reference picture sets; each may refer to the previous one, so their contents are tracked.

    H.265 clause 7.4.8, equations 7-61 and 7-62, for ``delta_idx`` 1, which is the only value in a parameter set.
    """
    before: list[int] = []
    after: list[int] = []
    for index in range(bits.ue()):
        if index and bits.u(1):
            negative = bits.u(1)
            shift = (bits.ue() + 1) * (-1 if negative else 1)
            # Candidates in the order of the flags: the earlier set's pictures, then the earlier picture itself.
            kept = []
            for distance in [*before, *after, 0]:
                if bits.u(1) or bits.u(1):
                    kept.append(distance + shift)
            before = sorted((d for d in kept if d < 0), reverse=True)
            after = sorted(d for d in kept if d > 0)
        else:
            counts = bits.ue(), bits.ue()
            sets: tuple[list[int], list[int]] = ([], [])
            for distances, count, sign in zip(sets, counts, (-1, 1), strict=True):
                distance = 0
                for _ in range(count):
                    distance += bits.ue() + 1
                    bits.u(1)
                    distances.append(sign * distance)
            before, after = sets


def _vui_location(bits: _Bits) -> ChromaLocation | None:
    """Read the beginning of vui_parameters(), the same in H.264 E.1.1 and H.265 E.2.1."""
    if bits.u(1) and bits.u(8) == 255:  # aspect_ratio_idc
        bits.u(32)
    if bits.u(1):  # overscan
        bits.u(1)
    if bits.u(1):  # video_signal_type
        bits.u(4)
        if bits.u(1):
            bits.u(24)
    if not bits.u(1):
        return None
    kind = bits.ue()
    return _H26X_LOCATIONS[kind] if kind < len(_H26X_LOCATIONS) else None


Chromaticity = tuple[Fraction, Fraction]

_UNSPECIFIED = 2
_FULL_RANGE = 2  # AVCOL_RANGE_JPEG; 1 is limited, 0 unspecified

_MATRICES: dict[int, Matrix] = {
    1: "bt709",
    4: "bt601",  # FCC: 0.30/0.11 against 0.299/0.114, below a code value in 8 bits
    5: "bt601",
    6: "bt601",
    7: "bt709",  # SMPTE 240M: 0.212/0.087 against 0.2126/0.0722, the nearest that the kernels support
    9: "bt2020",
}
_MATRIX_OF_PRIMARIES: dict[int, Matrix] = {1: "bt709", 5: "bt601", 6: "bt601", 7: "bt709", 9: "bt2020"}
_UNSUPPORTED_MATRICES = {
    8: "YCgCo",
    10: "BT.2020 constant luminance",
    11: "YDzDx",
    14: "ICtCp",
    15: "IPT-C2",
    16: "YCgCo-Re",
    17: "YCgCo-Ro",
}
_PNG_CODECS = frozenset({"png", "apng"})
_CENTERED_CODECS = frozenset({"mjpeg", "mpeg1video", "theora", "webp", "jpeg2000", "libopenjpeg", "cinepak"})
_RANGE_TAGGING_CODECS = frozenset({"h264", "hevc", "vp8", "vp9", "av1", "libdav1d", "mpeg2video", "mpeg4"})


@dataclass(frozen=True, slots=True)
class HdrMetadata:
    """Static HDR metadata, exactly as in the file. Each group is None if the file lacks it.

    A writer needs no other source: FFmpeg returns the same values whether they came from an SEI message (H.264,
    H.265), an OBU (AV1) or the container (``mdcv``/``clli`` boxes, Matroska's colour elements).
    """

    display_primaries: tuple[Chromaticity, Chromaticity, Chromaticity] | None = None
    """CIE 1931 (x, y) of the mastering display's red, green and blue."""
    white_point: Chromaticity | None = None
    """CIE 1931 (x, y)."""
    min_luminance: Fraction | None = None
    """Lowest luminance of the mastering display, cd/m²."""
    max_luminance: Fraction | None = None
    """Highest luminance of the mastering display, cd/m²."""
    max_content_light_level: int | None = None
    """MaxCLL, cd/m²; 0 is "unknown" by CTA-861.3."""
    max_frame_average_light_level: int | None = None
    """MaxFALL, cd/m²; 0 is "unknown" by CTA-861.3."""


@dataclass(frozen=True, slots=True)
class SideData:
    """The side data of a frame that is used here."""

    hdr: HdrMetadata | None = None
    stereo: StereoLayout | None = None
    projection: Projection | None = None
    right_eye_first: bool = False
    fov_degrees: float | None = None
    dynamic_hdr: tuple[str, ...] = ()
    """Kinds of HDR metadata that change from frame to frame, as in ``VideoInfo``."""


def color_spec(
    frame: av.VideoFrame, *, path: Path, codec: str, chroma_location: ChromaLocation | None = None
) -> ColorSpec:
    """Read a frame's colour tags, filling gaps as players do: the colour of the planes that ``PlaneReader`` returns.

    An untagged matrix follows the primaries if those are tagged, else the picture size
    (``ColorSpec.assumed_matrix``). An untagged range is limited, except for grey pictures of codecs without a range
    flag (PNG, TIFF, FFV1) and FFmpeg's ``yuvj`` formats, which are full. RGB becomes BT.709 full range with its own
    primaries and transfer, or sRGB's if untagged.

    Args:
        frame: A decoded frame in its native format, on the CPU or the GPU.
        path: Name of the file for errors.
        codec: FFmpeg's decoder name.
        chroma_location: From the bitstream; None uses the codec's default.

    Raises:
        InputError: The kernels do not support the matrix (YCgCo, ICtCp, BT.2020 constant luminance).
    """
    primaries, transfer = int(frame.color_primaries), int(frame.color_trc)
    name = pixel_format_name(frame)
    if layout_of(name).way == "rgb":
        return replace(
            RGB_COLOR,
            primaries=RGB_COLOR.primaries if primaries == _UNSPECIFIED else primaries,
            transfer=RGB_COLOR.transfer if transfer == _UNSPECIFIED else transfer,
        )
    code = int(frame.colorspace)
    if code in _UNSUPPORTED_MATRICES:
        raise InputError(
            f"{path}: its colour matrix is {_UNSUPPORTED_MATRICES[code]} (H.273 code {code}), which is not supported; "
            "convert it to BT.709 or BT.2020 non-constant luminance first"
        )
    matrix = _MATRICES.get(code)
    if matrix is None:
        matrix = _MATRIX_OF_PRIMARIES.get(primaries) or ColorSpec.assumed_matrix(frame.width, frame.height)
    tagged = frame.color_range != 0 or name.startswith("yuvj")
    grey = name.startswith(("gray", "ya8", "ya16", "mono"))
    full_range = frame.color_range == _FULL_RANGE or name.startswith("yuvj")
    if not tagged:
        full_range = grey and codec not in _RANGE_TAGGING_CODECS
    return ColorSpec(
        matrix=matrix,
        full_range=full_range,
        chroma_location=chroma_location or default_chroma_location(codec),
        primaries=primaries,
        transfer=transfer,
        # In H.273, 0 is "identity", which YUV cannot be, and 3 is reserved: both mean unknown.
        matrix_code=code if code in _MATRICES or code in (12, 13) else _UNSPECIFIED,
        range_tagged=tagged,
    )


def default_chroma_location(codec: str) -> ChromaLocation:
    """A codec's default position of 4:2:0 chroma.

    JPEG, WebP, MPEG-1 and Theora centre it; H.264, H.265 and MPEG-2 define left as the default, and players assume
    the same for VP9 and AV1.
    """
    return "center" if codec in _CENTERED_CODECS else "left"


def read_side_data(frame: av.VideoFrame, *, codec: str) -> SideData:
    """Read HDR, stereo and spherical side data of a decoded frame.

    FFmpeg attaches what container and bitstream say about the whole stream to every frame, the only place where PyAV
    exposes it.

    Args:
        frame: A decoded frame.
        codec: FFmpeg's decoder name.

    Returns:
        The side data; empty if PyAV cannot list it, which happens if one of the items (EXIF, MV-HEVC view ids) is
        newer than PyAV's enumeration, and for PNG.
    """
    if codec in _PNG_CODECS:
        # For a PNG with an ICC profile, PyAV 18.1 frees memory of the side data that the frame still owns.
        return SideData()
    try:
        # Not frame.side_data, which the frame keeps: frame and list would form a reference cycle. Iterating yields
        # the items, not the keys, although the container is declared a Mapping.
        listed: list[Any] = list(SideDataContainer(frame))  # type: ignore[call-arg] # the stub has no constructor
    except ValueError:  # PyAV 18.1: "31 is not a valid Type", raised for the whole list
        return SideData()
    items: dict[SideDataType, bytes] = {item.type: bytes(item) for item in listed}
    stereo, right_eye_first, fov_degrees = _stereo(items.get(SideDataType.STEREO3D))
    return SideData(
        hdr=_hdr(
            items.get(SideDataType.MASTERING_DISPLAY_METADATA), items.get(SideDataType.CONTENT_LIGHT_LEVEL)
        ),
        stereo=stereo,
        projection=_projection(items.get(SideDataType.SPHERICAL)),
        right_eye_first=right_eye_first,
        fov_degrees=fov_degrees,
        dynamic_hdr=_dynamic_hdr(items),
    )


_DYNAMIC_HDR = {
    SideDataType.DOVI_RPU_BUFFER: "Dolby Vision",
    SideDataType.DYNAMIC_HDR_PLUS: "HDR10+",
    SideDataType.DYNAMIC_HDR_VIVID: "HDR Vivid",
}


def _dynamic_hdr(items: Mapping[SideDataType, bytes]) -> tuple[str, ...]:
    return tuple(
        DOLBY_VISION_5 if name == "Dolby Vision" and _is_dolby_vision_5(items) else name
        for kind, name in _DYNAMIC_HDR.items()
        if kind in items
    )


def _is_dolby_vision_5(items: Mapping[SideDataType, bytes]) -> bool:
    """Read AVDOVIMetadata: the offset of its header (size_t), and in it profile and range, bytes 4 and 10.

    FFmpeg guesses profiles the same way: the metadata do not name it.
    """
    metadata = items.get(SideDataType.DOVI_METADATA, b"")
    if len(metadata) < struct.calcsize("N"):
        return False
    (begin,) = struct.unpack_from("N", metadata)
    header = metadata[begin : begin + 11]
    return len(header) == 11 and header[4] == 0 and header[10] == 1


def _hdr(mastering: bytes | None, light: bytes | None) -> HdrMetadata | None:
    """Decode AVMasteringDisplayMetadata (ten AVRationals, two flags) and AVContentLightMetadata (two uint32)."""
    primaries = white = low = high = max_cll = max_fall = None
    if mastering is not None and len(mastering) >= 88:
        numbers = struct.unpack_from("=22i", mastering)
        ratios = [Fraction(numbers[i], numbers[i + 1] or 1) for i in range(0, 20, 2)]
        has_primaries, has_luminance = numbers[20:]
        if has_primaries:
            primaries = ((ratios[0], ratios[1]), (ratios[2], ratios[3]), (ratios[4], ratios[5]))
            white = (ratios[6], ratios[7])
        if has_luminance:
            low, high = ratios[8], ratios[9]
    if light is not None and len(light) >= 8:
        max_cll, max_fall = struct.unpack_from("=2I", light)
    metadata = HdrMetadata(primaries, white, low, high, max_cll, max_fall)
    return metadata if metadata != HdrMetadata() else None


def _stereo(data: bytes | None) -> tuple[StereoLayout | None, bool, float | None]:
    """Layout, whether the right eye is first, and horizontal field of view in degrees.

    AVStereo3D: type (0 is 2D, 1 side by side, 2 top-bottom; other packings are not supported), flags (1 is inverted),
        view, primary eye, baseline, disparity adjustment and field of view as rationals; before FFmpeg 7.1, only the
        first two.
    """
    if data is None:
        return None, False, None
    kind, flags = struct.unpack_from("=2i", data)
    layout = {0: StereoLayout.MONO, 1: StereoLayout.SIDE_BY_SIDE, 2: StereoLayout.TOP_BOTTOM}.get(kind)
    fov, per_degree = struct.unpack_from("=2i", data, 28) if len(data) >= 36 else (0, 1)
    return layout, bool(flags & 1), fov / per_degree if fov > 0 and per_degree > 0 else None


def _projection(data: bytes | None) -> Projection | None:
    """AVSphericalMapping: projection, yaw, pitch, roll, then the bounds of a tile in 0.32 fixed point."""
    if data is None:
        return None
    kind, _, _, _, left, _, right, _ = struct.unpack_from("=4i4I", data)
    # VR180 is written in the spherical boxes as a tile that leaves out a quarter on both sides.
    quarter = 1 << 30
    if kind == 2 and abs(left - quarter) < 1 << 20 and abs(right - quarter) < 1 << 20:
        return Projection.HALF_EQUIRECTANGULAR
    return {
        0: Projection.EQUIRECTANGULAR,
        2: Projection.EQUIRECTANGULAR,
        3: Projection.HALF_EQUIRECTANGULAR,
        4: Projection.FLAT,
        5: Projection.FISHEYE,
    }.get(kind)


_CHROMATICITY_UNITS = 50_000
"""Steps per unit of CIE 1931 xy, in HEVC's SEI message and the ``mdcv`` box."""
_LUMINANCE_UNITS = 10_000
"""Steps per cd/m2, in the same places."""
_PARAMETERS = {
    "libx264": ("mastering-display", "cll"),
    "libx265": ("master-display", "max-cll"),
    "libsvtav1": ("mastering-display", "content-light"),
}
"""The encoders' parameter names for mastering display and content light level."""


def read_hdr(path: Path) -> HdrMetadata | None:
    """Read HDR10 side data from the first frame of a video.

    Returns:
        The metadata; None if the file has none.

    Raises:
        InputError: The file cannot be opened, or its first frame cannot be decoded.
    """
    with wrap_input_error(path, "read its HDR metadata"), open_input(path) as container:
        frame = next(container.decode(video=0), None)
        codec = container.streams.video[0].codec_context.name
        return read_side_data(frame, codec=codec).hdr if frame is not None else None


def hdr_encoder_parameters(metadata: HdrMetadata, encoder: str) -> dict[str, str]:
    """Entries of ``x264-params``, ``x265-params`` or ``svtav1-params`` that make an encoder write the metadata.

    Args:
        metadata: The metadata to write.
        encoder: FFmpeg's encoder name; the result is empty for encoders without such parameters.
    """
    if encoder not in _PARAMETERS:
        return {}
    parameters: dict[str, str] = {}
    mastering_name, light_name = _PARAMETERS[encoder]
    mastering = _mastering_integers(metadata)
    if mastering is not None:
        if encoder == "libsvtav1":
            *points, brightest, darkest = mastering
            values = [f"{value / _CHROMATICITY_UNITS:.5f}" for value in points]
            values += [f"{value / _LUMINANCE_UNITS:.4f}" for value in (brightest, darkest)]
        else:
            values = [str(value) for value in mastering]
        parameters[mastering_name] = "G({},{})B({},{})R({},{})WP({},{})L({},{})".format(*values)
    light = _light_integers(metadata)
    if light is not None:
        parameters[light_name] = f"{light[0]},{light[1]}"
    return parameters


def write_hdr_boxes(path: Path, metadata: HdrMetadata) -> None:
    """Write ``mdcv`` and ``clli`` (ISO/IEC 14496-12 clause 12.1.5) into a finished MP4 or QuickTime file.

    Raises:
        CorruptInputError: The file has no video track.
        OutputError: The file cannot be written.
    """
    boxes: list[Box] = []
    mastering = _mastering_integers(metadata)
    if mastering is not None:
        boxes.append(Box(b"mdcv", struct.pack(">8H2I", *mastering)))
    light = _light_integers(metadata)
    if light is not None:
        boxes.append(Box(b"clli", struct.pack(">2H", *light)))

    def edit(moov: Box) -> None:
        _, entry = described_track(path, moov)
        entry.children = entry.without(*(box.kind for box in boxes)) + boxes

    rewrite_moov(path, edit)


def _mastering_integers(metadata: HdrMetadata) -> tuple[int, ...] | None:
    """Green, blue, red, white (x, y each) in 1/50000, then largest and smallest luminance in 1/10000 cd/m2.

    None unless all ten numbers are known: the formats cannot leave any out.
    """
    if metadata.display_primaries is None or metadata.white_point is None:
        return None
    if metadata.min_luminance is None or metadata.max_luminance is None:
        return None
    red, green, blue = metadata.display_primaries
    points = (*green, *blue, *red, *metadata.white_point)
    return (
        *(_clamp(value * _CHROMATICITY_UNITS, 0xFFFF) for value in points),
        _clamp(metadata.max_luminance * _LUMINANCE_UNITS, 0xFFFFFFFF),
        _clamp(metadata.min_luminance * _LUMINANCE_UNITS, 0xFFFFFFFF),
    )


def _light_integers(metadata: HdrMetadata) -> tuple[int, int] | None:
    """MaxCLL and MaxFALL in cd/m2, 0 if one is unknown; None if both are."""
    levels = (metadata.max_content_light_level, metadata.max_frame_average_light_level)
    if levels == (None, None):
        return None
    return _clamp(Fraction(levels[0] or 0), 0xFFFF), _clamp(Fraction(levels[1] or 0), 0xFFFF)


def _clamp(value: Fraction, largest: int) -> int:
    return min(max(round(value), 0), largest)
