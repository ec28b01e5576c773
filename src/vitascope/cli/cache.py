"""``vitascope cache``: what is kept on this machine."""

from typing import Annotated

from cyclopts import App, Parameter

from vitascope.cli.options import Switch
from vitascope.errors import UsageError
from vitascope.observe.terminal import Page

app = App(
    name="cache",
    help="See what Vitascope keeps on this machine, and empty its caches.",
    help_format="plaintext",
)


@app.command
def info(*, json: Switch = False) -> None:
    """Show everything kept on this machine: where, how much, and what for.

    Args:
        json: Print as JSON.
    """
    from vitascope.config import vitascope_home
    from vitascope.studio.home_contents import PARTS, contents_of, rest_of_home

    found = {part.name: contents_of(part) for part in PARTS}
    rest, page = rest_of_home(), Page()
    total = sum(one.size_bytes for one in (*found.values(), rest))
    if json:
        told = {
            name: {"folder": str(one.folder), "entries": one.entries, "size_bytes": one.size_bytes}
            for name, one in (*found.items(), ("other", rest))
        }
        page.print_json(data={**told["mattes"], **told, "home": str(vitascope_home()), "total_bytes": total})
        return
    for part in PARTS:
        one = found[part.name]
        page.print(
            f"{one.folder}: {one.entries} entries, {one.size_bytes / 1e6:.1f} MB ({part.name}: {part.purpose})"
        )
    page.print_lines(f"{rest.folder}: {rest.entries} other files, {rest.size_bytes / 1e6:.1f} MB")
    page.print(f"{total / 1e6:.1f} MB in all")


@app.command
def clear(*parts: Annotated[str, Parameter(negative="")], everything: Switch = False) -> None:
    """Delete what is made again by itself: mattes, stretches, INT8 networks, the studio's copies and cuts.

    vitascope cache clear                everything that is made again by itself
    vitascope cache clear proxies        the studio's copies alone
    vitascope cache clear people studio  people found in videos, and jobs

    Args:
        parts: Parts to delete, named as in vitascope cache info.
        everything: Delete everything except networks.
    """
    from vitascope.studio.home_contents import PARTS, clear_parts

    if everything and parts:
        raise UsageError(f"{parts[0]} and --everything: name parts or use --everything, not both")
    named = parts or [part.name for part in PARTS if part.is_spare or (everything and part.refusal is None)]
    page = Page()
    for part, held in clear_parts(named):
        page.print(
            f"{held.folder}: {held.entries} entries removed, {held.size_bytes / 1e6:.1f} MB ({part.name})"
        )
