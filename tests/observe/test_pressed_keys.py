"""Tests of keys from a terminal, and of Ctrl-C, whichever thread the system sends it to."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest

from left_threads import left_threads
from vitascope.gpu.pipeline.pipeline import Pipeline
from vitascope.gpu.pipeline.stages import Sink, Source
from vitascope.observe import keys as keys_module
from vitascope.observe.keys import PressedKeys, holding_interrupts
from waiting import eventually

pytestmark = pytest.mark.skipif(
    sys.platform == "win32", reason="Windows has neither terminals nor these signals"
)


@pytest.fixture(autouse=True)
def handler_is_given_back():
    before = signal.getsignal(signal.SIGINT)
    yield
    assert signal.getsignal(signal.SIGINT) is before
    assert not left_threads("vitascope-keys")


@pytest.fixture
def terminal(monkeypatch):
    """Use a new terminal as standard input, and return its other end."""
    ours, theirs = os.openpty()
    stdin = SimpleNamespace(fileno=lambda: theirs, isatty=lambda: True)
    monkeypatch.setattr(keys_module.sys, "stdin", stdin)
    ends = {"ours": ours, "theirs": theirs}
    yield ends
    for end in ends.values():
        os.close(end)


def test_keys_come_one_by_one_and_the_terminal_is_given_back(terminal):
    import termios

    def waits_for_lines():
        return bool(termios.tcgetattr(terminal["theirs"])[3] & termios.ICANON)

    assert waits_for_lines()
    pressed = []
    with PressedKeys() as keys:
        keys.hand_to(pressed.append, at_interrupt=lambda: None)
        assert keys.are_read and not waits_for_lines()
        os.write(terminal["ours"], b"mQ")
        eventually(lambda: pressed == ["m", "Q"])
    assert waits_for_lines() and not keys.are_read


@pytest.mark.parametrize("sequence", [b"\x1b[B", b"\x1bOF", b"\x1b[1;5C"])
def test_arrows_and_their_like_are_no_commands(terminal, sequence):
    pressed = []
    with PressedKeys() as keys:
        keys.hand_to(pressed.append, at_interrupt=lambda: None)
        os.write(terminal["ours"], sequence)
        time.sleep(0.25)
        os.write(terminal["ours"], b"m")
        eventually(lambda: pressed)
    assert pressed == ["m"]


def test_a_terminal_that_goes_away_ends_the_keys_and_nothing_else(terminal):
    pressed = []
    with PressedKeys() as keys:
        keys.hand_to(pressed.append, at_interrupt=lambda: None)
        os.close(terminal.pop("ours"))
        eventually(lambda: not keys.are_read)
    assert pressed == []


def test_in_the_background_the_terminal_is_left_alone(terminal, monkeypatch):
    # The system stops a program that changes the terminal's settings there, until somebody types `fg`.
    monkeypatch.setattr(keys_module.os, "tcgetpgrp", lambda _: os.getpgrp() + 1)
    with PressedKeys() as keys:
        keys.hand_to(lambda _: None, at_interrupt=lambda: None)
        assert not keys.are_read


def test_a_program_sent_to_the_background_reads_nothing(terminal, monkeypatch):
    group = [os.getpgrp()]
    monkeypatch.setattr(keys_module.os, "tcgetpgrp", lambda _: group[0])
    pressed = []
    with PressedKeys() as keys:
        keys.hand_to(pressed.append, at_interrupt=lambda: None)
        group[0] += 1
        time.sleep(0.25)
        os.write(terminal["ours"], b"x")
        time.sleep(0.25)
        assert pressed == []
        group[0] -= 1
        eventually(lambda: pressed == ["x"])


@pytest.mark.parametrize("taker", ["main", "another"])
def test_a_run_ends_whichever_thread_takes_the_interrupt(taker):
    """The system prefers the main thread, but may signal any; only the main thread's wait is interrupted."""
    is_over = threading.Event()
    sleeping = threading.Thread(target=is_over.wait, args=(20,), daemon=True)
    sleeping.start()
    taking = threading.main_thread() if taker == "main" else sleeping

    def pictures():
        while not is_over.wait(0.01):
            yield 1

    pipeline = Pipeline([Source("pictures", pictures()), Sink("nowhere", lambda _: None)])

    def interrupt():
        time.sleep(0.3)
        signal.pthread_kill(taking.ident, signal.SIGINT)
        if not is_over.wait(10):  # else the test would never end
            failed.append(True)
            is_over.set()

    failed = []
    interrupting = threading.Thread(target=interrupt)
    with PressedKeys() as keys:
        keys.hand_to(lambda _: None, at_interrupt=is_over.set)
        interrupting.start()
        pipeline.run()
    interrupting.join()
    sleeping.join()
    assert not failed


def test_the_second_interrupt_interrupts():
    called = []
    with PressedKeys() as keys:
        keys.hand_to(lambda _: None, at_interrupt=lambda: called.append(1))
        signal.raise_signal(signal.SIGINT)
        assert called == [1]
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert called == [1]


def test_an_interrupt_waits_for_the_end_of_an_import():
    steps = []
    with pytest.raises(KeyboardInterrupt), holding_interrupts():
        signal.raise_signal(signal.SIGINT)
        steps.append("imported")
    assert steps == ["imported"]


def test_what_fails_meanwhile_is_raised():
    with pytest.raises(ImportError), holding_interrupts():
        signal.raise_signal(signal.SIGINT)
        raise ImportError("no such module")


def test_an_ignored_interrupt_stays_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with holding_interrupts():
            signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_other_threads_have_no_interrupts_to_hold():
    done = []

    def work():
        with holding_interrupts():
            done.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done == [True]


def test_a_terminal_is_not_changed_from_the_background(terminal, monkeypatch):
    """A program that tries is stopped with all threads until a shell resumes it: nothing is drawn or served."""
    import termios

    changed = []
    with PressedKeys() as keys:
        keys.hand_to(print, at_interrupt=lambda: None)
        monkeypatch.setattr(keys_module, "_is_in_foreground", lambda _: False)
        monkeypatch.setattr(termios, "tcsetattr", lambda *words: changed.append(words))
    assert changed == []


NESTED = """
import signal, threading
from vitascope.observe.keys import holding_interrupts

notify = threading.Condition.notify_all
def pressed_again(condition):
    threading.Condition.notify_all = notify
    signal.raise_signal(signal.SIGINT)
    notify(condition)

signal.signal(signal.SIGINT, signal.default_int_handler)
threading.Condition.notify_all = pressed_again
try:
    with holding_interrupts():
        signal.raise_signal(signal.SIGINT)
except KeyboardInterrupt:
    print("interrupted")
"""


def test_ctrl_c_inside_its_own_handler_waits_for_nothing():
    """Check that the handler sets no event, which is locked while it is set."""
    ended = subprocess.run(
        [sys.executable, "-c", NESTED], capture_output=True, text=True, timeout=60, check=False
    )
    assert (ended.stdout, ended.stderr) == ("interrupted\n", "")
