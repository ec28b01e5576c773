"""Measure whether held things are kept, on synthetic clips in which the alpha of person and thing is known.

A person walks before a moving background and holds a thing; another thing of its kind stands behind them,
held by nobody. Each clip is matted with and without ``people.keep_held``, by ``balanced``.

Usage: python benchmarks/held_things.py [CLIP.mp4 ...] [--seeds 1,3] [--frames 48] [--sheet S.png] [--rows R.json]

The clips show one person each, before a plain background; the shipped photograph is always one of the people. Of
``coffee.mp4`` and ``juggle.mp4``, in which things are held, some frames were drawn by hand. Rows go
to ``benchmarks/results/held_things.json``: of the thing's, the other thing's and the person's solid pixels, the share
that is kept (alpha of one half and more), and the mean absolute error of alpha over the picture, times 1000.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
from skimage import data

HERE = Path(__file__).parent
sys.path.append(str(HERE / "matte_quality"))

from truth import Film, Rgba, Walk, cut_figure, make_scene, write_film  # noqa: E402 - of the folder named above

from row_stamp import commit, write_rows  # noqa: E402 - beside this file
from vitascope.config import vitascope_home  # noqa: E402
from vitascope.models.rvm.rvm import RvmNetwork  # noqa: E402
from vitascope.models.store.store import ModelStore  # noqa: E402
from vitascope.segmentation.segmenter import Segmenter  # noqa: E402

_SIZE = (360, 640)
_FINE = 400
"""Rows of a thing's own picture."""

Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Holding:
    """Somebody who holds something."""

    who: str
    thing: str
    height: float
    """The person's, as a share of the picture's."""
    at: tuple[float, float]
    """Where the thing's middle is, as shares of the person's width and height."""
    size: float
    """The thing's height, as a share of the person's."""
    seed: int
    is_tuned_on: bool = False


HOLDINGS = (
    Holding("astronaut", "box", 0.8, (-0.05, 0.75), 0.25, seed=1, is_tuned_on=True),
    Holding("driver_grin", "mug", 0.8, (0.85, 0.8), 0.3, seed=3, is_tuned_on=True),
    Holding("juggle", "guitar", 0.9, (0.5, 0.5), 0.3, seed=2),
    Holding("juggle", "box", 0.85, (-0.2, 0.45), 0.2, seed=4),
    Holding("driver_mouth", "ball", 0.75, (0.0, 0.85), 0.3, seed=5),
)
Polygon = tuple[tuple[int, int], ...]
POLYGONS: dict[str, dict[int, dict[str, Polygon]]] = {
    "coffee": {
        0: {
            "pot": ((500, 325), (658, 317), (687, 550), (697, 608), (575, 633), (458, 608), (475, 533)),
            "cup": ((805, 430), (883, 417), (963, 430), (953, 533), (933, 603), (867, 617), (808, 600)),
        },
        24: {
            "pot": ((505, 122), (647, 188), (600, 330), (572, 458), (483, 442), (345, 350), (433, 230)),
            "cup": ((772, 360), (850, 350), (922, 363), (908, 522), (842, 537), (780, 527)),
        },
        48: {
            "pot": ((558, 118), (662, 223), (575, 343), (505, 457), (408, 427), (320, 293), (467, 202)),
            "cup": ((752, 373), (825, 363), (900, 377), (887, 535), (825, 552), (758, 538)),
        },
    },
    "juggle": {
        0: {"ball": ((653, 323), (38, 38))},
        20: {"ball": ((712, 494), (42, 42))},
        40: {"ball": ((706, 457), (40, 40))},
    },
}
"""Things in frames of clips of 1280 x 720, drawn by hand: corners, or middle and radii."""


def thing(kind: str, *, seed: int) -> Rgba:
    """Draw a thing with exact alpha, colour premultiplied, 0..1: float32 [400, W, 4]."""
    random = np.random.default_rng(seed)
    width = {"guitar": 3 * _FINE}.get(kind, _FINE)
    cover = np.zeros((_FINE, width), np.uint8)
    middle, colors = (width // 2, _FINE // 2), np.zeros((_FINE, width, 3), np.float32)
    rows, columns = np.mgrid[:_FINE, :width] / _FINE
    light = 0.65 + 0.35 * np.cos(2.5 * (columns - 0.35) / (width / _FINE)) * np.cos(2 * (rows - 0.35))
    if kind == "ball":
        cv2.circle(cover, middle, _FINE // 2 - 2, 255, -1)
        colors[:] = (0.9, 0.9, 0.88)
        for _ in range(9):
            spot = random.integers(40, _FINE - 40, 2)
            cv2.circle(colors, (int(spot[0]), int(spot[1])), 34, (0.08, 0.08, 0.1), -1)
    elif kind == "mug":
        cv2.ellipse(cover, (width * 3 // 4, _FINE // 2), (80, 110), 0, 0, 360, 255, 34)
        cv2.rectangle(cover, (50, 20), (width * 3 // 4, _FINE - 20), 255, -1)
        colors[:] = random.uniform(0.1, 0.9, 3)
    elif kind == "guitar":
        for x, radius in ((190, 180), (430, 140)):
            cv2.circle(cover, (x, _FINE // 2), radius, 255, -1)
        cv2.rectangle(cover, (500, _FINE // 2 - 26), (width - 90, _FINE // 2 + 26), 255, -1)
        cv2.rectangle(cover, (width - 100, _FINE // 2 - 46), (width - 5, _FINE // 2 + 46), 255, -1)
        colors[:] = (0.62, 0.36, 0.14)
        cv2.circle(colors, (400, _FINE // 2), 60, (0.05, 0.04, 0.03), -1)
        colors[:, 560:] *= np.float32(0.4)
    else:  # a box
        cv2.rectangle(cover, (10, 30), (width - 10, _FINE - 30), 255, -1)
        colors[:] = cv2.resize(data.brick(), (width, _FINE))[..., None] / 255 * random.uniform(0.5, 1, 3)
    alpha = cv2.GaussianBlur(cover, (0, 0), 1.0).astype(np.float32) / 255
    return np.dstack([np.clip(colors * light[..., None], 0, 1) * alpha[..., None], alpha]).astype(np.float32)


def film_of(holding: Holding, figures: list[Rgba], *, frames: int) -> tuple[Bytes, Bytes]:
    """Make the clip, and the visible parts of the thing that nobody holds, the person, and the held thing."""
    here = figures[0]
    walk = Walk(holding.height, lambda time: 0.58 - 0.22 * time + 0.03 * np.sin(9 * time))
    free = Walk(holding.size * holding.height * 0.9, lambda _: 0.3, 0.85)
    own = thing(holding.thing, seed=holding.seed)
    tall = holding.size * here.shape[0]
    small = cv2.resize(own, (round(own.shape[1] * tall / _FINE), round(tall)), interpolation=cv2.INTER_AREA)
    # The thing's picture is as large as the person's, and moves with it; it swings a little.
    pad = round(0.6 * max(here.shape[:2]))
    holder, held = [], []
    for n, figure in enumerate(figures):
        swing = 4 * np.sin(n / 5), 6 * np.cos(n / 7)
        canvas = np.zeros((here.shape[0], here.shape[1] + 2 * pad, 4), np.float32)
        x = pad + holding.at[0] * here.shape[1] - small.shape[1] / 2 + swing[0]
        y = holding.at[1] * here.shape[0] - small.shape[0] / 2 + swing[1]
        moved = np.array([[1, 0, x], [0, 1, y]], np.float64)
        held.append(cv2.warpAffine(small, moved, canvas.shape[1::-1]))
        canvas[:, pad : pad + here.shape[1]] = figure
        holder.append(canvas)
        # Both are placed by whether their last row holds something.
        held[-1][-1, -1] = holder[-1][-1].max(axis=0) if holder[-1][-1, :, 3].max() > 0.5 else 0
    other = thing(holding.thing, seed=holding.seed + 100)
    return make_scene(
        [free, walk, walk], [[other], holder, held], seed=holding.seed, size=_SIZE, frames=frames
    )


def measured(path: Path, seen: Bytes, *, keep_held: bool) -> tuple[dict[str, Any], Bytes]:
    """Run on a clip; return the scores and mattes."""
    with Segmenter(profile="balanced", settings={"people.keep_held": keep_held}) as segmenter:
        alpha = np.stack([step.alpha for step in segmenter.stream(path)])
    truth = seen[:, 1:].astype(np.float64).sum(axis=1).clip(0, 255)
    kept = alpha > 127

    def share(who: int) -> float:
        solid = seen[:, who] > 230
        return round(100 * float((kept & solid).sum() / max(solid.sum(), 1)), 2)

    return {
        "thing_kept_percent": share(2),
        "other_thing_kept_percent": share(0),
        "person_kept_percent": share(1),
        "mad": round(1000 * float(np.abs(alpha - truth).mean() / 255), 2),
    }, alpha


def measured_by_hand(path: Path, *, keep_held: bool) -> dict[str, Any]:
    """Measure how much of the hand-drawn things a run keeps, in percent, without their outermost 4 pixels."""
    drawn = POLYGONS[path.stem]
    kept: dict[str, list[float]] = {}
    with Segmenter(profile="balanced", settings={"people.keep_held": keep_held}) as segmenter:
        for n, step in enumerate(islice(segmenter.stream(path), max(drawn) + 1)):
            for name, points in drawn.get(n, {}).items():
                mask = np.zeros(step.alpha.shape, np.uint8)
                if len(points) == 2:
                    cv2.ellipse(mask, points[0], points[1], 0, 0, 360, 1, -1)
                else:
                    cv2.fillPoly(mask, [np.array(points, np.int32)], 1)
                inside = cv2.erode(mask, np.ones((9, 9), np.uint8)) > 0
                kept.setdefault(name, []).append(float((step.alpha[inside] > 127).mean()))
    return {f"{name}_kept_percent": round(100 * float(np.mean(own)), 2) for name, own in kept.items()}


def main() -> None:
    """Make the clips, matte them, write rows and a sheet."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("clips", type=Path, nargs="*", help="one person each, before a plain background")
    parser.add_argument("--seeds", help="only clips of these seeds, with commas between")
    parser.add_argument("--frames", type=int, default=40)
    parser.add_argument("--sheet", type=Path, help="PNG of frames: picture, without, with")
    parser.add_argument("--rows", type=Path, default=HERE / "results" / "held_things.json")
    given = parser.parse_args()
    network = RvmNetwork(ModelStore(vitascope_home()).pull("rvm"))
    wanted = {holding.who for holding in HOLDINGS}
    cast = {
        source.stem: cut_figure(source, network, count=given.frames)[0]
        for source in [HERE.parent / "examples" / "astronaut.jpg", *given.clips]
        if source.stem in wanted
    }
    network.close()
    stamp = {"people": list(cast), "commit": commit(), "date": time.strftime("%Y-%m-%d")}
    seeds = None if given.seeds is None else {int(seed) for seed in given.seeds.split(",")}
    rows: list[dict[str, Any]] = []
    strips: list[Bytes] = []
    with TemporaryDirectory(prefix="vitascope-") as folder:
        for holding in HOLDINGS:
            if holding.who not in cast or (seeds is not None and holding.seed not in seeds):
                continue
            figures = cast[holding.who]
            figures = [figures[n % len(figures)] for n in range(given.frames)]
            rgb, seen = film_of(holding, figures, frames=given.frames)
            name = f"{holding.who} and {holding.thing}"
            path = write_film(Film("held", name, rgb, seen[:, 1]), Path(folder) / f"{holding.seed}.mp4")
            pictures = [rgb]
            for keep_held in (False, True):
                row, alpha = measured(path, seen, keep_held=keep_held)
                row = {"claim": "held things", "clip": name, "keep_held": keep_held, "frames": len(rgb)} | row
                row |= {"seed": holding.seed, "is_tuned_on": holding.is_tuned_on}
                print(row, flush=True)
                rows.append(row | stamp)
                share = alpha[..., None] / 255
                pictures.append((rgb * share + np.array([120, 255, 155]) * (1 - share)).astype(np.uint8))
            places = np.linspace(0, len(rgb) - 1, 4).astype(int)
            strips.append(
                np.vstack([np.hstack([cv2.resize(one[n], (384, 216)) for n in places]) for one in pictures])
            )
    for path in (path for path in given.clips if path.stem in POLYGONS and seeds is None):
        for keep_held in (False, True):
            row = {"claim": "held things, drawn by hand", "clip": path.stem, "keep_held": keep_held}
            row |= measured_by_hand(path, keep_held=keep_held) | {"is_tuned_on": path.stem == "coffee"}
            print(row, flush=True)
            rows.append(row | stamp)
    if given.sheet is not None and strips:
        cv2.imwrite(str(given.sheet), np.vstack(strips)[..., ::-1])
    write_rows(given.rows, rows)


if __name__ == "__main__":
    main()
