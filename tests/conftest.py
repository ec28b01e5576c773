"""Fixtures and rules that every room's tests share.

pytest puts this directory on the module path, so ``from clips import write_clip`` works everywhere.

A test that needs what this machine lacks is skipped, with the reason; where that must not happen, in CI, the variable
``VITASCOPE_REQUIRE_MODELS=1`` (fetched models), ``VITASCOPE_REQUIRE_CUDA=1`` (a GPU) or ``VITASCOPE_REQUIRE_BROWSER=1``
(a browser) turns the skip into a failure.

With ``VITASCOPE_TEST_WITHOUT_POOLS=1`` each array on a GPU has an allocation of its own, for compute-sanitizer: in a
pool a read past an array's end is one of its neighbour's memory.
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

# Before NumPy and PyTorch are loaded. Small matrices are slower with a thread for each core in each of several test
# processes, and PyTorch's compiler writes its cache in ways that two processes at once do not survive.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
if "PYTEST_XDIST_WORKER" in os.environ:
    # There is a worker for each core: PyTorch's threads beyond that would wait for one another, spinning.
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

# How long an example takes is the machine's affair: other programs must fail no test.
PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
# In CI the same examples every time: what fails there must fail again on the next run. Elsewhere new ones are tried.
settings.register_profile("patient", PATIENT)
settings.register_profile("ci", PATIENT, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "patient")

FETCHED_MODEL_FIXTURES = {"pull_or_skip", "rvm_model_path"}
"""Fixtures that fetch; a test that uses one carries the marker ``fetched_model`` by itself."""


def pytest_configure() -> None:
    # What a script starts in the background ignores Ctrl-C, and so would all that tests start and interrupt.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    _leave_one_case_each_where_no_gpu_is(config, items)
    for item in items:
        if FETCHED_MODEL_FIXTURES & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.fetched_model)
    # Slow ones first, so that no process ends long after the others; last what needs the GPU alone, for which others
    # would have to stand still.
    items.sort(
        key=lambda item: (
            item.get_closest_marker("whole_gpu") is not None,
            item.get_closest_marker("slow") is None,
        )
    )


def _leave_one_case_each_where_no_gpu_is(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Without a GPU the first case of a test says for all that they are skipped: each one costs milliseconds."""
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
    """A stand-in for CuPy, in its place."""
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
    """At the end of a file, what it leaves for good (modules, caches) is put where the collector does not look."""
    if nextitem is None or nextitem.path != item.path:
        _freeze()


def _freeze() -> None:
    """Code under test looks for cycles when memory is short; twelve thousand tests and their modules are none of it."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(
    item: pytest.Item, nextitem: pytest.Item | None
) -> Generator[None, object, object]:
    """Tests on the GPU share it with those of other processes; ``whole_gpu`` ones have it alone."""
    if item.get_closest_marker("cuda") is None or missing_gpu():
        return (yield)
    alone = item.get_closest_marker("whole_gpu") is not None
    with gpu_turn(alone=alone):
        try:
            return (yield)
        finally:
            if alone or nextitem is None:  # a process without tests stays until the last one ends
                release_gpu_memory()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    note_threads()
    keep_exporter_table()
    if item.get_closest_marker("cuda") and (reason := missing_gpu()):
        skip_or_fail(reason, unless_required_by="VITASCOPE_REQUIRE_CUDA")


def skip_or_fail(reason: str, *, unless_required_by: str) -> NoReturn:
    """Skip the running test, or fail it when the environment says that it must run."""
    if os.environ.get(unless_required_by) == "1":
        pytest.fail(f"{reason} (and {unless_required_by}=1)", pytrace=False)
    pytest.skip(reason)


@cache
def missing_gpu() -> str | None:
    """Why CUDA cannot be used here; None when it can."""
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore"
        )  # CuPy warns about toolkits that it does not find; that is our answer, not a fault
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
    """On a machine with a GPU, jobs of tests without the marker ``cuda`` compute on the processor all the same."""
    if request.node.get_closest_marker("cuda") or "choosing_devices" in request.node.keywords:
        return

    def refuse(index: int) -> NoReturn:
        raise DeviceError(f"GPU {index} is not for this test")

    monkeypatch.setattr(device_module, "_gpu_device", refuse)


@pytest.fixture(scope="session")
def model_store() -> ModelStore:
    """The store that real models are fetched into, once: below VITASCOPE_TEST_HOME, else where users keep theirs."""
    from vitascope.config.home import vitascope_home

    home = os.environ.get("VITASCOPE_TEST_HOME")
    return ModelStore(Path(home) if home else vitascope_home())


@pytest.fixture(scope="session")
def pull_or_skip() -> Callable[[ModelStore, str], Path]:
    """Fetch a model, or skip the test with the reason when that cannot be done here."""

    def pull(store: ModelStore, name: str) -> Path:
        try:
            return store.pull(name)
        except ModelUnavailableError as error:
            reason = str(error)
        skip_or_fail(reason, unless_required_by="VITASCOPE_REQUIRE_MODELS")

    return pull


@pytest.fixture(scope="session")
def rvm_model_path(model_store: ModelStore, pull_or_skip: Callable[[ModelStore, str], Path]) -> Path:
    """The official RobustVideoMatting network (MobileNetV3, FP32 ONNX), fetched on first use."""
    return pull_or_skip(model_store, "rvm")


class Browsers:
    """The browsers in which all tests of a process open their pages: to start one takes seconds."""

    def __init__(self) -> None:
        self._running = ExitStack()
        self._playwright: Playwright | None = None
        self._started: dict[bool, Browser] = {}

    def started(self, *, draws_3d: bool = False) -> Browser:
        """A browser, started anew where it has crashed; skips the test where there is none."""
        known = self._started.get(draws_3d)
        if known is None or not known.is_connected():
            for is_lacking, reason in (
                (importlib.util.find_spec("playwright") is None, "needs Playwright (the extra dev)"),
                (find_browser() is None, f"needs a browser: none of {', '.join(PROGRAMS)} is on PATH"),
            ):
                if is_lacking:
                    skip_or_fail(reason, unless_required_by="VITASCOPE_REQUIRE_BROWSER")
            if self._playwright is None:
                from playwright.sync_api import sync_playwright  # what needs no browser is tested without it

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
    """A browser that runs without a window; opens pages."""
    return browsers.started()


@pytest.fixture
def browser_3d(browsers: Browsers) -> Browser:
    """One that has WebGL, too."""
    return browsers.started(draws_3d=True)


@pytest.fixture(scope="session")
def face_model_file(model_store: ModelStore, pull_or_skip: Callable[[ModelStore, str], Path]) -> Path:
    """The file ``face_landmarker.task``."""
    return pull_or_skip(model_store, "face-landmarker")


@pytest.fixture(scope="session")
def face_model(face_model_file: Path) -> Path:
    """The file ``face_landmarker.task``, and MediaPipe to run it."""
    if importlib.util.find_spec("mediapipe") is None:
        skip_or_fail("needs MediaPipe (the extra animate)", unless_required_by="VITASCOPE_REQUIRE_MODELS")
    return face_model_file
