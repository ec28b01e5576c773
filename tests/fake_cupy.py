"""The part of CuPy that the engines use, in host memory: addresses are real, streams only record calls.

This checks the contracts of GPU code (what is bound where, which stream waits for which) without a GPU, and
computations through the addresses are right or wrong as they would be there.
"""

from __future__ import annotations

import ctypes
import itertools
import threading
import types

import numpy as np


class FakeArray(np.ndarray):
    """The used part of a CuPy array."""

    @property
    def data(self):
        memory = self
        while isinstance(memory.base, np.ndarray):
            memory = memory.base
        return types.SimpleNamespace(ptr=self.ctypes.data, mem=memory)

    def get(self):
        return np.array(self)


FakeArray.__module__ = "cupy"


class StreamOfThread(threading.local):
    """The stream that each thread uses, and those that it entered."""

    def __init__(self, default):
        self.current, self.entered = default, [default]


def fake_cupy(*, name="Fake GPU", compute_capability=(9, 0)):
    """Return a module to replace ``cupy``; its ``diary`` lists what was recorded, waited for and copied."""
    cupy = types.ModuleType("cupy")
    cupy.diary = diary = []
    cupy.device = 0
    cupy.is_slow = False  # True: nothing that was recorded has happened yet
    numbers = itertools.count(1)

    def on_gpu(array):
        return np.array(array, order="C").view(FakeArray)

    class Event:
        def __init__(self, *, block=False, disable_timing=False):
            self.number = next(numbers)

        def record(self, stream=None):
            diary.append(("record", (stream or Stream.here.current).ptr, self.number))

        @property
        def done(self):
            return not cupy.is_slow

        def synchronize(self):
            diary.append(("host waits", self.number))

    class Stream:
        def __init__(self, *, non_blocking=False):
            self.ptr = 1000 + next(numbers)
            self.non_blocking = non_blocking

        @classmethod
        def from_external(cls, stream):
            one = cls()
            version, one.ptr = stream.__cuda_stream__()
            assert version == 0
            return one

        def __enter__(self):
            Stream.here.entered.append(self)
            return self.use()

        def __exit__(self, *error):
            assert Stream.here.entered.pop() is self
            Stream.here.entered[-1].use()  # as in CuPy, not the stream used before

        def use(self):
            Stream.here.current = self
            return self

        def wait_event(self, event):
            diary.append(("wait", self.ptr, event.number))

        def synchronize(self):
            diary.append(("synchronize", self.ptr))

    default = Stream()
    default.ptr = 0
    Stream.here = StreamOfThread(default)

    class Device:
        def __init__(self, device=None):
            self.id = cupy.device if device is None else device

        def __enter__(self):
            self.before, cupy.device = cupy.device, self.id
            return self

        def __exit__(self, *error):
            cupy.device = self.before

    def at_address(shape, dtype, pointer):
        size = max(pointer.size_bytes, 1)
        memory = (ctypes.c_byte * size).from_address(pointer.address)
        memory.owner = pointer.owner  # as CuPy keeps it
        count = int(np.prod(shape))
        return np.frombuffer(memory, dtype, count).reshape(shape).view(FakeArray)

    def unowned(address, size_bytes, owner, device_id=-1):
        return types.SimpleNamespace(address=address, size_bytes=size_bytes, owner=owner, device_id=device_id)

    def memcpy(target, source, size_bytes, kind, stream):
        diary.append(("copy", stream, size_bytes))
        ctypes.memmove(target, source, size_bytes)

    class OutOfMemoryError(MemoryError):
        pass

    class CUDARuntimeError(RuntimeError):
        pass

    cupy.asarray = on_gpu
    cupy.ascontiguousarray = lambda array: np.asanyarray(array, order="C")
    cupy.asnumpy = lambda array: np.array(array)
    cupy.empty = lambda shape, dtype=np.float32: np.full(shape, 77, dtype).view(FakeArray)
    cupy.zeros = lambda shape, dtype=np.float32: np.zeros(shape, dtype).view(FakeArray)
    cupy.ndarray = at_address
    cupy.cuda = types.SimpleNamespace(
        Device=Device,
        Event=Event,
        Stream=Stream,
        MemoryPointer=lambda memory, offset: memory,
        UnownedMemory=unowned,
        PinnedMemory=lambda size, flags=0: bytearray(size),
        PinnedMemoryPointer=lambda memory, offset: memory,
        get_current_stream=lambda: Stream.here.current,
        memory=types.SimpleNamespace(OutOfMemoryError=OutOfMemoryError),
        nvtx=types.SimpleNamespace(RangePush=lambda name: None, RangePop=lambda: None),
        runtime=types.SimpleNamespace(
            driverGetVersion=lambda: 13000,
            getDeviceProperties=lambda device: {
                "name": name.encode(),
                "major": compute_capability[0],
                "minor": compute_capability[1],
                "multiProcessorCount": 132,
                "totalGlobalMem": 80 * 2**30,
            },
            memGetInfo=lambda: (3 * 2**30, 80 * 2**30),
            memcpyAsync=memcpy,
            memcpyHostToDevice=1,
            memcpyDeviceToHost=2,
            hostAllocPortable=1,
            CUDARuntimeError=CUDARuntimeError,
        ),
    )
    cupy.get_default_memory_pool = lambda: types.SimpleNamespace(get_limit=lambda: 0)
    return cupy
