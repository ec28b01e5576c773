"""Answer the tuning guide's checklists by measuring: yes, no, or not applicable."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from vitascope.bench.comparison import FEWEST_ROUNDS, gain_of
from vitascope.bench.recommendations import limit_of
from vitascope.bench.results import (
    RESULTS_NAME,
    BenchResults,
    Cell,
    Machine,
    differences,
    load_results,
    this_machine,
)
from vitascope.bench.soak import Soak, Where, check_soak_seconds, soak
from vitascope.bench.suite import PipelineOptions, bench_pipeline
from vitascope.bench.synthetic_clip import synthetic_or
from vitascope.config import LoadedSettings, SettingsSource
from vitascope.config.settings import value_of
from vitascope.device import select_device
from vitascope.errors import InputError, VitascopeError, one_line
from vitascope.frames import StereoLayout
from vitascope.media.reading.reader import probe
from vitascope.segmentation.layout import vr_of
from vitascope.tune.knobs import batch_key
from vitascope.tune.system_checks import SystemCheck, check_system, processor_throttle_count
from vitascope.tune.tuned_file import read_history

Answer = Literal["yes", "no", "not applicable"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChecklistItem:
    """A question and its measured answer."""

    group: str
    question: str
    answer: Answer
    figure: str
    """The measurement, or the reason for ``not applicable``."""
    advice: str | None = None
    """What to do about it; None for nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurements:
    """Measurements behind the answers."""

    video: str
    """Name of the video in messages."""
    is_synthetic: bool
    layout: str
    """Layout of the eyes in the frame, and its source; empty for a flat video."""
    machine: Machine
    on_gpu: bool
    precision: str
    target_fps: float
    max_latency_ms: float
    free_running: Cell
    """The user's settings at full speed."""
    prompt: Cell
    """The same with ``performance.mode=latency``."""
    doubled: Cell | None
    """With twice the batch size; None if not tried."""
    not_doubled: str = ""
    """Why it was not tried."""
    suite: BenchResults | None
    """Results of ``bench run``; None if there are none."""
    suite_place: str
    """Where the results were looked for."""
    tuned: Mapping[str, Any] | None
    """Newest ``optimize`` result for this device and network; None if there is none."""
    not_in_use: Mapping[str, Any]
    """The settings it found that differ from the current ones."""
    processor_throttled: int | None
    """Number of times heat throttled the CPU meanwhile; None if not reported."""
    system: Sequence[SystemCheck]
    soak: Soak | None
    """None if not requested."""


def answered(
    group: str, question: str, good: bool | None, figure: str, advice: str | None = None
) -> ChecklistItem:
    """Make an item.

    Args:
        group: The checklist it belongs to.
        question: The desired state, as a statement.
        good: None if it cannot be determined, or does not apply.
        figure: The measurement, or the reason why there is none.
        advice: Dropped if the answer is yes.
    """
    answers: dict[bool | None, Answer] = {True: "yes", False: "no", None: "not applicable"}
    return ChecklistItem(
        group=group,
        question=question,
        answer=answers[good],
        figure=figure,
        advice=None if good else advice,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Checklist:
    """All items, in order."""

    items: tuple[ChecklistItem, ...]

    @property
    def failed(self) -> tuple[ChecklistItem, ...]:
        """Items answered with no."""
        return tuple(item for item in self.items if item.answer == "no")

    def count(self, answer: Answer) -> int:
        """Number of questions with this answer."""
        return sum(item.answer == answer for item in self.items)

    def verdict(self) -> str:
        """Summarise in one sentence."""
        counts = f"{self.count('yes')} yes, {self.count('no')} no, {self.count('not applicable')} not applicable here"
        failed = "; ".join(item.question for item in self.failed)
        return f"{counts}{f'; not so: {failed}' if failed else ''}"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {"passed": not self.failed, "items": [asdict(item) for item in self.items]}


def checklist_of(found: Measurements) -> Checklist:
    """Answer every question."""
    return Checklist(items=(*production_items(found), *trouble_items(found)))


_PRODUCTION = "before production"
_GPU_BUSY_PERCENT = 80.0
_DAY_SECONDS = 86_400.0
_REPAIR = "damaged frames are the video's: ffmpeg can repair it"


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
        return answered(_PRODUCTION, question, False, f"no results in {found.suite_place}", advice)
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
    return answered(_PRODUCTION, question, not lacking, "; ".join([figure, *lacking]), advice)


def _speed(found: Measurements) -> ChecklistItem:
    row = found.free_running.row("throughput")
    assert row is not None  # a measured cell has it
    key = found.free_running.key
    return answered(
        _PRODUCTION,
        f"{found.target_fps:g} frames a second at {key.width}x{key.height}",
        row.p50 >= found.target_fps,
        f"{row.p50:.1f} fps (p5 {row.p5:.1f}, p95 {row.p95:.1f}, n {row.n}), {found.video}",
        "vitascope optimize finds the fastest settings; performance.target_fps sets another target",
    )


def _gpu_is_busy(found: Measurements) -> ChecklistItem:
    question = f"the GPU is busy for more than {_GPU_BUSY_PERCENT:.0f} % of the time"
    load = found.free_running.load
    percent = None if load is None else load.gpu_percent
    if not found.on_gpu:
        return answered(_PRODUCTION, question, None, "no GPU is in use")
    if percent is None:
        return answered(_PRODUCTION, question, None, "the driver does not report its load")
    return answered(
        _PRODUCTION,
        question,
        percent > _GPU_BUSY_PERCENT,
        f"{percent:.0f} % on average",
        "the reason is below, in 'the bottleneck is known'",
    )


def _latency(found: Measurements) -> ChecklistItem:
    row = found.prompt.row("latency")
    assert row is not None  # a measured cell has it
    return answered(
        _PRODUCTION,
        f"a frame is through in less than {found.max_latency_ms:g} ms",
        row.p95 < found.max_latency_ms,
        f"p95 {row.p95:.1f} ms, p50 {row.p50:.1f} ms in performance.mode=latency, from decoder to encoder",
        f"vitascope optimize --max-latency-ms {found.max_latency_ms:g}",
    )


def _real_content(found: Measurements) -> ChecklistItem:
    question = "real VR content was tested"
    if found.is_synthetic:
        return answered(_PRODUCTION, question, None, "the video was synthetic; give one of your own")
    if not found.layout:
        return answered(_PRODUCTION, question, None, f"{found.video} is flat, not stereo")
    run = found.free_running
    figure = f"{run.frames} frames of {found.video}, {found.layout}, {run.damaged_count} damaged"
    return answered(_PRODUCTION, question, not run.damaged_count, figure, _REPAIR)


def _over_time(found: Measurements) -> Iterator[ChecklistItem]:
    memory, delay, loss = "memory does not leak", "latency and speed do not drift", "no frame is lost"
    soak = found.soak
    if soak is None:
        for question in (memory, delay, loss):
            why = f"no soak was requested: --duration {_DAY_SECONDS:.0f} takes a day"
            yield answered(_PRODUCTION, question, None, why)
        return
    span = f"in {_span(soak.seconds)} and {len(soak.pass_frames)} passes"
    if soak.too_short is not None:
        yield answered(_PRODUCTION, memory, None, soak.too_short)
        yield answered(_PRODUCTION, delay, None, soak.too_short)
    else:
        yield _memory_over_time(soak, memory, span)
        yield _delay_over_time(soak, delay, span)
    lost = soak.dropped_count + soak.lost_count + soak.damaged_count
    figure = (
        f"{soak.frame_count} frames {span}: {soak.dropped_count} dropped, {soak.lost_count} missing, "
        f"{soak.damaged_count} damaged"
    )
    advice = f"{_REPAIR}; missing ones are a bug; please report it"
    yield answered(_PRODUCTION, loss, not lost, figure, advice)


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
        return answered(_PRODUCTION, question, None, "this system does not report how much memory is in use")
    short = "" if soak.seconds >= _DAY_SECONDS else " (the guide asks for 24 h)"
    figure = "; ".join([*leaks, *parts, f"{span.removeprefix('in ')}{short}"])
    return answered(_PRODUCTION, question, not leaks, figure, "vitascope profile -t memory says what grows")


def _delay_over_time(soak: Soak, question: str, span: str) -> ChecklistItem:
    latency, ends = soak.latency_growth(), soak.latency()
    if ends is None:
        return answered(_PRODUCTION, question, None, f"too few frames {span}")
    drifts = [
        *([] if latency is None else [f"latency grows by {latency.total * 1e3:.0f} ms"]),
        *([] if soak.pace_growth() is None else ["frames take longer and longer"]),
    ]
    figure = f"mean latency {ends[0] * 1e3:.0f} ms, later {ends[1] * 1e3:.0f} ms"
    advice = "heat and other programs do that: watch clocks and load meanwhile, with --metrics-port or --tensorboard"
    return answered(
        _PRODUCTION, question, not drifts, "; ".join([*drifts, figure, span.removeprefix("in ")]), advice
    )


def _is_cool(found: Measurements) -> ChecklistItem:
    question, load = "nothing is throttled by heat", found.free_running.load
    figures, hot = [], False
    if found.on_gpu and load is not None and load.temperature_celsius_max is not None:
        figures.append(
            f"GPU at most {load.temperature_celsius_max:.0f} °C, slowed {load.throttled_share:.0%} of the time"
        )
        hot |= load.throttled_share > 0
    if found.processor_throttled is not None:
        figures.append(f"the CPU was throttled {found.processor_throttled} times")
        hot |= found.processor_throttled > 0
    if not figures:
        return answered(
            _PRODUCTION, question, None, "this system does not count how often its CPU is throttled down"
        )
    return answered(
        _PRODUCTION, question, not hot, "; ".join(figures), "better cooling, or a lower power limit"
    )


def _is_tuned(found: Measurements) -> ChecklistItem:
    question, tuned = "the best settings are known, written down and in use", found.tuned
    if tuned is None:
        advice = "vitascope optimize VIDEO --save-config tuned.yaml, then -c tuned.yaml"
        return answered(
            _PRODUCTION, question, False, "optimize has not run for this device and network", advice
        )
    figure = f"optimize on {tuned['date']}: {tuned['after']['fps'] / tuned['before']['fps']:.2f}x"
    other = found.not_in_use
    if other:
        figure += f"; not in use: {', '.join(f'{key}={value}' for key, value in other.items())}"
    file = tuned.get("file")
    return answered(_PRODUCTION, question, not other, figure, None if file is None else f"-c {file}")


def _span(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 600 else f"{seconds / 3600:.1f} h"


_SPEED, _MEMORY, _DELAY, _MACHINE = "speed below target", "out of memory", "high latency", "this machine"
_MEMORY_FULL = 0.95
_WORTHWHILE_GAIN = 1.05
"""Speed-up from which a larger batch is recommended, if certain."""
_OTHERS_SHARE, _IDLE_SHARE = 0.2, 0.05
"""Other programs count as a disturbance above this share of the CPUs with less than this share idle."""


def trouble_items(found: Measurements) -> Iterator[ChecklistItem]:
    """Items of the guide's troubleshooting checklist."""
    yield _half_precision(found)
    yield _batch_is_large_enough(found)
    yield _bottleneck_is_known(found)
    yield _memory_fits(found)
    yield _queues_are_short(found)
    yield _preprocessing_is_fast(found)
    yield _stages_are_known(found)
    yield _is_undisturbed(found)
    yield from _system(found)


def _half_precision(found: Measurements) -> ChecklistItem:
    question = "the network computes in half precision"
    if not found.on_gpu:
        return answered(_SPEED, question, None, "CPUs compute in fp32")
    good = found.precision in ("fp16", "mixed", "int8")
    return answered(_SPEED, question, good, f"gpu.precision is {found.precision}", "--precision fp16")


def _batch_is_large_enough(found: Measurements) -> ChecklistItem:
    question, doubled, batch = (
        "a larger batch would not be faster",
        found.doubled,
        found.free_running.key.batch,
    )
    if doubled is None:
        return answered(_SPEED, question, None, found.not_doubled)
    if doubled.status == "skipped":
        return answered(_SPEED, question, None, doubled.reason or "twice the batch was not tried")
    if doubled.status != "measured":
        return answered(_SPEED, question, True, f"batch {batch}; twice as many do not run: {doubled.reason}")
    for cell in (found.free_running, doubled):
        if _rate_count(cell) < FEWEST_ROUNDS:
            figure = f"{cell.frames} frames in batches of {cell.key.batch} are too few to tell their speed"
            return answered(_SPEED, question, None, figure)
    gain, low, high = gain_of(found.free_running, doubled)
    figure = f"batch {doubled.key.batch} is {gain:.2f} times as fast as {batch} ({low:.2f} to {high:.2f})"
    return answered(
        _SPEED, question, low < _WORTHWHILE_GAIN, figure, f"--set model.batch_size={doubled.key.batch}"
    )


def _rate_count(cell: Cell) -> int:
    """Count the rates of whole batches that a run gave; fewer than its batches if its parts were cut inside them."""
    row = cell.row("throughput")
    return 0 if row is None else min(row.n, cell.frames // cell.key.batch)


def _bottleneck_is_known(found: Measurements) -> ChecklistItem:
    verdict = limit_of(found.free_running)
    if verdict is None:
        return answered(_SPEED, "the bottleneck is known", None, "too little ran for a verdict")
    figure = f"{verdict.kind.replace('_', '-')}: {verdict.title}; {verdict.advice}"
    if verdict.expected_gain >= 1.01:
        figure += f" (up to {verdict.expected_gain:.2f}x, confidence {verdict.confidence})"
    return answered(_SPEED, "the bottleneck is known", True, figure)


def _memory_fits(found: Measurements) -> ChecklistItem:
    question, load = f"less than {_MEMORY_FULL:.0%} of the memory is in use", found.free_running.load
    figures, full = [], False
    share = None if load is None else load.memory_share
    if found.on_gpu and share is not None:
        figures.append(f"GPU {share:.0%}, all processes")
        full |= share >= _MEMORY_FULL
    resident = None if load is None else load.resident_bytes_max
    if resident is not None and found.machine.memory_bytes:
        share = resident / found.machine.memory_bytes
        figures.append(f"main memory {share:.0%} by this process ({resident / 1e6:.0f} MB)")
        full |= share >= _MEMORY_FULL
    if not figures:
        return answered(_MEMORY, question, None, "this system does not report it")
    advice = "a smaller model.batch_size, model.input_size or processing.max_queue_mb"
    return answered(_MEMORY, question, not full, "; ".join(figures), advice)


def _queues_are_short(found: Measurements) -> ChecklistItem:
    row = found.prompt.row("latency")
    assert row is not None  # a measured cell has it
    work = sum(_stages(found.prompt).values())
    figure = (
        f"a video is read as fast as possible and fills every queue: {max(row.p50 - work, 0.0):.1f} of "
        f"{row.p50:.1f} ms are waits; live sources drop the oldest instead"
    )
    return answered(_DELAY, "queues are short", None, figure)


def _preprocessing_is_fast(found: Measurements) -> ChecklistItem:
    question = "preprocessing does not set the pace"
    stages = _stages(found.free_running)
    own = {name: time for name, time in stages.items() if name.startswith("prep")}
    if not own:
        return answered(_DELAY, question, None, "no separate stage does it")
    limit = limit_of(found.free_running)
    if limit is None:
        return answered(_DELAY, question, None, "too little ran for a verdict")
    # Not the longest stage: a stage's work is the total of its threads, which share it.
    figure = f"{sum(own.values()):.2f} ms a frame, of all its threads together; {limit.title}"
    return answered(
        _DELAY,
        question,
        limit.stage not in own,
        figure,
        "a smaller model.input_size, or more processing.num_threads",
    )


def _stages_are_known(found: Measurements) -> ChecklistItem:
    stages = ", ".join(f"{name} {time:.2f} ms" for name, time in _stages(found.free_running).items())
    return answered(_DELAY, "where the time goes is known", bool(stages), f"work for each frame: {stages}")


def _is_undisturbed(found: Measurements) -> ChecklistItem:
    question, load = "no other program takes the CPU", found.free_running.load
    if load is None or load.machine_cpu_percent is None:
        return answered(_MACHINE, question, None, "this system does not report it")
    processors = os.cpu_count() or 1
    busy = load.machine_cpu_percent / 100
    others = max(busy - load.process_cores / processors, 0.0)
    good = others < _OTHERS_SHARE or busy < 1 - _IDLE_SHARE
    figure = f"all CPUs {busy:.0%} busy, {others:.0%} with other programs"
    return answered(_MACHINE, question, good, figure, "close other programs: all speeds above are too low")


def _system(found: Measurements) -> Iterator[ChecklistItem]:
    for check in found.system:
        yield answered(_MACHINE, check.name, check.advice is None, check.found, check.advice)


def _stages(cell: Cell) -> dict[str, float]:
    """Milliseconds of work per frame, by stage."""
    return {name: ms for name, ms in cell.stages_ms().items() if name != "finish"}


_PASS_SECONDS = 10.0
_FEWEST_BATCHES = 6
"""Fewest batches of the doubled size needed to judge their speed."""
_DEFAULT_RESULTS = Path("results") / RESULTS_NAME


@dataclass(frozen=True, slots=True, kw_only=True)
class ChecklistOptions(SettingsSource):
    """The video to check, and its settings."""

    video: Path | None = None
    """The video; a synthetic one if omitted."""
    soak_seconds: float | None = None
    """How long to repeat it; None skips the soak."""
    results: Path | None = None
    """Results of ``bench run``; None for its default place."""

    def run_of(self, video: Path, *more: str) -> PipelineOptions:
        """One pass over the video, with settings that override the user's."""
        return PipelineOptions(
            video=video,
            seconds=_PASS_SECONDS,
            profile=self.profile,
            files=self.files,
            assignments=(*self.assignments, *more),
            advice_when_slow="reduce the work: a smaller video or, on a CPU, --profile fast",
        )


def measure_for_checklist(
    options: ChecklistOptions, *, tell: Callable[[str], object] | None = None
) -> Measurements:
    """Measure everything; takes half a minute plus the time of the soak.

    Args:
        options: What to check.
        tell: Called with a line about each step.

    Raises:
        UsageError: The time of the soak is out of range.
        InputError: The video cannot be read, or is too short; the given results cannot be read.
        VitascopeError: As ``Segmenter``.
    """
    say = tell or (lambda _: None)
    if options.soak_seconds is not None:
        check_soak_seconds(options.soak_seconds)
    suite = _suite(options.results)
    throttled_before = processor_throttle_count()
    with tempfile.TemporaryDirectory(prefix="vitascope-checklist-") as folder:
        video, spoken = synthetic_or(options.video, Path(folder))
        probe(video)  # report an unreadable video before printing anything
        loaded = options.run_of(video).loaded()
        say(f"{spoken}: as the settings are, for at most {_PASS_SECONDS:g} s")
        free_running = _cell(bench_pipeline(options.run_of(video)))
        say("the same in performance.mode=latency")
        prompt = _cell(bench_pipeline(options.run_of(video, "performance.mode=latency")))
        not_doubled = _why_not_doubled(loaded, video, free_running)
        doubled = None
        if not_doubled is None:
            say(f"the same with a batch of {2 * free_running.key.batch}")
            doubled = _doubled(options, video, free_running)
        endured: Soak | None = None
        if options.soak_seconds is not None:
            say(f"again and again for {options.soak_seconds:g} s")
            endured = soak(loaded, video, seconds=options.soak_seconds)
    machine = this_machine()
    settings = loaded.settings
    tuned = _newest_tuning(free_running)
    throttled_after = processor_throttle_count()
    return Measurements(
        video=spoken,
        is_synthetic=options.video is None,
        layout=_layout(options.video, loaded),
        machine=machine,
        on_gpu=select_device(settings.gpu.device, index=settings.gpu.device_id).kind == "cuda",
        precision=settings.gpu.precision,
        target_fps=settings.performance.target_fps,
        max_latency_ms=settings.performance.max_latency_ms,
        free_running=free_running,
        prompt=prompt,
        doubled=doubled,
        not_doubled=not_doubled or "",
        suite=suite,
        suite_place=str(options.results or _DEFAULT_RESULTS),
        tuned=tuned,
        not_in_use={} if tuned is None else dict(_not_in_use(tuned["change"], options, loaded)),
        processor_throttled=None
        if throttled_before is None or throttled_after is None
        else throttled_after - throttled_before,
        system=tuple(check_system(gpus=len(machine.gpus))),
        soak=endured,
    )


def _cell(results: BenchResults) -> Cell:
    """The only cell of a run.

    Raises:
        InputError: It has no figures.
    """
    (cell,) = results.cells
    if cell.status != "measured":
        raise InputError(f"{cell.key.label()} cannot be measured: {cell.reason}")
    return cell


def _why_not_doubled(loaded: LoadedSettings, video: Path, cell: Cell) -> str | None:
    if loaded.settings.performance.mode == "latency":
        return "performance.mode=latency takes one frame at a time"
    frames = probe(video).frame_count_estimate
    needed = _FEWEST_BATCHES * 2 * cell.key.batch
    if frames is not None and frames < needed:
        return f"{frames} frames are too few for a larger batch than {cell.key.batch}: {needed} tell"
    return None


def _doubled(options: ChecklistOptions, video: Path, cell: Cell) -> Cell:
    """Run with twice the batch; a failed cell if that does not fit, a skipped one if it is too slow to tell."""
    batch = 2 * cell.key.batch
    name = batch_key(options.run_of(video).loaded())
    try:
        (doubled,) = bench_pipeline(options.run_of(video, f"{name}={batch}")).cells
    except VitascopeError as error:
        # The video could be read before, so an InputError now means that too few of its frames came out.
        status: Literal["skipped", "failed"] = "skipped" if isinstance(error, InputError) else "failed"
        return Cell(key=replace(cell.key, batch=batch), status=status, reason=one_line(error))
    return doubled


def _suite(named: Path | None) -> BenchResults | None:
    """Results of ``bench run``: the given file, or the default one; None if that does not exist."""
    if named is None and not _DEFAULT_RESULTS.exists():
        return None
    return load_results(named or _DEFAULT_RESULTS)


def _layout(video: Path | None, loaded: LoadedSettings) -> str:
    """Name the stereo layout and what it was detected by; empty for a flat video."""
    if video is None:
        return ""
    found = vr_of(probe(video), loaded.settings.video)
    return "" if found.layout is StereoLayout.MONO else f"{found.layout.value} ({found.layout_reason.how})"


def _newest_tuning(cell: Cell) -> Mapping[str, Any] | None:
    """The newest history line for the same device and network from a search that reached its target."""
    lines = [
        line
        for line in read_history()
        if (line.get("device"), line.get("network")) == (cell.device, cell.model)
        and not line.get("unreachable")
    ]
    return lines[-1] if lines else None


def _not_in_use(
    change: Mapping[str, Any], options: ChecklistOptions, loaded: LoadedSettings
) -> Iterator[tuple[str, Any]]:
    """List values that a tuner found and that differ from the settings."""
    for key, value in change.items():
        taken = options.load({key: value}, chosen_by="the checklist").settings
        if value_of(taken, key) != value_of(loaded.settings, key):
            yield key, value
