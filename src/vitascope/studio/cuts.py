"""Find a video's shot boundaries in the background, and keep them for the timeline."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import numpy as np

from vitascope.config import VideoSettings
from vitascope.errors import VitascopeError, one_line
from vitascope.file_lock import write_atomically
from vitascope.gpu.kernels.preprocess import preprocess
from vitascope.media.reading.reader import open_video
from vitascope.segmentation.layout import vr_of
from vitascope.segmentation.matting.batch import tile_means
from vitascope.segmentation.matting.scene_cuts import Change, SceneCutDetector
from vitascope.studio.library import ListedFile
from vitascope.vr.stereo import eye_regions

_LOOKED_AT_SIDE: Final = 192
"""Longest side of the pictures compared; the detector shrinks them further."""
_FRAMES_BETWEEN_NEWS = 48


class Cuts:
    """The known cuts of a video; written by one thread, read by others."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        """Start of each shot but the first."""
        self.looked_at_seconds = 0.0
        self.is_complete = False
        self.error: str | None = None


class CutFinder:
    """Finds the cuts of one video at a time, on its own thread.

    Args:
        folder: Folder that keeps the results.
        wanted: How videos are read; its threshold is the run's.
        on_news: Called from that thread with a video's id when more of its cuts are known.
    """

    def __init__(self, folder: Path, wanted: VideoSettings, *, on_news: Callable[[str], object]) -> None:
        self._folder, self._wanted, self._on_news = folder, wanted, on_news
        self._found: dict[tuple[str, str], Cuts] = {}
        self._waiting: list[tuple[ListedFile, str]] = []
        self._changed = threading.Condition()
        self._is_over = False
        self._thread = threading.Thread(target=self._work, name="vitascope-cuts", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the search."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
        self._thread.join()

    def of(self, film: ListedFile, version: str) -> Cuts:
        """The cuts of a video known so far; the video is searched next.

        Args:
            film: The video.
            version: Version of its file.
        """
        with self._changed:
            if (film.id, version) not in self._found:
                self._found[film.id, version] = Cuts()
                self._waiting.append((film, version))
                self._changed.notify_all()
            return self._found[film.id, version]

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_over or self._waiting)
                if self._is_over:
                    return
                film, version = self._waiting.pop()
                cuts = self._found[film.id, version]
            try:
                self._find(film, version, cuts)
            except VitascopeError as error:
                cuts.error = one_line(error)
            self._on_news(film.id)

    def _find(self, film: ListedFile, version: str, cuts: Cuts) -> None:
        kept = self._file(film, version)
        with suppress(OSError, ValueError, TypeError):  # not searched yet
            cuts.seconds = [float(one) for one in json.loads(kept.read_bytes())]
            cuts.is_complete = True
        if cuts.is_complete:
            return
        detector = SceneCutDetector(self._wanted.scene_cut_threshold)
        times: list[float] = []
        decided = 0
        with open_video(film.path, threads=1) as reader:
            vr = vr_of(reader.info, self._wanted)
            regions = eye_regions(reader.info.width, reader.info.height, vr.layout)[:1]
            shrink = max(max(regions[0].size) / _LOOKED_AT_SIDE, 1.0)
            size = round(regions[0].size[0] / shrink), round(regions[0].size[1] / shrink)
            for frame in reader:
                if self._is_over:
                    return
                times.append(float((frame.pts - reader.origin_pts) * reader.info.time_base))
                rgb = preprocess(frame, regions=regions, size=(max(size[0], 1), max(size[1], 1)))
                [answers] = detector.see(np.asarray(tile_means(rgb[None])))
                decided = self._note(cuts, times, decided, answers)
                if len(times) % _FRAMES_BETWEEN_NEWS == 0:
                    cuts.looked_at_seconds = times[-1]
                    self._on_news(film.id)
        self._note(cuts, times, decided, detector.finish())
        cuts.is_complete = True
        write_atomically(kept, json.dumps(cuts.seconds).encode())

    @staticmethod
    def _note(cuts: Cuts, times: list[float], decided: int, answers: list[Change]) -> int:
        cuts.seconds += [times[decided + at] for at, change in enumerate(answers) if change.starts_shot]
        return decided + len(answers)

    def _file(self, film: ListedFile, version: str) -> Path:
        key = repr((str(film.path), version, self._wanted.scene_cut_threshold, self._wanted.stereo))
        return self._folder / f"{hashlib.blake2b(key.encode(), digest_size=12).hexdigest()}.json"
