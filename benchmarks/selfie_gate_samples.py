"""The pictures that the selfie networks' presence gate is fitted and tested on, made from ``selfie_gate_photos.py``.

Photographs are cropped, mirrored, darkened, blurred, made grey or noisy at random, for each network at the aspects that
it runs at. People are also pasted small into scenes, cut through (``partly seen``: at the sides, or headless), and cut
or covered by a table's edge below the shoulders (``seated``: a stand-in for people at tables, of whom the collections
hold too few). COCO's people, and what a collection's authors set apart for testing, stay as photographed: cropped to
the network's shape, once as they are and once dark.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import cv2
import numpy as np

from selfie_gate import STAGES, Picture, crop_to
from selfie_gate_photos import Source
from vitascope.models.network import FloatArray

Network = Literal["general", "landscape"]

ASPECTS: dict[Network, tuple[float, float]] = {"general": (0.55, 1.5), "landscape": (1.5, 2.0)}
"""Width / height of the regions that each network runs at."""
TIMES = {
    "ImageNet": {
        "empty scenes": (5, 0.4),
        "objects": (2, 0.6),
        "animals": (2, 0.6),
        "unmasked people": (1, 0.9),
    },
    "BSDS500": {"empty scenes": (3, 0.4), "animals": (2, 0.6), "unmasked people": (1, 0.9)},
    "COCO": {"empty scenes": (3, 0.4), "animals": (2, 0.6)},
    "scikit-image": {"empty scenes": (7, 0.4)},
}
"""How often a photograph of a kind is used, and the least part of it that a crop shows; once and 0.6 for the others."""


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """One picture made from a photograph."""

    source: Source
    kind: str
    network: Network
    dark: bool
    picture: FloatArray
    mask: FloatArray | None


Cut = tuple[Picture, FloatArray]


class Darkroom:
    """Makes the samples of one photograph for one network; what it draws depends on those two alone."""

    def __init__(self, source: Source, network: Network, scenes: list[Source]) -> None:
        self.source, self.network, self.scenes = source, network, scenes
        self.rng = np.random.default_rng([zlib.crc32(source.name.encode()), len(network)])

    def samples(self) -> Iterator[Sample]:
        """All of them."""
        if self.source.kind == "photographed" or (
            self.source.tested and self.source.collection in ("BSDS500", "COCO", "15 scenes")
        ):
            yield from self.as_photographed()
            return
        source, stages = self.source, [scene for scene in self.scenes if scene.name in STAGES]
        if source.mask is not None:
            whole = source.picture, source.mask
            cuts = [("whole", self.crop(*whole, zoom=(0.8, 1), tries=5)) for _ in range(2)]
            cuts += [("small", self.pasted(*whole, scenes)) for scenes in (stages, self.scenes)]
            cuts += [
                ("partly seen", self.cut(*self.crop(*whole, zoom=(0.85, 1), tries=4), "lrt")) for _ in "12"
            ]
            cuts += [("partly seen", self.crop(*whole, zoom=(0.4, 0.7), tries=2))]
            cuts += [
                ("partly seen", self.cut(*self.pasted(*whole, scenes), "lr"))
                for scenes in (stages, self.scenes)
            ]
            cuts += [("seated", self.seated(*self.crop(*whole, zoom=(0.85, 1), tries=4)))]
            cuts += [("seated", self.seated(*self.pasted(*whole, self.scenes, height=(0.4, 0.9))))]
            for kind, (picture, mask) in cuts:
                if mask.mean() > 0.005 and min(mask.shape) > 24:
                    yield self.photographed(kind, picture, mask)
            return
        times, zoom = TIMES.get(source.collection, {}).get(source.kind, (1, 0.6))
        for _ in range(times):
            nothing = np.zeros(source.picture.shape[:2], np.float32)
            yield self.photographed(
                source.kind, self.crop(source.picture, nothing, zoom=(zoom, 1.0))[0], None
            )

    def as_photographed(self) -> Iterator[Sample]:
        """The middle at the network's shape, as it is and dark."""
        source, (height, width) = self.source, self.source.picture.shape[:2]
        aspect = 16 / 9 if self.network == "landscape" else min(width / height, ASPECTS["general"][1])
        picture = crop_to(source.picture, aspect).astype(np.float32) / 255
        mask = None if source.mask is None else crop_to(source.mask, aspect)
        for shade in (1.0, 0.2):
            yield Sample(source, source.kind, self.network, shade < 1, picture * np.float32(shade), mask)

    def crop(self, picture: Picture, mask: FloatArray, *, zoom: tuple[float, float], tries: int = 1) -> Cut:
        """A random crop at the network's aspects; of some tries, the one that shows most of the person."""
        height, width = mask.shape
        aspect, best = self.rng.uniform(*ASPECTS[self.network]), None
        for _ in range(tries):
            scale = self.rng.uniform(*zoom)
            tall = max(int(min(height, width / aspect) * scale), 8)
            wide = max(int(min(width, height * aspect) * scale), 8)
            top, left = self.rng.integers(0, height - tall + 1), self.rng.integers(0, width - wide + 1)
            part = np.s_[top : top + tall, left : left + wide]
            if best is None or mask[part].sum() > mask[best].sum():
                best = part
        return picture[best], mask[best]

    def pasted(
        self,
        picture: Picture,
        mask: FloatArray,
        scenes: list[Source],
        *,
        height: tuple[float, float] = (0.2, 0.7),
    ) -> Cut:
        """The person in another scene, ``height`` of it tall; standing on its lower edge if cut off there."""
        rows, columns = np.where(mask > 0.5)
        box = np.s_[rows.min() : rows.max() + 1, columns.min() : columns.max() + 1]
        scene = scenes[self.rng.integers(len(scenes))].picture
        scene, _ = self.crop(scene, np.zeros(scene.shape[:2], np.float32), zoom=(0.7, 1))
        tall = 360
        wide = round(tall * scene.shape[1] / scene.shape[0])
        scene = cv2.resize(scene, (wide, tall), interpolation=cv2.INTER_AREA).astype(np.float32)
        scale = min(tall * self.rng.uniform(*height) / mask[box].shape[0], 0.9 * wide / mask[box].shape[1])
        size = max(int(mask[box].shape[1] * scale), 2), max(int(mask[box].shape[0] * scale), 2)
        person = cv2.resize(picture[box], size, interpolation=cv2.INTER_AREA).astype(np.float32)
        alpha = cv2.resize(mask[box], size, interpolation=cv2.INTER_AREA)
        person = np.clip(person * np.clip(scene.mean() / max(float(person.mean()), 1), 0.5, 1.5), 0, 255)
        free = tall - size[1]
        top = free if rows.max() >= mask.shape[0] - 3 else self.rng.integers(free // 2, free + 1)
        left = self.rng.integers(0, wide - size[0] + 1)
        where = np.s_[top : top + size[1], left : left + size[0]]
        placed = np.zeros((tall, wide), np.float32)
        placed[where] = alpha
        scene[where] += (person - scene[where]) * alpha[..., None]
        return scene.astype(np.uint8), placed

    def cut(self, picture: Picture, mask: FloatArray, sides: str) -> Cut:
        """The frame ends within the person, who keeps 35 to 65 % on the right, on the left, or below the head."""
        side, part = self.rng.choice(list(sides)), self.rng.uniform(0.35, 0.65)
        cumulated = np.cumsum(mask.sum(axis=1 if side == "t" else 0))
        edge = int(np.searchsorted(cumulated, cumulated[-1] * part))
        where = {"r": np.s_[:, : edge + 1], "l": np.s_[:, edge:], "t": np.s_[edge:]}[str(side)]
        return picture[where], mask[where]

    def seated(self, picture: Picture, mask: FloatArray) -> Cut:
        """Below the shoulders the frame ends, or a table begins: a strip of a scene across the picture."""
        rows = np.where(mask.max(axis=1) > 0.5)[0]
        if not len(rows):
            return picture, mask
        edge = int(rows[0] + (rows[-1] + 1 - rows[0]) * self.rng.uniform(0.4, 0.65)) + 1
        if self.rng.random() < 0.5 or edge >= len(mask) - 2:
            return picture[:edge], mask[:edge]
        scene = self.scenes[self.rng.integers(len(self.scenes))].picture
        picture, mask = picture.copy(), mask.copy()
        picture[edge:] = cv2.resize(scene[len(scene) // 2 :], (mask.shape[1], len(mask) - edge))
        mask[edge:] = 0
        return picture, mask

    def photographed(self, kind: str, picture: Picture, mask: FloatArray | None) -> Sample:
        """Mirrored, and as another camera would have taken it."""
        rng = self.rng
        if rng.random() < 0.5:
            picture, mask = picture[:, ::-1], None if mask is None else mask[:, ::-1]
        image = picture.astype(np.float32) / 255
        fault = rng.choice(
            ["none", "dark", "cast", "noise", "blur", "grey"], p=[0.3, 0.25, 0.1, 0.1, 0.1, 0.15]
        )
        match fault:
            case "dark":
                image = image * rng.uniform(0.08, 0.4)
            case "cast":
                image = image * rng.uniform(0.7, 1.3, 3) + rng.uniform(-0.1, 0.1)
            case "noise":
                image = image + rng.normal(0, rng.uniform(0.02, 0.08), image.shape)
            case "blur":
                image = cv2.GaussianBlur(image, (0, 0), rng.uniform(0.5, 2) * image.shape[1] / 256)
            case "grey":
                image = np.repeat(image.mean(axis=2, keepdims=True), 3, axis=2)
        image = np.clip(image, 0, 1).astype(np.float32)
        return Sample(self.source, kind, self.network, fault == "dark", image, mask)
