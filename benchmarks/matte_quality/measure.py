"""How good mattes are, against clips whose alpha is known: every profile, and RVM's official graph.

The clips are made here (``truth.py``): people from the shipped photograph and from clips named on the command line,
each of one person before a plain background, over moving backgrounds, with noise and compression. Each profile mattes
them as ``segment`` does. ``official`` is the authors' graph on full pictures, at the ratio that their scripts take.

Usage: python benchmarks/matte_quality/measure.py [CLIP.mp4 ...] [--seeds 0,1] [--columns fast,balanced] [--sheet S.png]

Rows go to ``benchmarks/results/matte_quality.json``, the table to ``benchmarks/matte_quality/table.md``, unless
``--rows`` and ``--table`` say otherwise. Rows of seeds that no constant of the levers was chosen on (301 to 308), as a
check, are kept in ``benchmarks/results/matte_unseen.json``: choose nothing on these.

``--backwards`` also mattes each clip from its last frame to its first. So its first frame is seen last, with the same
blur and in the same pose: what its error was more before comes of being first. Such rows are kept in
``benchmarks/results/first_frames.json``.

``--again`` measures nothing: it makes the clips of rows that are there, tells of their moments anew and writes rows and
table.

A moment "for its edges" is told by SAD as a multiple of ``4 alpha (1 - alpha)`` of the truth, summed: a blurred frame
has more of it, and more error in proportion.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import cv2
import numpy as np
import yaml
from metrics import METRICS, Alpha, scores, unknown_band
from truth import CLASSES, Film, Rgb, Rgba, cut_figure, make_film, write_film

from vitascope.config import vitascope_home
from vitascope.models.rvm.rvm import RvmNetwork
from vitascope.models.store.store import ModelStore
from vitascope.segmentation.segmenter import Segmenter

HERE = Path(__file__).parent
OFFICIAL = "official"
COLUMNS = ("fast", "balanced", "quality", OFFICIAL)
_BAND_PX = 10
_BEGINNING = 8
"""Frames that count as the beginning of a shot."""
_LEAST_LIKE = 3
"""Frames whose median a frame is told against, itself among them."""
_LEAST_EDGES = 0.05
"""Thousands of half transparent samples from which on a frame has edges to speak of: not behind a pillar."""
_FAR_ABOVE = 1.3
"""The multiple of its shot's median that a first frame's error is to stay below."""
_SHEET_FRAMES = 12


@dataclass(frozen=True)
class WorstFrame:
    """A frame for the contact sheet."""

    error: float
    title: str
    pictures: tuple[Any, ...]
    """RGB, and mattes true and found."""


def mattes(film: Path, column: str, size: tuple[int, int], given: dict[str, Any]) -> Iterator[Alpha]:
    """What one column makes of a clip, frame by frame."""
    if column == OFFICIAL:
        from rvm_alpha_error import official_alphas

        yield from official_alphas(film, min(512 / max(size), 1.0))
        return
    with Segmenter(profile=column, settings=given) as segmenter:
        for _, alpha in segmenter.stream(film):
            yield alpha.astype(np.float32) / np.iinfo(alpha.dtype).max


def kept_mattes(folder: Path | None, key: str, made: Iterable[Alpha]) -> Iterable[Alpha]:
    """The mattes that an earlier run kept under a key, or those made now, kept: uint8 codes, like an 8-bit mask's.

    Args:
        folder: Where they are kept; None keeps none.
        key: Everything that they depend on, in words.
        made: Makes them; not begun where they are there.
    """
    if folder is None:
        return made
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{hashlib.sha256(key.encode()).hexdigest()[:20]}.npz"
    if not path.exists():
        codes = np.stack([np.rint(alpha * 255).astype(np.uint8) for alpha in made])
        np.savez_compressed(path, codes=codes)
    with np.load(path) as content:
        return [codes.astype(np.float32) / 255 for codes in content["codes"]]


def measured(film: Film, found: Iterable[Alpha], column: str) -> tuple[dict[str, Any], list[WorstFrame]]:
    """The row of a clip and a column, and its frames."""
    whole: list[dict[str, float]] = []
    band: list[dict[str, float]] = []
    frames, before = [], None
    for at, (alpha, truth) in enumerate(zip(found, film.alpha, strict=True)):
        where = unknown_band(truth, _BAND_PX)
        whole.append(scores(alpha, truth, before=before))
        band.append(scores(alpha, truth, before=before, where=where))
        before = alpha, truth
        title = f"{film.name} {column} {at}: {whole[-1]['sad']:.2f}"
        frames.append(WorstFrame(whole[-1]["sad"], title, (film.rgb[at], truth, alpha)))

    def means(of: list[dict[str, float]]) -> dict[str, float]:
        return {name: round(float(np.mean([one[name] for one in of if name in one])), 4) for name in METRICS}

    row = {
        "claim": "matte quality",
        "class": film.kind,
        "clip": film.name,
        "column": column,
        "frames": len(whole),
        "whole": means(whole),
        "band": means(band),
        "moments": _moments(film, [one["sad"] for one in whole]),
        "people_in_frame": list(film.people),
        "frame_sad": [round(one["sad"], 3) for one in whole],
        "first_frame_sad": round(whole[0]["sad"], 4),
        "beginning_sad": round(float(np.mean([one["sad"] for one in whole[:_BEGINNING]])), 4),
    }
    return row, frames


def told_again(
    rows: Sequence[dict[str, Any]], remake: Callable[[str, int], Film], *, people: Sequence[str]
) -> list[dict[str, Any]]:
    """Rows with what is told today of their hard frames; what was measured stays.

    Args:
        rows: Of clips of one kind and seed each, or more.
        remake: Makes a clip, told its class and seed.
        people: The files that it is made of, by name.

    Raises:
        SystemExit: Another clip is made today than was measured.
    """
    film: Film | None = None
    told = []
    for row in rows:
        name = row["clip"]
        if film is None or film.name != name:  # a clip's rows follow one another
            film = remake(row["class"], int(name.rsplit("_", 1)[1]))
        measured, made = (row["people"], row["people_in_frame"]), (list(people), list(film.people))
        if measured != made or len(row["frame_sad"]) != len(film.alpha):
            raise SystemExit(f"{name}: another clip was measured than is made now; measure it again")
        others = {moment: told for moment, told in row["moments"].items() if moment.endswith("seen last")}
        told.append(row | {"moments": _moments(film, row["frame_sad"]) | others})
    return told


def _moments(film: Film, sads: Sequence[float]) -> dict[str, float]:
    """What ``_against_median`` says of a clip's hard frames, by name; and of SAD for the edges that they have."""
    edges = [4 * float((truth * (1 - truth)).sum()) / 1e3 for truth in film.alpha]
    for_edges = [sad / edge if edge > _LEAST_EDGES else None for sad, edge in zip(sads, edges, strict=True)]
    told = {
        name + word: _against_median(values, at, film.people)
        for name, at in film.moments.items()
        for word, values in (("", sads), (", for its edges", for_edges))
    }
    return {name: multiple for name, multiple in told.items() if multiple is not None}


def _against_median(values: Sequence[float | None], at: int, people: Sequence[int]) -> float | None:
    """What is told of a frame, as a multiple of the median of its shot's frames in which as many people stand.

    A frame of two people has about twice the error of one in which one of them is gone, however good the matte. None
    where nothing is told of the frame, or of so few that are like it that their median says nothing.
    """
    like = [
        value
        for value, count in zip(values, people, strict=True)
        if count == people[at] and value is not None
    ]
    value = values[at]
    if value is None or len(like) < _LEAST_LIKE:
        return None
    return round(value / max(float(np.median(like)), 1e-6), 3)


@dataclass(frozen=True)
class Measurement:
    """What is measured on every clip."""

    people: list[list[Rgba]]
    scenery: list[Rgb]
    columns: list[str]
    size: tuple[int, int]
    """(height, width)."""
    frames: int
    settings: dict[str, Any]
    keep: Path | None
    """Folder for mattes."""
    is_backwards_too: bool
    """Also show each clip from its last frame to its first."""
    stamp: dict[str, Any]
    """What every row says; mattes are kept under it, too."""

    def film(self, kind: str, seed: int) -> Film:
        """The clip of a class and a seed."""
        return make_film(kind, self.people, self.scenery, seed=seed, size=self.size, frames=self.frames)

    def of_clip(self, clip: tuple[str, int]) -> tuple[list[dict[str, Any]], list[WorstFrame]]:
        """The rows of a clip, of this class and seed, and its worst frames."""
        film = self.film(*clip)
        rows: list[dict[str, Any]] = []
        worst: list[WorstFrame] = []
        with TemporaryDirectory(prefix="vitascope-") as folder:
            path = write_film(film, Path(folder) / f"{film.name}.mp4")
            back = replace(film, rgb=film.rgb[::-1], alpha=film.alpha[::-1])
            path_back = write_film(back, Path(folder) / "back.mp4") if self.is_backwards_too else None
            for column in self.columns:
                what = (film.name, self.size, self.frames, column, self.stamp)
                made = mattes(path, column, self.size, self.settings)
                row, frames = measured(film, kept_mattes(self.keep, repr(what), made), column)
                if path_back is not None and "first" in film.moments:
                    *_, last = mattes(path_back, column, self.size, self.settings)
                    row["first_seen_last_sad"] = round(scores(last, film.alpha[0], before=None)["sad"], 4)
                    row["moments"]["first, against itself seen last"] = round(
                        row["first_frame_sad"] / max(row["first_seen_last_sad"], 1e-6), 3
                    )
                print(film.name, column, row["whole"], row["moments"], row["frame_sad"], flush=True)
                rows.append(row | self.stamp)
                worst = _worst([*worst, *frames])
        return rows, worst


def _worst(frames: list[WorstFrame]) -> list[WorstFrame]:
    return sorted(frames, key=lambda one: -one.error)[:_SHEET_FRAMES]


def _take_cores(process_number: Any, processes: int) -> None:
    """Let this process run on its share of the cores: engines have as many threads."""
    cores = sorted(os.sched_getaffinity(0))
    with process_number.get_lock():
        number = process_number.value
        process_number.value += 1
    os.sched_setaffinity(0, cores[number % len(cores) :: processes])


def table(rows: list[dict[str, Any]], columns: list[str]) -> str:
    """The rows for people."""
    lines = [
        "# How good mattes are",
        "",
        "Written by `measure.py`, whose head says what is measured. Means over a class; smaller is better.",
        f"Band: within {_BAND_PX} pixels of edges. Beginning: SAD of the first frame, and of the first {_BEGINNING}.",
        "",
    ]
    parts = {"Whole picture": "whole", "Band": "band"}
    for title, part in parts.items():
        lines += [f"## {title}: SAD, MSE, Grad, Conn, dtSSD", "", *_head(columns)]
        for kind in dict.fromkeys(row["class"] for row in rows):
            cells = []
            for column in columns:
                of = [row[part] for row in rows if row["class"] == kind and row["column"] == column]
                cells.append(" ".join(f"{np.mean([one[name] for one in of]):.2f}" for name in METRICS))
            lines.append(f"| {kind} | {' | '.join(cells)} |")
        lines.append("")
    lines += ["## Beginning", "", *_head(columns)]
    for kind in dict.fromkeys(row["class"] for row in rows):
        cells = []
        for column in columns:
            of = [row for row in rows if row["class"] == kind and row["column"] == column]
            figures = (np.mean([row[name] for row in of]) for name in ("first_frame_sad", "beginning_sad"))
            cells.append(" ".join(f"{figure:.2f}" for figure in figures))
        lines.append(f"| {kind} | {' | '.join(cells)} |")
    lines += [
        "",
        "## Moments: SAD of the frame as a multiple of its shot's median: median over clips, and the highest",
        "",
        "The median is that of the frames in which as many people stand: who leaves takes their error along. What is",
        "seen last has its shot behind it: it is the last frame of the clip shown backwards.",
        "",
        *_head(columns),
    ]
    for moment in dict.fromkeys(name for row in rows for name in row["moments"]):
        cells = []
        for column in columns:
            of = [
                row["moments"][moment] for row in rows if row["column"] == column and moment in row["moments"]
            ]
            cells.append(f"{np.median(of):.2f} {max(of):.2f}")
        lines.append(f"| {moment} | {' | '.join(cells)} |")
    lines += ["", *_first_frames(rows, columns)]
    return "\n".join(lines) + "\n"


def _first_frames(rows: list[dict[str, Any]], columns: list[str]) -> list[str]:
    """First frames for people, by class: all of it as a multiple of the medians, and how many are far above."""
    lines = [
        f"## First frames: their SAD as a multiple of their shots' medians, summed; clips above {_FAR_ABOVE}, of all",
        "",
        *_head(columns),
    ]
    with_first = [row for row in rows if "first" in row["moments"]]
    for kind in dict.fromkeys(row["class"] for row in with_first):
        cells = []
        for column in columns:
            of = [row for row in with_first if row["class"] == kind and row["column"] == column]
            multiples = [row["moments"]["first"] for row in of]
            first = [row["first_frame_sad"] for row in of]
            medians = [sad / multiple for sad, multiple in zip(first, multiples, strict=True) if multiple]
            above = sum(one > _FAR_ABOVE for one in multiples)
            cells.append(f"{sum(first) / max(sum(medians), 1e-6):.2f} {above}/{len(of)}")
        lines.append(f"| {kind} | {' | '.join(cells)} |")
    return lines


def _head(columns: list[str]) -> list[str]:
    return [f"| clips | {' | '.join(columns)} |", "|-" * (len(columns) + 1) + "|"]


def sheet(frames: list[WorstFrame]) -> Any:
    """Frames below one another: picture, truth, matte."""
    strips = []
    for one in frames:
        rgb, *alphas = one.pictures
        cells = [
            rgb,
            *(np.repeat(np.rint(alpha * 255).astype(np.uint8)[..., None], 3, 2) for alpha in alphas),
        ]
        strip = cv2.resize(np.hstack(cells), (1152, 216), interpolation=cv2.INTER_AREA)
        strips.append(cv2.putText(strip, one.title, (6, 18), cv2.FONT_HERSHEY_SIMPLEX, 0.5, (255, 0, 0), 1))
    return np.vstack(strips)


def main() -> None:
    """Make the clips, matte them, and write rows, table and sheet."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("clips", type=Path, nargs="*", help="one person each, before a plain background")
    parser.add_argument("--classes", default=",".join(CLASSES))
    parser.add_argument("--columns", default=",".join(COLUMNS))
    parser.add_argument("--seeds", default="0,1")
    parser.add_argument("--frames", type=int, default=12)
    parser.add_argument("--height", type=int, default=540)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="settings of the run")
    parser.add_argument("--backwards", action="store_true", help="also show each clip backwards")
    parser.add_argument(
        "--keep", type=Path, help="folder for mattes, which a run of the same commit takes again"
    )
    parser.add_argument(
        "--processes", type=int, default=1, help="clips at a time, each on its share of the cores"
    )
    parser.add_argument(
        "--again", action="store_true", help="tell of the rows that are there, and measure nothing"
    )
    parser.add_argument("--sheet", type=Path, help="PNG of the worst frames")
    parser.add_argument("--rows", type=Path, default=HERE.parent / "results" / "matte_quality.json")
    parser.add_argument("--table", type=Path, default=HERE / "table.md")
    given = parser.parse_args()
    sys.path.append(str(HERE.parent))  # where what all benchmarks share lies
    from row_stamp import commit, write_rows

    sources = [HERE.parents[1] / "examples" / "astronaut.jpg", *given.clips]
    network = RvmNetwork(ModelStore(vitascope_home()).pull("rvm"))
    cut = [cut_figure(source, network, count=given.frames) for source in sources]
    network.close()
    measurement = Measurement(
        people=[figures for figures, _ in cut],
        # Beside the photograph's person there is a flag and little else.
        scenery=[beside for _, beside in cut[1:]],
        columns=given.columns.split(","),
        size=(given.height, given.height * 16 // 9),
        frames=given.frames,
        settings={key: yaml.safe_load(value) for key, value in (word.split("=", 1) for word in given.set)},
        keep=given.keep,
        is_backwards_too=given.backwards,
        stamp={
            "people": [one.name for one in sources],
            "settings": given.set,
            "commit": commit(),
        },
    )
    if given.again:
        rows = json.loads(given.rows.read_text(encoding="utf-8"))
        rows = told_again(rows, measurement.film, people=measurement.stamp["people"])
        given.table.write_text(table(rows, measurement.columns), encoding="utf-8")
        write_rows(given.rows, rows)
        return
    clips = [(kind, int(seed)) for kind in given.classes.split(",") for seed in given.seeds.split(",")]
    if given.processes == 1:
        found = [measurement.of_clip(clip) for clip in clips]
    else:
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(
            given.processes,
            mp_context=context,
            initializer=partial(_take_cores, context.Value("i", 0), given.processes),
        ) as processes:
            found = list(processes.map(measurement.of_clip, clips))
    date = {"date": time.strftime("%Y-%m-%d")}
    rows = [row | date for clip_rows, _ in found for row in clip_rows]
    if given.sheet is not None:
        worst = _worst([frame for _, frames in found for frame in frames])
        cv2.imwrite(str(given.sheet), sheet(worst)[..., ::-1])
    given.table.write_text(table(rows, measurement.columns), encoding="utf-8")
    print(table(rows, measurement.columns))
    write_rows(given.rows, rows)


if __name__ == "__main__":
    main()
