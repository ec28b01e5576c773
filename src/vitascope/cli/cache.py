"""``vitascope cache``: the mattes and stretches that are kept on this machine."""

from __future__ import annotations

from cyclopts import App

from vitascope.cli.options import Switch
from vitascope.observe.terminal import Page

__all__ = ["app"]

app = App(
    name="cache",
    help="See and empty the cache of mattes and stretches.",
    help_format="plaintext",
)


@app.command
def info(*, json: Switch = False) -> None:
    """Show where the cache lies and how much is in it.

    Args:
        json: Print as JSON.
    """
    from vitascope.segmentation.matting.cached_film import cache_contents
    from vitascope.segmentation.processes.kept_stretches import kept_stretches

    contents, stretches = cache_contents(), kept_stretches()
    page = Page()
    if json:
        page.print_json(
            data={
                "folder": str(contents.folder),
                "entries": contents.entries,
                "size_bytes": contents.size_bytes,
                "stretches": {
                    "folder": str(stretches.folder),
                    "entries": stretches.entries,
                    "size_bytes": stretches.size_bytes,
                },
            }
        )
        return
    for one in (contents, stretches):
        page.print(f"{one.folder}: {one.entries} entries, {one.size_bytes / 1e6:.1f} MB")


@app.command
def clear() -> None:
    """Delete every matte and stretch in the cache; videos are matted anew the next time."""
    from vitascope.segmentation.matting.cached_film import clear_cache
    from vitascope.segmentation.processes.kept_stretches import clear_kept_stretches

    page = Page()
    for removed in (clear_cache(), clear_kept_stretches()):
        page.print(f"{removed.folder}: {removed.entries} entries removed, {removed.size_bytes / 1e6:.1f} MB")
