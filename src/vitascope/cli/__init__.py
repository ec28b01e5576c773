"""The command line: parse, call, print."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from types import FrameType

from vitascope.errors import OutputError
from vitascope.gpu.memory.host_heap import keep_heaps_small
from vitascope.observe.keys import holding_interrupts
from vitascope.observe.standard_streams import outlive_readers

__all__ = ["main"]

_OBJECTS_BETWEEN_SEARCHES = 200_000
"""New objects between two searches for cycles. The usual 700 suits programs with many cycles; while the modules of
``segment`` load about 120,000 permanent objects, each search would waste a twentieth of a second."""


def _end_as_ctrl_c_does() -> None:
    """Answer a request to end (``kill``, a closed terminal) like Ctrl-C, so that nothing is left half-written.

    A signal that was ignored (``nohup``) stays ignored.
    """
    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)  # Windows has no SIGHUP
        if number is not None and signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, _press_ctrl_c)


def _press_ctrl_c(_number: int, _frame: FrameType | None) -> None:
    # A script's shell starts background programs with Ctrl-C ignored.
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        raise KeyboardInterrupt
    signal.raise_signal(signal.SIGINT)


_HELP = frozenset({"--help", "-h", "--version", "-V"})
_LEAST_BYTES, _BYTES_OF_A_CORE = 1 << 30, 1 << 25
"""Address space that the libraries and threads of a small job need: on two cores, 980 MB were enough and 860 were not
(below 600, loading ended in a segmentation fault). Each further core adds stacks and work space."""


def _lacking_memory() -> str | None:
    """The message if the process may use less address space (``ulimit -v``) than its libraries need; None otherwise.

    Not all of them check their allocations: some would end in a segmentation fault.
    """
    if sys.platform == "win32":
        return None
    import resource  # does not exist on Windows

    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    least = _LEAST_BYTES + _BYTES_OF_A_CORE * max(cores - 2, 0)
    if limit == resource.RLIM_INFINITY or limit >= least:
        return None
    return (
        f"this process may use {limit >> 20} MiB of memory (ulimit -v), and libraries and threads alone need "
        f"{least >> 20}; remove the limit, or set it to at least twice that"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command line and exit; see ``vitascope.cli.app.main``.

    Ctrl-C while the commands are being loaded is answered as later: with one line, and 130.
    """
    if arguments is None:  # the process is ours
        outlive_readers()
        _end_as_ctrl_c_does()
        gc.set_threshold(_OBJECTS_BETWEEN_SEARCHES)
        keep_heaps_small()
        lacking = _lacking_memory()
        if lacking is not None and not _HELP.intersection(sys.argv[1:]):
            sys.stderr.write(f"vitascope: {lacking}\n")
            raise SystemExit(1)
    try:
        with holding_interrupts():
            from vitascope.cli.app import main as run
    except KeyboardInterrupt:
        sys.stderr.write("vitascope: interrupted\n")
        raise SystemExit(130) from None
    try:
        try:
            run(arguments)
        except KeyboardInterrupt:
            raise SystemExit(130) from None  # pressed again before the first one was reported
    except SystemExit as ended:
        if arguments is None:
            _leave(ended.code)
        raise


def _leave(code: str | int | None) -> None:
    """Prepare to end the process, when everything that needs an orderly end has ended."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    # After Ctrl-C inside code executed as text (as dataclasses are made), Python would forget the exit code and end
    # by the signal, although it was caught. Executing another text makes it forget Ctrl-C instead.
    exec("")
    for stream in (sys.stdout, sys.stderr):
        with suppress(OutputError):
            stream.flush()
    # A thread returning from native code while Python ends would crash the process.
    if isinstance(code, int) and code and any(thread.daemon for thread in threading.enumerate()):
        os._exit(code)
    gc.freeze()  # no search on the way out; it would take a sixth of a second
