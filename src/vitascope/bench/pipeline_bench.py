"""How fast this machine really is on a video: the whole pipeline, once, and what limits it."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from vitascope.bench.limited_run import stopping_after, warm_up
from vitascope.bench.machine import this_machine
from vitascope.bench.measured_run import OF_ONE_PROCESS, MeasuredRun, MeasuredSegmenter
from vitascope.bench.results import BenchResults, CellKey, now
from vitascope.bench.suite import FEWEST_FRAMES, cell_of_runs, explicit_settings, slice_rates
from vitascope.bench.synthetic_clip import make_clip
from vitascope.config import LoadedSettings, SettingsSource, load_settings
from vitascope.errors import InputError, UsageError
from vitascope.gpu.profiling.utilisation import UtilisationSampler
from vitascope.media.reading.reader import probe
from vitascope.observe.report_values import frames_in_words

_SIZE = (1920, 1080)
_FRAMES, _GPU_FRAMES = 120, 480
_SLICES = 11
_LONGEST_SECONDS = 86_400


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineOptions(SettingsSource):
    """The video to run, and the source of its settings."""

    video: Path | None = None
    """The video; a synthetic one when omitted."""
    discard: bool = False
    """Make every picture, and encode none."""
    seconds: float = 30.0
    """Most seconds of work, once everything is open; a shorter video ends earlier."""
    stereo: bool = False
    """True for a synthetic video of two eyes side by side."""
    advice_when_slow: str = "give it more time with --duration"
    """What an error tells to do when too few frames came out in the time."""

    def loaded(self) -> LoadedSettings:
        """The settings of the run.

        Raises:
            ConfigError: A setting is unknown or out of range.
        """
        wanted = [*self.assignments, *OF_ONE_PROCESS]
        if self.stereo:
            wanted.append("video.stereo=side-by-side")
        return load_settings(profile=self.profile, files=self.files, assignments=wanted)


def bench_pipeline(options: PipelineOptions) -> BenchResults:
    """Run the whole pipeline over a video, once; on a GPU the network is warm.

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
        raise UsageError("--stereo is about the synthetic video; of yours, --set video.stereo=… says it")
    if options.video is not None:
        known = probe(options.video).frame_count_estimate
        if known is not None and known < FEWEST_FRAMES:
            raise InputError(
                f"{options.video} has {frames_in_words(known)}; a measurement needs at least {FEWEST_FRAMES}"
            )
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
            frame_count=_GPU_FRAMES if on_gpu else _FRAMES,
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
        # Frames come out in groups; of a short run not even two of them may be there.
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
