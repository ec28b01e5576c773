"""Runs commands one after another, each in a process forked from one where everything is imported.

A new process for each try would spend a second on imports; one process for all would let a try see what the
previous one left. The server speaks JSON lines: an order in, a verdict out.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["ForkServer", "Outcome"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a try ended."""

    exit_code: int
    """Negative values are signals; if the try was stopped, see ``timed_out``."""
    timed_out: bool
    stdout: str
    stderr: str
    seconds: float
    peak_mb: float


class ForkServer:
    """A context manager, used by one thread."""

    def __enter__(self) -> ForkServer:
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]),
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "COLUMNS": "200",
        }
        self._process = subprocess.Popen(
            [sys.executable, "-c", "from fuzz.forking import serve; serve()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        return self

    def __exit__(self, *_: object) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
        self._process.wait(30)

    def run(self, what: dict[str, Any], *, folder: Path, timeout_seconds: float) -> Outcome:
        """Try one thing.

        Args:
            what: ``{"command": [...]}`` of the command line, or ``{"motion": path}``, ``{"portrait": path}``.
            folder: Working folder; what is printed lies there, too.
            timeout_seconds: Longer is a hang.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        order = {**what, "folder": str(folder), "timeout_seconds": timeout_seconds}
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        texts = [(folder / name).read_text("utf-8", "replace") for name in (".stdout", ".stderr")]
        return Outcome(stdout=texts[0], stderr=texts[1], **answer)


def serve() -> None:
    """Answer orders until there are none."""
    # Everything that each try does before it reads its file is done here once; it starts no thread and opens
    # no session.
    import encodings.ascii  # noqa: F401
    import gc

    import cv2
    import onnxruntime  # noqa: F401
    from cyclopts import App

    import vitascope.animation.motion_file
    import vitascope.animation.portrait
    import vitascope.cli.segment
    import vitascope.gpu.engines.selection
    import vitascope.media.writing.writer
    import vitascope.models.custom.custom
    import vitascope.models.selfie.selfie
    import vitascope.observe.progress
    import vitascope.segmentation.batch  # noqa: F401
    from vitascope.cli.app import app
    from vitascope.config.loading import load_settings
    from vitascope.models.store.catalogue import load_catalogue

    cv2.setNumThreads(1)
    app.parse_args(["segment", "in.mp4", "-o", "out.mkv", "--profile", "fast", "--device", "cpu", "--json"])
    load_settings(profile="fast", assignments=["model.batch_size=1"])
    load_catalogue()
    # Reset the state to before a command line was read; each try that is a command is one of ``segment``.
    options = app["segment"].assemble_argument_collection()
    App.assemble_argument_collection = lambda *_, **__: options  # type: ignore[method-assign]
    gc.collect()
    gc.freeze()  # garbage collections in children would copy shared memory
    for line in sys.stdin:
        order = json.loads(line)
        sys.stdout.write(json.dumps(_tried(order)) + "\n")
        sys.stdout.flush()


def _tried(order: dict[str, Any]) -> dict[str, Any]:
    began = time.monotonic()
    child = os.fork()
    if child == 0:
        _be_child(order)
    ended = os.pidfd_open(child)
    try:
        timed_out = not select.select([ended], [], [], order["timeout_seconds"])[0]
    finally:
        os.close(ended)
    if timed_out:
        os.killpg(child, signal.SIGKILL)
    _, status, used = os.wait4(child, 0)
    return {
        "exit_code": os.waitstatus_to_exitcode(status),
        "timed_out": timed_out,
        "seconds": time.monotonic() - began,
        "peak_mb": used.ru_maxrss / 1024,
    }


def _be_child(order: dict[str, Any]) -> None:
    code = 70
    try:
        os.setsid()
        os.chdir(order["folder"])
        for descriptor, name in ((0, os.devnull), (1, ".stdout"), (2, ".stderr")):
            flags = os.O_RDONLY if descriptor == 0 else os.O_WRONLY | os.O_CREAT | os.O_TRUNC
            opened = os.open(name, flags, 0o600)
            os.dup2(opened, descriptor)
            os.close(opened)
        code = _run(order)
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 0
    except BaseException:
        import traceback

        traceback.print_exc()
        code = 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _run(order: dict[str, Any]) -> int:
    from vitascope.errors import VitascopeError, one_line

    if "command" in order:
        from vitascope.cli.app import main

        main(order["command"])
        return 0
    try:
        if "motion" in order:
            from vitascope.animation.motion_file import MotionReader

            with MotionReader(Path(order["motion"])) as reader:
                sum(1 for _ in reader)
        else:
            from vitascope.animation.portrait import read_picture

            read_picture(Path(order["portrait"]), max_side=1024)
    except VitascopeError as error:
        sys.stderr.write(f"vitascope: {one_line(error)}\n")
        return error.exit_code
    return 0
