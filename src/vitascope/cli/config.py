"""``vitascope config``."""

from cyclopts import App

from vitascope.cli.options import Assignments, ConfigFiles, Switch
from vitascope.cli.printing import listing, print_table
from vitascope.config import SettingsSource
from vitascope.observe.terminal import Page

app = App(name="config", help="Show settings.", help_format="plaintext")


@app.command
def show(
    *,
    profile: str | None = None,
    config: ConfigFiles = (),
    set_: Assignments = (),
    yaml: Switch = False,
    json: Switch = False,
) -> None:
    """Show every setting, its value, and where the value came from.

    Args:
        profile: fast, balanced, quality or animator.
        config: Settings file (YAML); later files override earlier ones.
        set_: One setting as key=value, for example model.batch_size=4.
        yaml: Print a settings file that gives the same values.
        json: Print as JSON.
    """
    loaded = SettingsSource(profile=profile, files=config, assignments=set_).load()
    page = Page()
    if yaml:
        page.print(loaded.to_yaml(), end="")
        return
    rows = loaded.rows()
    if json:
        page.print_json(
            data=[
                {
                    "key": row.key,
                    "value": row.plain_value,
                    "origin": str(row.origin),
                    "description": row.description,
                }
                for row in rows
            ]
        )
        return
    print_table(
        listing(("setting", "value", "from"), ((row.key, row.value_text, str(row.origin)) for row in rows))
    )
