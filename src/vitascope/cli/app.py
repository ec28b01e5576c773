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
"""An option's value, or a word in its place, for which the script says nothing that could be completed."""


class CompletingApp(App):
    """A command whose completion scripts leave free words to the shell."""

    def generate_completion(
        self,
        *,
        prog_name: str | None = None,
        shell: Literal["zsh", "bash", "fish", "powershell"] | None = None,
    ) -> str:
        """The script of a shell.

        Args:
            prog_name: Name of the command; this one's own when omitted.
            shell: Which one; the caller's when omitted.
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
    # Errors and Ctrl-C are handled in main: one line on stderr, and an exit code that says whose fault it was.
    suppress_keyboard_interrupt=False,
)
# By their paths: a command's modules are imported when it is called, and nobody waits for those of the others. None has
# `from __future__ import annotations`: it makes types texts, which cyclopts evaluates thrice for each command line.
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
        # Nothing of ours is spelt so, and as a path it would be the current folder.
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
        with suppress(KeyboardInterrupt), holding_interrupts():  # once more, while the first is being told
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
        if isinstance(
            cause, KeyboardInterrupt
        ):  # NumPy and others take it for a reason why they cannot be loaded
            _complain("interrupted", debug=debug)
            raise SystemExit(INTERRUPTED) from None
        _complain(_not_loaded(cause), debug=debug)
        raise SystemExit(FAILED) from None
    except OSError as error:
        if isinstance(error, FileNotFoundError) and error.filename is None:  # os.getcwd names nothing
            _complain("the working folder does not exist any more: cd to one that does", debug=debug)
            raise SystemExit(USAGE) from None
        # What no part of the program answers for: a name longer than names can be, a full disk behind stdout.
        what = "" if error.filename is None else f"{error.filename}: "
        _complain(f"{what}{error.strerror or error}", debug=debug)
        raise SystemExit(USAGE if error.errno == errno.ENAMETOOLONG else FAILED) from None
    raise SystemExit(result if isinstance(result, int) else 0)


def _load_command(words: Sequence[str]) -> None:
    """Import the modules of the command that is called; of all commands, for the page that lists them."""
    lists_all = not words or words[0] in app.help_flags
    with holding_interrupts():
        for name in app:
            if lists_all or name == words[0]:
                app[name]


class _Notes(logging.Handler):
    """Prints what the program does on its own account, a line each on stderr."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print one, above a progress bar where one is drawn."""
        Screen().print_lines(f"note: {record.getMessage()}")


def _say_what_takes_long(*, quiet: bool) -> None:
    """Have a line for what is fetched, calibrated or waited for before a run, with a terminal or without."""
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
    """What an error began with: that of a library is wrapped in those of who imports it."""
    while (deeper := error.__cause__ or error.__context__) is not None:
        error = deeper
    return error


def _not_loaded(cause: BaseException) -> str:
    """Name the library that a command needs and cannot have."""
    short = "failed to map segment" in str(cause) or "cannot allocate memory" in str(cause).lower()
    what = "out of memory; free some, or raise the limit" if short else "install Vitascope again"
    return f"a library cannot be loaded: {cause}: {what}"


def in_words(error: CycloptsError) -> str:
    """The error of cyclopts in one plain line, for arguments that are missing, wrong or too many."""
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
    """What to do with a word that was taken for an option, and is none."""
    if word == "-":
        return "-: videos cannot be read from or written to a pipe; name a file"
    with suppress(OSError):  # of a name longer than names can be
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
