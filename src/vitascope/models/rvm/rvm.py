"""RobustVideoMatting (Lin et al., WACV 2022) from the authors' ONNX file, on any engine that runs ONNX networks.

``graph`` cuts the file, on the user's machine and in memory, into an encoder and a recurrent decoder that never
see the full picture. Their last multiply-add belongs to ``guided.py``, and is the authors' arithmetic. The shrinking
belongs to ``preprocess`` and is not: the authors read single samples (bilinear, no antialiasing), which flickers on
fine texture at the ratios of 4K and 8K; the kernel averages. Given the same small picture, gain and offset are the
official graph's within rounding.

The weights are GPL-3.0 and are fetched, never shipped.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from vitascope.errors import ModelError
from vitascope.gpu.engines import Engine, OnnxRuntimeEngine, ShapeRange
from vitascope.gpu.engines.gpu_arrays import import_cupy
from vitascope.gpu.engines.selection import Candidate, GpuOptions, Opener, gpu_openers
from vitascope.models.host_network import HostNetwork
from vitascope.models.network import (
    FloatArray,
    MatteEstimate,
    MattingNetwork,
    NetworkInput,
    NetworkState,
    engine_notes,
)
from vitascope.models.network_check import CHECK_STEPS, network_runner
from vitascope.models.rvm.graph import (
    GAIN,
    OFFSET,
    SMALL_RGB,
    STATES_IN,
    STATES_OUT,
    cut_official_graph,
    engine_profiles,
    state_channels,
)
from vitascope.models.rvm.sizes import RvmInput, state_sizes
from vitascope.models.rvm.state import RvmState

__all__ = [
    "RvmEngines",
    "RvmNetwork",
    "cut_official_graph",
    "rvm_candidates",
]


RvmEngines = Callable[[bytes, bytes], tuple[Engine, Engine]]
"""Opens the serialised encoder and decoder, both on the same device."""


class RvmNetwork:
    """RobustVideoMatting (MobileNetV3 or ResNet50) from its ONNX file.

    Pictures, states and estimates are NumPy arrays on a CPU engine, CuPy arrays on a GPU engine: nothing leaves the
    GPU between a picture and its coefficients.

    Args:
        path: An official ``rvm_*_fp32.onnx``, already verified.
        name: Its name in reports.
        downsample_ratio: Size of the network's picture relative to the region; None chooses it for full bodies.
        longest_side: Bound on the network picture's longest side; sets the ratio when that is None.
        threads: CPU threads of ONNX Runtime when no ``open_engines`` is given; 0 uses every core.
        open_engines: Opens the engines; ONNX Runtime on the CPU when omitted.
        int8_decoder: Takes the decoder's place: the same one, quantised.

    Raises:
        ModelError: The file is not an official RVM network.
        EngineError: An engine cannot load it.
    """

    recurrent = True
    side_multiple = 16

    def __init__(
        self,
        path: Path,
        *,
        name: str = "rvm",
        downsample_ratio: float | None = None,
        longest_side: int | None = None,
        threads: int = 0,
        open_engines: RvmEngines | None = None,
        int8_decoder: bytes | None = None,
    ) -> None:
        encoder, decoder = cut_official_graph(path)
        self.name = name
        self._input = RvmInput(downsample_ratio, longest_side)
        self._encoder, self._decoder = (open_engines or _on_cpu(threads))(encoder, int8_decoder or decoder)
        self._precision = "" if int8_decoder is None else ", decoder in INT8"
        self._channels = state_channels(decoder)
        self._on_gpu = self._encoder.spec.device == "cuda"
        self._feature_names = [tensor.name for tensor in self._encoder.spec.outputs]
        self.encoder_calls = 0

    @property
    def engine_name(self) -> str:
        """The engine that runs both halves."""
        return f"{self._encoder.name}{self._precision}"

    @property
    def notes(self) -> tuple[str, ...]:
        """Which kept engines were built anew, and why, one line each."""
        return (*engine_notes(self._encoder), *engine_notes(self._decoder))

    def input_for(self, region_size: tuple[int, int]) -> NetworkInput:
        """RGB 0..1, NCHW; mean and std are applied inside the network. Sizes floor, as the official graph's do."""
        return self._input.input_for(region_size)

    def new_state(self) -> RvmState:
        """A stream that has seen nothing."""
        return RvmState(on_gpu=self._on_gpu)

    def infer(self, images: FloatArray, state: NetworkState) -> list[MatteEstimate]:
        """Matte T consecutive frames of E eyes; see ``MattingNetwork.infer``.

        Args:
            images: float32 [T, E, 3, h, w], RGB 0..1, C-contiguous; CuPy on a GPU engine.
            state: This stream's; changed in place.

        Raises:
            ModelError: The pictures or the state are not this network's.
            EngineError: The engine failed, or the pictures lie on another device.
        """
        if not isinstance(state, RvmState) or images.ndim != 5 or images.shape[2] != 3:
            raise ModelError(f"rvm: takes float32 [T, E, 3, h, w] and its own state, got {images.shape}")
        steps, eyes = images.shape[:2]
        estimates = []
        tensors = state.tensors if state.tensors is not None else self._blank(eyes, images.shape[3:])
        # The encoder's memory grows with its call, and large pictures gain no speed by it on a CPU.
        samples = eyes * images.shape[3] * images.shape[4]
        at_once = steps if self._on_gpu else max(_SAMPLES_AT_ONCE // samples, 1)
        for first in range(0, steps, at_once):
            pictures = images[first : first + at_once].reshape(-1, *images.shape[2:])
            features = self._encoder.run({SMALL_RGB: pictures})
            self.encoder_calls += 1
            for begin in range(0, len(pictures), eyes):
                rows = slice(begin, begin + eyes)
                inputs: dict[str, Any] = {name: features[name][rows] for name in self._feature_names}
                inputs[SMALL_RGB] = pictures[rows]
                inputs.update(zip(STATES_IN, tensors, strict=True))
                result = self._decoder.run(inputs)
                tensors = [result[name] for name in STATES_OUT]
                estimates.append(MatteEstimate(gain=result[GAIN], offset=result[OFFSET]))
            del features, inputs, result  # before the next call's are made
        # Only now: a call that failed leaves the stream where it was.
        state.tensors = tensors
        return estimates

    def close(self) -> None:
        """Free both engines."""
        self._encoder.close()
        self._decoder.close()

    def _blank(self, eyes: int, size: tuple[int, ...]) -> list[FloatArray]:
        """States before the first frame, in full size: engines that are built or captured for sizes know one less."""
        arrays: Any = import_cupy() if self._on_gpu else np
        return [
            arrays.zeros((eyes, channels, *level), np.float32)
            for channels, level in zip(self._channels, state_sizes(size), strict=True)
        ]


_SAMPLES_AT_ONCE = 4 * 512 * 288  # on the CPU: four frames of 16:9


def _on_cpu(threads: int) -> RvmEngines:
    def open_engines(encoder: bytes, decoder: bytes) -> tuple[Engine, Engine]:
        return OnnxRuntimeEngine(encoder, threads=threads), OnnxRuntimeEngine(decoder, threads=threads)

    return open_engines


# Sizes that TensorRT builds for; it refuses others. The usual one is a 16:9 picture, the largest a square eye of VR.
_SMALLEST_SIDE, _USUAL_SIZE, _LARGEST_SIDE = 16, (288, 512), 1024


def rvm_candidates(
    open_network: Callable[[RvmEngines | None], RvmNetwork],
    options: GpuOptions,
    *,
    most_frames: int,
    most_eyes: int = 2,
) -> list[Candidate[MattingNetwork]]:
    """Ways to run the network, called ``tensorrt``, ``onnxruntime`` and, last and always there, ``processor``.

    Args:
        open_network: Opens the network on the engines it is given, or on the CPU for None.
        options: The wishes for the GPU.
        most_frames: Most frames of one call.
        most_eyes: Most pictures of one frame.
    """
    height, width = _USUAL_SIZE
    usual = most_frames * most_eyes
    pictures = ShapeRange(
        (1, 3, _SMALLEST_SIDE, _SMALLEST_SIDE),
        (usual, 3, height, width),
        (max(usual, CHECK_STEPS), 3, _LARGEST_SIDE, _LARGEST_SIDE),
    )

    def both_parts(open_one: Opener, encoder: bytes, decoder: bytes) -> tuple[Engine, Engine]:
        of_encoder, of_decoder = engine_profiles(encoder, decoder, pictures, most_eyes=most_eyes)
        first = open_one(encoder, of_encoder)
        try:
            return first, open_one(decoder, of_decoder)
        except BaseException:
            first.close()
            raise

    def on_gpu(open_one: Opener) -> RvmNetwork:
        return open_network(partial(both_parts, open_one))

    return [
        *(
            Candidate[MattingNetwork](
                name=name,
                precision=precision,
                open=partial(on_gpu, open_one),
                describe=lambda network: network.engine_name,
                runner=partial(network_runner, on_gpu=True),
            )
            for name, precision, open_one in gpu_openers(options)
        ),
        Candidate[MattingNetwork](
            name="processor",
            precision="fp32",
            open=lambda: HostNetwork(open_network(None)),
            describe=lambda network: network.engine_name,
            runner=partial(network_runner, on_gpu=True),
            is_reference=True,
        ),
    ]
