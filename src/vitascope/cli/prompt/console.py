"""The prompt of ``vitascope interactive``: each line is a command; jobs run meanwhile."""

from __future__ import annotations

import argparse
import difflib
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from vitascope.animation.live.controls import KEYS, keys_in_words
from vitascope.animation.live.report import summarise_live
from vitascope.cli.options import files_of_sinks, may_replace
from vitascope.cli.printing import facts, listing
from vitascope.cli.prompt.job_line import Job, JobLine, job_row, stats_table
from vitascope.cli.prompt.live import LiveRun
from vitascope.config import SettingsSource
from vitascope.errors import UsageError, VitascopeError, one_line
from vitascope.gpu.profiling.utilisation import UtilisationSampler
from vitascope.observe.report_values import frames_in_words
from vitascope.observe.terminal import Screen, on_one_line
from vitascope.segmentation.batch import plan_batch
from vitascope.segmentation.report import summarise


class WordParser(argparse.ArgumentParser):
    """A parser that raises instead of ending the program."""

    def __init__(self, usage: str) -> None:
        super().__init__(prog="", usage=usage, add_help=False, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        """Report an error.

        Raises:
            UsageError: Always.
        """
        raise UsageError(f"{message}; usage: {self.usage}")


def words_of(line: str) -> list[str]:
    """Split a line into words; quotes hold words together, ``#`` begins a comment.

    Raises:
        UsageError: A quote is not closed.
    """
    try:
        return shlex.split(line, comments=True)
    except ValueError as error:
        raise UsageError(f"{line.strip()}: {error}") from error


def key_and_value(words: list[str]) -> tuple[str, str]:
    """Read ``key value`` or ``key=value``; missing parts are empty."""
    if "=" in " ".join(words[:1]):
        key, _, value = " ".join(words).partition("=")
        return key, value
    return (words[0], " ".join(words[1:])) if words else ("", "")


def _refuse_existing(existing: Sequence[Path], overwrite: bool) -> None:
    """Refuse to replace files without ``-y``: a line of a script cannot be asked."""
    may_replace(existing, overwrite=overwrite, screen=Screen())


_ENDS = ("quit", "exit", "q")
_MEANT = {"segment": "start INPUT -o OUT", "doctor": "hardware", "run": "start INPUT -o OUT", "ls": "jobs"}
"""Words typed here by mistake, with the equivalent here."""
_ELSEWHERE = ("bench", "cache", "models", "optimize", "profile")
"""Commands of ``vitascope`` that the prompt does not have."""
_ANIMATE = "animate PORTRAIT -d DRIVER --sink SINK… [--record FILE] [--duration SECONDS] [-y]"
HELP = {
    "start INPUT… -o OUT [-r] [-y]": "segment videos with the current settings; one after another.",
    "stop [N | all | live]": "end a job, or the one that runs (what was written stays as a .part file), or the live "
    "animation (its files are completed).",
    "jobs": "all jobs and their progress.",
    "stats [N]": "speed and latency of the running job, load of CPU and GPU.",
    "watch": "stats, refreshed until all jobs have ended; Ctrl-C only ends the display.",
    "report [N]": "the result of a job, or of the last one that ended.",
    "wait": "until all jobs and the live animation have ended.",
    "hardware": "what this machine can do.",
    "animate …": f"{_ANIMATE.removeprefix('animate ')}: live, with the settings as they are now.",
    "press KEYS": "what the keys of a live animation do, such as: press m+; press ? lists them.",
    "restart": "retry the failed sinks of the live animation; the others continue.",
    "live": "the state of the live animation.",
    "config [WORD]": "all settings, or those whose keys have the word in them.",
    "set KEY VALUE": "a setting for jobs started from now on; also profile.",
    "unset KEY": "back to the value from the profile and files.",
    "help": "this list.",
    "quit": "leave; unfinished jobs are stopped.",
}


class CommandConsole:
    """Executes the commands typed at the prompt.

    Args:
        jobs: The line of jobs.
        page: Where answers are printed.
        source: Source of the initial settings.
        hardware: Describes what the machine can do.
        sampler: Measures CPU and GPU; started. None leaves them out of ``stats``.
        live: Runs live animations.

    Raises:
        ConfigError: The initial settings are wrong.
    """

    def __init__(
        self,
        jobs: JobLine,
        *,
        page: Console,
        source: SettingsSource | None = None,
        hardware: Callable[[], Mapping[str, str]],
        sampler: UtilisationSampler | None = None,
        live: LiveRun,
    ) -> None:
        self._jobs = jobs
        self._page = page
        self._source = source or SettingsSource()
        self._hardware = hardware
        self._sampler = sampler
        self._loaded = self._source.load()
        self._live = live
        self._alone: dict[str, Callable[[], None]] = {
            "jobs": self._list,
            "watch": self._watch,
            "wait": self._wait,
            "restart": self._restart,
            "live": self._show_live,
            "hardware": self._show_hardware,
            "help": self._help,
        }
        self._with_words: dict[str, Callable[[list[str]], None]] = {
            "start": self._start,
            "stop": self._stop,
            "stats": self._stats,
            "report": self._report,
            "animate": self._animate,
            "press": self._press,
            "config": self._config,
            "set": self._set,
            "unset": self._unset,
        }
        self.first_error: VitascopeError | None = None
        """The first error of the commands so far; None if all succeeded."""

    def handle(self, line: str) -> bool:
        """Execute a line; errors are printed. False means quit."""
        try:
            words = words_of(line)
            if not words:
                return True
            if words[0] == "vitascope" and len(words) > 1:  # typed as in a shell
                words = words[1:]
            if words[0] in _ENDS:
                return False
            self.do(words)
        except VitascopeError as error:
            self._complain(error)
        return True

    def do(self, words: Sequence[str]) -> None:
        """Execute one command.

        Raises:
            UsageError: There is no such command, or its words are wrong.
        """
        name, *rest = words
        if name in self._with_words:
            self._with_words[name](rest)
        elif name not in self._alone:
            raise self._unknown(name)
        elif rest:
            raise UsageError(f"{name} takes no further words, not {rest[0]!r}")
        else:
            self._alone[name]()

    def tell(self, job: Job) -> None:
        """Report that a job ended; callable from any thread."""
        self._page.print(Text(on_one_line(f"job {job.number} {_ending(job)}")))

    # --- commands ---------------------------------------------------------------------------------------------------

    def _start(self, words: list[str]) -> None:
        parser = WordParser("start INPUT… -o OUT [-r] [-y]")
        parser.add_argument("inputs", nargs="+")
        parser.add_argument("-o", "--out", required=True)
        parser.add_argument("-r", "--recursive", action="store_true")
        parser.add_argument("-y", "--overwrite", action="store_true")
        given = parser.parse_args(words)
        planned = plan_batch(
            given.inputs,
            given.out,
            self._loaded.settings,
            recursive=given.recursive,
            settings_files=self._source.files,
        )
        claimed = {
            path.absolute() for job in self._jobs.jobs if not job.has_ended for _, path in job.planned.outputs
        }
        for plan in planned:
            for _, path in plan.outputs:
                if path.absolute() in claimed:
                    raise UsageError(f"{path}: an unfinished job writes it; choose another file")
        _refuse_existing([path for plan in planned for path in plan.existing()], given.overwrite)
        for plan in planned:
            job = self._jobs.start(plan, self._loaded)
            outputs = ", ".join(str(path) for _, path in plan.outputs)
            self._page.print(Text(on_one_line(f"job {job.number}: {plan.video} > {outputs}")))

    def _stop(self, words: list[str]) -> None:
        if words == ["live"] or (words == ["all"] and self._live.is_running):
            if not self._live.is_running:
                raise UsageError("no live animation runs; animate starts one")
            self._live.stop()
        if words == ["live"]:
            return
        wanted = self._jobs.jobs if words == ["all"] else [self._chosen(words, "stop [N | all]")]
        for job in wanted:
            if not job.has_ended:
                self._jobs.stop(job)
            elif words != ["all"]:
                raise UsageError(f"job {job.number} has ended already: {job.state}")

    def _list(self) -> None:
        if not self._jobs.jobs:
            self._page.print("no jobs yet: start INPUT -o OUT")
            return
        columns = ("job", "state", "frames", "video", "outputs")
        self._page.print(listing(columns, map(job_row, self._jobs.jobs)))

    def _stats(self, words: list[str]) -> None:
        job = self._numbered(words, "stats [N]") if words else self._running()
        self._page.print(self._stats_now(job))

    def _report(self, words: list[str]) -> None:
        ended = [job for job in self._jobs.jobs if job.has_ended]
        if not words and not ended:
            raise UsageError("no job has ended yet; stats shows the progress")
        job = self._numbered(words, "report [N]") if words else ended[-1]
        if not job.has_ended:
            raise UsageError(f"job {job.number} is {job.state}; stats shows its progress")
        lines = [f"job {job.number} {_ending(job)}"] if job.report is None else summarise(job.report)
        self._page.print(Text("\n".join(map(on_one_line, lines))))

    def _watch(self) -> None:
        with Live(self._stats_now(), console=self._page, auto_refresh=False) as live:
            while not self._jobs.wait(timeout_seconds=0.5):
                live.update(self._stats_now(), refresh=True)
            live.update(self._stats_now(), refresh=True)

    def _wait(self) -> None:
        while not self._jobs.wait(timeout_seconds=0.5):  # in slices, for Ctrl-C on every system
            pass
        while not self._live.wait(timeout_seconds=0.5):
            pass

    def _show_hardware(self) -> None:
        self._page.print(facts(self._hardware()))

    def _config(self, words: list[str]) -> None:
        if len(words) > 1:
            raise UsageError("config takes one word of a key, such as: config batch")
        rows = [row for row in self._loaded.rows() if not words or words[0] in row.key]
        if not rows:
            raise UsageError(f"no setting has {words[0]!r} in its key")
        shown = ((row.key, row.value_text, str(row.origin)) for row in rows)
        self._page.print(listing(("setting", "value", "from"), shown))

    def _set(self, words: list[str]) -> None:
        key, value = key_and_value(words)
        if not key or not value:
            raise UsageError("set takes a key and a value, such as: set model.batch_size 4")
        if key == "profile":
            self._adopt(profile=value)
        else:
            self._adopt(assignments=(*self._without(key), f"{key}={value}"))
        self._page.print(Text(f"{key} = {self._value(key)}"))

    def _unset(self, words: list[str]) -> None:
        if len(words) != 1:
            raise UsageError("unset takes one key, such as: unset model.batch_size")
        (key,) = words
        if key == "profile":
            self._adopt(profile=None)
        elif (left := self._without(key)) != self._source.assignments:
            self._adopt(assignments=left)
        else:
            raise UsageError(f"{key} was not set here")
        self._page.print(Text(f"{key} = {self._value(key)}"))

    def _help(self) -> None:
        width = max(map(len, HELP)) + 2
        lines = [f"{usage:{width}}{text}" for usage, text in HELP.items()]
        self._page.print(Text("\n".join(map(on_one_line, lines))))

    # --- the live animation -----------------------------------------------------------------------------------------

    def _animate(self, words: list[str]) -> None:
        parser = WordParser(_ANIMATE)
        parser.add_argument("portrait", type=Path)
        parser.add_argument("-d", "--driver", required=True)
        parser.add_argument("--sink", action="append", required=True)
        parser.add_argument("--record", type=Path)
        parser.add_argument("--duration", type=float)
        parser.add_argument("-y", "--overwrite", action="store_true")
        given = parser.parse_args(words)
        written = [*files_of_sinks(given.sink), *([] if given.record is None else [given.record])]
        _refuse_existing([path for path in written if path.is_file()], given.overwrite)
        self._live.start(
            given.portrait,
            given.driver,
            given.sink,
            loaded=self._loaded,
            record=given.record,
            seconds=given.duration,
        )
        self._page.print(Text(on_one_line(f"live: {given.portrait} follows {given.driver}")))

    def _press(self, words: list[str]) -> None:
        keys = "".join(words)
        if not keys:
            raise UsageError("usage: press KEYS, such as: press m+")
        unknown = [key for key in keys if key.lower() not in (*KEYS, "=", "_")]
        if unknown:
            raise UsageError(f"no key {unknown[0]!r}; keys are {keys_in_words()}")
        for key in keys:
            self._live.press(key)

    def _restart(self) -> None:
        self._live.running_session().controls.request("restart")

    def _show_live(self) -> None:
        report = self._live.report
        if self._live.is_running:
            report = self._live.running_session().report()
        if report is None:
            raise UsageError("no live animation has run yet; animate starts one")
        self._page.print(Text("\n".join(map(on_one_line, summarise_live(report)))))

    # ----------------------------------------------------------------------------------------------------------------

    def _unknown(self, name: str) -> UsageError:
        hint = ""
        if name in _MEANT:
            hint = f" here, but this does the same: {_MEANT[name]}"
        elif name in _ELSEWHERE:
            hint = f" here: leave with quit, or open another terminal, and type vitascope {name}"
        elif near := difflib.get_close_matches(name, [*self._with_words, *self._alone, *_ENDS], n=1):
            hint = f" (did you mean {near[0]!r}?)"
        return UsageError(f"there is no command {name!r}{hint}; help lists them")

    def _adopt(self, **changes: Any) -> None:
        """Adopt another source of settings, if they are valid."""
        source = replace(self._source, **changes)
        self._loaded, self._source = source.load(), source

    def _without(self, key: str) -> tuple[str, ...]:
        """The assignments to other settings."""
        return tuple(text for text in self._source.assignments if text.partition("=")[0].strip() != key)

    def _value(self, key: str) -> str:
        if key == "profile":
            return self._loaded.profile
        return next(row.value_text for row in self._loaded.rows() if row.key == key)

    def _stats_now(self, job: Job | None = None) -> Table:
        samples = [] if self._sampler is None else self._sampler.samples()
        return stats_table(job or self._running(), sample=samples[-1] if samples else None)

    def _running(self) -> Job | None:
        return next((job for job in self._jobs.jobs if job.state == "running"), None)

    def _chosen(self, words: list[str], usage: str) -> Job:
        if words:
            return self._numbered(words, usage)
        running = self._running()
        if running is None:
            raise UsageError("no job runs; jobs lists them")
        return running

    def _numbered(self, words: list[str], usage: str) -> Job:
        if len(words) != 1 or not words[0].isdecimal():
            raise UsageError(f"usage: {usage}, where N is the number of a job")
        number = int(words[0])
        jobs = self._jobs.jobs
        if not 1 <= number <= len(jobs):
            raise UsageError(f"there is no job {number}; jobs lists them")
        return jobs[number - 1]

    def _complain(self, error: VitascopeError) -> None:
        self.first_error = self.first_error or error
        self._page.print(Text(f"error: {one_line(error)}"))


def _ending(job: Job) -> str:
    """Say in one line how a job ended."""
    if job.report is not None:
        return f"done: {frames_in_words(job.report.frame_count)}, {job.report.frames_per_second:.1f} fps"
    if job.error is not None:
        return f"failed: {one_line(job.error)}"
    return f"stopped: {job.kept or 'nothing was written yet'}"
