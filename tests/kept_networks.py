"""Networks that stay open from test to test: reading, cutting and opening the same file again takes a tenth of a job.

A session of ONNX Runtime knows nothing of who runs it, so that engines share one. Each process of tests opens each
network once as users do; how networks are opened and freed is tested in ``tests/models`` and ``tests/gpu``, where none
is kept.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from threading import Lock
from typing import Any

import pytest

from vitascope.gpu.engines import onnx_runtime
from vitascope.models.rvm import rvm
from vitascope.models.selfie import selfie

_MOST = 12
_lock = Lock()
_sessions: OrderedDict[Hashable, Any] = OrderedDict()
_read: OrderedDict[Hashable, Any] = OrderedDict()


def _kept(kept: OrderedDict[Hashable, Any], key: Hashable, make: Callable[[], Any]) -> Any:
    with _lock:
        if key not in kept:
            kept[key] = make()
            if len(kept) > _MOST:
                kept.popitem(last=False)
        kept.move_to_end(key)
        return kept[key]


def _file(path: Path) -> Hashable:
    """Return a value that changes with a file; None if there is no file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return str(path), found.st_mtime_ns, found.st_size


@contextmanager
def kept_networks() -> Iterator[None]:
    """Share networks that are opened on the CPU inside the block with earlier ones."""
    open_session, load_selfie, cut_rvm = onnx_runtime.open_session, selfie._load, rvm.cut_official_graph

    def opened(source: str | bytes, request: onnx_runtime.SessionRequest, *, label: str) -> Any:
        def make() -> Any:
            return open_session(source, request, label=label)

        if request.provider != "cpu" or isinstance(source, str) or onnx_runtime.traces_wanted():
            return make()
        key = sha256(source).digest(), request.threads, request.deterministic, onnx_runtime.ort
        return _kept(_sessions, key, make)

    def loaded(path: Path, *, size: tuple[int, int], with_summary: bool) -> Any:
        key = _file(path), size, with_summary
        return _kept(_read, key, lambda: load_selfie(path, size=size, with_summary=with_summary))

    def cut(path: Path) -> Any:
        return _kept(_read, ("rvm", _file(path)), lambda: cut_rvm(path))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(onnx_runtime, "open_session", opened)
        patch.setattr(selfie, "_load", loaded)
        patch.setattr(rvm, "cut_official_graph", cut)
        yield


@pytest.fixture(scope="module", autouse=True)
def networks_stay_open() -> Iterator[None]:
    """Share networks in the tests of a folder: import this into its ``conftest.py``."""
    with kept_networks():
        yield
