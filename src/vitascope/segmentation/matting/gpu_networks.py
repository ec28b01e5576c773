"""Networks for frames on a GPU: the fastest engine that is installed and right on this machine."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from vitascope.config import Settings
from vitascope.config.home import engine_cache
from vitascope.device import Device
from vitascope.errors import EngineError, MissingDependencyError, UsageError
from vitascope.gpu.engines import Precision
from vitascope.gpu.engines.selection import Arrays, Candidate, Chosen, GpuOptions, Machine, choose_engine
from vitascope.models.custom.decoders import NetworkKind
from vitascope.models.host_network import HostNetwork
from vitascope.models.network import MattingNetwork, engine_notes
from vitascope.models.network_check import network_runner, random_pictures
from vitascope.models.store.store import Fingerprint
from vitascope.segmentation.matting.opened_network import OpenedNetwork, rvm_size

MOST_FRAMES = 16
"""Frames of one call for which engines are built, where they are built for sizes."""

_INT8_FAILS = (
    "RVM in int8 fails the quantiser's gate: on some clips its matte is off by more than one code of 255 "
    "(docs/quantization.md has the figures); take fp16 or mixed"
)


def open_rvm_on_gpu(path: Path, *, name: str, settings: Settings, device: Device) -> OpenedNetwork:
    """RVM on the engine that ``model.backend`` names; ``auto`` takes the first that is installed and right.

    In order: our fused Triton kernels, PyTorch's operators, TensorRT, ONNX Runtime with its GPU providers, the CPU.
    ``inductor`` is PyTorch compiled, which ``auto`` does not take: its fusion is slower than ours, and takes minutes to
    build.

    Args:
        path: The official ONNX file, verified.
        name: What reports call it.
        settings: The run's settings.
        device: A GPU.

    Raises:
        EngineError: The engine that was requested failed, or gives wrong answers here.
        MissingDependencyError: It is not installed; the message names the package.
        UsageError: The engine does not compute with ``gpu.precision``.
    """
    import cupy

    from vitascope.models.rvm.rvm import RvmEngines, RvmNetwork, rvm_candidates

    def open_onnx(engines: RvmEngines | None) -> RvmNetwork:
        threads = settings.processing.num_threads
        return RvmNetwork(path, name=name, threads=threads, open_engines=engines, **rvm_size(settings))

    def on_processor_once(inputs: Arrays) -> Arrays:
        network = RvmNetwork(path)
        try:
            return network_runner(network, on_gpu=False)(inputs)
        finally:
            network.close()

    with cupy.cuda.Device(device.index):
        chosen = choose_engine(
            [
                _fused_candidate(path, name, settings, device),
                _torch_candidate(path, name, settings, device),
                *rvm_candidates(open_onnx, _options(settings, device), most_frames=MOST_FRAMES),
            ],
            wanted=settings.model.backend,
            reference=on_processor_once,
            make_inputs=random_pictures(),
            model=Fingerprint.of(path).sha256,
            machine=Machine.of_gpu(device.index),
            cache_dir=engine_cache(),
        )
    if settings.gpu.precision == "int8" and chosen.name == "processor":
        chosen.engine.close()
        raise EngineError(f"gpu.precision=int8: no engine here computes it: {'; '.join(chosen.reasons)}")
    return _opened(chosen)


def open_custom_on_gpu(path: Path, *, kind: NetworkKind, settings: Settings, device: Device) -> OpenedNetwork:
    """A user's ONNX file on the fastest engine that is installed and right, the CPU at worst.

    Args:
        path: The file.
        kind: What it puts out.
        settings: The run's settings.
        device: A GPU.

    Raises:
        ModelError: It is not a network of its kind.
        EngineError: The engine that was requested failed, or gives wrong answers here.
        MissingDependencyError: It is not installed.
        UsageError: ``model.backend`` asks for an engine that runs no ONNX files.
    """
    import cupy

    from vitascope.models.custom.custom import choose_custom_network

    model = settings.model
    if model.backend in ("triton", "torch", "inductor"):
        raise UsageError(
            f"model.backend={model.backend} runs RVM alone; an ONNX file runs on onnxruntime or tensorrt"
        )
    with cupy.cuda.Device(device.index):
        chosen = choose_custom_network(
            path,
            _options(settings, device),
            kind=kind,
            person_class=model.person_class,
            threads=settings.processing.num_threads,
            wanted=model.backend,
            most_pictures=2 * MOST_FRAMES,
            model=Fingerprint.of(path).sha256,
            machine=Machine.of_gpu(device.index),
            cache_dir=engine_cache(),
        )
    return _opened(chosen)


def on_processor(network: MattingNetwork, *, settings: Settings, why: str) -> OpenedNetwork:
    """A network that computes on the CPU, for frames on a GPU.

    Args:
        network: Any.
        settings: The run's settings.
        why: One line for the report.

    Raises:
        UsageError: ``model.backend`` asks for an engine of the GPU.
    """
    if settings.model.backend not in ("auto", "onnxruntime"):
        raise UsageError(f"{network.name} does not run on model.backend={settings.model.backend}: {why}")
    return OpenedNetwork(HostNetwork(network), (why,))


def _opened(chosen: Chosen[MattingNetwork]) -> OpenedNetwork:
    """The network, why it was chosen, and what became of kept engines."""
    return OpenedNetwork(chosen.engine, (*chosen.reasons, *engine_notes(chosen.engine)))


def _precision(settings: Settings) -> Precision:
    gpu = settings.gpu
    return "tf32" if gpu.precision == "fp32" and gpu.allow_tf32 else gpu.precision


def _tensorrt_precision(settings: Settings) -> Precision:
    """TensorRT's arithmetic: ``gpu.precision`` within what ``tensorrt.precision`` allows, or the int8 it asks for."""
    wanted, allowed = _precision(settings), settings.tensorrt.precision
    if allowed.int8:
        return "int8"
    if wanted in ("fp16", "mixed") and not allowed.fp16:
        return "tf32" if settings.gpu.allow_tf32 else "fp32"
    return wanted


def _options(settings: Settings, device: Device) -> GpuOptions:
    return GpuOptions(
        cache_dir=settings.tensorrt.cache_dir or engine_cache(),
        precision=_precision(settings),
        tensorrt_precision=_tensorrt_precision(settings),
        workspace_bytes=round(settings.tensorrt.workspace_gb * 1e9),
        device_id=device.index,
        cudnn_benchmark=settings.gpu.cudnn_benchmark is not False,
        deterministic=settings.gpu.cudnn_deterministic,
    )


def _fused_candidate(path: Path, name: str, settings: Settings, device: Device) -> Candidate[MattingNetwork]:
    """Our fused kernels, compiled by Triton when they are first met."""
    precision = _precision(settings)

    def open_network() -> MattingNetwork:
        if precision == "int8":
            raise UsageError(_INT8_FAILS)
        if precision not in ("fp16", "mixed"):
            raise UsageError(
                f"the fused kernels compute fp16 and mixed, not {precision}; take --backend torch"
            )
        from vitascope.models.rvm.fused_network import RvmFusedNetwork

        return RvmFusedNetwork(
            path,
            name=name,
            device_id=device.index,
            precision=precision,
            most_frames=MOST_FRAMES,
            cache_dir=engine_cache(),
            **rvm_size(settings),
        )

    return Candidate(
        name="triton",
        precision=precision,
        open=open_network,
        describe=lambda network: network.engine_name,
        runner=partial(network_runner, on_gpu=True),
    )


def _torch_candidate(path: Path, name: str, settings: Settings, device: Device) -> Candidate[MattingNetwork]:
    """PyTorch's operators, in a CUDA graph, or compiled where ``inductor`` is requested."""
    precision = _precision(settings)
    compiles = settings.model.backend == "inductor"

    def open_network() -> MattingNetwork:
        if precision == "int8":
            raise UsageError(_INT8_FAILS)
        try:
            from vitascope.models.rvm.torch_network import RvmTorchNetwork
        except ImportError as error:
            raise MissingDependencyError(
                "PyTorch is not installed: pip install 'vitascope[torch]'"
            ) from error
        return RvmTorchNetwork(
            path,
            name=name,
            device=f"cuda:{device.index}",
            precision=precision,
            mode="aot" if compiles else "eager",
            most_frames=MOST_FRAMES,
            cudnn_benchmark=settings.gpu.cudnn_benchmark is True,
            cudnn_deterministic=settings.gpu.cudnn_deterministic,
            cache_dir=engine_cache(),
            **rvm_size(settings),
        )

    return Candidate(
        name="inductor" if compiles else "torch",
        precision=precision,
        open=open_network,
        describe=lambda network: network.engine_name,
        runner=partial(network_runner, on_gpu=True),
    )
