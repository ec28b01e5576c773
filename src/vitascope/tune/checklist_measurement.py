"""What the checklist is answered from: a video run as the settings are, with short queues, and with twice the batch."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from vitascope.bench.machine import this_machine
from vitascope.bench.pipeline_bench import PipelineOptions, bench_pipeline
from vitascope.bench.results import RESULTS_NAME, BenchResults, Cell, load_results
from vitascope.bench.soak import Soak, check_soak_seconds, soak
from vitascope.bench.synthetic_clip import synthetic_or
from vitascope.config import LoadedSettings, SettingsSource, load_settings
from vitascope.config.settings import value_of
from vitascope.device import select_device
from vitascope.errors import InputError, VitascopeError, one_line
from vitascope.frames import StereoLayout
from vitascope.media.reading.reader import probe
from vitascope.segmentation.layout import vr_of
from vitascope.tune.checklist import Measurements
from vitascope.tune.knobs import batch_key
from vitascope.tune.system_checks import check_system, processor_throttle_count
from vitascope.tune.tuned_file import read_history

__all__ = ["ChecklistOptions", "measure_for_checklist"]


_PASS_SECONDS = 10.0
_FEWEST_BATCHES = 6
"""Batches of the doubled size that a video must have to tell how fast they are."""
_DEFAULT_RESULTS = Path("results") / RESULTS_NAME


@dataclass(frozen=True, slots=True, kw_only=True)
class ChecklistOptions(SettingsSource):
    """What to ask about, and where its settings come from."""

    video: Path | None = None
    """The video; a synthetic one when omitted."""
    soak_seconds: float | None = None
    """How long to run it again and again; None leaves that out."""
    results: Path | None = None
    """Results of a run of the suite; None looks where ``bench run`` writes by itself."""

    def run_of(self, video: Path, *more: str) -> PipelineOptions:
        """One pass over the video, with settings over those of the user."""
        return PipelineOptions(
            video=video,
            seconds=_PASS_SECONDS,
            profile=self.profile,
            files=self.files,
            assignments=(*self.assignments, *more),
            advice_when_slow="shorten the work: --profile fast, or a smaller video",
        )


def measure_for_checklist(
    options: ChecklistOptions, *, tell: Callable[[str], object] | None = None
) -> Measurements:
    """Measure everything; half a minute, and the time of the soak.

    Args:
        options: What to ask about.
        tell: Told what is being done, a line each.

    Raises:
        UsageError: The time of the soak is out of range.
        InputError: The video cannot be read, or is too short; the results that were named cannot be read.
        VitascopeError: As ``Segmenter``.
    """
    say = tell or (lambda _: None)
    if options.soak_seconds is not None:
        check_soak_seconds(options.soak_seconds)
    suite = _suite(options.results)
    throttled_before = processor_throttle_count()
    with tempfile.TemporaryDirectory(prefix="vitascope-checklist-") as folder:
        video, spoken = synthetic_or(options.video, Path(folder))
        probe(video)  # what cannot be read is refused before anything is said
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
    """The one cell of a run.

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
    """The video with twice the batch; a failure where that does not fit, skipped where it is too slow to tell."""
    batch = 2 * cell.key.batch
    name = batch_key(options.run_of(video).loaded())
    try:
        (doubled,) = bench_pipeline(options.run_of(video, f"{name}={batch}")).cells
    except VitascopeError as error:
        # The video was read before, so what is wrong with it now is that too little of it came out.
        status: Literal["skipped", "failed"] = "skipped" if isinstance(error, InputError) else "failed"
        return Cell(key=replace(cell.key, batch=batch), status=status, reason=one_line(error))
    return doubled


def _suite(named: Path | None) -> BenchResults | None:
    """What ``bench run`` wrote; None where nothing was named, and nothing lies where it writes by itself."""
    if named is None and not _DEFAULT_RESULTS.exists():
        return None
    return load_results(named or _DEFAULT_RESULTS)


def _layout(video: Path | None, loaded: LoadedSettings) -> str:
    """How two eyes share the frame, and what says so; empty for a flat video."""
    if video is None:
        return ""
    found = vr_of(probe(video), loaded.settings.video)
    return "" if found.layout is StereoLayout.MONO else f"{found.layout.value} ({found.layout_reason.how})"


def _newest_tuning(cell: Cell) -> Mapping[str, Any] | None:
    """The newest line of the history for the same device and network, of searches that reached their target."""
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
    """What a tuner found and the settings do not have."""
    for key, value in change.items():
        wanted = load_settings(
            profile=options.profile,
            files=options.files,
            assignments=[*options.assignments, f"{key}={json.dumps(value)}"],
        )
        if value_of(wanted.settings, key) != value_of(loaded.settings, key):
            yield key, value
