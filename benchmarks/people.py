"""Measure whether people are kept apart, on synthetic clips in which the alpha of each person is known.

``crossing``: two people cross three times in 20 s, each passes before the other; one is kept. ``touching``:
    two people who touch in the first frame walk apart; one is kept. ``spliced``: ten shots of three people in
    other places, sizes and light, some mirrored. ``speed``: the speed of ``vitascope people`` at 960x540.

Usage: python benchmarks/people.py [CLIP.mp4 ...] [--only crossing,touching,spliced,speed] [--seeds 3,11]
[--sheet S.png] [--picture P.jpg]

The clips show one person each, before a plain background; the shipped photograph is always one of the people.
Each appears a second time, mirrored and with red and blue exchanged, which hardly changes people in grey.
It measures ``CROSSINGS`` and ``SPLICES`` whose people are all given, with ``--seeds`` only some; their rows
tell whether the code was tuned on them. Rows go to ``benchmarks/results/people.json``, unless ``--rows`` says
otherwise, in place of those of the same clips.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

HERE = Path(__file__).parent
sys.path.append(str(HERE / "matte_quality"))

from truth import Film, Rgba, Walk, cut_figure, make_scene, write_film  # noqa: E402 - of the folder named above

from row_stamp import commit, write_rows  # noqa: E402 - beside this file
from vitascope.config import load_settings, vitascope_home  # noqa: E402
from vitascope.device import available_cores, select_device  # noqa: E402
from vitascope.models.rvm.rvm import RvmNetwork  # noqa: E402
from vitascope.models.store.store import ModelStore  # noqa: E402
from vitascope.segmentation.people.scan import find_people  # noqa: E402
from vitascope.segmentation.people.sheet import write_sheet  # noqa: E402
from vitascope.segmentation.people.table import PeopleTable  # noqa: E402
from vitascope.segmentation.segmenter import Segmenter  # noqa: E402

_SIZE = (270, 480)
_FRAMES, _RATE = 500, 25
_SHOTS, _SHOT_FRAMES = 10, 25
_NEAR_PX = 4
"""People nearer to one another than twice that cross."""

_LEAST_SHOWN = 0.25
"""Minimum matted share of a person for them to count as recognisable."""
_SHOWN = (10, 18, 21, 24)
"""Frames of the documentation's picture, around the first of three crossings in five seconds."""

Bytes = npt.NDArray[np.uint8]
Cast = dict[str, list[Rgba]]


@dataclass(frozen=True)
class Crossing:
    """Two people who cross three times."""

    names: tuple[str, str]
    heights: tuple[float, float] = (0.85, 0.8)
    """As shares of the picture's."""
    seed: int = 3
    ways: tuple[float, float] = (0.3, 0.3)
    """Distance that each goes to either side, as a share of the width."""
    is_tuned_on: bool = False


CROSSINGS = (
    Crossing(("astronaut", "driver_grin"), is_tuned_on=True),
    Crossing(("astronaut", "astronaut, exchanged"), is_tuned_on=True),
    Crossing(("astronaut", "juggle"), (0.7, 0.9), seed=11, is_tuned_on=True),
    Crossing(("juggle", "driver_grin"), (0.9, 0.5), seed=12),
    Crossing(("astronaut, exchanged", "driver_mouth"), (0.8, 0.65), seed=13),
    Crossing(("driver_grin", "astronaut, exchanged"), (0.6, 0.75), seed=14),
    Crossing(("juggle, exchanged", "driver_mouth"), (0.85, 0.6), seed=15, ways=(0.35, 0.02)),
    Crossing(("driver_mouth", "driver_grin, exchanged"), (0.65, 0.6), seed=16),
    Crossing(("astronaut", "driver_mouth"), is_tuned_on=True),
    Crossing(("driver_grin", "driver_mouth"), (0.6, 0.55), seed=4, is_tuned_on=True),
    Crossing(("juggle", "juggle, exchanged"), (0.9, 0.8), seed=5, is_tuned_on=True),
    Crossing(
        ("driver_grin, exchanged", "driver_mouth, exchanged"),
        (0.73, 0.82),
        seed=307,
        ways=(0.3, 0.15),
        is_tuned_on=True,
    ),
    Crossing(("driver_grin, exchanged", "juggle"), (0.7, 0.9), seed=401, ways=(0.2, 0.3)),
    Crossing(("astronaut", "juggle, exchanged"), (0.75, 0.85), seed=503, is_tuned_on=True),
    Crossing(("astronaut, exchanged", "juggle"), (0.75, 0.85), seed=505),
    Crossing(("driver_mouth", "juggle, exchanged"), (0.6, 0.85), seed=506, ways=(0.25, 0.3)),
    Crossing(("driver_grin", "juggle, exchanged"), (0.7, 0.85), seed=701, is_tuned_on=True),
    Crossing(("astronaut", "driver_mouth, exchanged"), (0.8, 0.7), seed=702),
    Crossing(("astronaut, exchanged", "driver_grin, exchanged"), (0.7, 0.8), seed=703, ways=(0.25, 0.3)),
    Crossing(("driver_mouth", "juggle"), (0.75, 0.9), seed=704),
    Crossing(("driver_grin", "driver_mouth, exchanged"), (0.65, 0.75), seed=705, ways=(0.3, 0.2)),
    Crossing(("astronaut", "driver_grin, exchanged"), (0.85, 0.7), seed=706),
)
TOUCHINGS = (
    Crossing(("driver_grin", "driver_mouth"), (0.7, 0.65), seed=31),
    Crossing(("astronaut", "driver_grin"), (0.8, 0.75), seed=32),
    Crossing(("astronaut, exchanged", "driver_mouth"), (0.75, 0.75), seed=33),
)
_TOUCHING_FRAMES = 150
SPLICES = (
    (("astronaut", "driver_grin", "driver_mouth"), 5, True),
    (("astronaut", "juggle", "driver_mouth"), 6, True),
    (("astronaut, exchanged", "driver_grin", "juggle"), 21, False),
    (("driver_grin", "driver_mouth", "juggle"), 22, True),
    (("astronaut", "astronaut, exchanged", "driver_grin"), 23, False),
)
"""Who, the seed, and whether the code was tuned on it."""


@dataclass(frozen=True)
class Clip:
    """A video and its truth."""

    name: str
    path: Path
    rgb: Bytes
    """[T, H, W, 3]."""
    alphas: Bytes
    """[T, N, H, W]: the visible part of each person."""
    shot_frames: int
    """Frames of each of its shots."""


def figures(clips: list[Path]) -> Cast:
    """People by name."""
    network = RvmNetwork(ModelStore(vitascope_home()).pull("rvm"))
    cast: Cast = {}
    for source in [HERE.parent / "examples" / "astronaut.jpg", *clips]:
        pictures = [_at_most(picture, 360) for picture in cut_figure(source, network, count=24)[0]]
        cast[source.stem] = pictures + pictures[::-1]
    network.close()
    for name, pictures in list(cast.items()):
        later = pictures[len(pictures) // 3 :] + pictures[: len(pictures) // 3]
        cast[f"{name}, exchanged"] = [
            np.ascontiguousarray(picture[:, ::-1, [2, 1, 0, 3]]) for picture in later
        ]
    return cast


def _at_most(picture: Rgba, height: int) -> Rgba:
    scale = min(height / picture.shape[0], 1.0)
    size = round(picture.shape[1] * scale), round(picture.shape[0] * scale)
    return np.asarray(cv2.resize(picture, size, interpolation=cv2.INTER_AREA))


def crossing(cast: Cast, pair: Crossing, folder: Path, *, frames: int = _FRAMES) -> Clip:
    """Make two people cross three times, the first in front, then the second, then the first again."""
    walks = [
        Walk(height, lambda t, way=way: 0.5 - way * np.cos(3 * np.pi * t))  # type: ignore[misc]
        for height, way in zip(pair.heights, (pair.ways[0], -pair.ways[1]), strict=True)
    ]
    rgb, alphas = make_scene(
        walks,
        [cast[name] for name in pair.names],
        seed=pair.seed,
        size=_SIZE,
        frames=frames,
        order=lambda t: (0, 1) if 1 / 3 < t < 2 / 3 else (1, 0),
    )
    return _written(" and ".join(pair.names), rgb, alphas, folder, shot_frames=frames)


def touching(cast: Cast, pair: Crossing, folder: Path) -> Clip:
    """Make two people stand close, the second before the first, and walk apart after a second."""
    walks = [
        Walk(height, lambda t, way=way: 0.5 + way * (0.09 + 0.22 * max(t - 1 / 6, 0)))  # type: ignore[misc]
        for height, way in zip(pair.heights, (-1, 1), strict=True)
    ]
    people = [cast[name] for name in pair.names]
    rgb, alphas = make_scene(walks, people, seed=pair.seed, size=_SIZE, frames=_TOUCHING_FRAMES)
    return _written(" and ".join(pair.names), rgb, alphas, folder, shot_frames=_TOUCHING_FRAMES)


def spliced(cast: Cast, names: tuple[str, ...], folder: Path, *, seed: int = 5) -> Clip:
    """Make shots of three people."""
    random = np.random.default_rng(seed)
    shots, truths = [], []
    for shot in range(_SHOTS):
        places = random.permutation([0.2, 0.5, 0.8]) + random.normal(0, 0.02, 3)
        heights, speeds = random.uniform(0.5, 0.8, 3), random.normal(0, 0.04, 3)
        there = [who for who in range(3) if random.random() < 0.85] or [0]
        walks, people = [], []
        for who in range(3):
            mirrored = random.random() < 0.5
            if who in there:
                walks.append(
                    Walk(heights[who], lambda t, x=places[who], speed=speeds[who]: x + speed * t)  # type: ignore[misc]
                )
                own = cast[names[who]]
                people.append([np.ascontiguousarray(one[:, ::-1]) for one in own] if mirrored else own)
        rgb, seen = make_scene(walks, people, seed=shot + 10, size=_SIZE, frames=_SHOT_FRAMES)
        shots.append(np.clip(rgb * random.uniform(0.8, 1.2), 0, 255).astype(np.uint8))
        truths.append(np.zeros((_SHOT_FRAMES, 3, *_SIZE), np.uint8))
        truths[-1][:, there] = seen
    return _written(
        ", ".join(names), np.concatenate(shots), np.concatenate(truths), folder, shot_frames=_SHOT_FRAMES
    )


def _written(name: str, rgb: Bytes, alphas: Bytes, folder: Path, *, shot_frames: int) -> Clip:
    path = folder / f"{name.replace(' ', '_').replace(',', '')}.mp4"
    write_film(Film("people", name, rgb, alphas[:, 0]), path)
    return Clip(name, path, rgb, alphas, shot_frames)


def looked_at(clip: Clip) -> tuple[PeopleTable, Bytes]:
    """Find the people, and the owner of each pixel, uint8 [T, H, W]."""
    table = find_people(clip.path, load_settings(), store=ModelStore(vitascope_home()))
    ticks = table.facts.time_base[1] // (_RATE * table.facts.time_base[0])
    owners = []
    for n in range(len(clip.rgb)):
        labels = table.labels_at(n * ticks, since=n // clip.shot_frames * clip.shot_frames * ticks)
        assert labels is not None
        owners.append(cv2.resize(labels[0], clip.rgb.shape[2:0:-1], interpolation=cv2.INTER_NEAREST))
    return table, np.stack(owners)


def names_of(
    clip: Clip, owners: Bytes, *, mattes: Bytes | None = None
) -> tuple[list[int], npt.NDArray[np.int64]]:
    """Find each person's number in most frames, and in each frame (0: not seen).

    Args:
        clip: The clip, with its truth.
        owners: The owner of each pixel, uint8 [T, H, W].
        mattes: Everybody's matte, uint8 [T, H, W]; people who are hardly in it count as not seen, even near
            others.
    """
    given = np.zeros(clip.alphas.shape[:2], np.int64)
    for n, (frame, owner) in enumerate(zip(clip.alphas, owners, strict=True)):
        for who, alpha in enumerate(frame):
            there = alpha > 127
            shown = there if mattes is None else there & (mattes[n] > 127)
            if shown.sum() > max(50, _LEAST_SHOWN * there.sum()):
                given[n, who] = np.bincount(owner[shown]).argmax()
    return [int(np.bincount(own[own > 0]).argmax()) for own in given.T], given


def apart(clip: Clip) -> npt.NDArray[np.bool_]:
    """Find frames in which nobody is near another person."""
    side = np.ones((2 * _NEAR_PX + 1,) * 2, np.uint8)
    return np.array(
        [
            np.sum([cv2.dilate((alpha > 25).astype(np.uint8), side) for alpha in frame], axis=0).max() < 2
            for frame in clip.alphas
        ]
    )


def measured_crossing(clip: Clip) -> tuple[dict[str, Any], Bytes]:
    """Make the row of a clip in which person 1 is kept, and return that video's alpha."""
    _, owners = looked_at(clip)
    names, given = names_of(clip, owners)
    with Segmenter(settings={"people.keep": [names[0]]}) as segmenter:
        kept = np.stack([step.alpha for step in segmenter.stream(clip.path)])
    own, other = clip.alphas[:, 0], clip.alphas[:, 1].astype(np.float64) / 255
    usual = np.median(other.sum(axis=(1, 2))[apart(clip)])
    leak = (kept / 255 * other).sum(axis=(1, 2)) / usual
    solid = own > 230
    lost = (solid & (kept < 128)).sum(axis=(1, 2)) / np.maximum(solid.sum(axis=(1, 2)), 1)
    far = apart(clip)
    unseen, switched = (given == 0) & far[:, None], (given != np.array(names)) & (given > 0) & far[:, None]
    row = {
        "claim": "people who cross",
        "clip": clip.name,
        "frames": len(clip.rgb),
        "frames_apart": int(far.sum()),
        "frames_apart_with_the_wrong_name": int(switched.sum()),
        "frames_apart_unseen": int(unseen.sum()),
        "leak_mean_percent": round(100 * float(leak.mean()), 2),
        "leak_worst_percent": round(100 * float(leak.max()), 2),
        "leak_worst_apart_percent": round(100 * float(leak[far].max()), 2),
        "lost_worst_apart_percent": round(100 * float(lost[far].max()), 2),
        "lost_mean_crossing_percent": round(100 * float(lost[~far].mean()), 2),
    }
    return row, kept


def measured_splice(clip: Clip) -> dict[str, Any]:
    """Make the row of spliced shots: in how many of them people are named correctly."""
    table, owners = looked_at(clip)
    with Segmenter() as segmenter:
        mattes = np.stack([step.alpha for step in segmenter.stream(clip.path)])
    names, given = names_of(clip, owners, mattes=mattes)
    right = seen = missed = 0
    for shot in range(_SHOTS):
        part = given[shot * _SHOT_FRAMES : (shot + 1) * _SHOT_FRAMES]
        for name, own in zip(names, part.T, strict=True):
            if own.any():
                seen += 1
                right += int(np.bincount(own[own > 0]).argmax()) == name and names.count(name) == 1
        there = (clip.alphas[shot * _SHOT_FRAMES : (shot + 1) * _SHOT_FRAMES] > 127).sum(axis=(2, 3)) > 50
        missed += int((there.any(axis=0) & ~part.any(axis=0)).sum())
    return {
        "claim": "people known again",
        "clip": clip.name,
        "shots": _SHOTS,
        "shots_found": len(table.facts.shots),
        "presences": seen,
        "presences_without_matte": missed,
        "right": right,
        "right_percent": round(100 * right / seen, 1),
        "people_found": len(table.people),
    }


def measured_speed(clip: Clip, folder: Path) -> dict[str, Any]:
    """Measure frames per second of a scan at 960x540 with its network, after an uncounted first scan."""
    large = np.stack([cv2.resize(rgb, (960, 540)) for rgb in clip.rgb])
    large = np.concatenate([large, large[::-1]] * 2)
    alphas = np.concatenate([clip.alphas[:, 0], clip.alphas[::-1, 0]] * 2)
    path = write_film(Film("people", "speed", large, alphas), folder / "speed.mp4")
    for _ in range(2):
        began, cpu = time.perf_counter(), time.process_time()
        find_people(path, load_settings(), store=ModelStore(vitascope_home()))
        seconds, busy = time.perf_counter() - began, time.process_time() - cpu
    gpu = select_device("auto").label
    cores = available_cores()
    return {
        "claim": "speed of people",
        "clip": f"{gpu}, {cores} cores",
        "frames": len(large),
        "size": "960x540",
        "fps": round(len(large) / seconds, 1),
        "cpu_ms_per_frame": round(1000 * busy / len(large), 1),
    }


def sheet_of(clip: Clip, kept: Bytes, frames: Sequence[int]) -> Bytes:
    """Draw frames of a video, and below each the people who are kept."""
    columns = []
    for n in frames:
        alpha = kept[n][..., None] / 255
        cut = clip.rgb[n] * alpha + np.array([120, 255, 155]) * (1 - alpha)
        columns.append(np.vstack([clip.rgb[n], cut.astype(np.uint8)]))
    rows = [np.hstack(columns[first : first + 4]) for first in range(0, len(columns), 4)]
    return np.vstack(rows)


def main() -> None:
    """Make the clips, scan them, write rows and pictures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("clips", type=Path, nargs="*", help="one person each, before a plain background")
    parser.add_argument("--only", default="crossing,touching,spliced,speed")
    parser.add_argument("--seeds", help="only clips of these seeds, with commas between")
    parser.add_argument("--sheet", type=Path, help="PNG of frames of the crossings")
    parser.add_argument("--picture", type=Path, help="the documentation's picture, of the photograph alone")
    parser.add_argument("--rows", type=Path, default=HERE / "results" / "people.json")
    given = parser.parse_args()
    cast, parts, sheets = figures(given.clips), given.only.split(","), []
    seeds = None if given.seeds is None else {int(seed) for seed in given.seeds.split(",")}
    rows = json.loads(given.rows.read_text()) if given.rows.exists() else []

    def note(row: dict[str, Any]) -> None:
        print(row, flush=True)
        same = [one for one in rows if (one["claim"], one.get("clip")) == (row["claim"], row.get("clip"))]
        place = rows.index(same[0]) if same else len(rows)
        rows[place : place + 1] = [row | stamp]
        write_rows(given.rows, rows)

    stamp = {"people": list(cast), "commit": commit(), "date": time.strftime("%Y-%m-%d")}
    with TemporaryDirectory(prefix="vitascope-") as name:
        folder = Path(name)
        for pair in CROSSINGS if "crossing" in parts else ():
            if cast.keys() >= set(pair.names) and (seeds is None or pair.seed in seeds):
                clip = crossing(cast, pair, folder)
                row, kept = measured_crossing(clip)
                note(row | {"seed": pair.seed, "is_tuned_on": pair.is_tuned_on})
                sheets.append(sheet_of(clip, kept, np.linspace(0, len(kept) - 1, 12).astype(int).tolist()))
        for pair in TOUCHINGS if "touching" in parts else ():
            if cast.keys() >= set(pair.names) and (seeds is None or pair.seed in seeds):
                clip = touching(cast, pair, folder)
                row, kept = measured_crossing(clip)
                row |= {
                    "claim": "people who touch at first",
                    "seed": pair.seed,
                    "is_tuned_on": pair.is_tuned_on,
                }
                note(row)
                sheets.append(sheet_of(clip, kept, np.linspace(0, len(kept) - 1, 8).astype(int).tolist()))
        for names, seed, is_tuned_on in SPLICES if "spliced" in parts else ():
            if cast.keys() >= set(names) and (seeds is None or seed in seeds):
                row = measured_splice(spliced(cast, names, folder, seed=seed))
                note(row | {"seed": seed, "is_tuned_on": is_tuned_on})
        if "speed" in parts:
            clip = crossing(cast, CROSSINGS[1], folder, frames=400)
            note(measured_speed(clip, folder))
        if given.picture is not None:
            clip = crossing(cast, CROSSINGS[1], folder, frames=125)
            table, _ = looked_at(clip)
            write_sheet(table, folder / "sheet.png")
            with Segmenter(settings={"people.keep": [1]}) as segmenter:
                kept = np.stack([step.alpha for step in segmenter.stream(clip.path)])
            picture = sheet_of(clip, kept, _SHOWN)
            cv2.imwrite(str(given.picture), cv2.resize(picture, None, fx=0.6, fy=0.6)[..., ::-1])
    if given.sheet is not None and sheets:
        cv2.imwrite(str(given.sheet), np.vstack(sheets)[..., ::-1])


if __name__ == "__main__":
    main()
