"""RobustVideoMatting on our own fused kernels, the default on a GPU.

It returns the same as ``RvmNetwork`` for the same file, gain and offset at the network's size: convolutions of all
frames of a call are batched, other operations are fused (``triton_kernels``), and one CUDA graph holds a whole call.

The first call of a size compiles its kernels with Triton, in seconds, and stores them. From then on, neither Triton,
PyTorch nor the ONNX file is loaded: a process starts from machine code, weights and a list of launches.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np

from vitascope.errors import EngineError, ModelError
from vitascope.gpu.engines import launch_plan
from vitascope.gpu.engines.launch_plan import triton_version
from vitascope.gpu.engines.plan_engine import PlanEngine, Recorded
from vitascope.gpu.kernels.cuda_module import import_cupy, is_on_gpu, nvtx_range
from vitascope.models.network import FloatArray, MatteEstimate, NetworkInput, NetworkState
from vitascope.models.rvm.state import RvmInput, RvmState, frame_chunks

FusedPrecision = Literal["fp16", "mixed"]

_STATES: Final = ("r1", "r2", "r3", "r4")
_OLDEST_CAPABILITY: Final = 80
"""On older GPUs, Triton multiplies without tensor cores."""
_BYTES_PER_SAMPLE: Final = 131
"""Working memory of a plan, in bytes per sample of its pictures: for MobileNetV3 with eight frames of any size. With 16
it is 130, with four 134 and with one 153; ResNet50 takes 153 to 190."""
_MEMORY_SHARE: Final = 1 / 8
"""Maximum memory of plans, as a share of the GPU memory that this process may use."""
_CODE: Final = ("structure.py", "triton_kernels.py", "triton_ops.py", "weights.py")


class RvmFusedNetwork:
    """RobustVideoMatting (MobileNetV3 or ResNet50) on an NVIDIA GPU.

    Args:
        path: An official ``rvm_*.onnx`` or ``rvm_*.pth``, already verified.
        name: Its name in reports.
        device_id: The GPU.
        precision: ``fp16``: products in FP16, sums, recurrent states and gates in FP32, results in FP16. ``mixed``:
            like ``fp16``, with the guided filter's coefficients computed and returned in FP32.
        downsample_ratio: Size of the network's picture relative to the region; None chooses it for full bodies.
        longest_side: Longest side of the network's picture; sets the ratio when that is None.
        most_frames: Maximum frames in one batch; longer calls are split. Batches of large pictures are shorter if a
            plan would take more than about an eighth of the GPU memory that the process may use.
        most_plans: Maximum number of combinations of frames, eyes and sizes that are kept ready.
        cache_dir: Folder for compiled calls; None compiles them in each process.
        on_note: Called with one line when a stored file does not fit.

    Raises:
        EngineError: The GPU is missing, or too old.
        MissingDependencyError: CuPy or Triton is not installed.
    """

    recurrent = True
    side_multiple = 16

    def __init__(
        self,
        path: Path,
        *,
        name: str = "rvm",
        device_id: int = 0,
        precision: FusedPrecision = "fp16",
        downsample_ratio: float | None = None,
        longest_side: int | None = None,
        most_frames: int = 16,
        most_plans: int = 16,
        cache_dir: Path | None = None,
        on_note: Callable[[str], None] | None = None,
    ) -> None:
        self.name = name
        self._path = path
        self._input = RvmInput(downsample_ratio, longest_side)
        self._precision = precision
        self._most_frames = most_frames
        self._triton = triton_version()
        self._device_id = device_id
        self._engine = PlanEngine(
            self._record,
            key=(_fingerprint(path), f"triton {self._triton}", precision),
            label=name,
            device_id=device_id,
            cache_dir=cache_dir,
            most_plans=most_plans,
            on_note=on_note,
        )
        if self._engine.capability < _OLDEST_CAPABILITY:
            raise EngineError(
                f"{name}: the fused kernels need compute capability {_OLDEST_CAPABILITY / 10:.1f}, "
                f"{self._engine.gpu_name} has {self._engine.capability / 10:.1f}; use --backend torch"
            )

    @property
    def engine_name(self) -> str:
        """The compiler of the kernels, the GPU, and the precision."""
        return f"triton {self._triton} ({self._engine.gpu_name}, CUDA graphs), {self._precision}"

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes about stored files that did not fit, one line each."""
        return tuple(self._engine.notes)

    @property
    def plan_count(self) -> int:
        """Number of combinations of frames, eyes and sizes that are ready to run."""
        return self._engine.plan_count

    def input_for(self, region_size: tuple[int, int]) -> NetworkInput:
        """RGB 0..1, NCHW, float16; mean and std are applied inside the network."""
        return self._input.input_for(region_size, dtype="float16")

    def new_state(self) -> RvmState:
        """The state of a new stream."""
        return RvmState(on_gpu=True)

    def infer(self, images: FloatArray, state: NetworkState) -> list[MatteEstimate]:
        """Matte T consecutive frames of E eyes; see ``MattingNetwork.infer``.

        Works on CuPy's current stream; the host does not wait for the GPU. NumPy pictures are copied to the GPU and
        the results back, which does wait.

        Args:
            images: [T, E, 3, h, w], RGB 0..1, float16; CuPy on the network's GPU, or NumPy.
            state: This stream's; modified in place.

        Returns:
            T estimates in the memory of the pictures. Their arrays are slices of one allocation per batch, which lives
            as long as any of them. CuPy: float16 for ``fp16``, else float32. NumPy: float32.

        Raises:
            ModelError: The pictures or the state are not this network's.
            DeviceMemoryError: The GPU has too little memory for the batch.
            EngineError: The engine failed.
        """
        if not isinstance(state, RvmState) or images.ndim != 5 or images.shape[2] != 3 or 0 in images.shape:
            raise ModelError(
                f"{self.name}: takes [frames, eyes, 3, height, width] and its own state, got {list(images.shape)}"
            )
        if images.dtype != np.float16:
            raise ModelError(f"{self.name}: got pictures {images.dtype}, expected float16")
        cupy = import_cupy()
        on_gpu = is_on_gpu(images)
        estimates: list[MatteEstimate] = []
        with cupy.cuda.Device(self._device_id), nvtx_range("rvm"):
            pictures = cupy.ascontiguousarray(cupy.asarray(images))
            features = state.tensors
            first = 0
            for count in frame_chunks(len(pictures), self._batch_frames(pictures)):
                part = pictures[first : first + count]
                results = self._run(part, features)
                features = [results[level].transpose(0, 3, 1, 2) for level in _STATES]
                estimates += _estimates(results, eyes=part.shape[1], on_gpu=on_gpu)
                first += count
        # Only now, so that a failed call leaves the state unchanged.
        state.tensors = features
        return estimates

    def close(self) -> None:
        """Free the engine; idempotent."""
        self._engine.close()

    def _batch_frames(self, pictures: Any) -> int:
        """Maximum frames of these pictures [T, E, 3, h, w] in one batch."""
        allowed = import_cupy().get_default_memory_pool().get_limit() or self._engine.gpu_bytes
        eyes, _, height, width = pictures.shape[1:]
        fitting = int(_MEMORY_SHARE * allowed) // (_BYTES_PER_SAMPLE * eyes * height * width)
        return int(min(max(fitting, 1), self._most_frames))

    def _run(self, pictures: Any, features: Sequence[Any] | None) -> dict[str, Any]:
        """Run the frames of one plan; the features are [E, C, h, w], or None before the first frame."""
        cupy = import_cupy()
        steps, eyes, _, *size = pictures.shape
        sizes = (steps, eyes, *size)
        shapes = self._engine.input_shapes(sizes)
        if features is None:
            inputs = {level: cupy.zeros(shapes[level], np.float32) for level in _STATES}
        else:
            inputs = {
                level: cupy.ascontiguousarray(tensor.transpose(0, 2, 3, 1))
                for level, tensor in zip(_STATES, features, strict=True)
            }
            if any(inputs[level].shape != shapes[level] for level in _STATES):
                raise ModelError(
                    f"{self.name}: the state is that of pictures of another size; reset it first"
                )
        return self._engine.run(sizes, {"pictures": pictures.reshape(-1, 3, *size), **inputs})

    def _record(self, sizes: Sequence[int]) -> Recorded:
        # Imported here, as a run that finds its plan on disk needs neither Triton nor onnx.
        from vitascope.models.rvm.triton_ops import record_network
        from vitascope.models.rvm.weights import load_rvm_weights

        steps, eyes, height, width = sizes
        return record_network(
            load_rvm_weights(self._path),
            steps=steps,
            eyes=eyes,
            size=(height, width),
            result_dtype="float16" if self._precision == "fp16" else "float32",
            multiprocessors=self._engine.multiprocessors,
        )


def _estimates(results: dict[str, Any], *, eyes: int, on_gpu: bool) -> list[MatteEstimate]:
    """Split gain and offset [T * E, 1, h, w] into one estimate per frame."""
    gain, offset = (results[name].reshape(-1, eyes, *results[name].shape[1:]) for name in ("gain", "offset"))
    if not on_gpu:
        gain, offset = (planes.get().astype(np.float32) for planes in (gain, offset))
    return [MatteEstimate(gain=one, offset=other) for one, other in zip(gain, offset, strict=True)]


def _fingerprint(path: Path) -> str:
    """Fingerprint of the checkpoint, and of the code that records its plans."""
    digest = hashlib.sha256()
    here = Path(__file__).parent
    for file in (path, *(here / name for name in _CODE), Path(launch_plan.__file__)):
        digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()
