"""Measure whether people never seen together are distinguished and recognised, in videos of photographs.

``faces``: distances of faces, of one person and of two, in pictures of several sizes. ``films``: three
    people, each alone in four shots of a second, from photographs that drift, in other places, sizes and
    light, some mirrored; from the same photograph each time, or from another. A pair of shots of one person
    with two numbers is split, one of two
people with one number is merged.

Usage: python benchmarks/known_again.py FOLDER [--only faces,films] [--seeds 1,2] [--colors] [--rows R.json]

FOLDER holds a folder of photographs for each person. ``--colors`` ignores faces, as if their network was
unavailable. Rows go to ``benchmarks/results/known_again.json``, in place of those of the same claim and clip.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Any

import av
import cv2
import numpy as np
import numpy.typing as npt

from row_stamp import commit, write_rows
from vitascope.config import load_settings, vitascope_home
from vitascope.models.face_descriptor import FaceDescriptor, upright_face
from vitascope.models.finders import CenterFace, Face
from vitascope.models.store.store import ModelStore
from vitascope.segmentation.people import faces as face_networks
from vitascope.segmentation.people.scan import find_people
from vitascope.segmentation.people.table import PeopleTable

HERE = Path(__file__).parent
_SIZE = 640, 360
_PEOPLE, _TURNS, _SHOT_FRAMES, _RATE = 3, 4, 24, 25
_SEEDS = range(1000, 1008)
_HEIGHTS = (96, 72, 56, 44, 36, 28)
_LARGEST = 720

Rgb8 = npt.NDArray[np.uint8]
Photographs = dict[str, list[Path]]


def read(path: Path) -> Rgb8:
    """A photograph, at most 720 pixels along its longest side: uint8 [H, W, 3]."""
    picture = cv2.imread(str(path), cv2.IMREAD_COLOR_RGB)
    if picture is None:
        raise SystemExit(f"{path}: no picture")
    scale = min(_LARGEST / max(picture.shape), 1.0)
    return np.asarray(cv2.resize(picture, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA), np.uint8)


def largest(faces: Sequence[Face]) -> Face | None:
    """Find the face that counts in a photograph."""
    return max(faces, key=lambda face: face.height * face.score, default=None)


def measured_faces(photographs: Photographs) -> Iterator[dict[str, Any]]:
    """A row for each height of a face: distances of pairs of photographs."""
    store = ModelStore(vitascope_home())
    with (
        CenterFace(store.pull("centerface"), threads=1) as finder,
        FaceDescriptor(store.pull("face-recognition"), threads=1) as descriptor,
    ):
        seen: dict[int, list[tuple[str, npt.NDArray[np.float32]]]] = {height: [] for height in _HEIGHTS}
        for who, paths in photographs.items():
            for picture in map(read, paths):
                face = largest(finder.find(picture))
                for height in _HEIGHTS if face is not None else ():
                    scale = min(height / face.height, 1.0)
                    small = np.asarray(
                        cv2.resize(picture, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA), np.uint8
                    )
                    again = largest(finder.find(small))
                    if again is not None:
                        upright, _ = upright_face(small, again.points)
                        seen[height].append((who, descriptor.describe([upright])[0]))
    for height, faces in seen.items():
        distances: dict[bool, list[float]] = {True: [], False: []}
        for (who, one), (whom, other) in combinations(faces, 2):
            distances[who == whom].append(float(np.linalg.norm(one - other)))
        own, others = (np.array(distances[same]) for same in (True, False))
        yield {
            "claim": "distance of faces",
            "clip": f"{height} pixels high",
            "people": len({who for who, _ in faces}),
            "faces": len(faces),
            "pairs_of_one": len(own),
            "pairs_of_two": len(others),
            "of_one_50_95_99": np.percentile(own, [50, 95, 99]).round(3).tolist(),
            "of_two_1_5_50": np.percentile(others, [1, 5, 50]).round(3).tolist(),
            "of_one_beyond_0.6_percent": round(100 * float((own > 0.6).mean()), 2),
            "of_two_within_0.6_percent": round(100 * float((others < 0.6).mean()), 2),
        }


def shot(picture: Rgb8, random: np.random.Generator) -> Iterator[Rgb8]:
    """Yield frames of a photograph that drifts before a blurred copy of itself."""
    width, height = _SIZE
    rows, columns = picture.shape[:2]
    scales = height / rows * random.uniform(0.62, 1.15) * np.array([1, random.uniform(0.97, 1.08)])
    places = width * (random.uniform(0.3, 0.7) + np.array([0, random.uniform(-0.04, 0.04)]))
    gain, gamma = random.uniform(0.75, 1.2) * (1 + random.normal(0, 0.03, 3)), random.uniform(0.85, 1.2)
    back = cv2.GaussianBlur(cv2.resize(picture, _SIZE), (0, 0), 25)
    if random.random() < 0.5:
        picture = np.ascontiguousarray(picture[:, ::-1])
    for time_share in np.linspace(0, 1, _SHOT_FRAMES):
        scale, place = (ends[0] + (ends[1] - ends[0]) * time_share for ends in (scales, places))
        spare = height - scale * rows
        move = np.array(
            [[scale, 0, place - scale * columns / 2], [0, scale, spare * (1 if spare > 0 else 0.35)]]
        )
        front = cv2.warpAffine(picture, move, _SIZE, borderMode=cv2.BORDER_REPLICATE)
        cover = cv2.warpAffine(np.full((rows, columns), 255, np.uint8), move, _SIZE)
        share = cv2.GaussianBlur(cover, (0, 0), 2)[..., None] / 255
        light = 255 * ((front * share + back * (1 - share)) / 255) ** gamma * gain
        yield np.clip(light + random.normal(0, 2, light.shape), 0, 255).astype(np.uint8)


def write_shots(path: Path, pictures: Sequence[Path], random: np.random.Generator) -> None:
    """Write a shot of each photograph, one behind the other, as H.264."""
    with av.open(str(path), "w") as file:
        stream = file.add_stream("libx264", rate=_RATE, options={"crf": "23", "preset": "veryfast"})
        stream.width, stream.height, stream.pix_fmt = *_SIZE, "yuv420p"
        for picture in pictures:
            for frame in shot(read(picture), random):
                file.mux(stream.encode(av.VideoFrame.from_ndarray(frame, "rgb24")))
        file.mux(stream.encode())


def casting(photographs: Photographs, random: np.random.Generator, *, same: bool) -> list[tuple[str, Path]]:
    """Choose who is in each shot, nobody twice in a row, and on which photograph."""
    named = sorted(photographs)
    three = [named[at] for at in random.permutation(len(named))[:_PEOPLE]]
    usual = {who: photographs[who][random.integers(len(photographs[who]))] for who in three}
    shots: list[tuple[str, Path]] = []
    for _ in range(_TURNS):
        turn = [three[at] for at in random.permutation(_PEOPLE)]
        if shots and shots[-1][0] == turn[0]:
            turn.reverse()
        shots += [
            (who, usual[who] if same else photographs[who][random.integers(len(photographs[who]))])
            for who in turn
        ]
    return shots


def number_at(table: PeopleTable, shot_at: int) -> int:
    """Who covers most of a shot."""
    pts = table.pts_at((shot_at + 0.5) * _SHOT_FRAMES / _RATE)
    labels = table.labels_at(pts, since=table.pts_at(shot_at * _SHOT_FRAMES / _RATE))
    return 0 if labels is None else int(np.bincount(labels.ravel(), minlength=2)[1:].argmax()) + 1


def measured_films(
    photographs: Photographs, seeds: Sequence[int], *, same: bool, folder: Path
) -> dict[str, Any]:
    """Make the row of all videos of a kind."""
    split = merged = of_one = of_two = 0
    sure: dict[bool, list[float]] = {True: [], False: []}
    who_is_in: set[str] = set()
    for seed in seeds:
        random = np.random.default_rng(seed)
        shots = casting(photographs, random, same=same)
        who_is_in |= {who for who, _ in shots}
        path = folder / f"{seed}{same}.mp4"
        write_shots(path, [picture for _, picture in shots], random)
        table = find_people(path, load_settings(), store=ModelStore(vitascope_home()))
        numbers = [number_at(table, at) for at in range(len(shots))]
        for one, other in combinations(range(len(shots)), 2):
            if shots[one][0] == shots[other][0]:
                of_one += 1
                split += numbers[one] != numbers[other]
            else:
                of_two += 1
                merged += numbers[one] == numbers[other]
        for person in table.people:
            whose = {shots[at][0] for at, number in enumerate(numbers) if number == person.number}
            if whose:
                sure[len(whose) == 1].append(person.sure)
        print(seed, numbers, [who for who, _ in shots], flush=True)
    return {
        "claim": "people who are never seen together",
        "clip": f"{'the same photograph' if same else 'another photograph'} in each shot",
        "films": len(seeds),
        "people": len(who_is_in),
        "pairs_of_one": of_one,
        "split": split,
        "pairs_of_two": of_two,
        "merged": merged,
        "sure_of_numbers_of_one": round(fmean(sure[True]), 2) if sure[True] else None,
        "sure_of_numbers_of_several": round(fmean(sure[False]), 2) if sure[False] else None,
    }


def main() -> None:
    """Make the videos, scan them, write rows."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="faces,films")
    parser.add_argument("--seeds", default=",".join(map(str, _SEEDS)))
    parser.add_argument("--colors", action="store_true")
    parser.add_argument("--rows", type=Path, default=HERE / "results" / "known_again.json")
    given = parser.parse_args()
    photographs = {one.name: sorted(one.iterdir()) for one in sorted(given.folder.iterdir()) if one.is_dir()}
    seeds, parts = [int(seed) for seed in given.seeds.split(",")], given.only.split(",")
    stamp = {"commit": commit(), "date": time.strftime("%Y-%m-%d")}
    rows = json.loads(given.rows.read_text()) if given.rows.exists() else []

    def note(row: dict[str, Any]) -> None:
        print(row, flush=True)
        rows[:] = [one for one in rows if (one["claim"], one["clip"]) != (row["claim"], row["clip"])]
        rows.append(row | stamp)
        write_rows(given.rows, rows)

    if given.colors:
        face_networks._LEAST_HEIGHT = 10**6
    if "faces" in parts:
        for row in measured_faces(photographs):
            note(row)
    for same in (True, False) if "films" in parts else ():
        with TemporaryDirectory(prefix="vitascope-") as name:
            row = measured_films(photographs, seeds, same=same, folder=Path(name))
        note(row | ({"clip": f"{row['clip']}, by colours alone"} if given.colors else {}))


if __name__ == "__main__":
    main()
