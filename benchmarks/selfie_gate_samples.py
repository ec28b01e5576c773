"""The pictures that the selfie networks' presence gate is fitted on, made from photographs of two public folders.

Each photograph is cropped, mirrored, darkened, blurred and made noisy at random, once for each network at the aspects
that it runs at. People are also pasted small into scenes, cut through (``partly seen``: at the sides, or headless), and
cut or covered by a table's edge below the shoulders (``seated``: a stand-in for people at tables, of whom the folders
hold too few). ``fit_selfie_gate.py`` says where the folders come from.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import cv2
import numpy as np
from skimage import data

from selfie_gate import DRAWINGS, SCENES, STAGES, Picture, colour, read
from vitascope.models.network import FloatArray

Network = Literal["general", "landscape"]

ASPECTS: dict[Network, tuple[float, float]] = {"general": (0.55, 1.5), "landscape": (1.5, 2.0)}
"""Width / height of the regions that each network runs at."""
PICTURES = {
    "people": """400 411 416 422 430 432-433 439 444-445 450 456-457 459 467 470 472 477 490 499 501 515-516 522 537
        543 552 556 558 560 562 566 568-569 571 578 582 585 587 601-603 611-612 614-615 617 620 633 639 641-642 644-645
        652 667 691 693 697 699-700 713 715 732 735 739 746 754 775-776 791-793 795 797 801-802 806 819 830 834 839
        841-842 853-854 862 870-873 875-876 880 882 885 887 890-891 903 906 936 961 977 982-983""",
    "scenes": """404 406 410 425 431 435 437 442 449 453-454 460 466 468-469 471 483-484 492-495 497-498 500 510 517
        519-520 525-526 528 532 536 538 540 547-548 554-555 557 559 561 564-565 579-581 583 598 609 616 621 624 627-628
        637 640 646 648-649 651 654 656 660-661 663-665 668 672 675 682 687 698 705-708 717-718 720 724 729-730 733-734
        736 738 751 753 755-757 760 765-766 772 779-780 782 788-789 799 803 807 812 820-821 825 827 829 831-833 843 847
        851 857-858 860-861 864-865 867 874 881 883-884 886 888 892 894-897 900 904-905 908 912 914-915 919-920 943 954
        958 970 972 974-976 978-980 984 999""",
    "unclear": """402 420 452 455 461-462 465 502 509 518 523-524 527 573 575-576 596-597 599 607-608 610 625 634-635
        638 643 655 666 669-671 673 677 690 702-703 712 716 743 762 770 774 796 837 840 844-845 856 863 866 869 879 889
        913 916 918 981 997-998""",
    "animals held by people": """4 163 171 183 199 203-204 217 220 229 240 243 255 257 259 266 333 389 391 394-395
        398-399""",
}
"""Of the others, 0-399 are animals alone, 400-999 objects."""


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """A photograph, at most 512 pixels long."""

    name: str
    kind: str
    picture: Picture
    mask: FloatArray | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """One picture made from a photograph."""

    source: str
    kind: str
    network: Network
    dark: bool
    picture: FloatArray
    mask: FloatArray | None


# --- photographs -------------------------------------------------------------------------------------------------


def numbers(text: str) -> set[int]:
    """``"1 4-6"`` -> {1, 4, 5, 6}."""
    spans = [[int(n) for n in part.split("-")] for part in text.split()]
    return {n for span in spans for n in range(span[0], span[-1] + 1)}


def shrunk(picture: Picture) -> Picture:
    """At most 512 pixels on the longest side."""
    scale = 512 / max(picture.shape[:2])
    if scale >= 1:
        return picture
    return np.asarray(cv2.resize(picture, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA), np.uint8)


def sources(people: Path, pictures: Path) -> list[Source]:
    """Every photograph that is fitted on."""
    found = []
    for path in sorted((people / "Training_Images").glob("[!.]*")):
        picture = shrunk(read(path))
        mask = read(people / "Ground_Truth" / f"{path.stem}.png")[..., 0]
        mask = cv2.resize(mask, picture.shape[1::-1]).astype(np.float32) / 255
        found.append(Source(f"person {path.stem}", "people", picture, mask))
    listed = {kind: numbers(text) for kind, text in PICTURES.items()}
    left_out = listed["unclear"] | listed["animals held by people"]
    for number, path in enumerate(sorted(pictures.glob("*.JPEG"))):
        if number not in left_out:
            kind = "animals" if number < 400 else "objects"
            kind = "unmasked people" if number in listed["people"] else kind
            kind = "empty scenes" if number in listed["scenes"] else kind
            found.append(Source(path.stem, kind, shrunk(read(path))))
    for name in (*SCENES, *DRAWINGS):
        kind = "animals" if name == "chelsea" else "empty scenes"
        found.append(Source(name, kind, shrunk(colour(getattr(data, name)()))))
    found += [Source(f"pattern {n}", "synthetic", pattern(np.random.default_rng(n))) for n in range(200)]
    return found


def pattern(rng: np.random.Generator) -> Picture:
    """A plain, graded, noisy, blotched, striped or spotted picture."""
    height, width = 180, 256
    y, x = np.mgrid[0 : 1 : height * 1j, 0 : 1 : width * 1j]
    first, second = rng.uniform(0, 1, (2, 3))
    picture = np.tile(first, (height, width, 1))
    match int(rng.integers(6)):
        case 1:
            ramp = x * rng.uniform(-1, 1) + y * rng.uniform(-1, 1)
            picture = first + (second - first) * ((ramp - ramp.min()) / np.ptp(ramp))[..., None]
        case 2:
            picture = rng.uniform(0, 1, picture.shape)
        case 3:
            coarse = rng.uniform(0, 1, (*rng.integers(2, 12, 2), 3))
            picture = cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC)
        case 4:
            stripes = rng.uniform(0, 1, (1, 8, 3))
            picture = cv2.resize(stripes, (width, height), interpolation=cv2.INTER_NEAREST)
        case 5:
            for _ in range(rng.integers(1, 6)):
                centre, axes = (int(rng.integers(width)), int(rng.integers(height))), rng.integers(5, 80, 2)
                cv2.ellipse(
                    picture, centre, axes.tolist(), 0, 0, 360, rng.uniform(0, 1, 3).tolist(), cv2.FILLED
                )
    return (np.clip(picture, 0, 1) * 255).astype(np.uint8)


# --- samples -----------------------------------------------------------------------------------------------------

Cut = tuple[Picture, FloatArray]


class Darkroom:
    """Makes the samples of one photograph for one network; what it draws depends on those two alone."""

    def __init__(self, source: Source, network: Network, scenes: list[Source]) -> None:
        self.source, self.network, self.scenes = source, network, scenes
        self.rng = np.random.default_rng([zlib.crc32(source.name.encode()), len(network)])

    def samples(self) -> Iterator[Sample]:
        """All of them."""
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
        times, zoom = {"empty scenes": (7, 0.4), "objects": (2, 0.6)}.get(source.kind, (1, 0.6))
        for _ in range(times):
            nothing = np.zeros(source.picture.shape[:2], np.float32)
            zoomed = (0.9, 1.0) if source.kind == "unmasked people" else (zoom, 1.0)
            yield self.photographed(source.kind, self.crop(source.picture, nothing, zoom=zoomed)[0], None)

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
            ["none", "dark", "cast", "noise", "blur", "grey"], p=[0.35, 0.25, 0.15, 0.1, 0.1, 0.05]
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
        return Sample(self.source.name, kind, self.network, fault == "dark", image, mask)
