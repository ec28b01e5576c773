"""The files of a run whose pictures are encoded in other processes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import cast

from vitascope.config import OutputKind, VideoSettings
from vitascope.media.encoding import Encoding
from vitascope.media.joining_writer import JoiningWriter
from vitascope.media.reader import VideoReader
from vitascope.segmentation.worker_messages import Encoded
from vitascope.segmentation.writing import OutputSet

__all__ = ["JoinedOutputSet"]


class JoinedOutputSet(OutputSet):
    """An ``OutputSet`` that takes packets instead of pictures.

    Args:
        reader: The input.
        outputs: Kind and path of each.
        encodings: How each is encoded, in the same order.
        trim: Which part of the input is written.
        keep_partial: As of ``OutputSet``.
        mask_size: As of ``OutputSet``.

    Raises:
        OutputError: A file cannot be created.
    """

    def __init__(
        self,
        reader: VideoReader,
        outputs: Sequence[tuple[OutputKind, Path]],
        encodings: Sequence[Encoding],
        *,
        trim: VideoSettings,
        keep_partial: bool,
        mask_size: tuple[int, int] | None = None,
    ) -> None:
        super().__init__(
            reader,
            outputs,
            encodings,
            trim=trim,
            keep_partial=keep_partial,
            mask_size=mask_size,
            writer=JoiningWriter,
        )

    def write_encoded(self, encoded: Encoded) -> None:
        """Write what came from a worker into every file.

        Raises:
            OutputError: The disk failed, or a segment does not fit the one before.
        """
        for number, writer in enumerate(self._writers):
            joining = cast("JoiningWriter", writer)
            if encoded.parameter_sets is not None:
                joining.begin_segment(encoded.parameter_sets[number])
            joining.write_encoded(encoded.times, encoded.packets[number])
