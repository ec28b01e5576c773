"""``vitascope interactive``."""

import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Annotated

from cyclopts import Parameter
from rich.console import Console

from vitascope.cli.options import Assignments, ConfigFiles, metrics_address, serving_metrics
from vitascope.config import SettingsSource, vitascope_home
from vitascope.errors import VitascopeError
from vitascope.observe.keys import holding_interrupts
from vitascope.observe.terminal import Page


def interactive(
    *,
    profile: str | None = None,
    config: ConfigFiles = (),
    set_: Assignments = (),
    metrics_port: Annotated[int | None, Parameter(metavar="PORT")] = None,
    metrics_host: Annotated[str | None, Parameter(metavar="ADDRESS")] = None,
) -> int:
    """Start, watch and stop jobs and a live animation from a prompt.

    Commands: start, stop, jobs, stats, watch, report, wait, animate, press,
    restart, live, hardware, config, set, unset, help, quit.
    With commands from a file or a pipe, it waits for all jobs at the end and exits
    with the code of the first failure.

    Args:
        profile: Speed or quality: fast, balanced or quality [default: balanced].
        config: Settings file (YAML); later files override earlier ones.
        set_: One setting as key=value, for example model.batch_size=4.
        metrics_port: Serve metrics to Prometheus on this port; 0 takes a free one.
        metrics_host: Address to serve them on [default: 127.0.0.1].
    """
    # Imported here so that --help and usage errors do not wait for codecs and engines.
    with holding_interrupts():
        from vitascope.animation.live.report import LiveReport, summarise_live
        from vitascope.animation.live.session import LiveSession
        from vitascope.cli.doctor import findings
        from vitascope.cli.prompt.console import CommandConsole
        from vitascope.cli.prompt.job_line import Job, JobLine
        from vitascope.cli.prompt.live import LiveRun
        from vitascope.gpu.profiling.utilisation import UtilisationSampler
        from vitascope.models.store.store import ModelStore

    page = Page()
    ended: list[Job] = []
    failures: list[VitascopeError | None] = []
    consoles: list[CommandConsole] = []

    def on_end(job: Job) -> None:
        ended.append(job)
        for console in consoles:
            console.tell(job)

    def say(*lines: str) -> None:
        page.print_lines(*lines)

    def show(report: LiveReport) -> None:
        say(*summarise_live(report))

    def on_live_end(run: LiveRun) -> None:
        if metrics is not None:
            metrics.live_ended()
        failures.append(run.failure)
        say(run.ending())

    def follow(session: LiveSession) -> None:
        if metrics is not None:
            metrics.follow_live(session)

    with (
        serving_metrics(metrics_address(metrics_port, metrics_host), screen=page, quiet=False) as metrics,
        UtilisationSampler(interval_seconds=1.0) as sampler,
        JobLine(on_end=on_end, metrics=metrics) as jobs,
        LiveRun(
            ModelStore(vitascope_home()),
            on_message=say,
            on_report=show,
            on_end=on_live_end,
            on_session=follow,
        ) as live,
    ):
        console = CommandConsole(
            jobs,
            page=page,
            source=SettingsSource(profile=profile, files=config, assignments=set_),
            hardware=findings,
            sampler=sampler,
            live=live,
        )
        consoles.append(console)
        at_a_terminal = sys.stdin.isatty()
        if at_a_terminal:
            page.print("help lists the commands, quit leaves")
        for line in _lines(page) if at_a_terminal else sys.stdin:
            try:
                if not console.handle(line):
                    break
            except KeyboardInterrupt:  # during wait and watch
                if not at_a_terminal:
                    raise
                page.print("\nthe jobs continue; stop ends one")
        else:
            if live.is_running or any(not job.has_ended for job in jobs.jobs):
                page.print("waiting for the remaining jobs; Ctrl-C stops them")
            console.handle("wait")
    if at_a_terminal:
        return 0
    errors = [console.first_error, *(job.error for job in ended), *failures]
    return next((error.exit_code for error in errors if error is not None), 0)


def _lines(page: Console) -> Iterator[str]:
    """Read lines; Ctrl-C discards the line, Ctrl-D ends."""
    with suppress(ImportError):
        import readline  # noqa: F401  (arrow keys and history, where the system has them)
    while True:
        try:
            yield page.input("vitascope> ")
        except KeyboardInterrupt:
            page.print("\nquit leaves, stop ends a job")
        except EOFError:
            page.print()
            return
