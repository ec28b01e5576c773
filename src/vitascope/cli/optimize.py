"""``vitascope optimize``."""

from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from vitascope.cli.ending import ending_promptly
from vitascope.cli.options import Assignments, ConfigFiles, Overwrite, Switch, may_replace
from vitascope.cli.printing import print_json
from vitascope.errors import UsageError, VitascopeError
from vitascope.file_lock import write_file
from vitascope.observe.keys import holding_interrupts
from vitascope.observe.terminal import Page, Screen

if TYPE_CHECKING:
    from vitascope.config import SettingsSource
    from vitascope.tune.optimizer import Tuned
    from vitascope.tune.search import GridSearch, Trial

_LIMITED = {"latency_ms": "latency", "vram_share": "GPU memory", "alpha_error": "matte error"}
"""Names in messages of figures that have limits."""


def optimize(
    video: Path | None = None,
    /,
    *,
    save_config: Annotated[Path | None, Parameter(alias="-o", metavar="FILE")] = None,
    target_fps: float | None = None,
    max_latency_ms: float | None = None,
    min_quality: float | None = None,
    preset: str | None = None,
    trials: int = 40,
    seconds: float = 3.0,
    minutes: float = 15.0,
    resume: Switch = False,
    overwrite: Overwrite = None,
    detect_bottlenecks: Switch = False,
    auto_optimize: Switch = False,
    profile: str | None = None,
    config: ConfigFiles = (),
    set_: Assignments = (),
    json: Switch = False,
    quiet: Annotated[bool, Parameter(negative="", show_default=False, alias="-q")] = False,
) -> int:
    """Find the fastest settings for segment on this machine, or the bottleneck.

    vitascope optimize in.mp4 --save-config tuned.yaml  keep the best settings
    vitascope segment in.mp4 out.mp4 -c tuned.yaml      use them
    vitascope optimize in.mp4 --detect-bottlenecks      find the bottleneck

    Args:
        video: Video to use [default: a synthetic one].
        save_config: Settings file to write, with the reason for each value.
        target_fps: Frames per second to reach, with the most accurate mattes possible.
        max_latency_ms: Maximum latency of a frame, from decoder to encoder.
        min_quality: 1 minus the mean difference of mattes from the FP32 reference [default: 0.998].
        preset: Values to start from: a GPU and a size such as rtx3090-4k, or auto.
        trials: Maximum number of trials.
        seconds: Length of a trial; it also has at least 48 frames.
        minutes: Maximum minutes in total.
        resume: Continue an interrupted search, saved beside the file of --save-config.
        overwrite: Replace the settings file.
        detect_bottlenecks: Only find the bottleneck, and the one change that helps.
        auto_optimize: Search for the fastest settings: the default.
        profile: Speed or quality: fast, balanced or quality [default: balanced].
        config: Settings file (YAML); the search does not change its settings.
        set_: One setting as key=value; the search does not change it.
        json: Print the result as JSON.
        quiet: Do not print trials.
    """
    del auto_optimize  # the old script's flag for the default
    # Imported here so that --help and usage errors do not wait for codecs and engines.
    with holding_interrupts():
        from vitascope.bench.synthetic_clip import synthetic_or
        from vitascope.config import SettingsSource
        from vitascope.media.writing.output_target import refuse_inputs
        from vitascope.tune.search import may_go_on_to_replace

    if resume and save_config is None:
        raise UsageError("--resume needs --save-config: the search is saved beside that file")
    if save_config is not None and save_config.is_dir():
        raise UsageError(f"--save-config: {save_config} is a folder, expected a file such as tuned.yaml")
    if detect_bottlenecks and save_config is not None:
        raise UsageError(
            "--detect-bottlenecks only measures, so there is nothing to save; leave one of the two out"
        )
    if save_config is not None and save_config.exists():
        refuse_inputs(save_config, {"the video": video}, what="settings file")
        state = _state_of(save_config)
        # A continued search may replace only the file that was there when it began.
        goes_on = resume and may_go_on_to_replace(save_config, state)
        if not goes_on or overwrite is False:
            nothing = ", and there is no unfinished search for it" if resume and not state.exists() else ""
            may_replace([save_config], overwrite=overwrite, screen=Screen(), otherwise=nothing)
    source = SettingsSource(profile=profile, files=config, assignments=set_)
    source.load()  # report invalid settings before making a video
    job = _Job(source, save_config, quiet=quiet or json)
    with ending_promptly(job.kept), TemporaryDirectory(prefix="vitascope-") as folder:
        if video is None:
            job.say("making a synthetic video to measure with; give your own video for settings that suit it")
        clip, subject = synthetic_or(video, Path(folder))
        if detect_bottlenecks:
            return _detect(clip, source, as_json=json)
        tuned = job.tune(
            clip,
            subject,
            target=(target_fps, max_latency_ms, min_quality),
            preset=preset,
            trials=trials,
            seconds=seconds,
            minutes=minutes,
            resume=resume,
        )
    with holding_interrupts():  # the file, the history and the end of the search belong together
        job.keep(tuned, as_json=json)
    if tuned.unreachable is not None:
        raise VitascopeError(tuned.unreachable)
    return 0


class _Job:
    """One search, with its output on the command line."""

    def __init__(self, source: "SettingsSource", save_config: Path | None, *, quiet: bool) -> None:
        self._source, self._subject = source, ""
        self._file, self._quiet = save_config, quiet
        self._state = None if save_config is None else _state_of(save_config)
        self._screen = Screen()

    def say(self, line: str) -> None:
        """Print a progress message."""
        if not self._quiet:
            self._screen.print(line)

    def kept(self) -> str:
        """Say where an interrupted search is saved."""
        if self._state is None or not self._state.exists():
            return ""
        return f"{self._state} has the trials so far; --resume continues"

    def tune(
        self,
        clip: Path,
        subject: str,
        *,
        target: tuple[float | None, float | None, float | None],
        preset: str | None,
        trials: int,
        seconds: float,
        minutes: float,
        resume: bool,
    ) -> "Tuned":
        """Run the search."""
        with holding_interrupts():
            from vitascope.tune.optimizer import Target, Tuner
            from vitascope.tune.search import content_mark

        self._subject = subject
        set_before = Target.of(self._source.load())
        fps, latency_ms, quality = target
        tuner = Tuner(
            self._source,
            clip,
            subject=subject,
            target=Target(
                fps=set_before.fps if fps is None else fps,
                max_latency_ms=set_before.max_latency_ms if latency_ms is None else latency_ms,
                min_quality=quality,
            ),
            seconds=seconds,
            most_trials=trials,
            most_seconds=minutes * 60,
            preset=preset,
            state=self._state,
            resume=resume,
            replaces=None if self._file is None else content_mark(self._file),
            on_trial=self._tell,
            on_plan=self.say,
        )
        self.say("measuring the current settings, and the reference matte")
        return tuner.tune()

    def keep(self, tuned: "Tuned", *, as_json: bool) -> None:
        """Write the file unless the target is out of reach, add to the history, and print the result."""
        from vitascope.tune.tuned_file import append_history, tuned_text

        when = datetime.now().astimezone()
        file = self._file if tuned.unreachable is None else None
        if file is not None:
            write_file(file, tuned_text(tuned, self._source, subject=self._subject, when=when).encode())
        history = append_history(tuned, subject=self._subject, when=when, file=file)
        if self._state is not None and tuned.unreachable is None:
            self._state.unlink(missing_ok=True)
        if as_json:
            print_json(tuned.to_dict(file=file))
        else:
            usage = "vitascope segment in.mp4 -o out.mp4"
            Page().print_lines(*tuned.lines(file=file, usage=usage, history=history))

    def _tell(self, search: "GridSearch", trial: "Trial") -> None:
        if self._quiet:
            return
        values = ", ".join(
            f"{key.rpartition('.')[2] if not key.endswith('threads') else key.removeprefix('pipeline.stages.')}="
            f"{'null' if value is None else value}"
            for key, value in search.values(trial.cell).items()
        )
        measured = trial.measured
        outcome = measured.failure or f"{measured.score:.1f} fps"
        if measured.failure is None and not search.keeps_limits(measured):
            broken = [
                _LIMITED.get(one.figure, one.figure)
                for one in search.limits
                if measured.figures[one.figure] > one.most
            ]
            outcome += f", but too much {' and '.join(broken)}"
        self._screen.print_lines(
            f"{len(search.trials)}/{search.most_trials} {values}: {outcome} ({trial.why})"
        )


def _state_of(save_config: Path) -> Path:
    """Where the trials of an unfinished search are kept."""
    return save_config.with_name(f"{save_config.name}.search.json")


def _detect(clip: Path, source: "SettingsSource", *, as_json: bool) -> int:
    from vitascope.bench.limited_run import LimitedRun
    from vitascope.bench.profiling import detect_bottlenecks

    run = LimitedRun(
        video=clip,
        seconds=20.0,
        profile=source.profile,
        files=source.files,
        assignments=source.assignments,
    )
    detected = detect_bottlenecks(run)
    if as_json:
        print_json(detected.to_dict())
        return 0
    page = Page()
    page.print_lines(*detected.lines())
    return 0
