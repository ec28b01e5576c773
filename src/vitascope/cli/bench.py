"""``vitascope bench``: measure, compare, explain."""

import shlex
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import App, Parameter
from rich.table import Table
from rich.text import Text

from vitascope.cli.ending import ending_promptly
from vitascope.cli.options import Assignments, ConfigFiles, Overwrite, Switch, may_replace
from vitascope.cli.printing import print_json, print_table
from vitascope.config import SettingsSource, vitascope_home
from vitascope.errors import MissingDependencyError, UsageError
from vitascope.file_lock import write_file
from vitascope.observe.keys import PressedKeys, holding_interrupts
from vitascope.observe.terminal import Page, Screen

if TYPE_CHECKING:
    from vitascope.bench.results import BenchResults, Cell
    from vitascope.tune.checklist import Checklist
    from vitascope.tune.search import GridSearch, Trial

app = App(name="bench", help="Measure the speed of this machine.", help_format="plaintext")


@app.command
def run(
    *,
    output_dir: Annotated[Path, Parameter(alias="-o")] = Path("results"),
    only: Literal["resolution", "batch", "precision"] | None = None,
    quick: Switch = False,
    input: Annotated[Path | None, Parameter(name="--input", alias="-i")] = None,
    stereo: Switch = False,
    resume: Switch = False,
    model: Annotated[str | None, Parameter(alias="-m")] = None,
    profile: str | None = None,
    config: ConfigFiles = (),
    set_: Assignments = (),
) -> None:
    """Measure 1080p, 4K, 6K and 8K with batches of 1, 4, 8, 16 and 32 frames in each precision.

    Writes benchmark_results.json after every measurement, so a killed run
    keeps its results.

    Args:
        output_dir: Folder of the results; earlier ones are renamed by date.
        only: Vary only this.
        quick: Use small videos and the small network; takes a few minutes.
        input: Your own video instead of synthetic ones.
        stereo: Make synthetic videos stereo, side by side.
        resume: Continue unfinished results in the folder.
        model: Network, as in segment.
        profile: Speed or quality: fast, balanced or quality [default: balanced].
        config: Settings file (YAML); later files override earlier ones.
        set_: One setting as key=value, for example model.batch_size=4.
    """
    # Imported here so that --help and usage errors do not wait for codecs and engines.
    with holding_interrupts():
        from vitascope.bench.results import RESULTS_NAME
        from vitascope.bench.suite import SuiteOptions, run_suite

    page = Page()
    options = SuiteOptions(
        only=only,
        quick=quick,
        video=input,
        stereo=stereo,
        model=model,
        profile=profile,
        files=config,
        assignments=set_,
    )

    def tell(cell: "Cell", number: int, count: int) -> None:
        page.print_lines(f"{number} of {count}: {_told(cell)}")

    def kept() -> str:
        path = output_dir / RESULTS_NAME
        return f"{path} has the results so far; --resume continues" if path.exists() else ""

    with ending_promptly(kept):
        _, path = run_suite(options, output_dir=output_dir, resume=resume, on_cell=tell)
    page.print_lines(f"written: {path}; vitascope bench analyze {path} says what it means")


@app.command
def compare(
    baseline: Path,
    latest: Path,
    /,
    *,
    tolerance: float = 0.05,
    allow_no_baseline: Switch = False,
    json: Switch = False,
) -> int:
    """Check whether the latest run is slower than the baseline; exit with 1 if it is.

    Args:
        baseline: Results of an earlier run, or a file of baselines.
        latest: Results of a later run on the same machine.
        tolerance: Allowed increase of the time per frame, as a fraction.
        allow_no_baseline: Exit with 0 if the file has no baseline for this run.
        json: Print as JSON.
    """
    from dataclasses import asdict

    from vitascope.bench.comparison import METHOD, baseline_for, why_no_baseline
    from vitascope.bench.comparison import compare as compare_results
    from vitascope.bench.results import load_results
    from vitascope.gpu.profiling.tables import text_table

    run = load_results(latest)
    lacking = why_no_baseline(baseline, run) if allow_no_baseline else None
    if lacking is not None:
        if json:
            print_json({"regression": None, "reason": lacking})
        else:
            Page().print_lines(f"nothing was compared: {lacking}")
        return 0
    found = compare_results(baseline_for(baseline, run), run, tolerance=tolerance)
    if json:
        print_json({"regression": found.is_regression, "method": METHOD, **asdict(found)})
        return int(found.is_regression)
    page = Page()
    rows = [
        [
            change.label(),
            f"{change.baseline_fps:.1f}",
            f"{change.latest_fps:.1f}",
            f"{change.slowdown - 1:+.1%}",
            f"{change.low - 1:+.1%} … {change.high - 1:+.1%}",
            change.verdict,
        ]
        for change in (*found.changes, *([found.overall] if len(found.changes) > 1 else ()))
    ]
    page.print(text_table(["cell", "baseline fps", "latest fps", "time", "interval", "verdict"], rows))
    for sentence in found.broken:
        page.print_lines(f"no longer runs: {sentence}")
    for note in found.notes:
        page.print_lines(f"note: {note}")
    page.print_lines(
        f"intervals: {METHOD}, {found.confidence:.2%} each, 95% together; tolerance {found.tolerance:.0%}"
    )
    if found.changes:
        page.print_lines(
            f"the rounds vary too much to notice a slowdown below {found.smallest_seen - 1:.0%} over all cells"
        )
    page.print(found.verdict())
    return int(found.is_regression)


@app.command
def analyze(
    results: list[Path],
    /,
    *,
    output_dir: Annotated[Path | None, Parameter(alias="-o")] = None,
    profile: str | None = None,
    config: ConfigFiles = (),
    set_: Assignments = (),
) -> None:
    """Explain results: how fast, what limits, what to change, targets, tables and charts.

    Writes benchmark_report.html, .md, and charts as .png.

    Args:
        results: Results of bench run or bench pipeline; several machines stand side by side.
        output_dir: Folder of the report [default: that of the first results].
        profile: Profile whose performance.target_fps and performance.max_latency_ms are targets, too.
        config: Settings file (YAML) with such targets.
        set_: One setting as key=value, for example performance.target_fps=60.
    """
    from vitascope.bench.report import analyse, text_report, write_reports
    from vitascope.bench.results import load_results

    loaded = SettingsSource(profile=profile, files=config, assignments=set_).load()
    wishes = loaded.settings.performance
    values = {"target_fps": wishes.target_fps, "max_latency_ms": wishes.max_latency_ms}
    wanted = {
        name: value
        for name, value in values.items()
        if profile is not None or loaded.origin(f"performance.{name}").explicit
    }
    analysis = analyse([load_results(path) for path in results], performance=wanted)
    page = Page()
    try:  # also for readers of only the first lines
        written = write_reports(analysis, output_dir or results[0].parent)
    except MissingDependencyError:
        page.print(text_report(analysis))  # it needs no charts
        raise
    page.print(text_report(analysis))
    page.print()
    for path in written:
        page.print_lines(f"written: {path}")


@app.command
def pipeline(
    video: Annotated[Path | None, Parameter()] = None,
    /,
    *,
    discard: Switch = False,
    duration: Annotated[float, Parameter(alias="-d", metavar="SECONDS")] = 30.0,
    stereo: Switch = False,
    output_dir: Annotated[Path | None, Parameter(alias="-o")] = None,
    profile: str | None = None,
    config: ConfigFiles = (),
    set_: Assignments = (),
) -> None:
    """Run the whole pipeline on a video, and show its speed and its bottleneck.

    Args:
        video: The video [default: a synthetic one].
        discard: Discard frames instead of encoding them.
        duration: Maximum seconds of work.
        stereo: Make the synthetic video stereo, side by side.
        output_dir: Folder for results that compare and analyze read.
        profile: Speed or quality: fast, balanced or quality [default: balanced].
        config: Settings file (YAML); later files override earlier ones.
        set_: One setting as key=value, for example model.batch_size=4.
    """
    with holding_interrupts():
        from vitascope.bench.results import RESULTS_NAME, ResultsFile
        from vitascope.bench.suite import PipelineOptions, bench_pipeline, keep_earlier
        from vitascope.media.writing.output_target import refuse_unwritable

    if output_dir is not None:
        refuse_unwritable(output_dir / RESULTS_NAME)
    page = Page()
    options = PipelineOptions(
        video=video,
        discard=discard,
        seconds=duration,
        stereo=stereo,
        profile=profile,
        files=config,
        assignments=set_,
    )
    with ending_promptly():
        results = bench_pipeline(options)
    page.print_lines(*_pipeline_lines(results))
    if output_dir is not None:
        path = output_dir / RESULTS_NAME
        keep_earlier(path)
        ResultsFile(path, results)
        page.print_lines(f"written: {path}")


@app.command
def baseline(results: Path, baselines: Path, /) -> None:
    """Save a run as the baseline of this class of machine: the same GPUs, CPU, cores and memory.

    The file has one run per class and workload; compare picks what matches.

    Args:
        results: Results of bench run or bench pipeline.
        baselines: File of baselines, for example benchmarks/baseline.json; made if missing.
    """
    from vitascope.bench.comparison import load_baselines, store_baseline
    from vitascope.bench.results import load_results

    run = load_results(results)
    replaced = store_baseline(baselines, run)
    page = Page()
    page.print_lines(
        f"{baselines}: {'replaced' if replaced else 'added'} the baseline of {run.machine.label()}, "
        f"{len(run.measured)} cells; it has {len(load_baselines(baselines))} in all"
    )


def _told(cell: "Cell") -> str:
    """Describe a cell in one line."""
    throughput, times = cell.row("throughput"), cell.row("frame_time")
    if throughput is None or times is None:
        return f"{cell.key.label()}: {cell.status}: {cell.reason}"
    return (
        f"{cell.key.label()}: {throughput.p50:.1f} fps (p5 {throughput.p5:.1f}, p95 {throughput.p95:.1f}, "
        f"n {throughput.n}); frames come {times.p50:.2f} ms apart (p95 {times.p95:.2f}, p99 {times.p99:.2f})"
    )


def _pipeline_lines(results: "BenchResults") -> list[str]:
    from vitascope.bench.recommendations import limit_of

    (cell,) = results.cells
    if cell.status != "measured":
        return [_told(cell)]
    limit = limit_of(cell)
    lines = [
        f"{cell.key.clip}, {cell.key.width}x{cell.key.height}, {cell.frames} frames, {cell.key.output}: "
        f"{cell.model} on {cell.device} ({cell.engine}); {cell.decoder}",
        _told(cell),
        *(
            f"{what} for each frame: "
            + ", ".join(f"{row.name.removeprefix(kind)} {row.p50:.2f} ms" for row in rows)
            for what, kind in (("work", "stage/"), ("on the GPU's clock", "gpu/"))
            if (rows := [row for row in cell.rows if row.name.startswith(kind)])
        ),
    ]
    return [
        *lines,
        *(limit.lines() if limit is not None else ()),
        *(f"note: {n}" for n in cell.notes),
    ]


_STYLES = {"yes": "green", "no": "bold red", "not applicable": "dim"}


@app.command
def checklist(
    video: Path | None = None,
    /,
    *,
    duration: Annotated[float | None, Parameter(alias="-d", metavar="SECONDS")] = None,
    results: Path | None = None,
    profile: str | None = None,
    config: ConfigFiles = (),
    set_: Assignments = (),
    json: Switch = False,
) -> int:
    """Check whether everything is ready for production; exit with 1 if something is not.

    Answers each question with yes, no or not applicable here, and the figure.

    Args:
        video: The video [default: a synthetic one].
        duration: Also repeat the video for this long (a day is 86400) and look for leaks, drift and lost frames.
        results: Results of bench run [default: results/benchmark_results.json].
        profile: Speed or quality: fast, balanced or quality [default: balanced].
        config: Settings file (YAML); later files override earlier ones.
        set_: One setting as key=value, for example model.batch_size=4.
        json: Print as JSON.
    """
    # Imported here so that --help and usage errors do not wait for codecs and engines.
    with holding_interrupts():
        from vitascope.tune.checklist import ChecklistOptions, checklist_of, measure_for_checklist

    screen = Screen()
    options = ChecklistOptions(
        video=video,
        soak_seconds=duration,
        results=results,
        profile=profile,
        files=config,
        assignments=set_,
    )
    found = checklist_of(measure_for_checklist(options, tell=None if json else screen.print))
    page = Page()
    if json:
        page.print_json(data=found.to_dict())
    else:
        print_table(_table(found))
        page.print(found.verdict())
    return int(bool(found.failed))


def _table(found: "Checklist") -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("", no_wrap=True)
    table.add_column("question", overflow="fold", ratio=2)
    table.add_column("what was measured", overflow="fold", ratio=3)
    group = ""
    for item in found.items:
        if item.group != group:
            group = item.group
            table.add_row("", Text(group, style="bold"), "")
        said = item.figure if item.advice is None else f"{item.figure}; {item.advice}"
        table.add_row(Text(item.answer, style=_STYLES[item.answer]), Text(item.question), Text(said))
    return table


_DEFAULT_FILE = Path("live.yaml")


@app.command
def animate(
    *,
    image: Path = Path("examples/astronaut.jpg"),
    driver: Path = Path("examples/talk.motion"),
    duration: float = 60.0,
    auto_tune: Switch = False,
    save_config: Annotated[Path | None, Parameter(alias="-o", metavar="FILE")] = None,
    overwrite: Overwrite = None,
    profile: str | None = None,
    config: ConfigFiles = (),
    set_: Assignments = (),
    json: Switch = False,
) -> None:
    """Measure how fast a portrait follows a driver on this machine; shows nothing.

    With --auto-tune, find the settings that reach performance.target_fps within
    performance.max_latency_ms with the least loss, and write a file for
    animate -c.

    Args:
        image: The portrait.
        driver: A video of a face, or a .motion file (which needs no tracker).
        duration: Seconds to measure, all trials of --auto-tune together.
        auto_tune: Try size, landmark refinement, frame skipping, the animator, and LivePortrait's batch.
        save_config: Settings file that --auto-tune writes [default: live.yaml].
        overwrite: Replace the settings file.
        profile: Settings to start from [default: balanced].
        config: Settings file (YAML); tuning does not change its settings.
        set_: One setting as key=value; tuning does not change it.
        json: Print as JSON.
    """
    if not 0 < duration < float("inf"):
        raise UsageError(f"--duration {duration:g}: expected a number of seconds above 0")
    source = SettingsSource(profile=profile, files=config, assignments=set_)
    source.load()  # report invalid settings before opening anything
    if auto_tune:
        file = save_config or _DEFAULT_FILE
        if file.is_dir():
            raise UsageError(f"--save-config: {file} is a folder, expected a file such as {_DEFAULT_FILE}")
        with holding_interrupts():
            from vitascope.media.writing.output_target import refuse_inputs
        refuse_inputs(file, {"the portrait": image, "the driver": driver}, what="settings file")
        may_replace([file] if file.exists() else [], overwrite=overwrite, screen=Screen())
        _tune(image, driver, duration, file, source, json=json)
        return
    if save_config is not None:
        raise UsageError("--save-config needs --auto-tune, which finds the settings")
    _measure(image, driver, duration, source, json=json)


def _measure(image: Path, driver: Path, duration: float, source: SettingsSource, *, json: bool) -> None:
    with holding_interrupts():
        from vitascope.animation import find_example
        from vitascope.animation.live.report import summarise_live
        from vitascope.animation.live.run import measure_live
        from vitascope.models.store.store import ModelStore

    screen = Screen()
    page = Page()
    with PressedKeys() as keys:
        report = measure_live(
            find_example(image),
            find_example(driver),
            loaded=source.load(),
            store=ModelStore(vitascope_home()),
            seconds=duration,
            on_session=lambda session: keys.hand_to(session.controls.press, at_interrupt=session.stop),
            on_message=screen.print,
        )
    if json:
        page.print_json(data=report.to_dict())
    else:
        page.print_lines(*summarise_live(report))


def _tune(
    image: Path, driver: Path, duration: float, file: Path, source: SettingsSource, *, json: bool
) -> None:
    with holding_interrupts():
        from vitascope.animation import find_example
        from vitascope.models.store.store import ModelStore
        from vitascope.tune.live_tuner import LiveTuner
        from vitascope.tune.tuned_file import append_history, tuned_text

    screen = Screen()

    def tell(search: "GridSearch", trial: "Trial") -> None:
        if not json:
            screen.print_lines(_trial_line(search, trial))

    subject = f"{image} and {driver}"
    with TemporaryDirectory(prefix="vitascope-") as folder:
        tuned = LiveTuner(
            source,
            find_example(image),
            find_example(driver),
            store=ModelStore(vitascope_home()),
            folder=Path(folder),
            seconds=duration,
            command=_command(image, driver, duration, source),
            on_trial=tell,
        ).tune()
    when = datetime.now().astimezone()
    write_file(file, tuned_text(tuned, source, subject=subject, when=when).encode())
    history = append_history(tuned, subject=subject, when=when, file=file)
    if json:
        print_json(tuned.to_dict(file=file))
        return
    usage = f"vitascope animate {image} --driver 0 --sink window"
    Page().print_lines(*tuned.lines(file=file, usage=usage, history=history, with_missed=True))


def _command(image: Path, driver: Path, duration: float, source: SettingsSource) -> str:
    """The command that repeats the search, as typed."""
    words = ["--image", str(image), "--driver", str(driver), "--auto-tune", "--duration", f"{duration:g}"]
    return shlex.join(["vitascope", "bench", "animate", *words, *source.options()])


def _trial_line(search: "GridSearch", trial: "Trial") -> str:
    """Describe a trial in one line."""
    values = ", ".join(
        f"{key.rpartition('.')[2]}={value}" for key, value in search.values(trial.cell).items()
    )
    measured = trial.measured
    outcome = measured.failure or (
        f"{measured.figures['fps']:.1f} fps, {measured.figures['latency_ms']:.0f} ms: {measured.score:.0f} %"
    )
    return f"{len(search.trials)}/{search.most_trials} {values}: {outcome} ({trial.why})"
