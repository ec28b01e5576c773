"""``vitascope doctor``."""

import platform
from importlib.util import find_spec

from vitascope import __version__
from vitascope.cli.options import Switch
from vitascope.cli.printing import facts, print_table
from vitascope.config import vitascope_home
from vitascope.config.home import engine_cache
from vitascope.observe.terminal import Page

_EXTRAS = {
    "torch": "torch",
    "cupy": "cuda",
    "mediapipe": "animate",
    "prometheus_client": "metrics",
    "matplotlib": "bench",
}


def doctor(*, json: Switch = False) -> None:
    """Show what this machine can do: CPU, GPU, codecs, engines, networks, system settings, what to install.

    Args:
        json: Print as JSON.
    """
    found = findings()
    page = Page()
    if json:
        page.print_json(data=found)
        return
    print_table(facts(found))


def findings() -> dict[str, str]:
    """Look up what this machine can do, by topic."""
    import av
    import cv2

    from vitascope.device import available_cores, physical_memory_bytes, probe_gpus, simd_features
    from vitascope.media.writing.encoding import available_codecs
    from vitascope.models.store.store import ModelStore
    from vitascope.observe.report_values import gib
    from vitascope.tune.system_checks import check_system

    memory = physical_memory_bytes()
    gpus = probe_gpus()
    store = ModelStore(vitascope_home())
    missing = [
        f"pip install 'vitascope[{extra}]'"
        for module, extra in _EXTRAS.items()
        if not find_spec(module) and (gpus or extra != "cuda")
    ]
    versions = ".".join(str(part) for part in av.library_versions["libavcodec"])
    return {
        "vitascope": f"{__version__}, Python {platform.python_version()}, {platform.platform(terse=True)}",
        "processor": f"{platform.machine()}, {available_cores()} cores"
        + (f", {memory / 2**30:.0f} GiB memory" if memory else ""),
        "SIMD": f"NumPy: {', '.join(simd_features()) or 'none'}; OpenCV: {cv2.getCPUFeaturesLine()}",
        "GPU": "; ".join(f"{gpu.name}, {gib(gpu.memory_bytes)}, driver {gpu.driver}" for gpu in gpus)
        or "none found (no NVIDIA driver); everything runs on the CPU",
        "segment runs on": _device(),
        "decoding": f"PyAV {av.__version__} (libavcodec {versions}); on a GPU, NVDEC for what it supports",
        "encoding": ", ".join(available_codecs()),
        "NVENC": _nvenc(),
        **_engines(),
        "networks": ", ".join(f"{entry.name} ({entry.state.value})" for entry in store.entries()),
        "folder of networks": str(store.where()),
        **{check.name: check.text for check in check_system({"networks": store.where()}, gpus=len(gpus))},
        "can be installed": "; ".join(missing) or "nothing is missing",
    }


def _device() -> str:
    from vitascope.device import select_device

    device = select_device("auto")
    return device.label if device.note is None else f"{device.label}; {device.note}"


def _nvenc() -> str:
    """The verdicts on the GPU's encoders; encoders without a verdict are tried."""
    from vitascope.media.writing.nvenc import NVENC_ENCODERS, NVENC_FORMATS, why_nvenc_fails

    working, failing = [], dict[str, None]()
    for (codec, _), pixel_format in NVENC_FORMATS.items():
        why = why_nvenc_fails(NVENC_ENCODERS[codec], pixel_format, cache_dir=engine_cache())
        if why is None:
            working.append(f"{NVENC_ENCODERS[codec]} ({pixel_format})")
        else:
            failing[why] = None
    verdicts = [f"works, and is used automatically: {', '.join(working)}"] if working else []
    verdicts += [f"not used: {'; '.join(failing)}"] if failing else []
    return "; ".join(verdicts)


def _engines() -> dict[str, str]:
    """For each engine its version, or the command that installs it."""
    from importlib.metadata import version  # takes 20 ms, which the list of commands avoids

    from vitascope.gpu.engines.selection import engine_inventory

    lines = {engine.name: engine.version or f"missing: {engine.missing}" for engine in engine_inventory()}
    triton, torch = (version(name) if find_spec(name) else None for name in ("triton", "torch"))
    return {
        "fused kernels": f"Triton {triton}" if triton else "missing: pip install 'vitascope[cuda]'",
        "PyTorch": torch or "missing: pip install 'vitascope[torch]'",
        **lines,
    }
