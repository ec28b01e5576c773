"""What the presence gate of the selfie networks keeps out, what it keeps, and what it costs; on the CPU.

Claims measured here, gated against ungated on the same pictures, each picture a stream of its own:

- ``empty``: pictures without people in which more than 0.5 % of the frame is claimed.
- ``whole``, ``small``, ``dark``, ``partly seen``, ``seated``: recall = matted part of the people's pixels, mean over
  pictures.
- ``video``: a clip played through: part of the ungated matte that is kept, second looks, milliseconds a frame.

The pictures are scikit-image's: scenes, textures and drawings without people, cropped, flattened to 16:9 and
darkened; and its astronaut, cut out and placed in the plainer of those scenes. Folders of your own make it a
stronger test.

Usage: python benchmarks/selfie_gate.py [CLIP.mp4 ...] [--empty FOLDER] [--people FOLDER]

``--empty`` holds pictures without people. ``--people`` holds ``pictures/NAME.*`` and ``masks/NAME.*`` (white is a
person). Rows go to ``benchmarks/results/selfie_gate.json``.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import date
from pathlib import Path
from typing import Any

import av
import cv2
import numpy as np
import numpy.typing as npt
import onnxruntime as ort
from skimage import data

import vitascope.models
from row_stamp import commit, write_rows
from vitascope.models.network import FloatArray
from vitascope.models.selfie.selfie import SelfieNetwork, SelfieState

Picture = npt.NDArray[np.uint8]

RESULTS = Path(__file__).parent / "results" / "selfie_gate.json"
DATA = Path(vitascope.models.__file__).parent / "data"
NETWORKS = DATA / "selfie_segmentation.onnx", DATA / "selfie_segmentation_landscape.onnx"

SCENES = (
    "brick",
    "coffee",
    "coins",
    "grass",
    "gravel",
    "hubble_deep_field",
    "moon",
    "page",
    "retina",
    "rocket",
)
DRAWINGS = ("cell", "chelsea", "clock", "immunohistochemistry", "logo", "microaneurysms", "text")
STAGES = ("brick", "grass", "gravel", "moon", "page", "rocket")
"""Scenes in which the ungated networks claim next to nothing, so that what is found there is the person."""
CLAIMED = 0.005
"""Part of the frame that must be claimed before an empty picture counts as invented in."""


def main() -> None:
    """Measure, print and keep the rows."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("clips", nargs="*", type=Path)
    parser.add_argument("--empty", type=Path)
    parser.add_argument("--people", type=Path)
    options = parser.parse_args()
    gated = SelfieNetwork(*NETWORKS)
    ungated = SelfieNetwork(*NETWORKS, gate=False)
    rows = [measure_empty(empty_pictures(), gated, ungated, source="scikit-image and synthetic")]
    if options.empty:
        found = (read(path) for path in sorted(options.empty.iterdir()))
        rows.append(measure_empty(shapes(found), gated, ungated, source="pictures of your own"))
    for kind, change in KINDS.items():
        source = "scikit-image's astronaut in its scenes"
        rows.append(measure_people(kind, astronauts(change, ungated), gated, ungated, source=source))
        if options.people:
            source = "pictures of your own"
            rows.append(
                measure_people(kind, own_people(options.people, change), gated, ungated, source=source)
            )
    rows += [measure_clip(clip, gated, ungated) for clip in options.clips]
    stamp = {
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "machine": platform.machine(),
        "onnxruntime": ort.__version__,
        "commit": commit(),
        "date": date.today().isoformat(),
    }
    stamped = [row | stamp for row in rows]
    RESULTS.parent.mkdir(exist_ok=True)
    write_rows(RESULTS, stamped)
    print(json.dumps(stamped, indent=1))


# --- measuring ---------------------------------------------------------------------------------------------------


def matte(picture: Picture, network: SelfieNetwork) -> FloatArray:
    """Alpha of one picture as a stream of its own."""
    (estimate,) = network.infer(prepared([picture], network), network.new_state())
    assert estimate.alpha is not None
    return estimate.alpha[0]


def prepared(pictures: list[Picture], network: SelfieNetwork) -> FloatArray:
    """[T, 1, h, w, 3]."""
    height, width = network.input_for(pictures[0].shape[:2]).size
    scaled = [cv2.resize(picture, (width, height), interpolation=cv2.INTER_AREA) for picture in pictures]
    return np.stack(scaled)[:, None].astype(np.float32) / 255


def measure_empty(
    pictures: Iterable[Picture], gated: SelfieNetwork, ungated: SelfieNetwork, *, source: str
) -> dict[str, Any]:
    """How many empty pictures have somebody invented into them."""
    count = before = after = 0
    for picture in pictures:
        count += 1
        before += bool((matte(picture, ungated) > 0.5).mean() > CLAIMED)
        after += bool((matte(picture, gated) > 0.5).mean() > CLAIMED)
    return {
        "claim": "empty",
        "source": source,
        "pictures": count,
        "invented_ungated": round(before / count, 4),
        "invented_gated": round(after / count, 4),
    }


def measure_people(
    kind: str,
    pictures: Iterable[tuple[Picture, FloatArray]],
    gated: SelfieNetwork,
    ungated: SelfieNetwork,
    *,
    source: str,
) -> dict[str, Any]:
    """Recall of people, gated and not."""
    recalls = []
    for picture, mask in pictures:
        height, width = ungated.input_for(picture.shape[:2]).size
        truth = cv2.resize(mask, (width, height), interpolation=cv2.INTER_AREA)
        if truth.mean() < 0.002:
            continue
        found = [float((matte(picture, network) * truth).sum() / truth.sum()) for network in (ungated, gated)]
        recalls.append(found)
    before, after = np.mean(recalls, axis=0)
    return {
        "claim": kind,
        "source": source,
        "pictures": len(recalls),
        "recall_ungated": round(float(before), 4),
        "recall_gated": round(float(after), 4),
        "kept": round(float(after / before), 4),
    }


def measure_clip(path: Path, gated: SelfieNetwork, ungated: SelfieNetwork) -> dict[str, Any]:
    """A clip played through in steps of four frames."""
    with av.open(str(path)) as container:
        frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    clip = prepared(frames, gated)
    seconds, mass, looks, opinions = {}, {}, 0, 0
    for name, network in (("warm-up", ungated), ("ungated", ungated), ("gated", gated)):
        state = network.new_state()
        start = time.perf_counter()
        estimates = [e for n in range(0, len(clip), 4) for e in network.infer(clip[n : n + 4], state)]
        seconds[name] = time.perf_counter() - start
        mass[name] = sum(float(e.alpha.sum()) for e in estimates if e.alpha is not None)
        if isinstance(state, SelfieState):
            looks, opinions = state.gate.look_count, state.gate.opinion_count
    return {
        "claim": "video",
        "source": path.name,
        "pictures": len(frames),
        "kept": round(mass["gated"] / mass["ungated"], 4),
        "looks": looks,
        "opinions": opinions,
        "ungated_ms": round(seconds["ungated"] / len(frames) * 1e3, 2),
        "gated_ms": round(seconds["gated"] / len(frames) * 1e3, 2),
    }


# --- pictures ----------------------------------------------------------------------------------------------------


def read(path: Path) -> Picture:
    """RGB of an image file."""
    picture = cv2.imread(str(path))
    if picture is None:
        raise SystemExit(f"{path}: not an image")
    return np.ascontiguousarray(picture[..., ::-1])


def colour(picture: npt.NDArray[Any]) -> Picture:
    """RGB of a grey, RGB or RGBA picture."""
    levels = picture.astype(np.uint8)
    return levels[..., :3] if levels.ndim == 3 else np.repeat(levels[..., None], 3, axis=2)


def crop_to(picture: Picture, aspect: float) -> Picture:
    """The middle of a picture at width / height = aspect."""
    height, width = picture.shape[:2]
    wide, tall = min(width, round(height * aspect)), min(height, round(width / aspect))
    top, left = (height - tall) // 2, (width - wide) // 2
    return picture[top : top + tall, left : left + wide]


def shapes(pictures: Iterable[Picture]) -> Iterator[Picture]:
    """Each picture as it is, at 16:9, square, halves, and dark."""
    for picture in pictures:
        height, width = picture.shape[:2]
        yield picture
        yield crop_to(picture, 16 / 9)
        yield crop_to(picture, 1)
        yield picture[: max(height * 2 // 3, 1), : max(width * 2 // 3, 1)]
        yield picture[height // 3 :, width // 3 :]
        yield (crop_to(picture, 16 / 9) * 0.25).astype(np.uint8)


def empty_pictures() -> Iterator[Picture]:
    """Scikit-image's scenes and drawings, and synthetic frames."""
    yield from shapes(colour(getattr(data, name)()) for name in (*SCENES, *DRAWINGS))
    y, x = np.mgrid[0:180, 0:320]
    noise = np.random.default_rng(0).integers(0, 256, (180, 320, 3), np.uint8)
    for level in (0, 16, 128, 255):
        yield np.full((180, 320, 3), level, np.uint8)
    yield np.stack([x * 255 // 319, y * 255 // 179, x * 0 + 96], axis=2).astype(np.uint8)
    yield colour(x // 40 % 2 * 255)
    yield noise
    yield cv2.GaussianBlur(noise, (0, 0), 9)
    for radius in (20, 50, 80):
        inside = (x - 160) ** 2 + (y - 90) ** 2 < radius**2
        yield np.where(inside[..., None], (230, 180, 150), (40, 60, 90)).astype(np.uint8)


Change = Callable[[Picture, FloatArray], tuple[Picture, FloatArray]]


def cut_off(picture: Picture, mask: FloatArray) -> tuple[Picture, FloatArray]:
    """The frame ends in the middle of the people."""
    columns = np.cumsum(mask.sum(axis=0))
    edge = int(np.searchsorted(columns, columns[-1] / 2)) + 1
    return picture[:, :edge], mask[:, :edge]


def seated(picture: Picture, mask: FloatArray) -> tuple[Picture, FloatArray]:
    """The frame ends half way down the people, below the shoulders: a stand-in for sitting at a table."""
    rows = np.where(mask.max(axis=1) > 0.5)[0]
    edge = int(rows.mean()) + 1 if len(rows) else len(mask)
    return picture[:edge], mask[:edge]


KINDS: dict[str, Change] = {
    "whole": lambda picture, mask: (picture, mask),
    "small": lambda picture, mask: (picture, mask),
    "dark": lambda picture, mask: ((picture * 0.2).astype(np.uint8), mask),
    "partly seen": cut_off,
    "seated": seated,
}


def astronauts(change: Change, ungated: SelfieNetwork) -> Iterator[tuple[Picture, FloatArray]]:
    """Scikit-image's astronaut, cut out with the ungated network, standing in its scenes."""
    portrait = data.astronaut()[:400, 60:360]
    cutout = cv2.resize(matte(data.astronaut(), ungated), (512, 512))[:400, 60:360]
    height = 0.3 if change is KINDS["small"] else 0.7
    for name in STAGES:
        for size in ((640, 360), (480, 480), (270, 480)):
            scene = cv2.resize(colour(getattr(data, name)()), size)
            for x in (0.2, 0.5, 0.8):
                yield change(*placed(portrait, cutout, scene, height=height, x=x))


def placed(
    person: Picture, cutout: FloatArray, scene: Picture, *, height: float, x: float
) -> tuple[Picture, FloatArray]:
    """A person at the bottom of a scene, ``height`` of it tall."""
    scale = min(scene.shape[0] * height / person.shape[0], scene.shape[1] / person.shape[1])
    size = max(round(person.shape[1] * scale), 1), max(round(person.shape[0] * scale), 1)
    left = round((scene.shape[1] - size[0]) * x)
    where = np.s_[-size[1] :, left : left + size[0]]
    mask, canvas = np.zeros(scene.shape[:2], np.float32), np.zeros_like(scene)
    mask[where] = cv2.resize(cutout, size, interpolation=cv2.INTER_AREA)
    canvas[where] = cv2.resize(person, size, interpolation=cv2.INTER_AREA)
    return (scene * (1 - mask[..., None]) + canvas * mask[..., None]).astype(np.uint8), mask


def own_people(folder: Path, change: Change) -> Iterator[tuple[Picture, FloatArray]]:
    """Photographs of people; for ``small`` those where they cover less than a tenth."""
    masks = {path.stem: path for path in (folder / "masks").iterdir()}
    for path in sorted((folder / "pictures").iterdir()):
        picture = read(path)
        mask = read(masks[path.stem])[..., 0].astype(np.float32) / 255
        mask = cv2.resize(mask, picture.shape[1::-1], interpolation=cv2.INTER_AREA)
        if change is not KINDS["small"] or mask.mean() < 0.1:
            yield change(picture, mask)


if __name__ == "__main__":
    main()
