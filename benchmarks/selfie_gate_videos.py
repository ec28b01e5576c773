"""Do empty rooms stay empty on film, and people stay in theirs? The selfie networks' gate played through; on the CPU.

- ``empty video``: photographs of places, of the part that the gate's fit and thresholds never saw, filmed with a slow
  pan, hand shake and sensor noise. Counted are frames in which more than 0.1 % of the picture is above .5.
- ``person in it``: the same, with a person of that part's masked photographs walking in and out again: part of what the
  ungated network finds of them that is kept, and how many frames after they come they are shown.

Usage: python benchmarks/selfie_gate_videos.py FOLDER

``FOLDER`` is ``fit_selfie_gate.py``'s. Rows go to ``benchmarks/results/selfie_gate_videos.json``.
"""

from __future__ import annotations

import argparse
import zlib
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from row_stamp import commit, write_rows
from selfie_gate import NETWORKS, Picture, crop_to
from selfie_gate_photos import Source, sources
from selfie_gate_samples import Network
from vitascope.models.network import FloatArray
from vitascope.models.selfie.selfie import SelfieNetwork, SelfieState

RESULTS = Path(__file__).parent / "results" / "selfie_gate_videos.json"
ASPECT: dict[Network, float] = {"general": 4 / 3, "landscape": 16 / 9}
FRAMES, STEP = 90, 5
"""Three seconds at 30 frames a second, computed five frames at a time."""
PLACES, WALKS = 60, 16
"""Numbers of filmed photographs of places, and of walks through them."""
CLAIMED = 0.001
"""Part of the frame that must be above .5 before it counts as claimed."""


def filmed(picture: Picture, size: tuple[int, int], rng: np.random.Generator) -> Iterator[FloatArray]:
    """A slow pan over a photograph, seven tenths of it seen at a time; float32 [h, w, 3] each, 0..1."""
    height, width = size
    picture = cv2.resize(
        crop_to(picture, width / height),
        (round(width / 0.7), round(height / 0.7)),
        interpolation=cv2.INTER_AREA,
    )
    free = np.array(picture.shape[1::-1]) - (width, height)
    start, stop = rng.uniform(0, 1, (2, 2)) * free
    for time in np.linspace(0, 1, FRAMES):
        left, top = np.clip(start + (stop - start) * time + rng.normal(0, 0.4, 2), 0, free)
        shift = np.array([[1, 0, -left], [0, 1, -top]])
        frame = cv2.warpAffine(picture, shift, (width, height), flags=cv2.INTER_LINEAR).astype(np.float32)
        noisy = frame * (1 + 0.03 * np.sin(9 * time)) / 255 + rng.normal(0, 0.012, frame.shape)
        yield np.clip(noisy, 0, 1).astype(np.float32)


def walked_through(
    frames: Iterator[FloatArray], person: Source, rng: np.random.Generator
) -> Iterator[tuple[FloatArray, FloatArray]]:
    """Somebody comes in at the left after a fifth of the time, and is out on the right before the last fifth."""
    assert person.mask is not None
    rows, columns = np.where(person.mask > 0.5)
    box = np.s_[rows.min() : rows.max() + 1, columns.min() : columns.max() + 1]
    part = rng.uniform(0.5, 0.9)
    for number, frame in enumerate(frames):
        height, width = frame.shape[:2]
        tall = round(height * part)
        wide = max(round(tall * person.mask[box].shape[1] / person.mask[box].shape[0]), 2)
        shown = cv2.resize(person.picture[box], (wide, tall), interpolation=cv2.INTER_AREA) / np.float32(255)
        alpha = cv2.resize(person.mask[box], (wide, tall), interpolation=cv2.INTER_AREA)
        left = round(-wide + (width + wide) * (number / FRAMES - 0.2) / 0.6)
        first, last = max(left, 0), min(left + wide, width)
        mask, frame = np.zeros((height, width), np.float32), frame.copy()
        if 0.2 <= number / FRAMES <= 0.8 and last > first:
            where, cut = np.s_[height - tall :, first:last], np.s_[:, first - left : last - left]
            mask[where] = alpha[cut]
            frame[where] += (shown[cut] - frame[where]) * alpha[cut][..., None]
        yield frame, mask


def mattes(frames: list[FloatArray], network: SelfieNetwork) -> tuple[FloatArray, int]:
    """[T, h, w], and second looks taken."""
    state, found = network.new_state(), []
    for first in range(0, len(frames), STEP):
        for estimate in network.infer(np.stack(frames[first : first + STEP])[:, None], state):
            assert estimate.alpha is not None
            found.append(estimate.alpha[0])
    return np.stack(found), state.gate.look_count if isinstance(state, SelfieState) else 0


def claims(found: FloatArray) -> Any:
    """Tell for each frame whether it claims a person: bool [T]."""
    return (found > 0.5).mean(axis=(1, 2)) > CLAIMED


def empty_video(
    places: list[Source], network: Network, gated: SelfieNetwork, raw: SelfieNetwork
) -> dict[str, Any]:
    """Count claimed frames in empty videos."""
    size = raw.input_for((100, round(100 * ASPECT[network]))).size
    before, after, looks = [], [], 0
    for place in places:
        frames = list(filmed(place.picture, size, np.random.default_rng(zlib.crc32(place.name.encode()))))
        before.append(claims(mattes(frames, raw)[0]))
        found, taken = mattes(frames, gated)
        after.append(claims(found))
        looks += taken
    return {
        "claim": "empty video",
        "network": network,
        "films": len(places),
        "frames": len(places) * FRAMES,
        "frames_claimed_ungated": round(float(np.mean(before)), 4),
        "frames_claimed_gated": round(float(np.mean(after)), 4),
        "films_claimed_ungated": round(float(np.any(before, axis=1).mean()), 4),
        "films_claimed_gated": round(float(np.any(after, axis=1).mean()), 4),
        "looks_a_film": round(looks / len(places), 2),
    }


def person_in_it(
    places: list[Source], people: list[Source], network: Network, gated: SelfieNetwork, raw: SelfieNetwork
) -> dict[str, Any]:
    """Measure how much of a person who walks through is kept, and how late they appear."""
    size = raw.input_for((100, round(100 * ASPECT[network]))).size
    kept, late = [], []
    for number, place in enumerate(places):
        rng = np.random.default_rng([zlib.crc32(place.name.encode()), 1])
        film = list(walked_through(filmed(place.picture, size, rng), people[number % len(people)], rng))
        frames, masks = [frame for frame, _ in film], np.stack([mask for _, mask in film])
        before, after = (mattes(frames, each)[0] * masks for each in (raw, gated))
        if before.sum() < 0.3 * masks.sum():
            continue
        kept.append(float(after.sum() / before.sum()))
        seen = [np.flatnonzero((found > 0.5).mean(axis=(1, 2)) > CLAIMED) for found in (before, after)]
        late.append(int(seen[1][0] - seen[0][0]) if len(seen[1]) else FRAMES)
    return {
        "claim": "person in it",
        "network": network,
        "films": len(kept),
        "matte_kept": round(float(np.mean(kept)), 4),
        "never_shown": sum(frames == FRAMES for frames in late),
        "frames_late_median": float(np.median(late)),
        "frames_late_p90": float(np.quantile(late, 0.9)),
    }


def main() -> None:
    """Make videos, play them, and save the rows."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument(
        "--part", choices=("test", "fit"), default="test", help="fit: for choosing, not for rows"
    )
    options = parser.parse_args()
    cv2.setNumThreads(1)
    photographs = [source for source in sources(options.folder) if source.tested == (options.part == "test")]
    chosen = np.random.default_rng(0)
    places = [source for source in photographs if source.kind == "empty scenes"]
    places = [places[n] for n in chosen.permutation(len(places))[:PLACES]]
    people = [source for source in photographs if source.kind == "people"]
    people = [people[n] for n in chosen.permutation(len(people))]
    gated, raw = SelfieNetwork(*NETWORKS), SelfieNetwork(*NETWORKS, gate=False)
    rows = []
    for network in ASPECT:
        rows.append(empty_video(places, network, gated, raw))
        rows.append(person_in_it(places[:WALKS], people, network, gated, raw))
        print(rows[-2], rows[-1], sep="\n", flush=True)
    stamp = {
        "command": "python benchmarks/selfie_gate_videos.py FOLDER",
        "commit": commit(),
        "date": date.today().isoformat(),
    }
    if options.part == "test":
        write_rows(RESULTS, [row | stamp for row in rows])


if __name__ == "__main__":
    main()
