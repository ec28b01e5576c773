"""The GPU's video encoder: whether it works here, its options, and its input pictures.

Written from FFmpeg's and NVIDIA's documentation and tested against stand-ins: the development machines have no NVENC,
so this has never run on hardware. Therefore no output is encoded with it before it has encoded a few pictures
correctly on the machine (``nvenc_trial``).
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

import av
from av.codec.codec import UnknownCodecError
from av.packet import Packet
from av.video.frame import CudaContext
from av.video.stream import VideoStream

from vitascope.device import probe_gpus
from vitascope.errors import OutputError
from vitascope.frames import Frame, Plane
from vitascope.gpu.kernels.cuda_module import is_on_gpu, wait_until_ready
from vitascope.media.libav import describe_av_error
from vitascope.media.writing.parallel_encoder import StreamEncoder

if TYPE_CHECKING:
    from vitascope.gpu.engines.selection import Verdict
    from vitascope.media.planes import FramePacker
    from vitascope.media.writing.encoding import Encoding

Hardware = Literal["cpu", "nvenc", "auto"]

NVENC_ENCODERS: Mapping[str, str] = MappingProxyType(
    {"h264": "h264_nvenc", "h265": "hevc_nvenc", "av1": "av1_nvenc"}
)
"""FFmpeg's encoder by codec."""
NVENC_FORMATS: Mapping[tuple[str, str], str] = MappingProxyType(
    {
        ("h264", "yuv420p"): "nv12",
        ("h265", "yuv420p"): "nv12",
        ("h265", "yuv420p10le"): "p010le",
        ("av1", "yuv420p"): "nv12",
        ("av1", "yuv420p10le"): "p010le",
    }
)
"""NVENC's pixel format by codec and CPU pixel format; formats that not every GPU supports are missing."""
_PRESET_COUNT = 7
"""p1 is the fastest, p7 the best."""
_CQ_MAX = 51
_CRF_MAX = {"h264": 51, "h265": 51, "av1": 63}
_LONGEST_SIDES = {"h264": 4096, "h265": 8192, "av1": 8192}
"""Longest supported side in pixels, from Turing on (NVIDIA's Video Encode Support Matrix)."""
_SHORTEST_SIDE = 256
"""Shortest side that all generations support for every codec; smaller pictures are quick on the CPU anyway."""
# -P keeps Python from importing files in the current folder.
_TRIAL = (sys.executable or "", "-P", "-m", "vitascope.media.writing.nvenc_trial")
_TRIAL_SECONDS = 60
"""Time to start Python and CUDA and encode a dozen small pictures; about 2 s if all is well."""


def on_hardware(
    encoding: Encoding,
    hardware: Hardware,
    *,
    preset_index: int,
    preset_count: int,
    size: tuple[int, int] | None = None,
    changes_depth: bool = False,
    cache_dir: Path | None = None,
    device_id: int = 0,
) -> Encoding:
    """Switch an encoding to the GPU's encoder, if requested and possible.

    Args:
        encoding: The CPU's encoding.
        hardware: ``cpu`` changes nothing; neither does ``auto`` if NVENC does not support the encoding. A note says
            that NVENC is used, or why it does not work here.
        preset_index: Position of the CPU's preset, 0 for the fastest.
        preset_count: Number of the CPU encoder's presets.
        size: (width, height) of the pictures; None does not check them.
        changes_depth: True if the frames have another bit depth than the output, which nothing would convert on a
            GPU.
        cache_dir: As for ``why_nvenc_fails``.
        device_id: As for ``why_nvenc_fails``.

    Raises:
        OutputError: ``nvenc`` is requested but not available; the message says what is missing.
    """
    if hardware == "cpu":
        return encoding
    codec = encoding.codec
    encoder = NVENC_ENCODERS.get(codec)
    pixel_format = NVENC_FORMATS.get((codec, encoding.pixel_format.replace("nv12", "yuv420p")))
    reason: str | None = None
    if encoder is None:
        reason = f"it can write {', '.join(NVENC_ENCODERS)}, not {codec}"
    elif pixel_format is None:
        reason = f"it cannot write {encoding.pixel_format} in {codec}"
    elif size is not None and max(size) > _LONGEST_SIDES[codec]:
        reason = f"{size[0]}x{size[1]} is too large: {codec} goes up to {_LONGEST_SIDES[codec]} there"
    if hardware == "auto" and (
        reason is not None
        or changes_depth
        or (size is not None and (min(size) < _SHORTEST_SIDE or size[0] % 2 or size[1] % 2))
        or not probe_gpus()
    ):
        return encoding
    if encoder is not None and pixel_format is not None and reason is None:
        reason = why_nvenc_fails(encoder, pixel_format, cache_dir=cache_dir, device_id=device_id)
    if reason is not None or encoder is None or pixel_format is None:
        if hardware == "nvenc":
            raise OutputError(f"NVENC was requested, but cannot be used: {reason}; let the CPU encode")
        return replace(encoding, notes=(*encoding.notes, f"the CPU encodes instead of the GPU: {reason}"))
    notes = encoding.notes
    if hardware == "auto":
        notes = (*notes, f"the GPU encodes ({encoder}); gpu.encoder=cpu is slower, but makes smaller files")
    crf = float(encoding.options["crf"])
    step = round(preset_index * (_PRESET_COUNT - 1) / max(preset_count - 1, 1))
    return replace(
        encoding,
        encoder=encoder,
        pixel_format=pixel_format,
        # A cq of 0 means automatic.
        options=MappingProxyType(
            _options(cq=max(round(crf * _CQ_MAX / _CRF_MAX[codec]), 1), preset=1 + step)
        ),
        parameters=MappingProxyType({}),
        parallel_encoders=1,
        notes=notes,
    )


def _options(*, cq: int, preset: int) -> dict[str, str]:
    return {"rc": "vbr", "cq": str(cq), "preset": f"p{preset}", "tune": "hq"}


@cache
def why_nvenc_fails(
    encoder: str, pixel_format: str = "nv12", *, cache_dir: Path | None = None, device_id: int = 0
) -> str | None:
    """Why an encoder of the GPU fails or damages pictures; tested once per machine, in another process.

    The verdict is kept for the encoder, pixel format, GPUs, driver, and the versions of FFmpeg and Vitascope.

    Args:
        encoder: One of ``NVENC_ENCODERS``' values.
        pixel_format: One of ``NVENC_FORMATS``' values.
        cache_dir: Folder where verdicts are kept; None tests again in each process.
        device_id: Index of the GPU that delivers the pictures.

    Returns:
        The reason not to use it; None if it works.
    """
    from vitascope.gpu.engines.selection import kept_verdict  # imports ONNX Runtime

    gpus = probe_gpus()
    if not gpus:
        return "there is no NVIDIA GPU here, or its driver is missing"
    try:
        av.Codec(encoder, "w")
    except UnknownCodecError:
        return f"this FFmpeg build has no {encoder}"
    about = {
        "encoder": encoder,
        "pixel_format": pixel_format,
        "gpus": [gpu.name for gpu in gpus],
        "device": device_id,
        "driver": gpus[0].driver,
        "libavcodec": list(av.library_versions["libavcodec"]),
        "from_gpu": find_spec("cupy") is not None,  # otherwise no frames are on the GPU
    }
    try:
        verdict = kept_verdict(
            about, lambda: _verdict_of_trial(encoder, pixel_format, device_id), cache_dir=cache_dir
        )
    except OutputError as error:
        return str(error)
    return None if verdict.passed else verdict.reason


def _verdict_of_trial(encoder: str, pixel_format: str, device_id: int) -> Verdict:
    """Test an encoder in another process, because a driver may hang or crash.

    Raises:
        OutputError: The test gave no verdict that is worth keeping.
    """
    from vitascope.gpu.engines.selection import Verdict

    codec = next(codec for codec, name in NVENC_ENCODERS.items() if name == encoder)
    request = {
        "codec": codec,
        "encoder": encoder,
        "pixel_format": pixel_format,
        "options": _options(cq=20, preset=4),
        "device_id": device_id,
    }
    try:
        done = subprocess.run(
            [*_TRIAL, json.dumps(request)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=_TRIAL_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Verdict(False, f"{encoder} did not answer within {_TRIAL_SECONDS} seconds")
    except OSError as error:
        raise OutputError(f"{encoder} could not be tried: {describe_av_error(error)}") from error
    match _last_line_as_json(done.stdout):
        case {"passed": bool(passed), "reason": str(reason), "lasts": True}:
            return Verdict(passed, f"{encoder} {reason}")
        case {"reason": str(reason)}:
            raise OutputError(f"{encoder} {reason}")
    said = done.stderr.strip().splitlines()[-1:] or ["no message"]
    raise OutputError(f"{encoder} could not be tried: its process ended with {done.returncode}, {said[0]}")


def _last_line_as_json(text: str) -> Any:
    try:
        return json.loads(text.strip().splitlines()[-1])
    except (IndexError, ValueError):
        return None


class NvencStreamEncoder(StreamEncoder):
    """The encoder of a stream; opens with its first picture, which shows whether pictures are on the GPU.

    Args:
        stream: A stream of an output container.
        path: Name of the output for messages.
    """

    def __init__(self, stream: VideoStream, *, path: Path) -> None:
        super().__init__(stream)
        self._path = path

    def encode(self, picture: av.VideoFrame) -> Iterable[Packet[VideoStream]]:
        """See ``PictureEncoder``.

        Raises:
            OutputError: The encoder does not start.
        """
        context = self._stream.codec_context
        if context.is_open:
            return super().encode(picture)
        # The encoder uploads pictures from host memory itself; a CUDA picture brings its own memory pool.
        context.pix_fmt = picture.format.name
        try:
            return super().encode(picture)
        except av.FFmpegError as error:
            # The encoder has passed its trial, so other programs probably use all its sessions or the memory.
            raise OutputError(
                f"{self._path}: {context.name} does not start ({describe_av_error(error)}); gpu.encoder=cpu does "
                "without it"
            ) from error


class NvencFramePacker:
    """Wraps NV12 and P010 planes on the GPU as CUDA pictures, without a copy if their layout suits NVENC.

    Planes in host memory are copied.

    The encoder reads planes on the CuPy stream that is current at the first call, and holds them until it is done.
    Overwriting a buffer before its packet is output damages that picture.

    Args:
        host_packer: For frames in host memory.
        pixel_format: ``nv12`` or ``p010le``.
        rotation_degrees: Clockwise turn applied to the pixels: 0, 90, 180, 270.
    """

    def __init__(self, host_packer: FramePacker, pixel_format: str, *, rotation_degrees: int = 0) -> None:
        self._host_packer = host_packer
        self._target = pixel_format
        self._turns = -(rotation_degrees // 90)  # rot90 counts counterclockwise
        self._context: CudaContext | None = None

    def pack(self, frame: Frame, alpha: Plane | None = None) -> av.VideoFrame:
        """Make a picture in the encoder's pixel format, in CUDA memory for frames on the GPU, without a time.

        Args:
            frame: On the GPU: in the encoder's pixel format, with even width and height. In host memory: any.
            alpha: Must be None: NVENC has no alpha.

        Raises:
            OutputError: A frame on the GPU has another format, or alpha is given.
        """
        if not is_on_gpu(frame.planes[0]) or alpha is not None:
            return self._host_packer.pack(frame, alpha)
        import cupy

        if frame.format.name != self._target:
            raise OutputError(
                f"frame {frame.index} is {frame.format.name} on the GPU; its encoder takes {self._target} there"
            )
        stream: Any = cupy.cuda.get_current_stream()
        wait_until_ready(frame)
        luma: Any
        chroma: Any
        luma, chroma = frame.planes
        device = int(luma.device.id)
        if self._turns:
            luma, chroma = cupy.rot90(luma, self._turns), cupy.rot90(chroma, self._turns)
        if not _is_one_allocation(luma, chroma):
            luma, chroma = _joined(luma, chroma)
        if self._context is None:
            # PyAV only passes FFmpeg a stream of device 0.
            handle = int(stream.ptr) if device == 0 else 0
            self._context = CudaContext(
                device, primary_ctx=False, current_ctx=True, cuda_stream=handle or None
            )
        if device != 0:
            stream.synchronize()
        planes = (_Unsynchronized(luma), _Unsynchronized(chroma))
        return av.VideoFrame.from_dlpack(
            planes, format=self._target, device_id=device, cuda_context=self._context
        )


class _Unsynchronized:
    """A CuPy array exported without synchronisation: the encoder uses the stream that wrote it."""

    def __init__(self, array: Any) -> None:
        self._array = array

    def __dlpack__(self, *, stream: int | None = None) -> Any:
        return self._array.__dlpack__(stream=-1 if stream is None else stream)  # -1: do not synchronise

    def __dlpack_device__(self) -> Any:
        return self._array.__dlpack_device__()


def _is_one_allocation(luma: Any, chroma: Any) -> bool:
    """True if chroma follows luma in memory: NVENC takes one pointer and one pitch."""
    pitch = luma.strides[0]
    return bool(
        chroma.data.ptr == luma.data.ptr + luma.shape[0] * pitch
        and chroma.strides[0] == pitch
        and luma.strides[1] == luma.itemsize
        and chroma.strides[1:] == (2 * luma.itemsize, luma.itemsize)
    )


def _joined(luma: Any, chroma: Any) -> tuple[Any, Any]:
    import cupy

    height, width = luma.shape
    whole = cupy.empty((height * 3 // 2, width), luma.dtype)
    target = whole[:height], whole[height:].reshape(height // 2, width // 2, 2)
    target[0][...] = luma
    target[1][...] = chroma
    return target
