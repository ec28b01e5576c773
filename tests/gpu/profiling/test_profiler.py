"""Tests of spans: nesting, threads, decorators, sums, and bounded memory."""

from __future__ import annotations

import gc
import io
import threading
import time
import weakref

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vitascope.gpu import Profiler
from vitascope.gpu.profiling.profiler import OTHERS


def rows_of(profiler):
    return {row.path: row for row in profiler.stats()}


def test_the_guides_example(capsys):
    profiler = Profiler()
    with profiler.profile("inference"):
        sum(range(1000))
    profiler.print_summary()
    assert "inference" in capsys.readouterr().out


def test_spans_nest_and_own_time_is_what_is_left():
    profiler = Profiler()
    for _ in range(3):
        with profiler.profile("frame"):
            with profiler.profile("decode"):
                time.sleep(0.002)
            with profiler.profile("infer"), profiler.profile("decode"):
                time.sleep(0.001)
    rows = rows_of(profiler)
    assert set(rows) == {("frame",), ("frame", "decode"), ("frame", "infer"), ("frame", "infer", "decode")}
    frame = rows["frame",]
    inside = rows["frame", "decode"].total_seconds + rows["frame", "infer"].total_seconds
    assert frame.self_seconds == pytest.approx(frame.total_seconds - inside)
    assert frame.total_seconds >= inside >= 0.009
    assert frame.cpu_seconds < frame.total_seconds  # it slept
    assert all(row.count == 3 and row.gpu is None for row in rows.values())
    assert profiler.by_name()["decode"].count == 6
    # Parents come first, then children by time.
    paths = [row.path for row in profiler.stats()]
    children = sorted((path for path in paths if len(path) == 2), key=lambda path: -rows[path].total_seconds)
    assert paths[0] == ("frame",)
    assert [path for path in paths if len(path) == 2] == children
    assert paths.index(("frame", "infer", "decode")) == paths.index(("frame", "infer")) + 1


def test_computing_is_processor_time():
    profiler = Profiler()
    with profiler.profile("compute"):
        end = time.thread_time() + 0.02
        while time.thread_time() < end:
            pass
    (row,) = profiler.stats()
    assert row.cpu_seconds >= 0.02


def test_each_thread_has_its_own_nesting():
    profiler = Profiler()
    barrier = threading.Barrier(4)

    def work():
        with profiler.profile("outer"):
            barrier.wait()
            with profiler.profile("inner"):
                barrier.wait()

    threads = [threading.Thread(target=work, name=f"worker-{n}") for n in range(4)]
    with profiler.profile("main"):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert {path: row.count for path, row in rows_of(profiler).items()} == {
        ("main",): 1,
        ("outer",): 4,
        ("outer", "inner"): 4,
    }
    assert len({span.thread.number for span in profiler.spans()}) == 5


def test_threads_that_ended_leave_only_their_sums():
    profiler = Profiler(keep_spans=0)

    def work():
        with profiler.profile("request"):
            pass

    seen = []
    for _ in range(50):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        seen.append(weakref.ref(thread))
        del thread
    gc.collect()
    assert sum(ref() is not None for ref in seen) <= 2
    assert profiler.by_name()["request"].count == 50


def test_decorators():
    profiler = Profiler()

    @profiler.profiled
    def plain(x: int) -> int:
        """Doc."""
        return x + 1

    @profiler.profiled("named")
    def other() -> str:
        return "ok"

    @profiler.profiled()
    def third() -> None:
        pass

    class Model:
        @profiler.profiled
        def run(self) -> int:
            return 3

    assert (plain(1), other(), third(), Model().run()) == (2, "ok", None, 3)
    assert (plain.__name__, plain.__doc__) == ("plain", "Doc.")
    assert set(profiler.by_name()) == {"plain", "named", "third", "Model.run"}


def test_functions_that_only_prepare_their_work_are_refused():
    profiler = Profiler()

    def generator():
        yield 1

    async def coroutine():
        pass

    for function in (generator, coroutine):
        with pytest.raises(TypeError, match="inside it"):
            profiler.profiled(function)


def test_what_raises_is_counted_and_named():
    profiler = Profiler()
    with pytest.raises(KeyError), profiler.profile("outer"), profiler.profile("broken"):
        raise KeyError("x")
    assert [(span.name, span.error) for span in profiler.spans()] == [
        ("broken", "KeyError"),
        ("outer", "KeyError"),
    ]
    with profiler.profile("after"):
        pass
    assert ("after",) in rows_of(profiler)


def test_only_the_newest_spans_are_kept_and_the_sums_have_all():
    profiler = Profiler(keep_spans=10)
    for _ in range(25):
        with profiler.profile("a"):
            pass
    assert len(profiler.spans()) == 10
    assert profiler.dropped_count == 15
    assert profiler.by_name()["a"].count == 25


def test_names_without_end_do_not_fill_the_memory():
    profiler = Profiler(keep_spans=0)
    for n in range(3000):
        with profiler.profile(f"frame {n}"), profiler.profile("step"):
            pass
    rows = profiler.stats()
    assert len(rows) < 2100
    assert sum(row.count for row in rows) == 6000
    assert any(row.name == OTHERS for row in rows)


def test_switched_off_it_does_nothing():
    profiler = Profiler(enabled=False)
    with profiler.profile("a"):
        pass
    assert profiler.stats() == []
    assert "no span" in profiler.summary()
    profiler.enabled = True
    with profiler.profile("a"):
        pass
    assert profiler.by_name()["a"].count == 1


def test_reset_forgets_and_open_spans_are_counted_nowhere():
    profiler = Profiler()
    with profiler.profile("before"), profiler.profile("open"):
        profiler.reset()
    with profiler.profile("after"):
        pass
    assert set(profiler.by_name()) == {"after"}
    assert [span.name for span in profiler.spans()] == ["after"]


def test_spans_that_close_out_of_order_do_not_swallow_later_ones():
    profiler = Profiler()
    first, second = profiler.profile("first"), profiler.profile("second")
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    second.__exit__(None, None, None)
    with profiler.profile("later"):
        pass
    assert ("later",) in rows_of(profiler)


def test_a_span_is_used_once():
    span = Profiler().profile("a")
    with span:
        pass
    with pytest.raises(RuntimeError, match="used before"), span:
        pass


def test_bad_arguments():
    with pytest.raises(ValueError, match="keep_spans"):
        Profiler(keep_spans=-1)
    with pytest.raises(ValueError, match="device is"):
        Profiler(device="gpu")


def test_summary_is_a_tree_in_milliseconds():
    profiler = Profiler("run")
    with profiler.profile("outer"), profiler.profile("inner"):
        time.sleep(0.002)
    page = io.StringIO()
    profiler.print_summary(page)
    title, heads, _, outer, inner = page.getvalue().splitlines()
    assert title.startswith("run: ")
    assert heads.split()[:3] == ["span", "count", "total"]
    assert "gpu ms" not in heads
    assert outer.split()[:2] == ["outer", "1"]
    assert inner.startswith("  inner")
    assert float(inner.split()[2]) >= 2.0


names = st.sampled_from("abc")
trees = st.recursive(
    st.tuples(names, st.just(())), lambda below: st.tuples(names, st.lists(below, max_size=3))
)


@settings(max_examples=50, deadline=None)
@given(st.lists(trees, max_size=5))
def test_counts_and_times_agree_with_any_nesting(forest):
    profiler = Profiler()
    expected: dict[tuple[str, ...], int] = {}

    def enter(tree, path):
        name, below = tree
        path = (*path, name)
        expected[path] = expected.get(path, 0) + 1
        with profiler.profile(name):
            for child in below:
                enter(child, path)

    for tree in forest:
        enter(tree, ())
    rows = rows_of(profiler)
    assert {path: row.count for path, row in rows.items()} == expected
    for path, row in rows.items():
        inside = sum(other.total_seconds for there, other in rows.items() if there[:-1] == path)
        assert row.total_seconds == pytest.approx(row.self_seconds + inside, abs=1e-9)
        assert row.self_seconds >= 0
        assert row.min_seconds <= row.mean_seconds <= row.max_seconds + 1e-12
    assert sum(row.self_seconds for row in rows.values()) == pytest.approx(
        sum(row.total_seconds for path, row in rows.items() if len(path) == 1), abs=1e-9
    )
