"""The ``vitascope`` command: its subcommands, and what becomes of an error."""

from __future__ import annotations

import io
import logging
import os
import sys
import traceback
from collections.abc import Sequence

from cyclopts import CycloptsError

from vitascope import __version__
from vitascope.cli.completion import CompletingApp
from vitascope.cli.usage_errors import in_words
from vitascope.errors import VitascopeError, one_line
from vitascope.observe.keys import holding_interrupts
from vitascope.observe.terminal import Screen, escaped

__all__ = ["app", "main"]

FAILED = 1
INTERRUPTED = 130
USAGE = 2

app = CompletingApp(
    name="vitascope",
    help="Cut people out of video, flat or VR, stereo or not.",
    help_epilogue="Every command takes --debug, which shows where an error came from.",
    version=__version__,
    help_format="plaintext",
    # Errors and Ctrl-C are handled in main: one line on stderr, and an exit code that says whose fault it was.
    suppress_keyboard_interrupt=False,
)
# By their paths: a command's modules are imported when it is called, and nobody waits for those of the others.
app.command("vitascope.cli.segment:segment")
app.command("vitascope.cli.animate:animate")
app.command("vitascope.cli.models:app", name="models")
app.command("vitascope.cli.cache:app", name="cache")
app.command("vitascope.cli.doctor:doctor")
app.command("vitascope.cli.config:app", name="config")
app.command("vitascope.cli.profile:profile")
app.command("vitascope.cli.interactive:interactive")
app.command("vitascope.cli.bench:app", name="bench")
app.command("vitascope.cli.optimize:optimize")
app.register_install_completion_command()


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command line and exit: 0 done, 2 usage, 3 input, 4 output, 5 model, 1 anything else, 130 interrupted."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in words
    words = [word for word in words if word != "--debug"]
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a name that the terminal cannot show must not end a batch
            stream.reconfigure(errors="backslashreplace")
    if "" in words:
        # Nothing of ours is spelt so, and as a path it would be the current folder.
        _complain("an argument is empty: is a variable of the shell not set?", debug=debug)
        raise SystemExit(USAGE)
    _say_what_is_fetched(quiet=bool({"-q", "--quiet"} & set(words)))
    try:
        _load_command(words)
        result = app(words, exit_on_error=False, print_error=False, result_action="return_value")
        sys.stdout.flush()
    except CycloptsError as error:
        _complain(in_words(error), debug=debug)
        raise SystemExit(USAGE) from None
    except KeyboardInterrupt as error:
        _complain(f"interrupted; {error}" if str(error) else "interrupted", debug=debug)
        raise SystemExit(INTERRUPTED) from None
    except BrokenPipeError:
        # Whoever read our output has left (`vitascope models list | head`): nothing to say, and nobody to say it to.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(0) from None
    except VitascopeError as error:
        _complain(one_line(error), debug=debug)
        raise SystemExit(error.exit_code) from None
    except OSError as error:
        # What no part of the program answers for: a name longer than names can be, a full disk behind stdout.
        what = "" if error.filename is None else f"{error.filename}: "
        _complain(f"{what}{error.strerror or error}", debug=debug)
        raise SystemExit(FAILED) from None
    raise SystemExit(result if isinstance(result, int) else 0)


def _load_command(words: Sequence[str]) -> None:
    """Import the modules of the command that is called; of all commands, for the page that lists them."""
    lists_all = not words or words[0] in app.help_flags
    with holding_interrupts():
        for name in app:
            if lists_all or name == words[0]:
                app[name]


class _Notes(logging.Handler):
    """What the program does on its own account, a line each on stderr."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print one, above a progress bar where one is drawn."""
        Screen().print(f"note: {record.getMessage()}")


def _say_what_is_fetched(*, quiet: bool) -> None:
    """Have a line for every network that is about to be fetched: with a terminal or without, in every command."""
    log = logging.getLogger("vitascope.models.store.store")
    log.handlers = [handler for handler in log.handlers if not isinstance(handler, _Notes)]
    log.setLevel(logging.NOTSET if quiet else logging.INFO)
    if not quiet:
        log.addHandler(_Notes())


def _complain(message: str, *, debug: bool) -> None:
    if debug:
        sys.stderr.write(escaped(traceback.format_exc()))
    console = Screen()
    console.print(f"vitascope: {' '.join(message.split())}")
