"""MediaPipe's selfie segmentation: 0.44 MB, in the wheel, and the only network that need not be fetched.

Two networks of one family take RGB in 0..1, stretched to 256 x 256 (general) or 256 x 144 (landscape), and return one
matte of the same size. Their converted graphs have a fixed batch of one, which is made variable in memory when they
are loaded, so that all eyes and frames of a call run at once. Source: MediaPipe Selfie Segmentation, model card of
2021, Apache-2.0; provenance in ``data/NOTICE``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import cv2
import numpy as np
import onnx

from vitascope.errors import ModelError
from vitascope.gpu.engines.onnx_runtime import OnnxRuntimeEngine
from vitascope.models.network import (
    FloatArray,
    MatteEstimate,
    NetworkInput,
    NetworkState,
    StatelessState,
    join_pictures,
)
from vitascope.models.selfie.presence import (
    Claimant,
    Look,
    PersonFeatures,
    PresenceGate,
    certainty_and_extent,
    overlap,
)

INTERVAL, MIN_INTERVAL = 48, 3
"""Frames between two comparisons: while the matte is steady, and the minimum."""
CLAIMED, NEAR = 0.001, 0.15
"""Shares of the frame above 0.5: below the first, nothing is compared; from the second on, the general network may be
chosen."""
STICKINESS = 0.05
"""Advantage in certainty that the other network needs to replace a general network in use."""
CONTINUOUS_OVERLAP = 0.5
_THUMBNAIL = (32, 32)


class WideFrameChoice:
    """Chooses between the selfie network for wide frames and the general one.

    The landscape network draws whole bodies better, but loses people near the camera without a visible head; the
    general network, given the stretched frame, keeps them. The more certain of the two is usually the better one
    (``docs/networks.md`` has the figures). Both run on a stream's first claim, when the matte jumps, and every
    ``INTERVAL`` frames; in between only the more certain one runs. All eyes of a stream use the same network.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Return to the landscape network; both are compared at the next claim."""
        self.claimant: Claimant = "landscape"
        self._frames_since = 1_000_000
        self._thumbnail: FloatArray | None = None

    def is_due(self, alpha: FloatArray) -> bool:
        """True if this time step is one to compare at; call it once for each.

        Args:
            alpha: float32 [E, h, w], 0..1: the mattes of the network in use.
        """
        self._frames_since += 1
        if self._frames_since < INTERVAL and self._frames_since % MIN_INTERVAL:
            return False  # checking every third frame for jumps is enough, at a third of the cost
        if np.count_nonzero(alpha > 0.5) < CLAIMED * alpha.size:
            return False
        thumbnail = np.stack([cv2.resize(eye, _THUMBNAIL, interpolation=cv2.INTER_AREA) for eye in alpha])
        jumped = self._thumbnail is None or overlap(self._thumbnail, thumbnail) < CONTINUOUS_OVERLAP
        self._thumbnail = thumbnail
        return self._frames_since >= (MIN_INTERVAL if jumped else INTERVAL)

    def compare(self, landscape: FloatArray, general: FloatArray) -> None:
        """Compare both networks' mattes of a time step, float32 [E, h, w], 0..1; the more certain network continues."""
        self._frames_since = 0
        sure, surer = (np.mean([certainty_and_extent(eye)[0] for eye in m]) for m in (landscape, general))
        margin = STICKINESS if self.claimant == "general" else 0.0
        near = np.count_nonzero(general > 0.5) > NEAR * general.size
        self.claimant = "general" if near and surer > sure - margin else "landscape"


SelfieChoice = Literal["aspect", "general", "landscape"]

LANDSCAPE_ASPECT = 1.5
"""Width / height from which the landscape network is used: the geometric mean of 4:3, where the general network
stretches less, and 16:9, for which the landscape network was made."""

# The bottleneck after global averaging, from which the decoder's gate decides, [N, 32, 1, 1].
_SUMMARY = "GlobalAveragePool_85_0"


class SelfieState:
    """State of a gated stream: whether there are people, and which network to use for a wide frame."""

    def __init__(self) -> None:
        self.gate = PresenceGate()
        self.wide_choice = WideFrameChoice()

    def reset(self) -> None:
        """Forget everybody: the next frame is judged again."""
        self.gate.reset()
        self.wide_choice.reset()


class SelfieNetwork:
    """Both selfie networks behind one interface; the region's aspect determines which one runs.

    A gated wide stream may switch to the general network while that is more certain (see
    ``vitascope.models.selfie.selfie``).

    Args:
        path_general: The 256 x 256 network.
        path_landscape: The 256 x 144 network (width x height).
        threads: Threads inside one operator; 0 uses every core.
        gate: Keep empty frames empty (see ``vitascope.models.selfie.presence``); False gives the networks' raw mattes.
        choice: ``aspect``, or one network for every region.

    Raises:
        ModelError: A file is not the expected selfie network.
        EngineError: The engine cannot open a file.
    """

    recurrent = False

    def __init__(
        self,
        path_general: Path,
        path_landscape: Path,
        *,
        threads: int = 0,
        gate: bool = True,
        choice: SelfieChoice = "aspect",
    ) -> None:
        self._gate, self._choice = gate, choice
        self._features = PersonFeatures(threads=threads)
        self._general = _SelfieEngine(path_general, size=(256, 256), threads=threads, with_summary=gate)
        try:
            self._landscape = _SelfieEngine(
                path_landscape, size=(144, 256), threads=threads, with_summary=gate
            )
        except BaseException:
            self._general.close()
            raise

    @property
    def name(self) -> str:
        """``selfie``, or ``selfie-landscape`` if that one was chosen for every region."""
        return "selfie-landscape" if self._choice == "landscape" else "selfie"

    @property
    def engine_name(self) -> str:
        """The engine's name, for reports."""
        return self._general.engine_name

    def input_for(self, region_size: tuple[int, int]) -> NetworkInput:
        """256 x 256 or 256 x 144, whichever is nearer to the region's shape; RGB 0..1 unchanged."""
        height, width = region_size
        landscape = self._choice == "landscape" or (
            self._choice == "aspect" and width >= LANDSCAPE_ASPECT * height
        )
        return NetworkInput(size=(self._landscape if landscape else self._general).size, layout="NHWC")

    def new_state(self) -> NetworkState:
        """Make the stream's gate and choice of network, or an empty state without gating."""
        return SelfieState() if self._gate else StatelessState()

    def infer(self, images: FloatArray, state: NetworkState) -> list[MatteEstimate]:
        """Matte T frames of E eyes; see ``MattingNetwork.infer``.

        Args:
            images: float32 [T, E, 256, 256, 3] or [T, E, 144, 256, 3], RGB 0..1; the size selects the network.
            state: A state from this network's ``new_state``.
        """
        claimant: Claimant = "landscape" if images.ndim == 5 and images.shape[2] == 144 else "general"
        engine = self._landscape if claimant == "landscape" else self._general
        pictures = join_pictures(images, name=self.name, layout="NHWC", size=engine.size)
        if isinstance(state, SelfieState) is not self._gate:
            raise ModelError(f"{self.name}: the stream's state was made by another network")
        if not isinstance(state, SelfieState):
            mattes = engine.mattes(pictures).reshape(images.shape[:4])
            return [MatteEstimate(alpha=alpha) for alpha in mattes]
        return self._gated(images, state, claimant)

    def _gated(self, images: FloatArray, state: SelfieState, claimant: Claimant) -> list[MatteEstimate]:
        may_change = claimant == "landscape" and self._choice == "aspect"
        mattes = self._mattes(images, state.wide_choice.claimant if may_change else claimant)
        estimates = []
        for time, eyes in enumerate(images):
            if may_change and state.wide_choice.is_due(mattes[time]):
                current = state.wide_choice.claimant
                other: Claimant = "landscape" if current == "general" else "general"
                both = {current: mattes[time], other: self._mattes(images[time : time + 1], other)[0]}
                state.wide_choice.compare(both["landscape"], both["general"])
                if state.wide_choice.claimant != current:
                    mattes[time:] = self._mattes(images[time:], other)
            alpha = state.gate.apply(
                mattes[time], eyes, self.look_again, self._features.of, claimant=claimant
            )
            estimates.append(MatteEstimate(alpha=alpha))
        return estimates

    def _mattes(self, images: FloatArray, claimant: Claimant) -> FloatArray:
        """Convert float32 [T, E, h, w, 3] to mattes [T, E, h, w]; the general network gets wide pictures stretched."""
        pictures = images.reshape(-1, *images.shape[2:])
        size = images.shape[2:4]
        if claimant == "landscape" or size == self._general.size:
            engine = self._landscape if claimant == "landscape" else self._general
            return engine.mattes(pictures).reshape(images.shape[:4])
        stretched = [
            cv2.resize(p, self._general.size[::-1], interpolation=cv2.INTER_LINEAR) for p in pictures
        ]
        mattes = self._general.mattes(np.stack(stretched))
        shrunk = [cv2.resize(m, size[::-1], interpolation=cv2.INTER_AREA) for m in mattes]
        return np.stack(shrunk).astype(np.float32).reshape(images.shape[:4])

    def look_again(self, picture: FloatArray) -> Look:
        """Give one picture, float32 [256, 256, 3], RGB 0..1, to both networks; only with ``gate``."""
        height, width = self._landscape.size
        flattened = np.asarray(cv2.resize(picture, (width, height), interpolation=cv2.INTER_AREA), np.float32)
        alpha, general_summary = self._general.opinion(picture)
        _, landscape_summary = self._landscape.opinion(flattened)
        return Look(alpha=alpha, general_summary=general_summary, landscape_summary=landscape_summary)

    def close(self) -> None:
        """Free both engines; idempotent."""
        self._general.close()
        self._landscape.close()
        self._features.close()


class _SelfieEngine:
    """One selfie network with a variable batch, and its summary as a second output if requested."""

    def __init__(self, path: Path, *, size: tuple[int, int], threads: int, with_summary: bool) -> None:
        self.size = size
        self._engine: OnnxRuntimeEngine | None = None
        model, self._input, self._output = _load(path, size=size, with_summary=with_summary)
        self._engine = OnnxRuntimeEngine(model, threads=threads)

    @property
    def engine_name(self) -> str:
        return self._opened().name

    def mattes(self, pictures: FloatArray) -> FloatArray:
        """Convert pictures, float32 [N, h, w, 3], to mattes [N, h, w]."""
        outputs = self._opened().run({self._input: pictures}, [self._output])
        return np.asarray(outputs[self._output][..., 0], np.float32)

    def opinion(self, picture: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Matte [h, w] and summary [32] of one picture, float32 [h, w, 3]."""
        outputs = self._opened().run({self._input: picture[None]}, [self._output, _SUMMARY])
        return outputs[self._output][0, ..., 0], outputs[_SUMMARY].ravel()

    def close(self) -> None:
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    def _opened(self) -> OnnxRuntimeEngine:
        if self._engine is None:
            raise ModelError("selfie: the network was closed")
        return self._engine


def _load(path: Path, *, size: tuple[int, int], with_summary: bool) -> tuple[bytes, str, str]:
    """Load the network with a variable batch, serialised, and the names of its input and output.

    In these graphs only the three upsamplings depend on the batch, since they contain their result's whole shape;
    each doubles height and width, so it can be expressed as a factor instead.
    """
    try:
        model = onnx.load(str(path))
    except Exception as error:  # protobuf and the file system raise types without a common base
        raise ModelError(f"{path}: cannot be read as an ONNX network") from error
    graph = model.graph
    shapes = [[d.dim_value for d in v.type.tensor_type.shape.dim] for v in (*graph.input, *graph.output)]
    if shapes != [[1, *size, 3], [1, *size, 1]]:
        raise ModelError(
            f"{path}: got tensors {shapes}, expected the selfie network's [1, {size[0]}, {size[1]}, 3 and 1]"
        )
    replaced = set()
    for node in graph.node:
        if node.op_type == "Resize":
            replaced.add(node.input[3])
            node.input[2] = "vitascope_twice"
            del node.input[3]
    graph.initializer.append(
        onnx.numpy_helper.from_array(np.array([1, 1, 2, 2], np.float32), "vitascope_twice")
    )
    for index in reversed(range(len(graph.initializer))):
        if graph.initializer[index].name in replaced:
            del graph.initializer[index]
    for value in (*graph.input, *graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "batch"
    if with_summary:
        if not any(_SUMMARY in node.output for node in graph.node):
            raise ModelError(f"{path}: has no tensor {_SUMMARY}; gating needs the networks that ship here")
        summary = onnx.helper.make_tensor_value_info(_SUMMARY, onnx.TensorProto.FLOAT, ["batch", 32, 1, 1])
        graph.output.append(summary)
    return model.SerializeToString(), graph.input[0].name, graph.output[0].name
