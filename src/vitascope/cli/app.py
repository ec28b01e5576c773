"""The ``vitascope`` command: its subcommands, and how errors are printed."""

from __future__ import annotations

import errno
import io
import logging
import re
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from cyclopts import (
    App,
    CoercionError,
    CycloptsError,
    MissingArgumentError,
    RepeatArgumentError,
    UnknownCommandError,
    UnknownOptionError,
    UnusedCliTokensError,
)

from vitascope import __version__
from vitascope.errors import VitascopeError, did_you_mean, one_line
from vitascope.observe.keys import holding_interrupts
from vitascope.observe.terminal import Screen, escaped

_ZSH_WITHOUT_ACTION = re.compile(
    r"^(\s+'(?:\*?-[^'\[]*\[[^']*\]:[\w-]+|(?:\d+|\*):(?! )[^':]*))' \\$", re.MULTILINE
)
"""An option's value, or a positional word, without anything to complete in the script."""


class CompletingApp(App):
    """A command whose completion scripts leave free words to the shell."""

    def generate_completion(
        self,
        *,
        prog_name: str | None = None,
        shell: Literal["zsh", "bash", "fish", "powershell"] | None = None,
    ) -> str:
        """Make a shell's completion script.

        Args:
            prog_name: Name of the command; this app's own when omitted.
            shell: The shell; the caller's when omitted.
        """
        script = super().generate_completion(prog_name=prog_name, shell=shell)
        script = script.replace("\ncomplete -F ", "\ncomplete -o default -F ")
        if script.startswith("#compdef"):
            script = _ZSH_WITHOUT_ACTION.sub(r"\1:_files' \\", script)
        return script


FAILED = 1
INTERRUPTED = 130
USAGE = 2

app = CompletingApp(
    name="vitascope",
    help="Cut people out of flat and VR video; animate portraits.",
    help_epilogue="Every command takes --debug, which shows where an error came from.",
    version=__version__,
    version_flags=["--version", "-V"],
    help_format="plaintext",
    # main handles errors and Ctrl-C: one line on stderr, and an exit code for the kind of error
    suppress_keyboard_interrupt=False,
)
# Commands are given by path, so that a module is imported only when its command is called. None uses `from __future__
# import annotations`, which turns types into texts that cyclopts would evaluate three times per command line.
app.command("vitascope.cli.segment:segment")
app.command("vitascope.cli.people:people")
app.command("vitascope.cli.studio:studio")
app.command("vitascope.cli.serve:serve")
app.command("vitascope.cli.animate:animate")
app.command("vitascope.cli.vr:app", name="vr")
app.command("vitascope.cli.models:app", name="models")
app.command("vitascope.cli.cache:app", name="cache")
app.command("vitascope.cli.cluster:app", name="cluster")
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
        # No argument of ours is empty, and as a path it would mean the current folder.
        _complain("an argument is empty; is a shell variable not set?", debug=debug)
        raise SystemExit(USAGE)
    _say_what_takes_long(quiet=bool({"-q", "--quiet"} & set(words)))
    try:
        _load_command(words)
        result = app(words, exit_on_error=False, print_error=False, result_action="return_value")
        sys.stdout.flush()
    except CycloptsError as error:
        _complain(in_words(error), debug=debug)
        raise SystemExit(USAGE) from None
    except KeyboardInterrupt as error:
        with suppress(KeyboardInterrupt), holding_interrupts():  # while the first is reported
            _complain(f"interrupted; {error}" if str(error) else "interrupted", debug=debug)
        raise SystemExit(INTERRUPTED) from None
    except VitascopeError as error:
        _complain(one_line(error), debug=debug)
        raise SystemExit(error.exit_code) from None
    except MemoryError as error:
        _complain(f"out of memory: {error}; free some, or process fewer frames at a time", debug=debug)
        raise SystemExit(FAILED) from None
    except ImportError as error:
        cause = _first_cause(error)
        if isinstance(cause, KeyboardInterrupt):  # NumPy and others report it as an import error
            _complain("interrupted", debug=debug)
            raise SystemExit(INTERRUPTED) from None
        _complain(_not_loaded(cause), debug=debug)
        raise SystemExit(FAILED) from None
    except OSError as error:
        if isinstance(error, FileNotFoundError) and error.filename is None:  # os.getcwd names no file
            _complain("the working folder no longer exists: cd to one that does", debug=debug)
            raise SystemExit(USAGE) from None
        # Errors that no part of the program handles: an over-long name, a full disk behind stdout.
        what = "" if error.filename is None else f"{error.filename}: "
        _complain(f"{what}{error.strerror or error}", debug=debug)
        raise SystemExit(USAGE if error.errno == errno.ENAMETOOLONG else FAILED) from None
    raise SystemExit(result if isinstance(result, int) else 0)


def _load_command(words: Sequence[str]) -> None:
    """Import the modules of the called command; of all commands for the page that lists them."""
    lists_all = not words or words[0] in app.help_flags
    with holding_interrupts():
        for name in app:
            if lists_all or name == words[0]:
                app[name]


class _Notes(logging.Handler):
    """Prints what the program does without being asked, one line each on stderr."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print a record, above the progress bar if one is shown."""
        Screen().print_lines(f"note: {record.getMessage()}")


def _say_what_takes_long(*, quiet: bool) -> None:
    """Print a line for downloads, calibration and waiting before a run, on a terminal or not."""
    for name in (
        "vitascope.models.store.store",
        "vitascope.segmentation.matting.int8",
        "vitascope.segmentation.processes.cluster",
    ):
        log = logging.getLogger(name)
        log.handlers = [handler for handler in log.handlers if not isinstance(handler, _Notes)]
        log.setLevel(logging.NOTSET if quiet else logging.INFO)
        if not quiet:
            log.addHandler(_Notes())


def _complain(message: str, *, debug: bool) -> None:
    if debug:
        sys.stderr.write(escaped(traceback.format_exc()))
    console = Screen()
    console.print(f"vitascope: {' '.join(message.split())}")


def _first_cause(error: BaseException) -> BaseException:
    """The error at the root: importing modules wrap a library's error in their own."""
    while (deeper := error.__cause__ or error.__context__) is not None:
        error = deeper
    return error


def _not_loaded(cause: BaseException) -> str:
    """Name the library that a command needs and cannot load."""
    short = "failed to map segment" in str(cause) or "cannot allocate memory" in str(cause).lower()
    what = "out of memory; free some, or raise the limit" if short else "install Vitascope again"
    return f"a library cannot be loaded: {cause}: {what}"


def in_words(error: CycloptsError) -> str:
    """Put an error of cyclopts into one plain line, for missing, wrong or surplus arguments."""
    command = " ".join(error.command_chain or ())
    see_help = f"see vitascope {command} --help"
    if isinstance(error, UnknownCommandError) and error.unused_tokens and error.app is not None:
        return _unknown_command(error.unused_tokens[0], [name for name in error.app if name[0] != "-"])
    if isinstance(error, MissingArgumentError) and error.argument is not None:
        name = error.argument.name
        what = name if name.startswith("-") else name.upper()
        return f"{command}: {what} is missing; {see_help}"
    if isinstance(error, UnusedCliTokensError) and error.unused_tokens:
        return f"{command}: unexpected argument {' '.join(error.unused_tokens)!r}; {see_help}"
    if isinstance(error, UnknownOptionError) and (
        hint := _file_with_a_dash(error.token.keyword or error.token.value)
    ):
        return hint
    if isinstance(error, UnknownOptionError) and command and "Did you mean" not in str(error):
        return f"{command}: {str(error).rstrip('.')}; {see_help}"
    if isinstance(error, CoercionError) and error.token is not None:
        choices = _choices(error.target_type)
        if choices:
            word = error.token.value
            return f"{error.token.keyword}: {word!r} is none of {', '.join(choices)}{did_you_mean(word, choices)}"
    if isinstance(error, RepeatArgumentError) and error.token.keyword in (
        "-y",
        "-n",
        "--overwrite",
        "--no-overwrite",
    ):
        return "-y replaces existing outputs, -n refuses to; give only one of them"
    return str(error)


def _file_with_a_dash(word: str) -> str | None:
    """Advice for a word that was taken for an option but is not one."""
    if word == "-":
        return "-: videos cannot be read from or written to a pipe; name a file"
    with suppress(OSError):  # if the name is too long
        if word and Path(word).exists():
            return f"{word} begins with a dash, like an option; for a file of that name, write ./{word}"
    return None


def _unknown_command(word: str, commands: list[str]) -> str:
    if word.startswith("-"):
        return f"{word}: unknown option; the commands are {', '.join(commands)}"
    hint = did_you_mean(word, commands) or f"; the commands are {', '.join(commands)}"
    return f"there is no command {word!r}{hint}"


def _choices(kind: Any) -> list[str]:
    """The words of a ``Literal``, also inside a union or a list."""
    if get_origin(kind) is None:
        return []
    words: list[str] = []
    for part in get_args(kind):
        words += [part] if isinstance(part, str) else _choices(part)
    return words
