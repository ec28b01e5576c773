"""``vitascope bench checklist``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from rich.table import Table
from rich.text import Text

from vitascope.cli.options import Assignments, ConfigFiles, Switch
from vitascope.cli.printing import print_table
from vitascope.observe.keys import holding_interrupts
from vitascope.observe.terminal import Page, Screen

if TYPE_CHECKING:
    from vitascope.tune.checklist import Checklist

__all__ = ["checklist"]

_STYLES = {"yes": "green", "no": "bold red", "not applicable": "dim"}


def checklist(
    video: Path | None = None,
    /,
    *,
    duration: Annotated[float | None, Parameter(alias="-d", metavar="SECONDS")] = None,
    results: Path | None = None,
    profile: str | None = None,
    config: ConfigFiles = None,
    set_: Assignments = None,
    json: Switch = False,
) -> int:
    """Ask whether everything is ready for production, and answer by measuring; exit code 1 when something is not.

    Each question is answered with yes, no or not applicable here, and with the figure that says so.

    Args:
        video: The video; a synthetic one when omitted.
        duration: Also run the video again and again for so long: leaks, drift, lost frames; a day is 86400.
        results: What bench run wrote [default: results/benchmark_results.json, where there is one].
        profile: As in segment: fast, balanced or quality [default: balanced].
        config: Settings file (YAML); several override one another in order.
        set_: One setting as key=value, for example performance.target_fps=60.
        json: Print as JSON.
    """
    # Imported here so that --help and usage errors do not wait for codecs and engines.
    with holding_interrupts():
        from vitascope.tune.checklist import checklist_of
        from vitascope.tune.checklist_measurement import ChecklistOptions, measure_for_checklist

    screen = Screen()
    options = ChecklistOptions(
        video=video,
        soak_seconds=duration,
        results=results,
        profile=profile,
        files=tuple(config or ()),
        assignments=tuple(set_ or ()),
    )
    found = checklist_of(measure_for_checklist(options, tell=None if json else screen.print))
    page = Page()
    if json:
        page.print_json(data=found.to_dict())
    else:
        print_table(_table(found))
        page.print(found.verdict())
    return int(bool(found.failed))


def _table(found: Checklist) -> Table:
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
