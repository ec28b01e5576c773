"""The folder beside an output in which a video's stretches lie until the output is whole."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from vitascope.errors import InputError, add_to_line
from vitascope.media.libav import wrap_output_error
from vitascope.media.remote import RemotePath, remove_folder
from vitascope.media.writing.output_target import picture_folder, shortened_name

_SUFFIX = ".stretch"


class WorkFolder:
    """Made where it is not there. The outputs are locked, so no other run uses it. A context manager.

    It is removed when all went well, and where the input is to blame, which another run would meet again. Else what is
    finished stays, and the error says so.

    Args:
        output: The first output of the video.
        resume: Keep the stretches that an earlier run made; else they are removed.

    Raises:
        OutputError: It cannot be made, or not emptied.
    """

    def __init__(self, output: Path, *, resume: bool) -> None:
        pictures = picture_folder(output)
        target = (output if pictures is None else pictures.folder).absolute()
        self.path = target.with_name(f".{shortened_name(target.name)}.stretches")
        with wrap_output_error(self.path, "create it"):
            if self.path.exists() and not resume:
                remove_folder(self.path)
            self.path.mkdir(exist_ok=True)
            for left_over in self.path.glob(".*.part"):  # of processes that were killed
                left_over.unlink()

    def __enter__(self) -> Self:
        """Use as a context manager."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Remove it, unless another run can go on from it."""
        count = finished_stretches(self.path)
        if error is None or not count or getattr(error, "exit_code", None) == InputError.exit_code:
            self.remove()
            return
        for left_over in self.path.glob(".*.part"):  # of processes that were just ended
            left_over.unlink(missing_ok=True)
        add_to_line(
            error, f"--resume goes on from {count} finished stretch{'es' * (count > 1)} in {self.path.name}"
        )

    def with_copy_of(self, file: Path) -> Path:
        """Put a copy of a file there, for all who make stretches; where it is.

        Raises:
            OutputError: It cannot be written.
        """
        copy = self.path / file.name
        with wrap_output_error(copy, "write it"):
            if isinstance(copy, RemotePath):
                copy.receive(file)
            else:
                shutil.copyfile(file, copy)
        return copy

    def file_of(self, number: int) -> Path:
        """The file of a stretch."""
        return self.path / f"{number:05}{_SUFFIX}"

    def remove(self) -> None:
        """Remove it with all that lies in it; one that is gone is fine."""
        with suppress(OSError):
            remove_folder(self.path)


def finished_stretches(folder: Path) -> int:
    """How many lie in a video's folder; 0 where it is not there."""
    return sum(1 for _ in folder.glob(f"*{_SUFFIX}"))
