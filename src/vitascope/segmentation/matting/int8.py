"""Quantises RVM's decoder to INT8 for one video on the CPU: calibrated on some of its frames, checked on others.

The encoder stays in FP32: in 8 bits, alpha is off by ten codes of 255 on some videos (``benchmarks/quantization.py``).
The network and its measurements are stored on disk, by the content of video and network.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import astuple, fields, replace
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from vitascope import __version__
from vitascope.config import LoadedSettings, vitascope_home
from vitascope.device import Device
from vitascope.errors import EngineError, InputError, OutputError
from vitascope.gpu.engines import EngineSpec, OnnxRuntimeEngine
from vitascope.gpu.engines.onnx_library import ort
from vitascope.gpu.memory.disk_cache import CacheManager
from vitascope.media.reading.reader import VideoReader, open_video
from vitascope.models.network import FloatArray, MattingNetwork, NetworkInput
from vitascope.models.store.store import Fingerprint, ModelStore
from vitascope.segmentation.layout import vr_of
from vitascope.segmentation.matting.cached_film import video_fingerprint
from vitascope.segmentation.matting.estimates import small_alpha
from vitascope.segmentation.matting.fisheye import FisheyeViews
from vitascope.segmentation.matting.networks import rvm_size
from vitascope.segmentation.matting.shots import EyeViews, ShotInference, Views
from vitascope.segmentation.matting.stream import upright_size
from vitascope.vr.projection import Equirectangular
from vitascope.vr.stereo import eye_regions

if TYPE_CHECKING:  # onnx takes a tenth of a second to import, and few videos need it here
    from vitascope.gpu.toolkit.quantization.quantizer import Comparison, QuantizationLimits
    from vitascope.models.rvm.rvm import RvmNetwork

_log = logging.getLogger(__name__)
_MEAN_CODES, _WORST_CODES = 1, 3
"""Maximum error of alpha, in codes of an 8-bit matte: on average, and in the worst frame."""
_PLACES = (1 / 6, 1 / 2, 5 / 6)
"""Positions of the sampled frames, as shares of the video: a video may begin in the dark."""
_SETTLING, _CALIBRATED, _COMPARED = 1, 3, 8
"""Numbers of consecutive frames at each place: to settle the memory, to calibrate, and to compare."""
_FEWEST = _SETTLING + _CALIBRATED + 4
_ENTRIES = 9
"""Number of pictures to calibrate on; each takes nearly a second."""
_WORTH_FRAMES = 300
"""Minimum length of a video in frames for INT8 to save more time than calibration takes."""
_SOMEBODY = 1e-3
"""Minimum mean alpha of a frame that shows somebody: without people, a comparison means nothing."""
_CACHE_GB = 0.5


class Int8Choice(NamedTuple):
    """Whether INT8 is used, and why."""

    decoder: bytes | None
    """The quantised decoder; None to keep FP32."""
    note: str
    """One line for the user."""


class Recorder:
    """A CPU engine that records its inputs, to calibrate a network that runs on another one's outputs.

    Args:
        network: The serialised network.
        threads: Threads of ONNX Runtime; 0 uses every core.
    """

    def __init__(self, network: bytes, *, threads: int = 0) -> None:
        self._engine = OnnxRuntimeEngine(network, threads=threads)
        self.is_on = True
        self.seen: list[dict[str, FloatArray]] = []

    @property
    def name(self) -> str:
        """The engine's name."""
        return self._engine.name

    @property
    def spec(self) -> EngineSpec:
        """The network's inputs and outputs."""
        return self._engine.spec

    def run(self, inputs: Any, outputs: Any = None, *, stream: int | None = None) -> Any:
        """Record the inputs, while recording is on, and run the network."""
        if self.is_on:
            self.seen.append({name: np.array(array) for name, array in inputs.items()})
        return self._engine.run(inputs, outputs, stream=stream)

    def close(self) -> None:
        """Free the engine."""
        self._engine.close()

    def frames(self) -> dict[str, FloatArray]:
        """All recorded inputs, by name, along the first axis."""
        return {name: np.concatenate([one[name] for one in self.seen]) for name in self.seen[0]}


def int8_limits(*, speedup: float | None) -> QuantizationLimits:
    """Accuracy and speed limits for RVM's mattes.

    Args:
        speedup: Minimum FP32 time / INT8 time; None sets no limit.
    """
    from vitascope.gpu.toolkit.quantization.quantizer import QuantizationLimits

    return QuantizationLimits(
        mean_error=_MEAN_CODES / 255,
        worst_frame_error=_WORST_CODES / 255,
        relative_error=None,
        speedup=speedup,
    )


def wants_int8(loaded: LoadedSettings) -> bool:
    """True if the settings ask for INT8, or prefer it where it is accurate enough."""
    settings = loaded.settings
    prefers = settings.performance.mode == "throughput" and not loaded.origin("gpu.precision").explicit
    return prefers or settings.gpu.precision == "int8"


def int8_choice(
    loaded: LoadedSettings, video: Path, network: MattingNetwork, *, device: Device, store: ModelStore
) -> Int8Choice | None:
    """Choose INT8 for one video, if ``gpu.precision=int8`` asks for it or ``performance.mode=throughput`` allows it.

    Args:
        loaded: Settings of the run, and where they came from.
        video: The video.
        network: The run's network.
        device: The device that computes.
        store: Where networks lie.

    Returns:
        None if INT8 does not apply: not requested, a GPU, or a network other than RVM.

    Raises:
        EngineError: It was requested by name, but does not suit this video; the message has the figures.
        InputError: The video cannot be read.
    """
    is_rvm = loaded.settings.model.kind is None and network.name.startswith("rvm")
    if device.kind != "cpu" or not is_rvm or not wants_int8(loaded):
        return None
    asked = loaded.settings.gpu.precision == "int8"
    found = _Trial(loaded, video, network, store).decided(int8_limits(speedup=None if asked else 1.0))
    if isinstance(found, Int8Choice):
        return found
    if asked:
        raise EngineError(f"{video}: gpu.precision=int8 does not suit this video: {found}; use fp32")
    return Int8Choice(None, f"FP32 instead of INT8: {found}")


def int8_network(
    loaded: LoadedSettings, network: MattingNetwork, choice: Int8Choice, *, store: ModelStore
) -> RvmNetwork:
    """Open the network of one video; the caller closes it.

    Args:
        loaded: Settings of the run.
        network: The run's network, in FP32.
        choice: A choice that has a decoder.
        store: Where networks lie.
    """
    from vitascope.models.rvm.rvm import RvmNetwork

    settings = loaded.settings
    return RvmNetwork(
        store.path(network.name),
        name=network.name,
        threads=settings.processing.num_threads,
        int8_decoder=choice.decoder,
        **rvm_size(settings),
    )


class _Trial:
    """Makes the INT8 decoder of one video, and compares it with FP32."""

    def __init__(
        self, loaded: LoadedSettings, video: Path, network: MattingNetwork, store: ModelStore
    ) -> None:
        self._settings = loaded.settings
        self._video, self._network, self._store = video, network, store
        self._fisheye: FisheyeViews | None = None

    def decided(self, limits: QuantizationLimits) -> Int8Choice | str:
        """Make the decoder, or give the reason against it."""
        from vitascope.gpu.toolkit.quantization.quantizer import ModelQuantizer

        wanted = self._settings.video
        with self._open(wanted.start_seconds) as reader:
            info, count = reader.info, reader.expected_frame_count
        if limits.speedup is not None and count is not None and count < _WORTH_FRAMES:
            return f"calibration is worth its time from {_WORTH_FRAMES} frames on, and the video has {count}"
        vr = vr_of(info, wanted)
        regions = eye_regions(info.width, info.height, vr.layout)
        views, eye_size = (
            EyeViews(regions, info.rotation_degrees),
            upright_size(regions[0].size, info.rotation_degrees),
        )
        shown = self._network.input_for(eye_size)
        if isinstance(vr.trusted_lens, Equirectangular):
            self._fisheye = FisheyeViews.of_network(vr.trusted_lens, self._network, eye_size)
            shown = replace(self._fisheye.eye, size=self._fisheye.size)
        key = self._key(len(regions), shown.size)
        kept = _kept(key)
        if kept is None:
            runs = [
                run
                for place in self._places(info.duration_seconds, count)
                if len(run := self._pictures(place, views, shown)) >= _FEWEST
            ]
            if not runs:
                return f"calibration needs at least {_FEWEST} frames, and the video has fewer"
            _log.info(
                "calibrating INT8 on %s, once for this video; takes as long as a few dozen frames",
                self._video,
            )
            kept = self._made(runs, shown)
            if kept is None:
                return "nobody is visible in the frames that it would be measured on"
            _keep(key, *kept)
        decoder, comparison = kept
        figures = (
            f"alpha is off by {comparison.mean_error * 255:.2f} codes of 255 on average, "
            f"{comparison.worst_frame_error * 255:.2f} in the worst frame"
        )
        speed = f"a frame takes {comparison.quantized_ms:.0f} ms instead of {comparison.reference_ms:.0f}"
        verdict = ModelQuantizer.accept(comparison, limits)
        if verdict:
            return Int8Choice(decoder, f"decoder in INT8: {figures}; {speed}")
        return f"{figures} (at most {_MEAN_CODES} and {_WORST_CODES}); {speed}"

    def _open(self, start_seconds: float) -> VideoReader:
        return open_video(
            self._video,
            start_seconds=start_seconds or None,
            max_corrupt_frames=self._settings.video.max_corrupt_frames,
        )

    def _key(self, eyes: int, size: tuple[int, int]) -> str:
        """Cache key, from everything that the pictures and the network depend on; the end of the run is left out."""
        settings = self._settings
        parts = (
            __version__,
            ort.__version__,
            Fingerprint.of(self._store.path(self._network.name)).sha256,
            video_fingerprint(self._video),
            settings.video.start_seconds,
            settings.video.stereo,
            settings.model.warm_up_frames,
            settings.processing.num_threads,
            eyes,
            size,
            self._fisheye,
        )
        return blake2b(repr(parts).encode(), digest_size=20).hexdigest()

    def _places(self, duration_seconds: float | None, count: int | None) -> list[float]:
        """Return the times to sample, in seconds."""
        begin = self._settings.video.start_seconds
        per_place = _SETTLING + _CALIBRATED + _COMPARED
        if duration_seconds is None or count is None or count < per_place * len(_PLACES):
            return [begin]
        return [begin + (duration_seconds - begin) * share for share in _PLACES]

    def _pictures(self, place: float, views: Views, shown: NetworkInput) -> FloatArray:
        """The network's pictures [T, E, 3, h, w] of consecutive frames; none if the video cannot be read there."""
        with suppress(InputError), self._open(place) as reader:
            frames = islice(reader, _SETTLING + _CALIBRATED + _COMPARED)
            if self._fisheye is None:
                return np.concatenate([views.make([frame], shown) for frame in frames])
            eye = self._fisheye.eye
            return np.concatenate([self._fisheye.show(views.make([frame], eye)) for frame in frames])
        return np.empty((0,), np.float32)

    def _made(self, runs: Sequence[FloatArray], shown: NetworkInput) -> tuple[bytes, Comparison] | None:
        """The quantised decoder and its measurements; None if no frame shows anybody."""
        from vitascope.gpu.toolkit.quantization.quantizer import ModelQuantizer
        from vitascope.models.rvm.rvm import RvmNetwork, cut_official_graph

        path, threads = self._store.path(self._network.name), self._settings.processing.num_threads
        recorders: list[Recorder] = []

        def recording(encoder: bytes, decoder: bytes) -> tuple[OnnxRuntimeEngine, Recorder]:
            recorders.append(Recorder(decoder, threads=threads))
            return OnnxRuntimeEngine(encoder, threads=threads), recorders[0]

        with closing(RvmNetwork(path, open_engines=recording)) as reference:
            (recorder,) = recorders
            for run in runs:
                recorder.is_on = False
                shots = self._shots(reference)
                shots.run(run[:_SETTLING], [True])
                recorder.is_on = True
                shots.run(run[_SETTLING : _SETTLING + _CALIBRATED], [False] * _CALIBRATED)
            recorder.is_on = False
            entries = recorder.frames()
            some = np.linspace(0, len(next(iter(entries.values()))) - 1, _ENTRIES).round().astype(int)
            _, decoder = cut_official_graph(path)
            made: bytes = ModelQuantizer.quantize_int8(
                decoder, {name: array[np.unique(some)] for name, array in entries.items()}
            )
            with closing(RvmNetwork(path, threads=threads, int8_decoder=made)) as quantized:
                comparison = self._compared(reference, quantized, runs, shown)
        return None if comparison is None else (made, comparison)

    def _compared(
        self, reference: RvmNetwork, quantized: RvmNetwork, runs: Sequence[FloatArray], shown: NetworkInput
    ) -> Comparison | None:
        """Compare both networks' alpha and time, frame by frame in turns, on frames not used for calibration."""
        from vitascope.gpu.toolkit.quantization.quantizer import Comparison

        errors: list[FloatArray] = []
        magnitudes: list[float] = []
        times: tuple[list[float], list[float]] = ([], [])
        for run in runs:
            both = self._shots(reference), self._shots(quantized)
            for at, picture in enumerate(run):
                alphas = []
                for shots, spent in zip(both, times, strict=True):
                    began = perf_counter()
                    (estimate,) = shots.run(picture[None], [at == 0])
                    if at:  # the first frame settles the memory
                        spent.append((perf_counter() - began) * 1e3)
                    alphas.append(small_alpha(estimate, picture, shown))
                if at >= _SETTLING + _CALIBRATED:
                    errors.append(np.abs(alphas[1] - alphas[0]))
                    magnitudes.append(float(alphas[0].mean()))
        frames = [float(error.mean()) for error in errors]
        if max(magnitudes) < _SOMEBODY:
            return None
        return Comparison(
            frames=len(frames),
            mean_error=float(np.mean(frames)),
            worst_frame_error=max(frames),
            max_error=max(float(error.max()) for error in errors),
            relative_error=float(np.mean(frames) / np.mean(magnitudes)),
            reference_ms=float(np.median(times[0])),
            quantized_ms=float(np.median(times[1])),
            finite=bool(np.isfinite(frames).all()),
        )

    def _shots(self, network: RvmNetwork) -> ShotInference:
        return ShotInference(network, warm_up_frames=self._settings.model.warm_up_frames)


def _cache() -> CacheManager:
    return CacheManager(disk_cache_gb=_CACHE_GB, folder=vitascope_home() / "quantized")


def _kept(key: str) -> tuple[bytes, Comparison] | None:
    """Read the decoder and measurements of an earlier run."""
    from vitascope.gpu.toolkit.quantization.quantizer import Comparison

    with suppress(OutputError), _cache() as cache:
        decoder, figures = cache.get(f"{key} decoder"), cache.get(f"{key} figures")
        if decoder is not None and figures is not None:
            values = dict(zip((field.name for field in fields(Comparison)), figures.tolist(), strict=True))
            return decoder.tobytes(), Comparison(
                **values | {"frames": int(values["frames"]), "finite": bool(values["finite"])}
            )
    return None


def _keep(key: str, decoder: bytes, comparison: Comparison) -> None:
    with suppress(OutputError), _cache() as cache:  # without a writable folder, the next run calibrates again
        cache.put(f"{key} decoder", decoder)
        cache.put(f"{key} figures", np.array(astuple(comparison), np.float64))
