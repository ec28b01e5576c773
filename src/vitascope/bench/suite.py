"""The benchmark suite: resolutions by batch sizes by precisions, each through ``segment`` as users run it.

``bench_pipeline`` runs the whole pipeline once over one video, to see how fast a machine is and what limits it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from vitascope.bench.limited_run import stopping_after, warm_up
from vitascope.bench.measured_run import ALONE, MeasuredRun, MeasuredSegmenter
from vitascope.bench.network_probe import NetworkProbe, ProbeEffort
from vitascope.bench.results import (
    RESULTS_NAME,
    BenchResults,
    Cell,
    CellKey,
    ResultsFile,
    Row,
    differences,
    load_results,
    now,
    this_machine,
)
from vitascope.bench.synthetic_clip import make_clip
from vitascope.config import LoadedSettings, OutputKind, SettingsSource, given_flags
from vitascope.device import select_device
from vitascope.errors import InputError, ModelError, OutputError, UsageError, VitascopeError, one_line
from vitascope.frames import VideoInfo
from vitascope.gpu.profiling.bottleneck import BottleneckDetector, Finding
from vitascope.gpu.profiling.pipeline_profile import seconds_by_stage
from vitascope.gpu.profiling.utilisation import Utilisation, UtilisationSampler
from vitascope.media.reading.reader import probe
from vitascope.observe.report_values import frames_in_words
from vitascope.segmentation.run_profile import PARTS_OF_STAGES

FEWEST_FRAMES = 8
"""With fewer frames mostly the opening of the video and the filling of queues would be measured."""
_SAMPLE_SECONDS = 0.1
_PEAKS = ("peak_ram", "peak_vram")
"""Rows with one sample: the most memory in use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounds:
    """Number of rounds over a video: until ``seconds`` have passed, within these bounds."""

    fewest: int
    most: int
    seconds: float


def too_short(video: Path, *, frame_count: int, batch: int) -> str | None:
    """Say why a video cannot be measured; None if it can.

    Args:
        video: The video.
        frame_count: Its frames.
        batch: Frames per call of the network.
    """
    needed = max(FEWEST_FRAMES, 2 * batch)
    if frame_count >= needed:
        return None
    return (
        f"{video} has {frames_in_words(frame_count)}; batches of {batch} need {needed}: one to warm up, and one to "
        "measure"
    )


def measure_rounds(
    segmenter: MeasuredSegmenter, video: Path, *, kind: OutputKind, rounds: Rounds
) -> tuple[list[MeasuredRun], Utilisation]:
    """Run over a video several times, after one run that is not measured.

    Args:
        segmenter: Open.
        video: The video.
        kind: Kind of picture to make and encode.
        rounds: Number of rounds.

    Raises:
        VitascopeError: A run failed.
    """
    segmenter.measure(video, kind=kind)
    runs: list[MeasuredRun] = []
    began = perf_counter()
    with UtilisationSampler(interval_seconds=_SAMPLE_SECONDS, device_id=segmenter.device.index) as sampler:
        while len(runs) < rounds.fewest or (
            len(runs) < rounds.most and perf_counter() - began < rounds.seconds
        ):
            runs.append(segmenter.measure(video, kind=kind))
    return runs, sampler.summary()


def cell_of_runs(
    key: CellKey,
    segmenter: MeasuredSegmenter,
    runs: Sequence[MeasuredRun],
    load: Utilisation,
    *,
    rates: Sequence[float] | None = None,
    alpha_error: float | None = None,
    group_size: int | None = None,
) -> Cell:
    """Compute the figures of a cell, or a failed cell if its batch did not fit into GPU memory.

    Args:
        key: The cell's key.
        segmenter: The segmenter that ran it.
        runs: At least one; the verdict is about the one of median speed.
        load: Load of CPU and GPU during the run.
        rates: Frames per second, the samples of ``throughput``; one for each run when omitted.
        alpha_error: Error of the mattes.
        group_size: Frames timed together; the key's batch when omitted, since a batch comes out together.

    Raises:
        InputError: Too few frames came out.
    """
    shrunk = next((note for run in runs if (note := run.shortage_note)), None)
    if shrunk is not None:
        return Cell(key=key, status="failed", reason=shrunk, device=segmenter.device.label)
    group_size = group_size or key.batch
    frame_times = [time for run in runs for time in run.frame_times_ms(group_size)]
    if not frame_times:
        raise InputError(f"{key.clip}: only {runs[0].frame_count} frames came out, too few to measure")
    typical = sorted(runs, key=lambda run: run.frames_per_second(group_size))[len(runs) // 2]
    rows = [
        Row.of("throughput", "frames/s", rates or [run.frames_per_second(group_size) for run in runs]),
        Row.of("frame_time", "ms", frame_times),
        Row.of("latency", "ms", [latency for run in runs for latency in run.latencies_ms()]),
        *_stage_rows(runs),
        *_memory_rows(runs, load),
    ]
    network = segmenter.chosen.network
    return Cell(
        key=key,
        status="measured",
        device=segmenter.device.label,
        engine=network.engine_name,
        decoder=typical.decoder,
        model=network.name,
        network_size=typical.network_size,
        frames=typical.frame_count,
        rounds=len(runs),
        damaged_count=sum(run.damaged_count for run in runs),
        alpha_error=alpha_error,
        rows=tuple(rows),
        load=load,
        verdict=_verdict(typical, load),
        notes=tuple(dict.fromkeys(note for run in runs for note in run.notes)),
    )


def merged(cell: Cell, again: Cell) -> Cell:
    """Append the samples of another visit to a cell.

    Args:
        cell: Measured; load, verdict and operators stay those of its own rounds.
        again: The same cell, measured again. If it was not measured, the cell stays and gets a note.
    """
    if again.status != "measured":
        return replace(cell, notes=(*cell.notes, f"a later visit was not measured: {again.reason}"))
    return replace(
        cell,
        rounds=cell.rounds + again.rounds,
        damaged_count=cell.damaged_count + again.damaged_count,
        rows=tuple(_with_samples(row, again.row(row.name)) for row in cell.rows),
        notes=tuple(dict.fromkeys((*cell.notes, *again.notes))),
    )


def _with_samples(row: Row, more: Row | None) -> Row:
    if more is None:
        return row
    samples = (*row.samples, *more.samples)
    return Row.of(row.name, row.unit, [max(samples)] if row.name in _PEAKS else samples)


def slice_rates(run: MeasuredRun, *, slices: int, batch: int) -> list[float]:
    """Frames per second in consecutive parts of one pass; the first part is left out, since it fills the queues.

    Args:
        run: The pass.
        slices: Number of parts; fewer if the video is short.
        batch: Frames that come out together; such a group is never divided.
    """
    marks = np.asarray(run.done_seconds[batch - 1 :: batch])
    edges = np.unique(np.linspace(0, len(marks) - 1, slices + 1).astype(int))
    if len(edges) > 2:
        edges = edges[1:]
    return [
        float((after - before) * batch / (marks[after] - marks[before])) for before, after in pairwise(edges)
    ]


def _stage_rows(runs: Sequence[MeasuredRun]) -> list[Row]:
    """Milliseconds of work per frame, by stage; on a GPU also the time on the GPU."""
    rows = [
        Row.of(
            f"stage/{stage.name}",
            "ms",
            [run.pipeline.stages[n].busy_seconds * 1e3 / run.frame_count for run in runs],
        )
        for n, stage in enumerate(runs[0].pipeline.stages)
    ]
    if any(run.finish_seconds for run in runs):
        rows.append(
            Row.of("stage/finish", "ms", [run.finish_seconds * 1e3 / run.frame_count for run in runs])
        )
    reports = [run.gpu for run in runs if run.gpu is not None]
    for name in reports[0].span_seconds if reports else ():
        spans = [run.gpu.span_seconds.get(name, 0.0) * 1e3 / run.frame_count for run in runs if run.gpu]
        rows.append(Row.of(f"gpu/{name}", "ms", spans))
    return rows


def _memory_rows(runs: Sequence[MeasuredRun], load: Utilisation) -> list[Row]:
    rows = []
    if load.resident_bytes_max is not None:
        rows.append(Row.of("peak_ram", "MB", [load.resident_bytes_max / 1e6]))
    peaks = [run.gpu.peak_memory_bytes for run in runs if run.gpu is not None and run.gpu.peak_memory_bytes]
    if load.memory_used_bytes_max is not None:
        peaks.append(load.memory_used_bytes_max)
    if peaks:
        rows.append(Row.of("peak_vram", "MB", [max(peaks) / 1e6]))
    return rows


def _verdict(run: MeasuredRun, load: Utilisation) -> Finding:
    seconds = {} if run.gpu is None else seconds_by_stage(run.gpu.span_seconds, PARTS_OF_STAGES)
    return BottleneckDetector().analyze(run.pipeline, utilisation=load, gpu_seconds=seconds).main


class SuiteVideos:
    """The videos of a suite, and the mattes that others are checked against.

    Args:
        options: The options of the suite.
        folder: Folder for the videos.
        on_gpu: Whether the suite runs on a GPU; determines the length of videos.
        keep: Keep videos and mattes of all sizes, for cells that are measured again; otherwise only of the last size.
    """

    def __init__(self, options: SuiteOptions, folder: Path, *, on_gpu: bool, keep: bool) -> None:
        self._on_gpu, self._keep = on_gpu, keep
        self._options, self._folder = options, folder
        self._paths: dict[tuple[str, str], Path] = {}
        """Paths by size and stereo layout."""
        self._expected: dict[tuple[str, str], list[npt.NDArray[np.float32]]] = {}

    def video(self, key: CellKey) -> Path:
        """The video of a cell."""
        if self._options.video is not None:
            return self._options.video
        shape = (key.resolution, key.stereo)
        if shape not in self._paths:
            if not self._keep:
                for path in self._paths.values():
                    path.unlink(missing_ok=True)
                self._paths.clear()
                self._expected.clear()
            self._paths[shape] = make_clip(
                self._folder / f"{key.resolution}-{key.stereo}.mp4",
                width=key.width,
                height=key.height,
                frame_count=self._options.frame_count(key.width, key.height, on_gpu=self._on_gpu),
                stereo=key.stereo != "mono",
            )
        return self._paths[shape]

    def expected(self, key: CellKey) -> list[npt.NDArray[np.float32]]:
        """The first mattes in fp32 with one frame per call."""
        video, shape = self.video(key), (key.resolution, key.stereo)
        if shape not in self._expected:
            plain = self._options.loaded(cell_values(key, batch=1, precision="fp32"))
            with MeasuredSegmenter(loaded=plain) as segmenter:
                self._expected[shape] = segmenter.alphas(video, count=_CHECKED_FRAMES)
        return self._expected[shape]


def cell_values(key: CellKey, *, batch: int, precision: str) -> dict[str, Any]:
    """The settings that make a run this cell, by dotted key."""
    values = {
        "model.batch_size": batch,
        "pipeline.stages.inference.batch_size": batch,
        "gpu.precision": precision,
    }
    return values if key.stereo == "auto" else {**values, "video.stereo": key.stereo}


Axis = Literal["resolution", "batch", "precision"]

_RESOLUTIONS = {"1080p": (1920, 1080), "4K": (3840, 2160), "6K": (5760, 3240), "8K": (7680, 4320)}
_QUICK_RESOLUTIONS = {"360p": (640, 360), "1080p": (1920, 1080)}
_BATCHES, _QUICK_BATCHES = (1, 4, 8, 16, 32), (1, 4)
_PRECISIONS = ("fp32", "fp16")
_USUAL_RESOLUTION, _USUAL_BATCH = "1080p", 4
"""The values that stay fixed while another axis is varied."""
_VR_RESOLUTION = "4K"
_FRAMES, _QUICK_FRAMES = 96, 32
"""Number of 1080p frames; smaller pictures get more, up to 96."""
_FEWEST_GPU_FRAMES, _MOST_GPU_FRAMES = 240, 480
"""A GPU finishes 96 small frames before its clocks have settled, and 120 large ones before the encoder begins to
limit."""
_ROUNDS = Rounds(fewest=5, most=9, seconds=20.0)
_QUICK_ROUNDS = Rounds(fewest=5, most=9, seconds=3.0)
_QUICK_VISITS = 3
"""Visits of each cell, minutes apart, so that a disturbance of half a minute affects only one of them."""
_PROBE = ProbeEffort()
_QUICK_PROBE = ProbeEffort(seconds=0.3, traced_calls=2)


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteOptions(SettingsSource):
    """The cells to measure, and the source of their settings."""

    only: Axis | None = None
    """The only axis to vary."""
    quick: bool = False
    """A small suite with the small network, to see whether everything works and whether it became slower."""
    video: Path | None = None
    """The user's own video instead of synthetic ones; its size replaces the resolutions."""
    stereo: bool = False
    """Measure two eyes side by side."""
    model: str | None = None

    def loaded(self, values: Mapping[str, Any] | None = None) -> LoadedSettings:
        """The settings of a run, with the suite's own values over the user's.

        Raises:
            ConfigError: A setting is unknown or out of range.
        """
        network = self.model or ("selfie" if self.quick else None)
        named = given_flags({"model.name": ("--model", network)})
        # One frame at a time would make all batches the same.
        own = {**ALONE, "performance.mode": "auto", **(values or {})}
        return replace(self, flags=named).load(own, chosen_by="the suite")

    def frame_count(self, width: int, height: int, *, on_gpu: bool) -> int:
        """Frames of one round; of a longer video, the first ones."""
        if self.quick:
            return min(max(_QUICK_FRAMES * 1920 * 1080 // (width * height), _QUICK_FRAMES), _FRAMES)
        if not on_gpu:
            return _FRAMES
        fitting = _MOST_GPU_FRAMES * 1920 * 1080 // (width * height)
        return min(max(fitting, _FEWEST_GPU_FRAMES), _MOST_GPU_FRAMES)

    def workload(self) -> dict[str, str]:
        """The request in plain words; the same for runs that measure the same."""
        return {
            "suite": f"quick, {_QUICK_VISITS} visits" if self.quick else "full",
            "only": self.only or "everything",
            "film": "synthetic" if self.video is None else str(self.video),
            "stereo": "yes" if self.stereo else "no",
        }


def plan_cells(options: SuiteOptions, settings: LoadedSettings, *, on_gpu: bool) -> list[CellKey]:
    """List every combination, sizes in the outer loop so that each video is made once; on a GPU also stereo at 4K.

    Args:
        options: The options of the run.
        settings: The settings of the run.
        on_gpu: Whether the default precision is a GPU's.

    Raises:
        UsageError: ``only="resolution"`` with the user's own video.
        InputError: The video cannot be read.
    """
    sizes = dict(_QUICK_RESOLUTIONS if options.quick else _RESOLUTIONS)
    batches: Sequence[int] = _QUICK_BATCHES if options.quick else _BATCHES
    precisions: Sequence[str] = _PRECISIONS
    usual_precision = settings.settings.gpu.precision if on_gpu else "fp32"
    if options.video is not None and options.stereo:
        raise UsageError("--stereo is for synthetic videos; for your own, use --set video.stereo=…")
    if options.video is not None:
        if options.only == "resolution":
            raise UsageError("--only resolution and --input exclude each other: a video has one size")
        info = probe(options.video)
        sizes = {f"{info.width}x{info.height}": (info.width, info.height)}
    elif options.only in ("batch", "precision"):
        sizes = {_USUAL_RESOLUTION: sizes[_USUAL_RESOLUTION]}
    if options.only == "resolution":
        batches, precisions = (_USUAL_BATCH,), (usual_precision,)
    elif options.only == "batch":
        precisions = (usual_precision,)
    elif options.only == "precision":
        batches = (_USUAL_BATCH,)
    kind = settings.settings.output.kinds[0]
    stereo = "side-by-side" if options.stereo else "mono" if options.video is None else "auto"
    keys = [
        CellKey(
            clip="synthetic" if options.video is None else options.video.name,
            resolution=name,
            width=width,
            height=height,
            batch=batch,
            precision=precision,
            stereo=stereo,
            output=kind,
        )
        for name, (width, height) in sizes.items()
        for precision in precisions
        for batch in batches
    ]
    if on_gpu and stereo == "mono" and options.only is None and not options.quick:
        # Two eyes in real time are what VR needs of a GPU; on a CPU the cell would take minutes without being of use.
        keys += [
            replace(key, stereo="side-by-side")
            for key in keys
            if (key.resolution, key.batch, key.precision) == (_VR_RESOLUTION, _USUAL_BATCH, usual_precision)
        ]
    return keys


def run_suite(
    options: SuiteOptions,
    *,
    output_dir: Path,
    resume: bool = False,
    on_cell: Callable[[Cell, int, int], object] | None = None,
) -> tuple[BenchResults, Path]:
    """Measure every cell; after each the results so far are on disk.

    Args:
        options: What to measure.
        output_dir: Folder of the results; created if missing.
        resume: Continue the unfinished results there.
        on_cell: Called with each cell, its number from 1, and the number of cells.

    Returns:
        The results, and their file. Earlier results of that name are kept beside it, with their date.

    Raises:
        UsageError: The options contradict each other, or the results to resume are of another run.
        InputError: The video cannot be read, or is too short; the results to resume cannot be read.
        ModelError: The network is not available.
        OutputError: The results cannot be written.
    """
    settings = options.loaded()
    device = select_device(settings.settings.gpu.device, index=settings.settings.gpu.device_id)
    on_gpu = device.kind == "cuda"
    keys = plan_cells(options, settings, on_gpu=on_gpu)
    path = output_dir / RESULTS_NAME
    fresh = BenchResults(
        kind="suite",
        began_at=now(),
        machine=this_machine(),
        workload=options.workload(),
        settings=explicit_settings(settings),
    )
    earlier = _resumed(path, fresh) if resume else None
    if earlier is None:
        keep_earlier(path)
    results = ResultsFile(path, earlier or fresh)
    try:
        _visit(keys, options, results, on_gpu=on_gpu, on_cell=on_cell)
    except KeyboardInterrupt as error:
        raise KeyboardInterrupt(f"{path} has the results so far; --resume continues") from error
    return results.finish(), path


def _visit(
    keys: Sequence[CellKey],
    options: SuiteOptions,
    results: ResultsFile,
    *,
    on_gpu: bool,
    on_cell: Callable[[Cell, int, int], object] | None,
) -> None:
    """Measure the missing cells, then measure again those that need more visits."""
    networks = NetworkProbe(_QUICK_PROBE if options.quick else _PROBE)
    visits = _QUICK_VISITS if options.quick else 1
    again = [key for key in keys if key.precision == "fp32" or on_gpu] * (visits - 1)
    count = len(keys) + len(again)
    with tempfile.TemporaryDirectory(prefix="vitascope-bench-") as folder:
        videos = SuiteVideos(options, Path(folder), on_gpu=on_gpu, keep=options.quick)
        for number, key in enumerate((*keys, *again), start=1):
            known = results.results.cell(key)
            if known is None:
                known = _measure(options, key, videos, networks, on_gpu=on_gpu)
                results.add(known)
            elif number > len(keys):
                if known.status != "measured":
                    continue
                known = merged(known, _measure(options, key, videos, None, on_gpu=on_gpu))
                results.replace(known)
            if on_cell is not None:
                on_cell(known, number, count)


def explicit_settings(loaded: LoadedSettings) -> dict[str, str]:
    """The settings that the user set, and the profile. The suite's own values are part of its cells instead."""
    rows = {row.key: str(row.value) for row in loaded.rows() if row.origin.explicit and row.key not in ALONE}
    return {"profile": loaded.profile, **rows}


def keep_earlier(path: Path) -> None:
    """Rename earlier results after their date, so that no measurement is lost.

    Raises:
        UsageError: The path is taken by something else.
        OutputError: It cannot be renamed.
    """
    if not path.exists():
        return
    try:
        stamp = load_results(path).began_at.replace(":", "").replace("+0000", "")
    except InputError as error:
        raise UsageError(f"{error}; move it away, or choose another --output-dir") from error
    try:
        path.replace(path.with_name(f"{path.stem}-{stamp}.json"))
    except OSError as error:
        raise OutputError(f"{path} cannot be renamed: {error.strerror or error}") from error


def _resumed(path: Path, fresh: BenchResults) -> BenchResults | None:
    """Return the unfinished results of an earlier run; None if there are none.

    Raises:
        UsageError: They are finished, or of another machine or request.
        InputError: They cannot be read.
    """
    if not path.exists():
        return None
    earlier = load_results(path)
    if earlier.finished:
        raise UsageError(
            f"{path} is finished, and there is nothing to resume; leave --resume out to measure again"
        )
    for name, one, other in (
        ("request", earlier.workload, fresh.workload),
        ("settings", earlier.settings, fresh.settings),
        ("software", earlier.machine.versions, fresh.machine.versions),
    ):
        if one != other:
            keys = sorted(key for key in {*one, *other} if one.get(key) != other.get(key))
            changes = "; ".join(
                f"{key}: {one.get(key, 'not set')}, now {other.get(key, 'not set')}" for key in keys
            )
            raise UsageError(f"{path} cannot be resumed: its {name} differ ({changes})")
    unlike = differences(earlier.machine, fresh.machine)
    if unlike:
        raise UsageError(f"{path} cannot be resumed on another machine ({'; '.join(unlike)})")
    return earlier


def _measure(
    options: SuiteOptions, key: CellKey, videos: SuiteVideos, networks: NetworkProbe | None, *, on_gpu: bool
) -> Cell:
    """Visit a cell once; ``networks`` is None if its network was measured alone before."""
    if key.precision != "fp32" and not on_gpu:
        reason = f"the CPU computes in fp32; {key.precision} needs a GPU"
        return Cell(key=key, status="skipped", reason=reason)
    video = videos.video(key)
    limits: dict[str, Any] = {}
    if options.video is not None:
        start_seconds = options.loaded().settings.video.start_seconds
        frame_count = options.frame_count(key.width, key.height, on_gpu=on_gpu)
        available, limits = _first_frames(video, frame_count, start_seconds=start_seconds)
        short = too_short(video, frame_count=available, batch=key.batch)
        if short is not None:
            return Cell(key=key, status="skipped", reason=short)
    wanted = options.loaded({**cell_values(key, batch=key.batch, precision=key.precision), **limits})
    rounds = _QUICK_ROUNDS if options.quick else _ROUNDS
    try:
        expected = videos.expected(key)  # before this cell's network takes memory
        with MeasuredSegmenter(loaded=wanted) as segmenter:
            error = _alpha_error(key, expected, segmenter.alphas(video, count=_CHECKED_FRAMES))
            runs, load = measure_rounds(segmenter, video, kind=wanted.settings.output.kinds[0], rounds=rounds)
            is_reference = key.batch == 1 and key.precision == "fp32"
            cell = cell_of_runs(key, segmenter, runs, load, alpha_error=None if is_reference else error)
            if cell.status != "measured" or networks is None:
                return cell
            return _with_network(cell, networks, segmenter, video)
    except (UsageError, InputError, ModelError):
        raise  # every other cell would fail in the same way
    except _WrongMattesError as wrong:
        return Cell(key=key, status="failed", reason=str(wrong))
    except VitascopeError as failure:
        return Cell(key=key, status="failed", reason=one_line(failure))
    except MemoryError:
        return Cell(key=key, status="failed", reason="the host's memory is full")


_CHECKED_FRAMES = 4
_MOST_ALPHA_ERROR = 0.02
"""Mean absolute difference of alpha from fp32 above which a combination is wrong."""
_PERSON_SHARE = (0.01, 0.9)
"""The person's possible share of the picture; outside, the network did not see the person, and mattes prove nothing."""


class _WrongMattesError(VitascopeError):
    """A combination whose mattes differ from those of fp32, so that its speed does not count."""


def _alpha_error(
    key: CellKey, expected: Sequence[npt.NDArray[np.float32]], alphas: Sequence[npt.NDArray[np.float32]]
) -> float:
    """Mean absolute difference, 0..1, of mattes from those in fp32 with one frame per call.

    Args:
        key: The cell of the mattes.
        expected: float32 [H, W] each.
        alphas: Mattes of the same frames.

    Raises:
        _WrongMattesError: It is too large, or the person was not seen.
    """
    if len(alphas) != len(expected):
        raise _WrongMattesError(f"wrong output: {len(alphas)} mattes instead of {len(expected)}")
    error = float(np.mean([np.abs(one - other).mean() for one, other in zip(alphas, expected, strict=True)]))
    if not error <= _MOST_ALPHA_ERROR:
        raise _WrongMattesError(
            f"wrong output: alpha differs by {error:.3f} on average from fp32 with one frame a call; "
            f"at most {_MOST_ALPHA_ERROR} is right"
        )
    share = float(np.mean([(alpha > 0.5).mean() for alpha in alphas]))
    low, high = _PERSON_SHARE
    if key.clip == "synthetic" and not low <= share <= high:
        raise _WrongMattesError(
            f"wrong output: the network takes {share:.1%} of the synthetic video for a person"
        )
    return error


def _with_network(cell: Cell, networks: NetworkProbe, segmenter: MeasuredSegmenter, video: Path) -> Cell:
    """Add the network's own time and operators; if that fails, the cell keeps its figures and gets a note."""
    try:
        probed = networks.look(segmenter, video, batch=cell.key.batch)
    except (VitascopeError, MemoryError, RuntimeError) as error:  # CuPy's CUDA errors are RuntimeErrors
        if isinstance(error, VitascopeError):
            reason = one_line(error)
        else:
            reason = " ".join(str(error).split()) or type(error).__name__
        why = f"the network alone was not measured: {reason}"
        return replace(cell, notes=(*cell.notes, why))
    return replace(cell, rows=(*cell.rows, probed.row), operations=probed.operations)


def _long_enough(video: Path) -> VideoInfo:
    """Probe the video; raises ``InputError`` if it is too short for any measurement."""
    info = probe(video)
    known = info.frame_count_estimate
    if known is not None and known < FEWEST_FRAMES:
        raise InputError(
            f"{video} has {frames_in_words(known)}; a measurement needs at least {FEWEST_FRAMES}"
        )
    return info


def _first_frames(video: Path, frame_count: int, *, start_seconds: float) -> tuple[int, dict[str, Any]]:
    """Number of frames to measure, at most as many as requested, and the settings that end a longer video there.

    Raises:
        InputError: The video is too short for any measurement.
    """
    info = _long_enough(video)
    known = info.frame_count_estimate
    end_seconds = start_seconds + float(frame_count / info.average_frame_rate)
    available = frame_count if known is None else min(known, frame_count)
    return available, {"video.end_seconds": end_seconds}


_SIZE = (1920, 1080)
_CLIP_FRAMES, _GPU_CLIP_FRAMES = 120, 480
_SLICES = 11
_LONGEST_SECONDS = 86_400


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineOptions(SettingsSource):
    """The video to run, and the source of its settings."""

    video: Path | None = None
    """The video; a synthetic one when omitted."""
    discard: bool = False
    """Make every picture, but encode none."""
    seconds: float = 30.0
    """Limit of the time for work, counted once everything is open; a shorter video ends earlier."""
    stereo: bool = False
    """Make the synthetic video one of two eyes side by side."""
    advice_when_slow: str = "give it more time with --duration"
    """Advice in the error when too few frames came out in the time."""

    def loaded(self) -> LoadedSettings:
        """The settings of the run.

        Raises:
            ConfigError: A setting is unknown or out of range.
        """
        own = {**ALONE, "video.stereo": "side-by-side"} if self.stereo else ALONE
        return self.load(own, chosen_by="the suite")


def bench_pipeline(options: PipelineOptions) -> BenchResults:
    """Run the whole pipeline over a video once; on a GPU the network is warmed up first.

    Args:
        options: What to run.

    Returns:
        Results with one cell; the samples of its ``throughput`` are consecutive parts of the run, without the first.

    Raises:
        UsageError: The time is out of range.
        InputError: The video cannot be read, or is too short.
        VitascopeError: As ``Segmenter``.
    """
    if not 0 < options.seconds <= _LONGEST_SECONDS:
        raise UsageError(f"a run takes more than 0 and at most {_LONGEST_SECONDS} s, not {options.seconds:g}")
    if options.video is not None and options.stereo:
        raise UsageError("--stereo is for the synthetic video; for your own, use --set video.stereo=…")
    if options.video is not None:
        _long_enough(options.video)
    loaded = options.loaded()
    began_at = now()
    with (
        tempfile.TemporaryDirectory(prefix="vitascope-bench-") as folder,
        MeasuredSegmenter(loaded=loaded) as segmenter,
    ):
        on_gpu = segmenter.device.kind == "cuda"
        video = options.video or make_clip(
            Path(folder) / "synthetic.mp4",
            width=_SIZE[0],
            height=_SIZE[1],
            frame_count=_GPU_CLIP_FRAMES if on_gpu else _CLIP_FRAMES,
            stereo=options.stereo,
        )
        warm_up(segmenter, video, kind=segmenter.settings.output.kinds[0])
        with UtilisationSampler(interval_seconds=0.1, device_id=segmenter.device.index) as sampler:
            run = _run(segmenter, video, options)
        if run.frame_count < FEWEST_FRAMES:
            raise InputError(
                f"{video}: only {frames_in_words(run.frame_count)} came out in {run.wall_seconds:.1f} s; a "
                f"measurement needs at least {FEWEST_FRAMES}: {options.advice_when_slow}"
            )
        info = probe(video)
        # Frames come out in groups; a short run may not have even two of them.
        group_size = run.frames_per_call if run.frame_count >= 3 * run.frames_per_call else 1
        name = f"{info.width}x{info.height}"
        stereo = loaded.settings.video.stereo
        key = CellKey(
            clip="synthetic" if options.video is None else video.name,
            resolution="1080p" if options.video is None else name,
            width=info.width,
            height=info.height,
            batch=run.frames_per_call,
            precision=loaded.settings.gpu.precision if on_gpu else "fp32",
            stereo=stereo if stereo != "auto" or options.video is not None else "mono",
            output=f"{loaded.settings.output.kinds[0]}{', discarded' if options.discard else ''}",
        )
        cell = cell_of_runs(
            key,
            segmenter,
            [run],
            sampler.summary(),
            rates=slice_rates(run, slices=_SLICES, batch=group_size),
            group_size=group_size,
        )
    return BenchResults(
        kind="pipeline",
        began_at=began_at,
        finished=True,
        machine=this_machine(),
        workload={
            "film": "synthetic" if options.video is None else str(options.video),
            "seconds": f"{options.seconds:g}",
            "discard": "yes" if options.discard else "no",
        },
        settings=explicit_settings(loaded),
        cells=(cell,),
    )


def _run(segmenter: MeasuredSegmenter, video: Path, options: PipelineOptions) -> MeasuredRun:
    kind = segmenter.settings.output.kinds[0]
    with stopping_after(options.seconds) as start_clock:
        return segmenter.measure(video, kind=kind, discard=options.discard, on_start=start_clock)
