"""Films of the suite, and how its cells are set up."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from vitascope.tuning.matte_check import CHECKED_FRAMES
from vitascope.tuning.measured_run import MeasuredSegmenter
from vitascope.tuning.results import CellKey
from vitascope.tuning.synthetic_clip import make_clip

if TYPE_CHECKING:
    from vitascope.tuning.suite import SuiteOptions

__all__ = ["SuiteFilms", "cell_assignments"]


class SuiteFilms:
    """Films and the mattes that others are checked against.

    Args:
        options: Of the suite.
        folder: Where films lie.
        on_gpu: How long they are depends on it.
        keep: Keep films and mattes of all sizes, for cells that are measured again; else the last size alone.
    """

    def __init__(self, options: SuiteOptions, folder: Path, *, on_gpu: bool, keep: bool) -> None:
        self._on_gpu, self._keep = on_gpu, keep
        self._options, self._folder = options, folder
        self._paths: dict[str, Path] = {}
        self._expected: dict[str, list[npt.NDArray[np.float32]]] = {}

    def film(self, key: CellKey) -> Path:
        """The film of a cell."""
        if self._options.video is not None:
            return self._options.video
        if key.resolution not in self._paths:
            if not self._keep:
                for path in self._paths.values():
                    path.unlink(missing_ok=True)
                self._paths.clear()
                self._expected.clear()
            self._paths[key.resolution] = make_clip(
                self._folder / f"{key.resolution}.mp4",
                width=key.width,
                height=key.height,
                frame_count=self._options.frame_count(key.width, key.height, on_gpu=self._on_gpu),
                stereo=self._options.stereo,
            )
        return self._paths[key.resolution]

    def expected(self, key: CellKey) -> list[npt.NDArray[np.float32]]:
        """The first mattes in fp32 with one frame a call."""
        film = self.film(key)
        if key.resolution not in self._expected:
            plain = self._options.loaded(*cell_assignments(key, batch=1, precision="fp32"))
            with MeasuredSegmenter(loaded=plain) as segmenter:
                self._expected[key.resolution] = segmenter.alphas(film, count=CHECKED_FRAMES)
        return self._expected[key.resolution]


def cell_assignments(key: CellKey, *, batch: int, precision: str) -> list[str]:
    """The settings that make a run this cell, ``key=value`` each."""
    values = [
        f"model.batch_size={batch}",
        f"pipeline.stages.inference.batch_size={batch}",
        f"gpu.precision={precision}",
    ]
    return values if key.stereo == "auto" else [*values, f"video.stereo={key.stereo}"]
