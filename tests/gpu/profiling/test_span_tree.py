"""Check that counting spans in bulk, and merging, do not change their sums."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vitascope.gpu.pipeline.report import LatencyHistogram
from vitascope.gpu.profiling.profiler import SpanNode, merge_stats

durations = st.lists(st.integers(0, 10**13), max_size=60)


@settings(deadline=None)
@given(durations)
def test_counting_many_is_counting_each(walls):
    seconds = [wall * 1e-9 for wall in walls]
    one_by_one, at_once = LatencyHistogram(), LatencyHistogram()
    for value in seconds:
        one_by_one.add(value)
    at_once.add_many(seconds)
    one, other = LatencyHistogram.summary([one_by_one]), LatencyHistogram.summary([at_once])
    assert (one.count, one.max_seconds) == (other.count, other.max_seconds)
    assert one.mean_seconds == pytest.approx(other.mean_seconds)
    for name in ("p50_seconds", "p95_seconds", "p99_seconds"):
        # At the edge between two bins, the two logarithms may round differently.
        assert getattr(one, name) == pytest.approx(getattr(other, name), rel=0.045, abs=1e-12)


@settings(deadline=None)
@given(durations, durations)
def test_an_absorbed_node_is_counted_once(mine, theirs):
    together, one, other = (SpanNode(("a",)) for _ in range(3))
    for node, walls in ((together, mine + theirs), (one, mine), (other, theirs)):
        for wall in walls:
            node.add(wall, wall // 2, wall // 3)
    one.absorb(other)
    together.settle()
    one.settle()
    for field in ("count", "total_ns", "self_ns", "cpu_ns", "min_ns"):
        assert getattr(one, field) == getattr(together, field)


def test_reading_while_a_thread_writes_loses_nothing():
    root = SpanNode(())
    node = root.children["a"] = SpanNode(("a",))
    count = 20_000

    def write():
        for n in range(count):
            node.add(n, 0, 0)

    writer = threading.Thread(target=write)
    writer.start()
    seen = [0]
    while writer.is_alive():
        for row in merge_stats([root]):
            seen.append(row.count)
    writer.join()
    (row,) = merge_stats([root])
    assert seen == sorted(seen)
    assert row.count == count
    assert row.total_seconds == pytest.approx(sum(range(count)) * 1e-9)
