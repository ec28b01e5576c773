"""The tuning guide's checklist before production: is the program ready for it here?"""

from __future__ import annotations

from collections.abc import Iterator

from vitascope.bench.machine import differences
from vitascope.bench.soak import Soak, Where
from vitascope.tune.checklist.items import ChecklistItem, Measurements, answered

__all__ = ["production_items"]

_GROUP = "before production"
_GPU_BUSY_PERCENT = 80.0
_DAY_SECONDS = 86_400.0
_REPAIR = "damaged frames are the film's: ffmpeg can repair it"


def production_items(found: Measurements) -> Iterator[ChecklistItem]:
    """Benchmark, speed, load, latency, content, endurance, heat, settings."""
    yield _suite_was_run(found)
    yield _speed(found)
    yield _gpu_is_busy(found)
    yield _latency(found)
    yield _real_content(found)
    yield from _over_time(found)
    yield _is_cool(found)
    yield _is_tuned(found)


def _suite_was_run(found: Measurements) -> ChecklistItem:
    question, suite = "a comprehensive benchmark was run", found.suite
    advice = "vitascope bench run; then --results names its file"
    if suite is None:
        return answered(_GROUP, question, False, f"no results in {found.suite_place}", advice)
    unlike = differences(suite.machine, found.machine)
    wanted = {"suite": "full", "only": "everything"}
    lacking = [
        *([f"of another machine ({'; '.join(unlike)})"] if unlike else []),
        *([] if suite.finished else ["not finished"]),
        *(
            f"{name}: {suite.workload.get(name)}"
            for name in wanted
            if suite.workload.get(name) != wanted[name]
        ),
        *(
            [f"of version {suite.machine.versions.get('vitascope')}"]
            if suite.machine.versions.get("vitascope") != found.machine.versions.get("vitascope")
            else []
        ),
    ]
    figure = f"{len(suite.measured)} of {len(suite.cells)} cells measured, {suite.began_at}"
    return answered(_GROUP, question, not lacking, "; ".join([figure, *lacking]), advice)


def _speed(found: Measurements) -> ChecklistItem:
    row = found.free_running.row("throughput")
    assert row is not None  # a measured cell has it
    key = found.free_running.key
    return answered(
        _GROUP,
        f"{found.target_fps:g} frames a second at {key.width}x{key.height}",
        row.p50 >= found.target_fps,
        f"{row.p50:.1f} fps (p5 {row.p5:.1f}, p95 {row.p95:.1f}, n {row.n}), {found.film}",
        "vitascope optimize finds the fastest settings; performance.target_fps sets another target",
    )


def _gpu_is_busy(found: Measurements) -> ChecklistItem:
    question = f"the GPU is busy for more than {_GPU_BUSY_PERCENT:.0f} % of the time"
    load = found.free_running.load
    percent = None if load is None else load.gpu_percent
    if not found.on_gpu:
        return answered(_GROUP, question, None, "no GPU is in use")
    if percent is None:
        return answered(_GROUP, question, None, "the driver does not tell its load")
    return answered(
        _GROUP,
        question,
        percent > _GPU_BUSY_PERCENT,
        f"{percent:.0f} % on average",
        "what keeps it waiting is below, in 'the bottleneck is known'",
    )


def _latency(found: Measurements) -> ChecklistItem:
    row = found.prompt.row("latency")
    assert row is not None  # a measured cell has it
    return answered(
        _GROUP,
        f"a frame is through in less than {found.max_latency_ms:g} ms",
        row.p95 < found.max_latency_ms,
        f"p95 {row.p95:.1f} ms, p50 {row.p50:.1f} ms in performance.mode=latency, from decoder to encoder",
        f"vitascope optimize --max-latency-ms {found.max_latency_ms:g}",
    )


def _real_content(found: Measurements) -> ChecklistItem:
    question = "real VR content was tested"
    if found.is_synthetic:
        return answered(_GROUP, question, None, "the film was synthetic; name one of yours")
    if not found.layout:
        return answered(_GROUP, question, None, f"{found.film} is flat, not stereo")
    run = found.free_running
    figure = f"{run.frames} frames of {found.film}, {found.layout}, {run.damaged_count} damaged"
    return answered(_GROUP, question, not run.damaged_count, figure, _REPAIR)


def _over_time(found: Measurements) -> Iterator[ChecklistItem]:
    memory, delay, loss = "memory does not leak", "latency and speed do not drift", "no frame is lost"
    soak = found.soak
    if soak is None:
        for question in (memory, delay, loss):
            why = f"no soak was asked for: --duration {_DAY_SECONDS:.0f} takes a day"
            yield answered(_GROUP, question, None, why)
        return
    span = f"in {_span(soak.seconds)} and {len(soak.pass_frames)} passes"
    if soak.too_short is not None:
        yield answered(_GROUP, memory, None, soak.too_short)
        yield answered(_GROUP, delay, None, soak.too_short)
    else:
        yield _memory_over_time(soak, memory, span)
        yield _delay_over_time(soak, delay, span)
    lost = soak.dropped_count + soak.lost_count + soak.damaged_count
    figure = (
        f"{soak.frame_count} frames {span}: {soak.dropped_count} dropped, {soak.lost_count} missing, "
        f"{soak.damaged_count} damaged"
    )
    advice = f"{_REPAIR}; missing ones are a fault of ours, worth a report"
    yield answered(_GROUP, loss, not lost, figure, advice)


def _memory_over_time(soak: Soak, question: str, span: str) -> ChecklistItem:
    parts, leaks = [], []
    places: dict[Where, str] = {"host": "main memory", "gpu": "GPU memory"}
    for where, name in places.items():
        ends, growth = soak.memory(where), soak.memory_growth(where)
        if ends is not None:
            parts.append(f"{name} {ends[0] / 1e6:.0f} MB, later {ends[1] / 1e6:.0f} MB")
        if growth is not None:
            leaks.append(f"{name} keeps growing by {growth.slope * 3600 / 1e6:.1f} MB an hour")
    if not parts:
        return answered(_GROUP, question, None, "this system does not tell how much memory is in use")
    short = "" if soak.seconds >= _DAY_SECONDS else " (the guide asks for 24 h)"
    figure = "; ".join([*leaks, *parts, f"{span.removeprefix('in ')}{short}"])
    return answered(_GROUP, question, not leaks, figure, "vitascope profile -t memory says what grows")


def _delay_over_time(soak: Soak, question: str, span: str) -> ChecklistItem:
    latency, ends = soak.latency_growth(), soak.latency()
    if ends is None:
        return answered(_GROUP, question, None, f"too few frames {span}")
    drifts = [
        *([] if latency is None else [f"latency grows by {latency.total * 1e3:.0f} ms"]),
        *([] if soak.pace_growth() is None else ["frames take longer and longer"]),
    ]
    figure = f"mean latency {ends[0] * 1e3:.0f} ms, later {ends[1] * 1e3:.0f} ms"
    advice = "heat and other programs do that: watch clocks and load meanwhile, with --metrics-port or --tensorboard"
    return answered(
        _GROUP, question, not drifts, "; ".join([*drifts, figure, span.removeprefix("in ")]), advice
    )


def _is_cool(found: Measurements) -> ChecklistItem:
    question, load = "nothing is slowed down by heat", found.free_running.load
    figures, hot = [], False
    if found.on_gpu and load is not None and load.temperature_celsius_max is not None:
        figures.append(
            f"GPU at most {load.temperature_celsius_max:.0f} °C, slowed {load.throttled_share:.0%} of the time"
        )
        hot |= load.throttled_share > 0
    if found.processor_throttled is not None:
        figures.append(f"the processor was slowed {found.processor_throttled} times")
        hot |= found.processor_throttled > 0
    if not figures:
        return answered(
            _GROUP, question, None, "this system does not count how often its processor is slowed down"
        )
    return answered(_GROUP, question, not hot, "; ".join(figures), "better cooling, or a lower power limit")


def _is_tuned(found: Measurements) -> ChecklistItem:
    question, tuned = "the best settings are known, written down and in use", found.tuned
    if tuned is None:
        advice = "vitascope optimize FILM --save-config tuned.yaml, then -c tuned.yaml"
        return answered(_GROUP, question, False, "optimize has not run for this device and network", advice)
    figure = f"optimize on {tuned['date']}: {tuned['after']['fps'] / tuned['before']['fps']:.2f}x"
    other = found.not_in_use
    if other:
        figure += f"; not in use: {', '.join(f'{key}={value}' for key, value in other.items())}"
    file = tuned.get("file")
    return answered(_GROUP, question, not other, figure, None if file is None else f"-c {file}")


def _span(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 600 else f"{seconds / 3600:.1f} h"
