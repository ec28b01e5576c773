"""``vitascope cache``: the mattes that are kept on this machine."""

from __future__ import annotations

from cyclopts import App

from vitascope.cli.options import Switch
from vitascope.observe.terminal import Page

__all__ = ["app"]

app = App(
    name="cache",
    help="See and empty the cache of mattes that processing.enable_caching keeps.",
    help_format="plaintext",
)


@app.command
def info(*, json: Switch = False) -> None:
    """Show where the cache lies and how much is in it.

    Args:
        json: Print as JSON.
    """
    from vitascope.segmentation.matting.cached_film import cache_contents

    contents = cache_contents()
    page = Page()
    if json:
        page.print_json(
            data={
                "folder": str(contents.folder),
                "entries": contents.entries,
                "size_bytes": contents.size_bytes,
            }
        )
        return
    page.print(f"{contents.folder}: {contents.entries} entries, {contents.size_bytes / 1e6:.1f} MB")


@app.command
def clear() -> None:
    """Delete every matte in the cache; videos are matted anew the next time."""
    from vitascope.segmentation.matting.cached_film import clear_cache

    removed = clear_cache()
    Page().print(f"{removed.folder}: {removed.entries} entries removed, {removed.size_bytes / 1e6:.1f} MB")
