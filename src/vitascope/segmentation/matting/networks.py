"""Opens the network for the ``model`` settings, on the CPU or on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Generic, NamedTuple, Protocol, TypedDict, TypeVar

from vitascope.config import Settings
from vitascope.config.home import engine_cache
from vitascope.device import Device
from vitascope.errors import EngineError, MissingDependencyError, ModelUnavailableError, UsageError
from vitascope.gpu.engines import Precision
from vitascope.gpu.engines.selection import Arrays, Candidate, Chosen, GpuOptions, Machine, choose_engine
from vitascope.models.custom.decoders import NetworkKind
from vitascope.models.host_network import HostNetwork
from vitascope.models.network import MattingNetwork, engine_notes
from vitascope.models.network_check import network_runner, random_pictures
from vitascope.models.store.catalogue import InputKind, load_catalogue
from vitascope.models.store.store import Fingerprint, ModelStore

FetchProgress = Callable[[str, int, int], None]
"""Called with (model name, bytes so far, bytes in all) during a model's download."""


_SELFIE: Final = ("selfie", "selfie-landscape")
_SLOWER_THERE: Final = (
    "selfie runs on the CPU: rvm is faster on this GPU, and better; --profile balanced downloads it"
)


class NetworkFacts(Protocol):
    """Facts about a network for reports, wherever it is open."""

    @property
    def name(self) -> str:
        """The network's name, for example ``rvm``."""
        ...

    @property
    def engine_name(self) -> str:
        """The engine that runs it."""
        ...

    @property
    def recurrent(self) -> bool:
        """True if it remembers frames."""
        ...


Network = TypeVar("Network", bound=NetworkFacts, covariant=True)


@dataclass(frozen=True, slots=True)
class ChosenNetwork(Generic[Network]):
    """A network, and why it was chosen."""

    network: Network
    """The network, open in this process; in a run shared by several processes, the facts known about it."""
    requested: str
    """The ``model.name`` that was requested."""
    note: str | None
    """One line for the user if the choice may surprise them; None otherwise."""
    engine_reasons: tuple[str, ...] = ()
    """Why it runs on its engine, one line for each engine that was rejected."""


class _Opened(NamedTuple):
    """A network that runs, and why on this engine."""

    network: MattingNetwork
    reasons: tuple[str, ...] = ()
    """One line for each engine that was rejected, with the reason."""


def open_network(
    settings: Settings,
    store: ModelStore,
    *,
    device: Device,
    progress: FetchProgress | None = None,
) -> ChosenNetwork[MattingNetwork]:
    """Open the network that the settings name; download it if necessary.

    ``auto`` means ``rvm``, or ``selfie`` if that is unavailable; every other name means that network or an
    error.

    Args:
        settings: The run's settings.
        store: Where networks lie.
        device: On a GPU, the network takes and returns CuPy arrays.
        progress: Called with the progress of a download.

    Raises:
        UsageError: A user's ONNX file without ``model.kind``, or ``model.kind`` without such a file.
        ModelError: The network is unknown, cannot be downloaded, fails its checksum, or is of another kind.
        EngineError: The engine cannot load it.
        MissingDependencyError: The engine that was requested is not installed.
    """
    model = settings.model
    if is_network_file(model.name):
        return _chosen(_open_custom(settings, device), model.name)
    _refuse_kind(settings)
    if model.name != "auto":
        note = _SLOWER_THERE if device.kind == "cuda" and model.name in _SELFIE else None
        return _chosen(_open_named(model.name, settings, store, device, progress), model.name, note)
    try:
        return _chosen(_open_named("rvm", settings, store, device, progress), "auto")
    except ModelUnavailableError as error:
        note = f"{error}; using selfie instead"
        return _chosen(_open_named("selfie", settings, store, device, progress), "auto", note)


def _chosen(opened: _Opened, requested: str, note: str | None = None) -> ChosenNetwork[MattingNetwork]:
    return ChosenNetwork(opened.network, requested, note, opened.reasons)


def foresee_network(settings: Settings, store: ModelStore) -> str:
    """Describe the network that ``open_network`` would open; download nothing.

    Verifies files on this machine, and opens and closes a user's ONNX file, so that errors show now.

    Raises:
        UsageError: As ``open_network``.
        ModelError: The network is unknown, damaged or of another kind.
        EngineError: The engine cannot load a user's ONNX file.
    """
    model = settings.model
    if is_network_file(model.name):
        _open_custom_on_processor(settings).close()
        return f"{model.name} (here)"
    _refuse_kind(settings)
    name = "rvm" if model.name == "auto" else model.name
    _require_matting(name)
    if store.is_cached(name):
        store.path(name)
        return f"{name} (here)"
    return f"{name} (would be downloaded)" + (", else selfie" if model.name == "auto" else "")


def open_first_network(store: ModelStore, *, threads: int, on_gpu: bool) -> MattingNetwork:
    """Open the first network of ``early_exit="selfie"``, which ships with Vitascope and runs on the CPU.

    Args:
        store: Where networks lie.
        threads: Threads of the CPU; 0 uses every core.
        on_gpu: True if its pictures come from a GPU.

    Raises:
        ModelError: The installation lacks it.
        EngineError: The engine cannot load it.
    """
    from vitascope.models.selfie.selfie import SelfieNetwork

    network = SelfieNetwork(store.path("selfie"), store.path("selfie-landscape"), threads=threads)
    return HostNetwork(network) if on_gpu else network


def _open_named(
    name: str, settings: Settings, store: ModelStore, device: Device, progress: FetchProgress | None
) -> _Opened:
    _require_matting(name)
    # Import networks when opening them: a run needs only one, and onnx alone takes 0.1 s to import.
    match name:
        case "selfie" | "selfie-landscape":
            return _open_selfie(name, settings, store, device)
        case "rvm" | "rvm-resnet50":
            return _open_rvm(name, settings, store, device, progress)
    raise AssertionError(f"{name} is in the catalogue, but no code opens it")


def _open_rvm(
    name: str, settings: Settings, store: ModelStore, device: Device, progress: FetchProgress | None
) -> _Opened:
    # Verify a file on this machine, and never silently replace it: the user should know of damage.
    if store.is_cached(name):
        path = store.path(name)
    else:
        path = store.pull(name, progress=None if progress is None else partial(progress, name))
    if device.kind == "cuda":
        return _open_rvm_on_gpu(path, name=name, settings=settings, device=device)
    from vitascope.models.rvm.rvm import RvmNetwork

    _refuse_gpu_engine(settings)
    return _Opened(
        RvmNetwork(
            path,
            name=name,
            threads=settings.processing.num_threads,
            near_people=True,
            **rvm_size(settings),
        )
    )


def _open_selfie(name: str, settings: Settings, store: ModelStore, device: Device) -> _Opened:
    from vitascope.models.selfie.selfie import SelfieNetwork

    network = SelfieNetwork(
        store.path("selfie"),
        store.path("selfie-landscape"),
        threads=settings.processing.num_threads,
        choice="aspect" if name == "selfie" else "landscape",
    )
    if device.kind == "cuda":
        return _on_processor(
            network, settings=settings, why="the selfie networks are small and gated on the CPU"
        )
    _refuse_gpu_engine(settings)
    _refuse_int8(settings, name=name)
    return _Opened(network)


def _open_custom(settings: Settings, device: Device) -> _Opened:
    if device.kind == "cuda":
        return _open_custom_on_gpu(
            Path(settings.model.name), kind=_custom_kind(settings), settings=settings, device=device
        )
    _refuse_gpu_engine(settings)
    _refuse_int8(settings, name=settings.model.name)
    return _Opened(_open_custom_on_processor(settings))


def _open_custom_on_processor(settings: Settings) -> MattingNetwork:
    from vitascope.models.custom.custom import open_custom_network

    return open_custom_network(
        Path(settings.model.name),
        kind=_custom_kind(settings),
        person_class=settings.model.person_class,
        threads=settings.processing.num_threads,
    )


def _custom_kind(settings: Settings) -> NetworkKind:
    model = settings.model
    if model.kind is None:
        raise UsageError(
            f"{model.name}: say what the network outputs with --kind matte, binary, semantic or yolo-seg"
        )
    return model.kind


def _refuse_kind(settings: Settings) -> None:
    model = settings.model
    if model.kind is not None:
        raise UsageError(f"model.kind is for an ONNX file of your own; {model.name} does not need it")


def _require_matting(name: str) -> None:
    entry = load_catalogue().entry(name, wanted_for="segmentation")
    if entry.used_by != "segmentation":
        raise UsageError(f"{name} is not a matting network: {entry.purpose}")


def remembers(name: str) -> bool:
    """True for a network of the catalogue with memory; False for a user's own file."""
    kinds = {entry.name: entry.input_kind for entry in load_catalogue().models}
    return kinds.get(name) is InputKind.RECURRENT_VIDEO


def is_network_file(name: str) -> bool:
    """True if a model name is the path of a user's own network."""
    return name.lower().endswith(".onnx") or "/" in name or "\\" in name


class RvmSize(TypedDict):
    """Return the size of RVM's picture, as arguments of its networks."""

    downsample_ratio: float | None
    longest_side: int | None


def rvm_size(settings: Settings) -> RvmSize:
    """The picture's size from the settings."""
    ratio = settings.model.downsample_ratio
    return RvmSize(
        downsample_ratio=None if ratio == "auto" else ratio, longest_side=settings.model.longest_side
    )


def _refuse_gpu_engine(settings: Settings) -> None:
    """Refuse an engine that needs a GPU, in a run on the CPU.

    Raises:
        UsageError: ``model.backend`` names one.
    """
    backend = settings.model.backend
    if backend not in ("auto", "onnxruntime"):
        raise UsageError(f"model.backend={backend} runs on a GPU, but this run uses the CPU")


def _refuse_int8(settings: Settings, *, name: str) -> None:
    """Refuse INT8 for a network that does not support it on the CPU.

    Raises:
        UsageError: ``gpu.precision`` is ``int8``.
    """
    if settings.gpu.precision == "int8":
        raise UsageError(
            f"gpu.precision=int8: on the CPU only RVM can be quantised, and the network is {name}; leave it out, "
            "or quantise your own network with ModelQuantizer (docs/quantization.md)"
        )


_MOST_FRAMES = 16
"""Return the maximum frames per call for engines that are built for fixed sizes."""

_INT8_FAILS = (
    "RVM in int8 fails the quantiser's gate: on some clips its matte is off by more than one code of 255 "
    "(docs/quantization.md has the figures); use fp16 or mixed"
)


def _open_rvm_on_gpu(path: Path, *, name: str, settings: Settings, device: Device) -> _Opened:
    """Open RVM on the engine that ``model.backend`` names; ``auto`` takes the first that is installed and accurate.

    The order: our fused Triton kernels, PyTorch's operators, TensorRT, ONNX Runtime with its GPU providers,
    the CPU. ``auto`` does not use ``inductor`` (compiled PyTorch): its fusion is slower than ours and takes
    minutes to build.

    Args:
        path: The official ONNX file, verified.
        name: Its name in reports.
        settings: The run's settings.
        device: A GPU.

    Raises:
        EngineError: The engine that was requested failed, or gives wrong answers here.
        MissingDependencyError: It is not installed; the message names the package.
        UsageError: The engine does not support ``gpu.precision``.
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
                *rvm_candidates(open_onnx, _options(settings, device), most_frames=_MOST_FRAMES),
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
        raise EngineError(f"gpu.precision=int8: no engine here supports it: {'; '.join(chosen.reasons)}")
    return _opened(chosen)


def _open_custom_on_gpu(path: Path, *, kind: NetworkKind, settings: Settings, device: Device) -> _Opened:
    """Open a user's ONNX file on the fastest engine that is installed and accurate; at worst on the CPU.

    Args:
        path: The file.
        kind: The kind of its output.
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
            f"model.backend={model.backend} runs only RVM; an ONNX file runs on onnxruntime or tensorrt"
        )
    with cupy.cuda.Device(device.index):
        chosen = choose_custom_network(
            path,
            _options(settings, device),
            kind=kind,
            person_class=model.person_class,
            threads=settings.processing.num_threads,
            wanted=model.backend,
            most_pictures=2 * _MOST_FRAMES,
            model=Fingerprint.of(path).sha256,
            machine=Machine.of_gpu(device.index),
            cache_dir=engine_cache(),
        )
    return _opened(chosen)


def _on_processor(network: MattingNetwork, *, settings: Settings, why: str) -> _Opened:
    """Wrap a network that runs on the CPU, for frames on a GPU.

    Args:
        network: Any network.
        settings: The run's settings.
        why: One line for the report.

    Raises:
        UsageError: ``model.backend`` names an engine that needs a GPU.
    """
    if settings.model.backend not in ("auto", "onnxruntime"):
        raise UsageError(f"{network.name} does not run on model.backend={settings.model.backend}: {why}")
    return _Opened(HostNetwork(network), (why,))


def _opened(chosen: Chosen[MattingNetwork]) -> _Opened:
    """The network, why it was chosen, and notes on stored engines."""
    return _Opened(chosen.engine, (*chosen.reasons, *engine_notes(chosen.engine)))


def _precision(settings: Settings) -> Precision:
    gpu = settings.gpu
    return "tf32" if gpu.precision == "fp32" and gpu.allow_tf32 else gpu.precision


def _tensorrt_precision(settings: Settings) -> Precision:
    """TensorRT's arithmetic: ``gpu.precision`` as far as ``tensorrt.precision`` allows it, or the latter's int8."""
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
    """Our fused kernels, compiled by Triton on first use."""
    precision = _precision(settings)

    def open_network() -> MattingNetwork:
        if precision == "int8":
            raise UsageError(_INT8_FAILS)
        if precision not in ("fp16", "mixed"):
            raise UsageError(
                f"the fused kernels support fp16 and mixed, not {precision}; use --backend torch"
            )
        from vitascope.models.rvm.fused_network import RvmFusedNetwork

        return RvmFusedNetwork(
            path,
            name=name,
            device_id=device.index,
            precision=precision,
            most_frames=_MOST_FRAMES,
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
    """PyTorch's operators, in a CUDA graph, or compiled if ``inductor`` is requested."""
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
            most_frames=_MOST_FRAMES,
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
