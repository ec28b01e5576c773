"""``vitascope doctor``."""

from __future__ import annotations

import platform
from importlib.util import find_spec
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console
from rich.table import Table
from rich.text import Text

from vitascope import __version__
from vitascope.cli.tables import print_table
from vitascope.config import vitascope_home

__all__ = ["doctor"]

_EXTRAS = {"torch": "torch", "cupy": "cuda", "mediapipe": "animate", "prometheus_client": "metrics"}


def doctor(*, json: Annotated[bool, Parameter(negative="")] = False) -> None:
    """Say what this machine can do: processor, GPU, codecs, engines, networks, and what to install for more.

    Args:
        json: Print for machines.
    """
    findings = _findings()
    page = Console(highlight=False)
    if json:
        page.print_json(data=findings)
        return
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    for name, value in findings.items():
        table.add_row(Text(name), Text(value))
    print_table(table)


def _findings() -> dict[str, str]:
    import av
    import cv2
    import onnxruntime

    from vitascope.device import available_cores, physical_memory_bytes, probe_gpus, simd_features
    from vitascope.media.encoding import available_codecs
    from vitascope.models.store import ModelStore

    memory = physical_memory_bytes()
    gpus = probe_gpus()
    store = ModelStore(vitascope_home())
    missing = [
        f"pip install 'vitascope[{extra}]'" for module, extra in _EXTRAS.items() if not find_spec(module)
    ]
    versions = ".".join(str(part) for part in av.library_versions["libavcodec"])
    return {
        "vitascope": f"{__version__}, Python {platform.python_version()}, {platform.platform(terse=True)}",
        "processor": f"{platform.machine()}, {available_cores()} cores"
        + (f", {memory / 2**30:.0f} GiB memory" if memory else ""),
        "SIMD": f"NumPy: {', '.join(simd_features()) or 'none'}; OpenCV: {cv2.getCPUFeaturesLine()}",
        "GPU": "; ".join(f"{gpu.name}, {_gib(gpu.memory_bytes)}, driver {gpu.driver}" for gpu in gpus)
        or "none found (no NVIDIA driver); everything runs on the processor",
        "decoding": f"PyAV {av.__version__} (libavcodec {versions}), on the processor",
        "encoding": ", ".join(available_codecs()),
        "engine": f"ONNX Runtime {onnxruntime.__version__}: {', '.join(onnxruntime.get_available_providers())}",
        "networks": ", ".join(f"{entry.name} ({entry.state.value})" for entry in store.entries()),
        "networks lie in": str(store.where()),
        "install for more": "; ".join(missing) or "nothing is missing",
    }


def _gib(size_bytes: int | None) -> str:
    return "memory unknown" if size_bytes is None else f"{size_bytes / 2**30:.0f} GiB"
