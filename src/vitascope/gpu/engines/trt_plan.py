"""TensorRT: builds an ONNX network into an engine for one GPU, and runs it on CuPy arrays.

Written for TensorRT 11, whose networks are strongly typed and which has no precision switches, in a way that 10 also
accepts. **Not yet run on hardware**: TensorRT was not available on the GPUs used for this project's measurements. The
code follows NVIDIA's documentation and is covered by contract tests.

This module also declares the part of TensorRT's Python interface that the engine uses, and loads it.

Written from NVIDIA's documentation of TensorRT 10 and 11. All calls, by their page below
docs.nvidia.com/deeplearning/tensorrt/api/python_api:

* ``infer/Core/Logger``: ``ILogger``, its ``Severity`` and ``log``.
* ``infer/Core/Builder``: ``Builder.create_network``, ``create_builder_config``, ``create_optimization_profile``,
  ``build_serialized_network``, which answers None if it fails; ``NetworkDefinitionCreationFlag.STRONGLY_TYPED``.
* ``parsers/Onnx/pyOnnx``: ``OnnxParser.parse(model, path)``, ``num_errors``, ``get_error``; ``ParserError.desc``.
* ``infer/Core/BuilderConfig``: ``clear_flag(BuilderFlag.TF32)``, ``set_memory_pool_limit(MemoryPoolType.WORKSPACE)``,
  ``add_optimization_profile``, ``create_timing_cache``, ``set_timing_cache``, ``get_timing_cache``.
* ``infer/Core/TimingCache``: ``ITimingCache.serialize``.
* ``infer/Core/OptimizationProfile``: ``set_shape(input, min, opt, max)``.
* ``infer/Graph/Network``: ``INetworkDefinition.num_inputs``, ``get_input``.
* ``infer/Graph/LayerBase``: ``ITensor.name``, ``shape``.
* ``infer/Core/Runtime``: ``deserialize_cuda_engine``, which answers None for another version's or GPU's engine.
* ``infer/Core/Engine``: ``ICudaEngine.num_io_tensors``, ``get_tensor_name``, ``get_tensor_mode`` (``TensorIOMode``),
  ``get_tensor_dtype``, ``get_tensor_shape`` (-1 where free), ``get_tensor_profile_shape``,
  ``create_execution_context``, and ``serialize``, which answers None if it fails.
* ``infer/Core/ExecutionContext``: ``set_input_shape`` and ``set_tensor_address``, which answer False where they refuse,
  ``get_tensor_shape`` (-1 where it depends on data), ``execute_async_v3``; one run at a time.
* ``infer/FoundationalTypes/DataType``: ``nptype``; ``infer/FoundationalTypes/HostMemory``: ``IHostMemory``, a buffer.

The page "Python Migration Patterns for TensorRT 11.x" lists what 11 removed: everything here exists in both.
``STRONGLY_TYPED`` is required by 10 and accepted without effect by 11.

Built engines are cached on disk.

A file has one line of JSON, then the engine. The line has the TensorRT version that built it and the hash of the
engine's bytes; everything else that an engine depends on (network, sizes, arithmetic, GPU) is in the file's name.
Damage is detected before TensorRT sees the bytes, and engines of other versions are rebuilt, each with a note.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from vitascope.closing import Closing
from vitascope.errors import EngineError, MissingDependencyError
from vitascope.file_lock import write_atomically
from vitascope.gpu.current_stream import on_stream
from vitascope.gpu.engines.engine import (
    EngineSpec,
    Precision,
    ShapeRange,
    Tensor,
    TensorSpec,
    failure,
    require_gpu_inputs,
    wanted_outputs,
)
from vitascope.gpu.engines.onnx_network import Calibration, with_precision
from vitascope.gpu.kernels.cuda_module import import_cupy

_FORMAT = "vitascope-tensorrt-engine-1"


class TrtCache:
    """Engines and kernel timings for one GPU and one TensorRT version.

    Args:
        directory: Created when the first file is stored.
        gpu: The GPU's name and compute capability.
        version: TensorRT's version.
    """

    def __init__(self, directory: Path, *, gpu: str, version: str) -> None:
        self._directory = directory
        self._gpu = gpu
        self._version = version
        self.notes: list[str] = []
        """Notes for the user: engines that were rebuilt, and why."""

    def engine_path(self, identity: Mapping[str, object]) -> Path:
        """Path of an engine's file, which may not exist.

        Args:
            identity: What the engine was built from: the network's sha256, sizes, arithmetic. JSON values.
        """
        text = json.dumps({**identity, "gpu": self._gpu}, sort_keys=True)
        return self._directory / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.engine"

    def load(self, path: Path) -> bytes | None:
        """Load the engine in a file; None if it is missing, damaged, or of another TensorRT version.

        A damaged file is removed.
        """
        try:
            header_line, _, engine = path.read_bytes().partition(b"\n")
        except FileNotFoundError:
            return None
        except OSError as error:
            self.notes.append(f"{path}: the stored engine cannot be read ({error.strerror}); rebuilt")
            return None
        try:
            header = json.loads(header_line)
            intact = header["format"] == _FORMAT and header["sha256"] == hashlib.sha256(engine).hexdigest()
            version = str(header["version"])
        except (ValueError, TypeError, KeyError, RecursionError):
            intact, version = False, ""
        if not intact:
            self.discard(path, "was damaged")
            return None
        if version != self._version:
            self.notes.append(
                f"the stored engine was built by TensorRT {version}; rebuilt by {self._version}"
            )
            return None
        return engine

    def store(self, path: Path, engine: bytes) -> None:
        """Write an engine completely or not at all; a failure becomes a note."""
        header = {
            "format": _FORMAT,
            "version": self._version,
            "sha256": hashlib.sha256(engine).hexdigest(),
        }
        self._write(path, json.dumps(header).encode() + b"\n" + engine)

    def discard(self, path: Path, why: str) -> None:
        """Remove an engine that cannot be used."""
        self.notes.append(f"{path}: the stored engine {why}; removed and rebuilt")
        # If it cannot be removed, it cannot be replaced either, which is noted then.
        with contextlib.suppress(OSError):
            path.unlink()

    def load_timings(self) -> bytes:
        """Kernel timings on this GPU from earlier builds; empty if none are stored."""
        try:
            return self._timing_path().read_bytes()
        except OSError:
            return b""

    def store_timings(self, timings: bytes) -> None:
        """Store timings for later builds."""
        self._write(self._timing_path(), timings)

    def discard_timings(self) -> None:
        """Remove timings that TensorRT rejects."""
        self.notes.append(f"{self._timing_path()}: TensorRT rejected the stored timings; removed")
        with contextlib.suppress(OSError):
            self._timing_path().unlink()

    def _timing_path(self) -> Path:
        text = f"{self._gpu} {self._version}"
        return self._directory / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.timing"

    def _write(self, path: Path, content: bytes) -> None:
        try:
            write_atomically(path, content)
        except OSError as error:
            self.notes.append(
                f"{path}: cannot be stored ({os.strerror(error.errno or 0)}); rebuilt each time"
            )


_OLDEST_MAJOR = 10
_INSTALL = "pip install tensorrt"


def load_tensorrt() -> Any:
    """Import TensorRT.

    Raises:
        MissingDependencyError: It is not installed, its libraries cannot be loaded, or it is too old.
    """
    try:
        module: Any = importlib.import_module("tensorrt")
    except ImportError as error:
        raise MissingDependencyError(f"TensorRT is not installed: {_INSTALL}") from error
    except OSError as error:  # the module exists, but its libraries do not
        raise MissingDependencyError(f"TensorRT's libraries cannot be loaded: {_INSTALL}") from error
    if int(module.__version__.partition(".")[0]) < _OLDEST_MAJOR:
        raise MissingDependencyError(
            f"TensorRT {module.__version__} is too old, {_OLDEST_MAJOR} or newer is needed: {_INSTALL} --upgrade"
        )
    return module


def new_error_log(trt: Any) -> Any:
    """A ``tensorrt.ILogger`` that collects errors in ``messages``: TensorRT reports failures as None or False."""
    messages: list[str] = []

    def log(_self: object, severity: Any, message: str) -> None:
        if int(severity) <= int(trt.ILogger.Severity.ERROR):
            messages.append(" ".join(message.split()))

    def construct(self: Any) -> None:
        trt.ILogger.__init__(self)
        self.messages = messages

    # Derived here, because the base class only exists once TensorRT is loaded.
    return type("ErrorLog", (trt.ILogger,), {"__init__": construct, "log": log})()


class TrtPlan(Closing):
    """One ONNX network under TensorRT. Not yet run on hardware.

    Building takes seconds to minutes; with ``cache_dir`` it happens once per network, sizes, arithmetic, GPU and
    TensorRT version. Call it from one thread at a time.

    Args:
        model: Path of an ``.onnx`` file, or its serialised bytes.
        profiles: Sizes of every input that has free dimensions.
        precision: Arithmetic; see ``with_precision``. ``fp32`` switches TF32 off, ``tf32`` leaves it on.
        calibration: For ``int8``: typical inputs.
        device_id: Index of the GPU.
        cache_dir: Folder for engines and timings; None builds each time.
        workspace_bytes: Limit of scratch memory for kernels, in bytes; TensorRT's own limit if omitted.

    Raises:
        MissingDependencyError: TensorRT, CuPy or the converter is not installed; the message names the package.
        EngineError: TensorRT cannot read or build the network; the message has its reason.
    """

    _cache: TrtCache | None

    def __init__(
        self,
        model: Path | bytes,
        *,
        profiles: Mapping[str, ShapeRange] | None = None,
        precision: Precision = "tf32",
        calibration: Calibration | None = None,
        device_id: int = 0,
        cache_dir: Path | None = None,
        workspace_bytes: int | None = None,
    ) -> None:
        self._begin(str(model) if isinstance(model, Path) else "network", precision, device_id)
        self._beside = (str(model),) if isinstance(model, Path) else ()
        self._profiles = dict(profiles or {})
        self._workspace_bytes = workspace_bytes
        network = with_precision(model, precision, calibration=calibration)
        with self._cupy.cuda.Device(device_id):
            gpu = _gpu_identity(self._cupy, device_id)
            if cache_dir is not None:
                self._cache = TrtCache(cache_dir, gpu=gpu, version=self._trt.__version__)
            self._prepare(self._kept_or_built(network))

    @classmethod
    def from_serialized(
        cls, content: bytes, *, label: str, precision: Precision = "tf32", device_id: int = 0
    ) -> TrtPlan:
        """Open the output of ``serialized``, on the same kind of GPU and with the same TensorRT version.

        Args:
            content: TensorRT's own format, as ``trtexec --saveEngine`` writes it.
            label: Name in messages.
            precision: Precision that it was built with, for reports; the file does not contain it.
            device_id: Index of the GPU.

        Raises:
            MissingDependencyError: TensorRT or CuPy is not installed.
            EngineError: TensorRT rejects it; the message has its reason.
        """
        plan = cls.__new__(cls)
        plan._begin(label, precision, device_id)
        with plan._cupy.cuda.Device(device_id):
            engine: Any = plan._runtime.deserialize_cuda_engine(content)
            if engine is None:
                raise plan._error(f"TensorRT {plan._trt.__version__} cannot load it")
            plan._prepare(engine)
        # Runs use the first profile: "ICudaEngine.get_tensor_profile_shape".
        plan._profiles = {
            tensor.name: ShapeRange(*map(tuple, engine.get_tensor_profile_shape(tensor.name, 0)))
            for tensor in plan._spec.inputs
            if None in tensor.shape
        }
        return plan

    def _begin(self, label: str, precision: Precision, device_id: int) -> None:
        self._label = label
        self._trt: Any = load_tensorrt()
        self._cupy = import_cupy()
        self._device_id = device_id
        self._precision: Precision = precision
        self._cache = None
        self._log: Any = new_error_log(self._trt)
        with self._cupy.cuda.Device(device_id):
            self._runtime: Any = self._trt.Runtime(self._log)

    def _prepare(self, engine: Any) -> None:
        self._engine: Any = engine
        self._context: Any = engine.create_execution_context()
        if self._context is None:
            raise self._error("TensorRT cannot prepare it for running")
        self._spec = self._describe(engine)

    @property
    def name(self) -> str:
        """Engine and version, such as ``tensorrt 11.4.0.106 (fp16)``."""
        return f"tensorrt {self._trt.__version__} ({self._precision})"

    @property
    def spec(self) -> EngineSpec:
        """Named tensors and dtypes; free dimensions are None, because an engine does not store their names."""
        return self._spec

    @property
    def profiles(self) -> dict[str, ShapeRange]:
        """Sizes of every input with free dimensions."""
        return dict(self._profiles)

    @property
    def serialized(self) -> bytes:
        """The engine in TensorRT's own format: "ICudaEngine.serialize".

        Raises:
            EngineError: The engine was closed, or cannot be serialised.
        """
        if self._engine is None:
            raise EngineError(f"{self._label}: the engine was closed")
        content = self._engine.serialize()
        if content is None:
            raise self._error("TensorRT cannot serialise it")
        return bytes(content)

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on the cache for the user: engines that were rebuilt, and why."""
        return tuple(self._cache.notes) if self._cache is not None else ()

    def run(
        self, inputs: Mapping[str, Tensor], outputs: Sequence[str] | None = None, *, stream: int | None = None
    ) -> dict[str, Tensor]:
        """Compute the outputs; see ``Engine.run``. On the default stream, TensorRT blocks the host.

        Raises:
            DeviceMemoryError: The GPU has too little memory.
            EngineError: As ``Engine.run``; or sizes are outside ``profiles``.
        """
        context = self._context
        if context is None:
            raise EngineError(f"{self._label}: the engine was closed")
        names = wanted_outputs(self._spec, outputs, label=self._label)
        require_gpu_inputs(self._spec, inputs, label=self._label)
        self._log.messages.clear()
        with on_stream(stream, device_id=self._device_id) as current:
            for name, array in inputs.items():
                if not context.set_input_shape(name, tuple(array.shape)):
                    raise self._error(f"TensorRT rejects input {name!r} of shape {list(array.shape)}")
                self._set_address(context, name, array)
            results: dict[str, Any] = {}
            for tensor in self._spec.outputs:  # every output needs memory, even if not requested
                shape = tuple(context.get_tensor_shape(tensor.name))
                if min(shape, default=1) < 0:
                    raise EngineError(
                        f"{self._label}: the size of {tensor.name!r} depends on what is computed"
                    )
                results[tensor.name] = self._empty(shape, tensor.dtype)
                self._set_address(context, tensor.name, results[tensor.name])
            if not context.execute_async_v3(current.ptr):
                raise self._error("inference failed")
        return {name: results[name] for name in names}

    def close(self) -> None:
        """Free engine and context; idempotent. Work on the caller's stream must have finished."""
        self._context = None
        self._engine = None
        self._runtime = None

    # --- building ---------------------------------------------------------------------------------------------------

    def _kept_or_built(self, network: bytes) -> Any:
        path = None
        if self._cache is not None:
            path = self._cache.engine_path(
                {
                    "network": hashlib.sha256(network).hexdigest(),
                    "precision": self._precision,
                    "profiles": {name: asdict(shapes) for name, shapes in self._profiles.items()},
                    "workspace_bytes": self._workspace_bytes,
                }
            )
            kept = self._cache.load(path)
            if kept is not None:
                engine: Any = self._runtime.deserialize_cuda_engine(kept)
                if engine is not None:
                    return engine
                self._cache.discard(path, f"was refused ({self._last_message()})")
        plan = self._build(network)
        engine = self._runtime.deserialize_cuda_engine(plan)
        if engine is None:
            raise self._error("TensorRT cannot load what it built")
        if self._cache is not None and path is not None:
            self._cache.store(path, plan)
        return engine

    def _build(self, network: bytes) -> bytes:
        trt = self._trt
        builder = trt.Builder(self._log)
        definition = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
        parser = trt.OnnxParser(definition, self._log)
        # A file may store its weights beside it; the parser looks for them next to the path.
        if not parser.parse(network, *self._beside):
            problems = [str(parser.get_error(index).desc()) for index in range(parser.num_errors)]
            raise self._error("TensorRT cannot read it", problems[0] if problems else None)
        config = builder.create_builder_config()
        if self._precision == "fp32":
            config.clear_flag(trt.BuilderFlag.TF32)
        if self._workspace_bytes is not None:
            config.set_memory_pool_limit(trt.MemoryPoolType.WORKSPACE, self._workspace_bytes)
        self._add_profile(builder, definition, config)
        self._load_timings(config)
        plan = builder.build_serialized_network(definition, config)
        if plan is None:
            raise self._error("TensorRT cannot build it")
        if self._cache is not None:
            timings = config.get_timing_cache()
            if timings is not None:
                self._cache.store_timings(bytes(timings.serialize()))
        return bytes(plan)

    def _add_profile(self, builder: Any, definition: Any, config: Any) -> None:
        free = {}
        for index in range(definition.num_inputs):
            tensor = definition.get_input(index)
            if min(tuple(tensor.shape), default=1) < 0:
                free[tensor.name] = tuple(tensor.shape)
        if missing := sorted(set(free) - set(self._profiles)):
            raise EngineError(f"{self._label}: input {missing[0]!r} has free dimensions and no profile")
        if not free:
            return
        profile = builder.create_optimization_profile()
        for name in free:
            shapes = self._profiles[name]
            profile.set_shape(name, shapes.smallest, shapes.usual, shapes.largest)
        if config.add_optimization_profile(profile) < 0:
            raise self._error("TensorRT refuses the profiles")

    def _load_timings(self, config: Any) -> None:
        if self._cache is None:
            return
        timings = config.create_timing_cache(kept := self._cache.load_timings())
        if timings is None or not config.set_timing_cache(timings, False):
            if kept:
                self._cache.discard_timings()
            config.set_timing_cache(config.create_timing_cache(b""), False)

    # --- running ----------------------------------------------------------------------------------------------------

    def _describe(self, engine: Any) -> EngineSpec:
        tensors: dict[bool, list[TensorSpec]] = {True: [], False: []}
        for index in range(engine.num_io_tensors):
            name = engine.get_tensor_name(index)
            try:
                dtype = np.dtype(self._trt.nptype(engine.get_tensor_dtype(name)))
            except TypeError as error:
                raise EngineError(f"{self._label}: {name!r} has a type that NumPy does not know") from error
            shape = tuple(None if side < 0 else int(side) for side in engine.get_tensor_shape(name))
            is_input = engine.get_tensor_mode(name) == self._trt.TensorIOMode.INPUT
            tensors[is_input].append(TensorSpec(name, dtype, shape))
        return EngineSpec(tuple(tensors[True]), tuple(tensors[False]), "cuda")

    def _empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        try:
            return self._cupy.empty(shape, dtype)
        except self._cupy.cuda.memory.OutOfMemoryError as error:
            raise failure(error, label=self._label, what="no room for an output") from error

    def _set_address(self, context: Any, name: str, array: Any) -> None:
        if not context.set_tensor_address(name, array.data.ptr):
            raise self._error(f"TensorRT refuses the memory of {name!r}")

    def _last_message(self) -> str:
        return self._log.messages[-1] if self._log.messages else "no reason given"

    def _error(self, what: str, reason: str | None = None) -> EngineError:
        return failure(reason or self._last_message(), label=self._label, what=what)


def _gpu_identity(cupy: Any, device_id: int) -> str:
    properties = cupy.cuda.runtime.getDeviceProperties(device_id)
    return f"{properties['name'].decode(errors='replace')}, {properties['major']}.{properties['minor']}"
