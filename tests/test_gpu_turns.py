"""Tests of who may use the GPU at a time."""

from __future__ import annotations

import sys
import threading

import pytest

import gpu_turns
from gpu_turns import gpu_turn
from waiting import PATIENCE_SECONDS

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="has no such locks")

MOMENT_SECONDS = 0.2


class Visitor:
    """A thread that uses the GPU until it is told to leave; locks distinguish open files, not threads."""

    def __init__(self, folder, *, alone):
        self.entered, self.leave = threading.Event(), threading.Event()
        self.thread = threading.Thread(target=self._visit, args=(folder, alone), daemon=True)
        self.thread.start()

    def _visit(self, folder, alone):
        with gpu_turn(alone=alone, folder=folder):
            self.entered.set()
            self.leave.wait(PATIENCE_SECONDS)

    def is_in(self, seconds=PATIENCE_SECONDS):
        return self.entered.wait(seconds)

    def go(self):
        self.leave.set()
        self.thread.join(PATIENCE_SECONDS)


def test_those_who_share_are_there_together(tmp_path):
    visitors = [Visitor(tmp_path, alone=False) for _ in range(3)]
    assert all(visitor.is_in() for visitor in visitors)
    for visitor in visitors:
        visitor.go()


def test_who_is_alone_waits_for_all_others_and_keeps_them_out(tmp_path):
    first, second = (Visitor(tmp_path, alone=False) for _ in range(2))
    assert first.is_in()
    assert second.is_in()
    alone = Visitor(tmp_path, alone=True)
    assert not alone.is_in(MOMENT_SECONDS)
    first.go()
    assert not alone.is_in(MOMENT_SECONDS)
    # Later visitors wait, or those who share would never all have left.
    late = Visitor(tmp_path, alone=False)
    assert not late.is_in(MOMENT_SECONDS)
    second.go()
    assert alone.is_in()
    assert not late.is_in(MOMENT_SECONDS)
    alone.go()
    assert late.is_in()
    late.go()


def test_memory_is_given_back_to_who_is_alone(tmp_path, monkeypatch):
    released = []
    monkeypatch.setattr(gpu_turns, "release_gpu_memory", lambda: released.append(threading.current_thread()))
    sharing, early = (Visitor(tmp_path, alone=False) for _ in range(2))
    assert sharing.is_in()
    assert early.is_in()
    early.go()
    assert released == []  # nobody needs it
    alone = Visitor(tmp_path, alone=True)
    assert not alone.is_in(MOMENT_SECONDS)
    assert released == [alone.thread]  # what it held from before
    sharing.go()
    assert alone.is_in()
    assert released[1:] == [sharing.thread]
    late = Visitor(tmp_path, alone=False)
    assert not late.is_in(MOMENT_SECONDS)
    assert released[2:] == [late.thread]
    alone.go()
    assert late.is_in()
    late.go()


def test_only_one_is_alone_at_a_time(tmp_path):
    one = Visitor(tmp_path, alone=True)
    assert one.is_in()
    other = Visitor(tmp_path, alone=True)
    assert not other.is_in(MOMENT_SECONDS)
    one.go()
    assert other.is_in()
    other.go()
