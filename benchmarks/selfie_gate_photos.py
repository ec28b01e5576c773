"""The photographs that the selfie networks' presence gate is fitted and tested on, and which of the two.

Six public collections, none of which ships; ``fit_selfie_gate.py`` says where they come from. Who is in a picture was
decided by looking at each one of ImageNet's and of BSDS500's; of COCO's, its labels say it. Of Caltech-101 and of the
15 scenes, classes without people were taken, and pictures left out in which people were noticed all the same.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import cv2
import numpy as np
from skimage import data

from selfie_gate import DRAWINGS, SCENES, Picture, colour, read
from vitascope.models.network import FloatArray

IMAGENET = {
    "people": """400 411 416 422 430 432-433 439 444-445 450 456-457 459 467 470 472 477 490 499 501 515-516 522 537
        543 552 556 558 560 562 566 568-569 571 578 582 585 587 601-603 611-612 614-615 617 620 633 639 641-642 644-645
        652 667 691 693 697 699-700 713 715 732 735 739 746 754 775-776 791-793 795 797 801-802 806 819 830 834 839
        841-842 853-854 862 870-873 875-876 880 882 885 887 890-891 903 906 936 961 977 982-983""",
    "scenes": """404 406 410 425 431 435 437 442 449 453-454 460 468-469 471 483-484 492-495 497-498 500 510 517
        519-520 525-526 528 532 536 538 540 547-548 554-555 557 559 561 564-565 579-581 583 598 609 616 621 624 627-628
        637 640 646 648-649 651 654 656 660-661 663-665 668 672 675 682 687 698 705-708 717-718 720 724 729-730 733-734
        736 738 751 753 755-756 760 765-766 779-780 782 788-789 799 803 807 812 820-821 825 827 829 831-833 847
        851 857-858 860-861 864-865 867 874 881 883-884 888 892 894-897 900 904-905 908 912 914-915 919-920 943 954
        958 970 972 974-976 978-980 984 999""",
    "unclear": """402 420 452 455 461-462 465 466 502 509 518 523-524 527 573 575-576 596-597 599 607-608 610
        625 634-635 638 643 655 666 669-671 673 677 690 702-703 712 716 743 757 762 770 772 774 796 837 840
        843 844-845 856 863 866 869 879 886 889 913 916 918 921 981 997-998""",
    "animals held by people": """4 163 171 183 199 203-204 217 220 229 240 243 255 257 259 266 333 389 391 394-395
        398-399""",
}
"""Numbers of photographs by what they show; of those not listed, 0-399 are animals alone, 400-999 objects."""
BSDS = {
    "people": """6 31 36 38-39 42 44-48 51 55 67 70-76 81-82 85-87 92 94 97-101 103-105 108-110 113-115 119-121
        124-125 127-128 131 135 139 147 153-154 156 158 160-162 178-179 190-191 193-194 221 223 234-238 240-244 256
        263-265 269 272-273 276-277 279-281 283 288 296-298 303-304 308-310 318-319 322 328-331 334 336 341 350-356
        359-360 362 371 374 378-379 381-382 395 401 410 418 423 430 434 441 443 446 454-455 460-462 469 471 474 484-485
        493 498""",
    "unclear": """5 24 29 58 69 95-96 107 143 148 155 185-186 213 239 257 268 274 287 293-294 307 323-324 372 375
        377 384 390 400 421-422 429 440 448 464 467 477 480 482""",
    "animals": """0-2 7-14 12-23 30 32-35 40-41 52-54 56-57 59-62 64 68 77-80 91 111-112 116-117 122-123 130 133 137
        140-142 145-146 150-151 164-170 173 176 182-184 187 192 196 198 200-212 214-215 219 224-228 246-249 251-253
        258 266-267 270 275 278 284-285 301 311 315 320 326 335 337 339-340 342 344-347 363-369 383 385 391-394 397
        403-409 411-412 414-415 424-428 431-432 436-437 439 447 451-452 456 459 463 465 472-473 475-476 478-479
        486-489 492 496-497""",
}
"""Photographs of BSDS500, its test, train and val folder in one row; the others are scenes."""
CALTECH_ANIMALS = """Leopards ant bass beaver brontosaurus butterfly cougar_body cougar_face crab crayfish crocodile
    crocodile_head dalmatian dolphin dragonfly elephant emu flamingo flamingo_head gerenuk hawksbill hedgehog ibis
    kangaroo llama lobster mayfly octopus okapi panda pigeon platypus rhino rooster scorpion sea_horse starfish
    stegosaurus tick wild_cat"""
CALTECH_LEFT_OUT = """BACKGROUND_Google Faces Faces_easy accordion binocular buddha camera cannon cellphone
    dollar_bill electric_guitar euphonium ferry garfield headphone inline_skate ketch laptop mandolin saxophone
    schooner snoopy soccer_ball umbrella wheelchair"""
CALTECH_PEOPLE = """Motorbikes/97 airplanes/46 anchor/26 anchor/33 ant/26 barrel/32 bonsai/93 bonsai/94 crab/50
    crocodile/35 crocodile_head/3 cup/35 dalmatian/21 elephant/46 flamingo/29 helicopter/30 helicopter/60
    helicopter/82 kangaroo/24 llama/39 llama/53 panda/20 strawberry/5"""
"""Pictures in which people were noticed; a picture printed on a cup counts."""
ROOMS_AND_VIEWS = (
    "Bedroom Coast Forest Highway Kitchen LivingRoom Mountain Office OpenCountry Suburb TallBuilding"
)
ROOMS_PEOPLE = "train/Office/95 test/Office/63 test/OpenCountry/2"
COCO_PERSON, COCO_PERSON_PIXEL, COCO_ANIMALS = 0, 1, range(14, 24)
COCO_SMALLEST = 0.02
"""Part of a COCO photograph that people must cover: where it is less, a selfie network means something else."""
MOST_OF_A_CLASS = 80, 60
"""Most photographs taken of a class of Caltech-101, and of a folder of the 15 scenes."""
TESTED_PERCENT = 25
"""Share of photographs kept for the test, in collections that their authors do not part."""


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """A photograph, at most 512 pixels long."""

    name: str
    kind: str
    picture: Picture
    mask: FloatArray | None = None
    collection: str = "scikit-image"
    tested: bool = False
    """True where neither the fit nor the choice of the thresholds sees it."""


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


def fraction(name: str) -> int:
    """0..99, by name alone: the same photograph always falls into the same part."""
    return zlib.crc32(("split" + name).encode()) % 100


def sources(folder: Path) -> list[Source]:
    """Every photograph of the collections that lie in ``folder``, and scikit-image's; see ``fit_selfie_gate.py``."""
    parted = [*people(folder), *imagenet(folder), *caltech(folder)]
    found = [replace(source, tested=fraction(source.name) < TESTED_PERCENT) for source in parted]
    found += [*bsds(folder), *coco(folder), *rooms_and_views(folder)]
    for name in (*SCENES, *DRAWINGS):
        kind = "animals" if name == "chelsea" else "empty scenes"
        found.append(Source(name, kind, shrunk(colour(getattr(data, name)()))))
    found += [Source(f"pattern {n}", "synthetic", pattern(np.random.default_rng(n))) for n in range(200)]
    return found


def people(folder: Path) -> Iterator[Source]:
    """Human-Segmentation-Dataset: photographs with masks."""
    root = folder / "Human-Segmentation-Dataset"
    for path in sorted((root / "Training_Images").glob("[!.]*")):
        picture = shrunk(read(path))
        mask = read(root / "Ground_Truth" / f"{path.stem}.png")[..., 0]
        mask = cv2.resize(mask, picture.shape[1::-1]).astype(np.float32) / 255
        yield Source(f"person {path.stem}", "people", picture, mask, "Human-Segmentation-Dataset")


def imagenet(folder: Path) -> Iterator[Source]:
    """One photograph of each class, less those that are left out."""
    listed = {kind: numbers(text) for kind, text in IMAGENET.items()}
    left_out = listed["unclear"] | listed["animals held by people"]
    for number, path in enumerate(sorted((folder / "imagenet-sample-images").glob("*.JPEG"))):
        if number not in left_out:
            kind = "animals" if number < 400 else "objects"
            kind = "unmasked people" if number in listed["people"] else kind
            kind = "empty scenes" if number in listed["scenes"] else kind
            yield Source(path.stem, kind, shrunk(read(path)), collection="ImageNet")


def caltech(folder: Path) -> Iterator[Source]:
    """Objects and animals of Caltech-101."""
    for category in sorted((folder / "Homework2-Caltech101" / "101_ObjectCategories").iterdir()):
        if category.name in CALTECH_LEFT_OUT.split():
            continue
        kind = "animals" if category.name in CALTECH_ANIMALS.split() else "objects"
        for path in sorted(category.glob("*.jpg"))[: MOST_OF_A_CLASS[0]]:
            if f"{category.name}/{int(path.stem[-4:])}" not in CALTECH_PEOPLE.split():
                yield Source(
                    f"caltech {category.name} {path.stem}", kind, shrunk(read(path)), collection="Caltech-101"
                )


def bsds(folder: Path) -> Iterator[Source]:
    """BSDS500; its authors' test folder is for the test."""
    listed = {kind: numbers(text) for kind, text in BSDS.items()}
    for number, path in enumerate(
        sorted((folder / "BSDS500" / "BSDS500" / "data" / "images").rglob("*.jpg"))
    ):
        if number not in listed["unclear"]:
            kind = "animals" if number in listed["animals"] else "empty scenes"
            kind = "unmasked people" if number in listed["people"] else kind
            yield Source(
                f"bsds {number}", kind, shrunk(read(path)), None, "BSDS500", path.parent.name == "test"
            )


def coco(folder: Path) -> Iterator[Source]:
    """COCO's first photographs; those of val2017 are for the test."""
    root = folder / "coco128_yolo"
    for split in ("train2017", "val2017"):
        for path in sorted((root / "images" / split).glob("*.jpg")):
            labels = root / "object_detection" / "labels" / split / f"{path.stem}.txt"
            rows = labels.read_text().splitlines() if labels.exists() else []
            classes, picture = {int(row.split()[0]) for row in rows}, shrunk(read(path))
            pixels_at = root / "semantic_segmentation" / "masks" / split / f"{path.stem}.png"
            pixels = cv2.imread(str(pixels_at), cv2.IMREAD_UNCHANGED) if pixels_at.exists() else None
            mask, kind = None, "animals" if classes & set(COCO_ANIMALS) else "empty scenes"
            if COCO_PERSON in classes or (pixels is not None and (pixels == COCO_PERSON_PIXEL).any()):
                if pixels is None:
                    continue
                mask = cv2.resize((pixels == COCO_PERSON_PIXEL).astype(np.float32), picture.shape[1::-1])
                kind = "photographed"
                if mask.mean() < COCO_SMALLEST:
                    continue
            yield Source(f"coco {path.stem}", kind, picture, mask, "COCO", split == "val2017")


def rooms_and_views(folder: Path) -> Iterator[Source]:
    """The 15 scenes (grey), as used for recognising scenes; their test folder is for the test."""
    root = folder / "Scene-Recognition-with-Bag-of-Words" / "data"
    for split in ("train", "test"):
        for room in ROOMS_AND_VIEWS.split():
            for path in sorted((root / split / room).glob("*.jpg"))[: MOST_OF_A_CLASS[1]]:
                if f"{split}/{room}/{int(path.stem[-4:])}" not in ROOMS_PEOPLE.split():
                    name = f"scene {split} {room} {path.stem}"
                    yield Source(name, "empty scenes", shrunk(read(path)), None, "15 scenes", split == "test")


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
