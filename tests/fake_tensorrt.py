"""A fake of TensorRT's Python interface: builds "plans" that hold the ONNX file, and runs them with ONNX Runtime."""

from __future__ import annotations

import ctypes
import enum
import types

import numpy as np
import onnx
import onnxruntime

DTYPES = {"tensor(float)": np.float32, "tensor(float16)": np.float16, "tensor(int64)": np.int64}


class Severity(enum.IntEnum):
    INTERNAL_ERROR = 0
    ERROR = 1
    WARNING = 2
    INFO = 3


class Mode(enum.Enum):
    INPUT = 1
    OUTPUT = 2


def fake_tensorrt(*, version="11.4.0.106", build_error=None, refuses_timings=False, refuses_plans=False):
    """Return a module to replace ``tensorrt``; its lists record the requests."""
    trt = types.ModuleType("tensorrt")
    trt.__version__ = version
    trt.builds, trt.streams, trt.given_timings, trt.paths = [], [], [], []

    class ILogger:
        Severity = Severity

        def __init__(self):
            self.constructed = True

    def complain(logger, message):
        assert logger.constructed  # pybind11 refuses a logger whose base was not constructed
        logger.log(Severity.WARNING, "only a warning")
        logger.log(Severity.ERROR, message)

    class Tensor:
        def __init__(self, info):
            self.name = info.name
            self.shape = tuple(
                side.dim_value if side.HasField("dim_value") else -1
                for side in info.type.tensor_type.shape.dim
            )

    class Network:
        model = None

        @property
        def num_inputs(self):
            return len(self.model.graph.input)

        def get_input(self, index):
            return Tensor(self.model.graph.input[index])

    class Parser:
        def __init__(self, network, logger):
            self.network, self.num_errors = network, 0

        def parse(self, model, path=None):
            trt.paths.append(path)
            try:
                self.network.model = onnx.load_from_string(model)
            except Exception:
                self.num_errors = 1
                return False
            return True

        def get_error(self, index):
            return types.SimpleNamespace(desc=lambda: "not an ONNX file")

    class Timings:
        def __init__(self, content):
            self.content = content

        def serialize(self):
            return self.content + b"timed"

    class Config:
        def __init__(self):
            self.cleared, self.profiles, self.workspace, self.timings = [], [], None, None

        def clear_flag(self, flag):
            self.cleared.append(flag)

        def set_memory_pool_limit(self, pool, size):
            assert pool == "workspace"
            self.workspace = size

        def add_optimization_profile(self, profile):
            self.profiles.append(profile)
            return len(self.profiles) - 1

        def create_timing_cache(self, content):
            trt.given_timings.append(content)
            return None if refuses_timings and content else Timings(content)

        def set_timing_cache(self, timings, ignore_mismatch):
            assert ignore_mismatch is False
            self.timings = timings
            return True

        def get_timing_cache(self):
            return self.timings

    class Profile(dict):
        def set_shape(self, name, smallest, usual, largest):
            self[name] = (smallest, usual, largest)

    class Builder:
        def __init__(self, logger):
            self.logger = logger

        def create_network(self, flags):
            assert flags == 1 << 1, "a network that is not strongly typed"
            return Network()

        def create_builder_config(self):
            return Config()

        def create_optimization_profile(self):
            return Profile()

        def build_serialized_network(self, network, config):
            if build_error is not None:
                complain(self.logger, build_error)
                return None
            trt.builds.append(config)
            limits = repr(config.profiles[0] if config.profiles else {}).encode()
            return b"PLAN" + limits + b"\0" + network.model.SerializeToString()

    class Context:
        def __init__(self, session, limits, logger):
            self.session, self.limits, self.logger = session, limits, logger
            self.shapes, self.addresses, self.output_shapes = {}, {}, {}

        def set_input_shape(self, name, shape):
            low, _, high = self.limits.get(name, (shape, shape, shape))
            if not all(a <= b <= c for a, b, c in zip(low, shape, high, strict=True)):
                complain(self.logger, f"{name}: outside of its profile")
                return False
            self.shapes[name] = shape
            return True

        def get_tensor_shape(self, name):
            key = tuple(self.shapes.items())
            if key not in self.output_shapes:
                inputs = {
                    one.name: np.zeros(self.shapes[one.name], DTYPES[one.type])
                    for one in self.session.get_inputs()
                }
                results = self.session.run(None, inputs)
                names = [one.name for one in self.session.get_outputs()]
                self.output_shapes[key] = {
                    known: result.shape for known, result in zip(names, results, strict=True)
                }
            return self.output_shapes[key][name]

        def set_tensor_address(self, name, address):
            self.addresses[name] = address
            return address % 4 == 0

        def execute_async_v3(self, stream_handle):
            trt.streams.append(stream_handle)
            inputs = {
                one.name: _memory(self.addresses[one.name], self.shapes[one.name], DTYPES[one.type])
                for one in self.session.get_inputs()
            }
            for output, result in zip(
                self.session.get_outputs(), self.session.run(None, inputs), strict=True
            ):
                _memory(self.addresses[output.name], result.shape, result.dtype)[...] = result
            return True

    class Engine:
        def __init__(self, plan, logger):
            self.plan = bytes(plan)
            limits, _, model = self.plan[4:].partition(b"\0")
            self.session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
            self.limits, self.logger = eval(limits), logger
            self.tensors = {
                **{one.name: (Mode.INPUT, one) for one in self.session.get_inputs()},
                **{one.name: (Mode.OUTPUT, one) for one in self.session.get_outputs()},
            }
            self.num_io_tensors = len(self.tensors)

        def get_tensor_name(self, index):
            return list(self.tensors)[index]

        def get_tensor_mode(self, name):
            return self.tensors[name][0]

        def get_tensor_dtype(self, name):
            return self.tensors[name][1].type

        def get_tensor_shape(self, name):
            return tuple(side if isinstance(side, int) else -1 for side in self.tensors[name][1].shape)

        def get_tensor_profile_shape(self, name, profile_index):
            assert profile_index == 0
            return [list(shape) for shape in self.limits[name]]

        def serialize(self):
            return memoryview(self.plan)  # IHostMemory supports the buffer protocol

        def create_execution_context(self):
            return Context(self.session, self.limits, self.logger)

    class Runtime:
        def __init__(self, logger):
            self.logger, self.calls = logger, 0

        def deserialize_cuda_engine(self, plan):
            self.calls += 1
            if (refuses_plans and self.calls == 1) or bytes(plan[:4]) != b"PLAN":
                complain(self.logger, "plan of another\nbuild")
                return None
            return Engine(plan, self.logger)

    trt.ILogger, trt.Builder, trt.OnnxParser, trt.Runtime = ILogger, Builder, Parser, Runtime
    trt.NetworkDefinitionCreationFlag = types.SimpleNamespace(STRONGLY_TYPED=1)
    trt.BuilderFlag = types.SimpleNamespace(TF32="tf32")
    trt.MemoryPoolType = types.SimpleNamespace(WORKSPACE="workspace")
    trt.TensorIOMode = Mode
    trt.nptype = DTYPES.__getitem__
    return trt


def _memory(address, shape, dtype):
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    return np.frombuffer((ctypes.c_byte * size).from_address(address), dtype).reshape(shape)
