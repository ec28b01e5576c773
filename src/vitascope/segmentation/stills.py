"""Mattes single pictures from many threads; pictures submitted at the same time share one call of the network.

Each thread prepares its picture and refines its matte itself; they share only the network, through a
``DynamicBatcher``. The pictures of a call take the place of the eyes of a stereo video. Each starts with an empty
state, so its matte does not depend on the others. Close-ups are shown smaller, as in videos.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, Final

import av
import numpy as np
import numpy.typing as npt

from vitascope.closing import Closing, OwnProcess
from vitascope.config import LoadedSettings, vitascope_home
from vitascope.config.loading import settings_of
from vitascope.device import select_device
from vitascope.errors import UsageError
from vitascope.frames import PIXEL_FORMATS, Frame, Plane
from vitascope.gpu.kernels.edges import EdgeOptions, adjust_edges
from vitascope.gpu.kernels.guided import refine_alpha
from vitascope.gpu.kernels.preprocess import preprocess
from vitascope.gpu.kernels.region import Region
from vitascope.gpu.toolkit.batching.batcher import BatcherStats, DynamicBatcher
from vitascope.gpu.toolkit.batching.requests import BatchConfig, InferenceRequest
from vitascope.media.planes import RGB_COLOR, PlaneReader
from vitascope.models.network import (
    MatteEstimate,
    MattingNetwork,
    NetworkInput,
    SpatialState,
    StatelessState,
    side_multiple,
)
from vitascope.models.store.store import ModelStore
from vitascope.segmentation.capacity import suited_to_device
from vitascope.segmentation.matting.close_ups import CloseUps
from vitascope.segmentation.matting.estimates import enlarged, fit_plain_matte
from vitascope.segmentation.matting.look_ahead import settle, settled_alpha
from vitascope.segmentation.matting.networks import ChosenNetwork, FetchProgress, open_network

_FORMAT: Final = PIXEL_FORMATS["yuv444p"]  # the format of decoded image files


class StillSegmenter(Closing):
    """Mattes single pictures, for any number of threads at once; opens its network once.

    ``batching.dynamic`` sets how many pictures share a call, and how long a picture waits for others while another
    thread is still preparing one. Once every thread inside ``mask`` is waiting, the batch is sent. Stateless networks
    and RVM compute a call's pictures together. The presence gate of the selfie networks checks each picture on its own,
    so a shared call saves nothing.

    Args:
        profile: ``fast``, ``balanced`` or ``quality``; ignored when ``loaded`` is given.
        settings: Values by dotted key, for example ``{"batching.dynamic.max_batch_size": 16}``.
        loaded: Loaded settings, instead of ``profile`` and ``settings``.
        store: The store of networks; by default the user's own.
        fetch_progress: Called with the progress of a network's download.

    Raises:
        ConfigError: A setting is unknown or out of range.
        UsageError: INT8 on the CPU, or a choice of people (``people.*``).
        DeviceError: A requested GPU is not available.
        ModelError: The network is not available.
        EngineError: The engine cannot load it.
    """

    def __init__(
        self,
        *,
        profile: str | None = None,
        settings: Mapping[str, Any] | None = None,
        loaded: LoadedSettings | None = None,
        store: ModelStore | None = None,
        fetch_progress: FetchProgress | None = None,
    ) -> None:
        store = store or ModelStore(vitascope_home())
        self.loaded = suited_to_device(settings_of(profile=profile, settings=settings, loaded=loaded), store)
        self.settings = self.loaded.settings
        self.device = select_device(self.settings.gpu.device, index=self.settings.gpu.device_id)
        if self.device.kind == "cpu" and self.settings.gpu.precision == "int8":
            raise UsageError("gpu.precision=int8 is calibrated on a video; use fp32 for single pictures")
        if self.settings.people.active:
            raise UsageError("people.* choose among the people of a video; single pictures keep everybody")
        self.chosen: ChosenNetwork[MattingNetwork] = open_network(
            self.settings, store, device=self.device, progress=fetch_progress
        )
        network = self.chosen.network
        self._together = isinstance(network.new_state(), StatelessState | SpatialState)
        self._has_close_ups = (
            self.settings.model.suits_people and network.recurrent and side_multiple(network) is not None
        )
        edges, wanted = self.settings.edges, self.settings.batching.dynamic
        self._edges = EdgeOptions(
            threshold=edges.threshold, grow_px=edges.grow_px, feather_px=edges.feather_px
        )
        self._numbers = itertools.count()
        self._process = OwnProcess("the StillSegmenter")
        config = BatchConfig(
            min_batch_size=wanted.min_batch_size,
            max_batch_size=wanted.max_batch_size,
            timeout_ms=wanted.timeout_ms,
            # On a GPU, each batch size needs its own CUDA graph.
            bucket_sizes=_buckets(wanted.max_batch_size) if self.device.kind == "cuda" else (),
        )
        self._batcher = DynamicBatcher(
            config, self._infer, device=self.device.kind, device_id=self.device.index
        ).start()

    def close(self) -> None:
        """Finish the submitted pictures and free the network. Idempotent; does nothing in a forked process."""
        if not self._process.is_current:
            return
        self._batcher.stop()
        self.chosen.network.close()

    def mask(self, picture: npt.NDArray[np.uint8]) -> Plane:
        """Matte one picture; any number of threads may call this at once.

        Args:
            picture: uint8 [H, W, 3], RGB, upright.

        Returns:
            uint8 [H, W]: 0 is background, 255 is person.

        Raises:
            TypeError: The picture is not an array, but for example a file name or a Pillow image.
            ValueError: The array has another shape or dtype.
            BatcherStoppedError: ``close`` was called.
            EngineError: The network failed.
            UsageError: This process was forked from the one that created it.
        """
        self._process.require()
        if not isinstance(picture, np.ndarray):
            raise TypeError(f"a picture is a NumPy array, uint8 [H, W, 3], not {type(picture).__name__}")
        if picture.dtype != np.uint8 or picture.ndim != 3 or picture.shape[2] != 3 or 0 in picture.shape:
            raise ValueError(f"a picture is uint8 [H, W, 3], not {picture.dtype} {list(picture.shape)}")
        with self._batcher.client():
            return self._mask(picture)

    def stats(self) -> BatcherStats:
        """How many pictures shared a call, and how long they waited."""
        return self._batcher.stats()

    def _mask(self, picture: npt.NDArray[np.uint8]) -> Plane:
        height, width = picture.shape[:2]
        decoded = av.VideoFrame.from_ndarray(np.ascontiguousarray(picture), "rgb24")
        planes = PlaneReader().read(decoded, target=_FORMAT)
        frame = Frame(planes, _FORMAT, RGB_COLOR, 0, 0, Fraction(1, 1))
        regions = [Region(0, 0, width, height)]
        wanted = self.chosen.network.input_for((height, width))
        images = preprocess(
            frame,
            regions=regions,
            size=wanted.size,
            mean=wanted.mean,
            std=wanted.std,
            layout=wanted.layout,
            dtype=wanted.dtype,
        )
        answer = self._batcher.submit(InferenceRequest(images[0], next(self._numbers))).data
        if "alpha" in answer:
            gain, offset = fit_plain_matte(images, answer["alpha"][None], wanted)
        else:
            gain, offset = answer["gain"][-1:], answer["offset"][-1:]
        alpha = refine_alpha(frame, regions=regions, gain=gain, offset=offset)
        return adjust_edges(alpha, self._edges, regions=regions)

    def _infer(self, pictures: npt.NDArray[Any]) -> dict[str, npt.NDArray[np.float32]]:
        """The network's outputs for B pictures, each [B, ...]."""
        if self._together:
            return self._estimate(pictures)
        alone = [self._estimate(pictures[n : n + 1]) for n in range(len(pictures))]
        return {name: np.concatenate([answer[name] for answer in alone]) for name in alone[0]}

    def _estimate(self, pictures: npt.NDArray[Any]) -> dict[str, npt.NDArray[np.float32]]:
        network = self.chosen.network
        state, eyes = network.new_state(), pictures[None]
        answers: list[MatteEstimate] = []
        if network.recurrent:  # as at the first frame of a shot, see ShotInference
            answers = settle(network, eyes, state, calls=self.settings.model.warm_up_frames)
        size = int(eyes.shape[3]), int(eyes.shape[4])
        if self._has_close_ups and CloseUps.may_need(NetworkInput(size, "NCHW")):
            alpha = settled_alpha(answers, eyes)
            are_close = [] if alpha is None else [CloseUps.would_be_seen(one[None]) for one in alpha]
            if any(are_close) and isinstance(state, SpatialState):
                return self._with_close_ups(eyes, state, are_close)
        (estimate,) = network.infer(eyes, state)
        return _arrays(estimate)

    def _with_close_ups(
        self, eyes: npt.NDArray[Any], state: SpatialState, are_close: Sequence[bool]
    ) -> dict[str, npt.NDArray[np.float32]]:
        """Mattes of pictures [1, B, 3, h, w], some or all of them close-ups.

        If only some are, the network sees all in both sizes, so that a GPU sees only the shapes of whole batches.
        """
        close_ups = CloseUps(NetworkInput((int(eyes.shape[3]), int(eyes.shape[4])), "NCHW"))
        found: dict[bool, dict[str, npt.NDArray[np.float32]]] = {}
        for close in dict.fromkeys(are_close):
            close_ups.are_seen, memory = close, state.copy()
            if close:
                memory.stretch(close_ups.shown.size)
            (estimate,) = self.chosen.network.infer(close_ups.shown_of(eyes), memory)
            found[close] = {
                name: enlarged(planes, close_ups.size_of(close=False))
                for name, planes in _arrays(estimate).items()
            }
        return {
            name: np.stack([found[close][name][at] for at, close in enumerate(are_close)])
            for name in ("gain", "offset")
        }


def _arrays(estimate: MatteEstimate) -> dict[str, npt.NDArray[np.float32]]:
    if estimate.alpha is not None:
        return {"alpha": estimate.alpha}
    assert estimate.gain is not None  # MatteEstimate has either matte or coefficients
    assert estimate.offset is not None
    return {"gain": estimate.gain, "offset": estimate.offset}


def _buckets(most: int) -> tuple[int, ...]:
    """Powers of two below the largest size, and that size."""
    return (*(1 << bit for bit in range(most.bit_length()) if 1 << bit < most), most)
