"""Fixtures and rules for all tests.

pytest puts this directory on the module path, so ``from clips import write_clip`` works everywhere.

A test that needs something this machine lacks is skipped, with the reason. In CI the variables
``VITASCOPE_REQUIRE_MODELS=1`` (fetched models), ``VITASCOPE_REQUIRE_CUDA=1`` (a GPU) and
``VITASCOPE_REQUIRE_BROWSER=1`` (a browser) make such a skip a failure.

With ``VITASCOPE_TEST_WITHOUT_POOLS=1`` each array on a GPU has its own allocation, for compute-sanitizer: in
a pool, a read past an array's end would read its neighbour.
"""

from __future__ import annotations

import gc
import importlib.util
import os
import signal
import sys
import tempfile
import warnings
from collections.abc import Callable, Generator
from contextlib import ExitStack, closing
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

# Set before NumPy and PyTorch are loaded. Small matrices are slower with a thread for each core in each of
# several test processes, and two processes must not write the cache of PyTorch's compiler at once.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
if "PYTEST_XDIST_WORKER" in os.environ:
    # There is a worker for each core: more threads of PyTorch would spin, waiting for one another.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault(
    "TORCHINDUCTOR_CACHE_DIR",
    str(Path(tempfile.gettempdir()) / f"vitascope-inductor-{os.environ.get('PYTEST_XDIST_WORKER', 'alone')}"),
)

os.environ.update(
    {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"} if os.environ.get("VITASCOPE_TEST_WITHOUT_POOLS") == "1" else {}
)

import pytest
from hypothesis import HealthCheck, settings

from fake_cupy import fake_cupy
from gpu_turns import gpu_turn, release_gpu_memory
from headless_browser import PROGRAMS, find_browser, start_browser
from kept_exporter import keep_exporter_table
from left_threads import note_threads
from vitascope import device as device_module
from vitascope.errors import DeviceError, ModelUnavailableError
from vitascope.models.store.store import ModelStore

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Playwright

# The time of an example depends on the machine: other programs must not fail a test.
PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
# In CI the examples are the same every time, so that failures repeat; elsewhere new ones are tried.
settings.register_profile("patient", PATIENT)
settings.register_profile("ci", PATIENT, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "patient")

FETCHED_MODEL_FIXTURES = {"pull_or_skip", "rvm_model_path"}
"""Fixtures that fetch; tests that use one get the marker ``fetched_model`` automatically."""


def pytest_configure() -> None:
    # Processes that a script starts in the background ignore Ctrl-C, as would those that tests start and
    # interrupt.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    _leave_one_case_each_where_no_gpu_is(config, items)
    for item in items:
        if FETCHED_MODEL_FIXTURES & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.fetched_model)
    # Run slow tests first, so that no process ends long after the others, and last those that need the GPU
    # alone, for which others would have to wait.
    items.sort(
        key=lambda item: (
            item.get_closest_marker("whole_gpu") is not None,
            item.get_closest_marker("slow") is None,
        )
    )


def _leave_one_case_each_where_no_gpu_is(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Without a GPU, keep one case of each test to report the skip: each case costs milliseconds."""
    if os.environ.get("VITASCOPE_REQUIRE_CUDA") == "1":
        return
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("cuda") is not None:
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    if not cases or missing_gpu() is None:
        return
    others = {other for (_, *others) in cases.values() for other in others}
    items[:] = [item for item in items if item not in others]
    config.hook.pytest_deselected(items=list(others))


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Replace CuPy with a fake."""
    module = fake_cupy()
    monkeypatch.setitem(sys.modules, "cupy", module)
    return module


@pytest.fixture(scope="session", autouse=True)
def no_pools() -> None:
    if os.environ.get("VITASCOPE_TEST_WITHOUT_POOLS") == "1" and not missing_gpu():
        import cupy

        cupy.cuda.set_allocator(None)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Next to nothing becomes garbage meanwhile, and looking for it takes a quarter of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish(session: pytest.Session) -> None:
    _freeze()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Freeze what a file leaves for good (modules, caches), so that the collector does not search it."""
    if nextitem is None or nextitem.path != item.path:
        _freeze()


def _freeze() -> None:
    """Freeze tests and modules, as code under test collects garbage when memory is short."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(
    item: pytest.Item, nextitem: pytest.Item | None
) -> Generator[None, object, object]:
    """Share the GPU between processes; tests marked ``whole_gpu`` have it alone."""
    if item.get_closest_marker("cuda") is None or missing_gpu():
        return (yield)
    alone = item.get_closest_marker("whole_gpu") is not None
    with gpu_turn(alone=alone):
        try:
            return (yield)
        finally:
            if alone or nextitem is None:  # a process without more tests stays until the last one ends
                release_gpu_memory()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    note_threads()
    keep_exporter_table()
    if item.get_closest_marker("cuda") and (reason := missing_gpu()):
        skip_or_fail(reason, unless_required_by="VITASCOPE_REQUIRE_CUDA")


def skip_or_fail(reason: str, *, unless_required_by: str) -> NoReturn:
    """Skip the running test, or fail it if the environment requires it."""
    if os.environ.get(unless_required_by) == "1":
        pytest.fail(f"{reason} (and {unless_required_by}=1)", pytrace=False)
    pytest.skip(reason)


@cache
def missing_gpu() -> str | None:
    """Return why CUDA cannot be used here; None if it can."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # CuPy warns of missing toolkits, which is the answer here
        try:
            import cupy
        except ImportError as error:
            return f"needs CuPy ({error})"
        try:
            count = cupy.cuda.runtime.getDeviceCount()
        except cupy.cuda.runtime.CUDARuntimeError as error:
            return f"needs an NVIDIA GPU ({error})"
    return None if count else "needs an NVIDIA GPU (none found)"


@pytest.fixture(autouse=True)
def on_the_processor_unless_marked(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run jobs of tests without the marker ``cuda`` on the CPU, even if there is a GPU."""
    if request.node.get_closest_marker("cuda") or "choosing_devices" in request.node.keywords:
        return

    def refuse(index: int) -> NoReturn:
        raise DeviceError(f"GPU {index} is not for this test")

    monkeypatch.setattr(device_module, "_gpu_device", refuse)


@pytest.fixture(scope="session")
def model_store() -> ModelStore:
    """Return the store for real models, fetched once: in VITASCOPE_TEST_HOME, else where users have theirs."""
    from vitascope.config.home import vitascope_home

    home = os.environ.get("VITASCOPE_TEST_HOME")
    return ModelStore(Path(home) if home else vitascope_home())


@pytest.fixture(scope="session")
def pull_or_skip() -> Callable[[ModelStore, str], Path]:
    """Return a function that fetches a model, or skips the test with the reason."""

    def pull(store: ModelStore, name: str) -> Path:
        try:
            return store.pull(name)
        except ModelUnavailableError as error:
            reason = str(error)
        skip_or_fail(reason, unless_required_by="VITASCOPE_REQUIRE_MODELS")

    return pull


@pytest.fixture(scope="session")
def rvm_model_path(model_store: ModelStore, pull_or_skip: Callable[[ModelStore, str], Path]) -> Path:
    """Return the official RobustVideoMatting network (MobileNetV3, FP32 ONNX), fetched on first use."""
    return pull_or_skip(model_store, "rvm")


class Browsers:
    """Browsers shared by all tests of a process, as starting one takes seconds."""

    def __init__(self) -> None:
        self._running = ExitStack()
        self._playwright: Playwright | None = None
        self._started: dict[bool, Browser] = {}

    def started(self, *, draws_3d: bool = False) -> Browser:
        """Return a browser, restarted if it crashed; skip the test if there is none."""
        known = self._started.get(draws_3d)
        if known is None or not known.is_connected():
            for is_lacking, reason in (
                (importlib.util.find_spec("playwright") is None, "needs Playwright (the extra dev)"),
                (find_browser() is None, f"needs a browser: none of {', '.join(PROGRAMS)} is on PATH"),
            ):
                if is_lacking:
                    skip_or_fail(reason, unless_required_by="VITASCOPE_REQUIRE_BROWSER")
            if self._playwright is None:
                from playwright.sync_api import sync_playwright  # tests without a browser do not need it

                self._playwright = self._running.enter_context(sync_playwright())
            known = self._running.enter_context(start_browser(self._playwright, draws_3d=draws_3d))
            self._started[draws_3d] = known
        return known

    def close(self) -> None:
        self._running.close()


@pytest.fixture(scope="session")
def browsers() -> Generator[Browsers]:
    with closing(Browsers()) as all_of_them:
        yield all_of_them


@pytest.fixture
def browser(browsers: Browsers) -> Browser:
    """Return a browser without a window, which opens pages."""
    return browsers.started()


@pytest.fixture
def browser_3d(browsers: Browsers) -> Browser:
    """Return a browser with WebGL."""
    return browsers.started(draws_3d=True)


@pytest.fixture(scope="session")
def face_model_file(model_store: ModelStore, pull_or_skip: Callable[[ModelStore, str], Path]) -> Path:
    """Return the file ``face_landmarker.task``."""
    return pull_or_skip(model_store, "face-landmarker")


@pytest.fixture(scope="session")
def face_model(face_model_file: Path) -> Path:
    """Return the file ``face_landmarker.task``, if MediaPipe can run it."""
    if importlib.util.find_spec("mediapipe") is None:
        skip_or_fail("needs MediaPipe (the extra animate)", unless_required_by="VITASCOPE_REQUIRE_MODELS")
    return face_model_file
