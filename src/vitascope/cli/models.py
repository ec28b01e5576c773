"""``vitascope models``: the networks on this machine."""

from functools import partial
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter
from rich.table import Table

from vitascope.cli.options import Switch
from vitascope.cli.printing import print_table
from vitascope.config import vitascope_home
from vitascope.observe.terminal import Page, Screen

app = App(name="models", help="List, fetch, check and export the networks.", help_format="plaintext")


@app.command(name="list")
def list_models(*, json: Switch = False) -> None:
    """Show every network: its licence, its size, and whether it is on this machine.

    Args:
        json: Print as JSON.
    """
    from vitascope.models.store.store import ModelStore

    entries = ModelStore(vitascope_home()).entries()
    page = Page()
    if json:
        page.print_json(
            data=[
                {
                    "name": entry.name,
                    "state": entry.state.value,
                    "size_bytes": entry.size_bytes,
                    "license": entry.license,
                    "source": entry.source,
                    "path": None if entry.path is None else str(entry.path),
                    "purpose": entry.purpose,
                }
                for entry in entries
            ]
        )
        return
    table = Table(box=None, pad_edge=False)
    for column in ("name", "state", "MB", "licence", "for"):
        table.add_column(column, justify="right" if column == "MB" else "left", no_wrap=column != "for")
    for entry in entries:
        table.add_row(
            entry.name, entry.state.value, f"{entry.size_bytes / 1e6:.1f}", entry.license, entry.purpose
        )
    print_table(table)


@app.command
def pull(names: Annotated[list[str], Parameter(negative="")], /) -> None:
    """Fetch networks and keep them for offline use.

    Args:
        names: Names from vitascope models list.
    """
    from vitascope.models.store.store import ModelStore
    from vitascope.observe.progress import JobProgress

    store = ModelStore(vitascope_home())
    page = Page()
    with JobProgress(Screen()) as progress:
        for name in names:
            path = store.pull(name, progress=partial(progress.fetched, name))
            page.print_lines(f"{name}: {path}")


@app.command
def where() -> None:
    """Print the folder of fetched networks (set VITASCOPE_HOME to move it)."""
    from vitascope.models.store.store import ModelStore

    Page().print(str(ModelStore(vitascope_home()).where()))


@app.command
def verify(names: Annotated[list[str] | None, Parameter(negative="")] = None, /) -> None:
    """Check the sha256 of every network on this machine.

    Exits with 5 when a file is damaged.

    Args:
        names: Names [default: all].
    """
    from vitascope.models.store.store import ModelStore, Verdict

    store = ModelStore(vitascope_home())
    checks = [check for name in names for check in store.verify(name)] if names else store.verify()
    page = Page()
    for check in checks:
        page.print(f"{check.name}: {check.verdict.value}")
    for check in checks:
        if check.verdict is Verdict.CORRUPT:
            store.path(check.name)  # raises, and says what to do


@app.command
def remove(names: Annotated[list[str], Parameter(negative="")], /) -> None:
    """Delete fetched networks.

    Args:
        names: Names from vitascope models list.
    """
    from vitascope.models.store.store import ModelStore

    store = ModelStore(vitascope_home())
    for name in names:
        removed = store.remove(name)
        Page().print(f"{name}: {'removed' if removed else 'was not here'}")


@app.command
def export(
    name: str,
    /,
    *,
    to: Annotated[Path, Parameter(metavar="FOLDER")],
    weights: Annotated[Path | None, Parameter(metavar="FOLDER")] = None,
    fp16: Switch = False,
) -> None:
    """Write LivePortrait's networks as ONNX files. Needs PyTorch.

    Args:
        name: liveportrait; all other networks are ONNX files already.
        to: Folder to write to.
        weights: The authors' checkpoints [default: liveportrait, below VITASCOPE_HOME].
        fp16: Compute in FP16 inside the networks that paint; inputs and outputs stay FP32.
    """
    from vitascope.errors import MissingDependencyError, UsageError
    from vitascope.models.liveportrait.folder import default_folder, require_folder

    if name != "liveportrait":
        raise UsageError(
            f"{name}: only liveportrait can be exported; all other networks are already ONNX files"
        )
    folder = default_folder(vitascope_home()) if weights is None else weights
    require_folder(folder, named_with="--weights")
    try:
        from vitascope.models.liveportrait.onnx_files import export_onnx_files
        from vitascope.models.liveportrait.published import PublishedNetworks
    except ImportError as error:
        raise MissingDependencyError(
            f"{name}: writing ONNX files needs PyTorch: pip install 'vitascope[torch]'"
        ) from error
    page = Page()
    export_onnx_files(
        PublishedNetworks.read(folder),
        to,
        half_precision=fp16,
        on_written=lambda file: page.print_lines(f"{file.path}: {file.byte_count / 1e6:.1f} MB"),
    )
