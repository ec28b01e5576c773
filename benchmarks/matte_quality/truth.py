"""Clips whose alpha is known to the last sample: figures before moving backgrounds, put together here.

Whatever a figure was cut from, its alpha is the truth by construction: the picture is the figure over a background
with that very alpha. What the cut got wrong at an edge (a rim of the old background) is part of the figure, then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import islice
from pathlib import Path

import av
import cv2
import numpy as np
import numpy.typing as npt
from skimage import data

from vitascope.media.reading.reader import open_video
from vitascope.models.rvm.rvm import RvmNetwork

__all__ = ["CLASSES", "Film", "Walk", "cut_figure", "hair", "make_film", "make_scene", "write_film"]

Rgb = npt.NDArray[np.float32]
"""[H, W, 3], 0..1."""
Rgba = npt.NDArray[np.float32]
"""[H, W, 4], colour premultiplied by alpha, 0..1."""

_SUBFRAMES = 3
"""Moments of an exposure of half a frame's time: motion blur."""
_HAIR_SCALE = 4
_BELOW = 0.3
"""The share of a picture of hair that lies below the line from temple to temple."""
_NOISE = 0.012
_BROAD = 0.5
"""The share of a figure's width from which its lowest row was an edge of the picture, and no foot."""
_UNSURE = 0.02
"""The lowest share of who was cut off by a picture's edge, where their cut is half transparent: it stays outside."""
_SEEN = 0.02
"""The share of a person's area from which they have entered."""


@dataclass(frozen=True)
class Film:
    """A clip and its truth."""

    kind: str
    name: str
    rgb: npt.NDArray[np.uint8]
    """[T, H, W, 3]."""
    alpha: npt.NDArray[np.float32]
    """[T, H, W]."""
    moments: dict[str, int] = field(default_factory=dict)
    """Frames at which mattes are hard: the ``first`` one, the one where a person is ``entering``, and the first one
    ``after occlusion``, at which the whole person is seen again."""
    people: tuple[int, ...] = ()
    """How many people stand in each frame, whoever hides them; empty where nobody asks."""


@dataclass(frozen=True)
class Walk:
    """Where a figure stands: shares of the picture's height and width."""

    height: float
    x: Callable[[float], float]
    """The share of its middle, told the time: 0 at the first frame, 1 at the last."""
    foot: float = 1.0
    """Its lower edge."""


def _standing(x: float, height: float, foot: float = 1.0) -> Walk:
    return Walk(height, lambda time: x + 0.02 * np.sin(5 * time), foot)


CLASSES: dict[str, tuple[Walk, ...]] = {
    "one": (_standing(0.5, 0.85),),
    "small": (_standing(0.6, 0.3, 0.8),),
    "several": (_standing(0.2, 0.6), _standing(0.52, 0.8), _standing(0.82, 0.55, 0.9)),
    "crossing": (
        Walk(0.8, lambda time: 0.2 + 0.6 * time),
        Walk(0.75, lambda time: 0.8 - 0.6 * time),
    ),
    "entering": (_standing(0.3, 0.8), Walk(0.8, lambda time: 1.1 - 0.4 * time)),
    "leaving": (_standing(0.6, 0.8), Walk(0.8, lambda time: 0.2 - 0.45 * time)),
    "empty": (),
    "close-up": (_standing(0.5, 1.5, 1.65),),
    "occluded": (_standing(0.5, 0.85),),
}
"""Kinds of clips, and who is in each, back to front. A pillar passes before the occluded one; close-ups get hair."""


def cut_figure(
    pictures: Path, network: RvmNetwork, *, first: int = 24, count: int = 40
) -> tuple[list[Rgba], Rgb]:
    """The person of a photograph or of a clip's frames, cut out by RVM, all of the same size; and what is beside them.

    Args:
        pictures: A picture, or a clip of one person before a plain background.
        network: Cuts.
        first: The first frame of a clip.
        count: Frames of a clip.
    """
    from vr_elevation import cut_out

    with open_video(pictures) as reader:
        frames = sum(1 for _ in islice(reader, first + count))
    first = min(first, max(frames - count, 0))
    people, beside = cut_out(pictures, network, first, min(count, frames))
    figures = []
    for person in people:
        figure = person.astype(np.float32) / 255
        figure[..., :3] *= figure[..., 3:]
        figures.append(figure)
    shown = np.max([figure[..., 3] for figure in figures], axis=0) > 0.5
    lowest = np.flatnonzero(shown.any(axis=1))[-1]
    if shown[lowest].sum() > _BROAD * shown.any(axis=0).sum():
        figures = [figure[: lowest + 1] for figure in figures]
    return figures, beside.astype(np.float32) / 255


def hair(size: tuple[int, int], tones: Rgb, *, seed: int, strands: int = 3000) -> Rgba:
    """Strands that stand off around a head that is to be there: their alpha is what each sample is covered by.

    Args:
        size: (height, width) of the picture.
        tones: Colours of a person's own hair, float32 [N, 3], 0..1: a strand has one of them, or near it.
        seed: Of their shapes and colours.
        strands: How many.
    """
    random = np.random.default_rng(seed)
    height, width = size[0] * _HAIR_SCALE, size[1] * _HAIR_SCALE
    cover, color = np.zeros((height, width), np.uint8), np.zeros((height, width, 3), np.uint8)
    for _ in range(strands):
        angle = random.uniform(np.pi, 2 * np.pi)
        length, bend = 0.55 + 0.35 * random.beta(1.1, 3), random.normal(0, 0.4)
        along = np.linspace(random.uniform(0.4, 0.54), length, 24)
        turned = angle + bend * np.square(along) + 0.05 * np.sin(30 * along + random.uniform(0, 6))
        x = width / 2 + np.cos(turned) * along * width / 2
        y = (1 - _BELOW) * height + np.sin(turned) * along * (1 - _BELOW) * height
        points = np.stack([x, y], axis=1).round().astype(np.int32)
        thickness = int(random.integers(1, _HAIR_SCALE // 2 + 2))
        cv2.polylines(cover, [points], isClosed=False, color=255, thickness=thickness)
        shade = np.clip(255 * tones[random.integers(len(tones))] * random.uniform(0.8, 1.2), 0, 255)
        cv2.polylines(color, [points], isClosed=False, color=shade.tolist(), thickness=thickness)
    fine = np.dstack([color, cover]).astype(np.float32) / 255
    return cv2.resize(fine, size[::-1], interpolation=cv2.INTER_AREA)


def make_film(
    kind: str,
    figures: Sequence[Sequence[Rgba]],
    scenery: Sequence[Rgb],
    *,
    seed: int,
    size: tuple[int, int],
    frames: int,
    on: tuple[int, int, int] | None = None,
) -> Film:
    """A clip of one of the ``CLASSES``; the same for the same seed.

    Args:
        kind: Which.
        figures: People, each as consecutive pictures; taken in turn.
        scenery: Places; beside them there are a room and a yard.
        seed: Of background, noise, camera, and who it is.
        size: (height, width).
        frames: How many.
        on: A colour, 0..255, in place of the background and without noise: what keying should give.
    """
    random = np.random.default_rng(seed)
    cast = [figures[(seed + place) % len(figures)] for place in range(len(CLASSES[kind]))]
    background = _background(size, cast or figures, scenery, random)
    if on is not None:
        background[:] = np.float32(on) / 255
    pan = random.uniform(-0.12, 0.12) * size[1], random.uniform(-0.04, 0.04) * size[0]
    heads = _heads(cast[0]) if kind == "close-up" else []
    wig = hair((size[0], size[0] * 3 // 2), _hair_tones(cast[0][0], heads[0]), seed=seed) if heads else None
    rgb, alpha, hides = [], [], []
    seen = np.zeros((frames, len(cast)))
    for frame in range(frames):
        moments = []
        hides.append(False)
        for moment in range(_SUBFRAMES):
            time = (frame + moment / (2 * _SUBFRAMES)) / max(frames - 1, 1)
            shift = pan[0] * time, pan[1] * time
            people = np.zeros((*size, 4), np.float32)
            for place, (person, walk) in enumerate(zip(cast, CLASSES[kind], strict=True)):
                shown = person[frame % len(person)]
                placed = _placed(shown, walk, size, time, shift)
                if wig is not None:
                    head, where = heads[frame % len(heads)], _place(shown, walk, size, time, shift)
                    placed = _over(_placed_hair(wig, head, where, size), placed)
                people, seen[frame, place] = _over(placed, people), placed[..., 3].sum()
            behind = _shifted(background, size, shift)
            if kind == "occluded":
                hidden = _pillar(size[1], time)
                hides[-1] |= bool(people[:, hidden, 3].any())
                people[:, hidden], behind[:, hidden] = 0, 0.5 * behind[::-1, hidden]
            moments.append(np.dstack([people[..., :3] + behind * (1 - people[..., 3:]), people[..., 3]]))
        exposed = np.mean(moments, axis=0)
        noisy = exposed[..., :3] + random.normal(0, 0 if on is not None else _NOISE, (*size, 3))
        rgb.append(np.rint(np.clip(noisy, 0, 1) * 255).astype(np.uint8))
        alpha.append(exposed[..., 3].astype(np.float32))
    stands = seen > _SEEN * seen.max(axis=0, initial=0)
    hard = {"first": 0} if cast else {}
    if kind == "entering":  # the one in front
        hard[kind] = int(stands[:, -1].argmax())
    if kind == "occluded" and not hides[-1] and any(hides):
        hard["after occlusion"] = frames - hides[::-1].index(True)
    counts = tuple(stands.sum(axis=1).tolist())
    return Film(kind, f"{kind}_{seed}", np.stack(rgb), np.clip(np.stack(alpha), 0, 1), hard, counts)


def make_scene(
    walks: Sequence[Walk],
    cast: Sequence[Sequence[Rgba]],
    *,
    seed: int,
    size: tuple[int, int],
    frames: int,
    order: Callable[[float], Sequence[int]] | None = None,
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """A shot of several people, and what is seen of each.

    Args:
        walks: Where each of them stands.
        cast: Each as consecutive pictures.
        seed: Of background, noise and camera.
        size: (height, width).
        frames: How many.
        order: People back to front, told the time; as they are listed when omitted.

    Returns:
        uint8 [T, H, W, 3], and the alpha of each person where nobody hides them, uint8 [T, N, H, W].
    """
    random = np.random.default_rng(seed)
    background = _background(size, cast, (), random)
    pan = random.uniform(-0.12, 0.12) * size[1], random.uniform(-0.04, 0.04) * size[0]
    rgb = np.empty((frames, *size, 3), np.uint8)
    alphas = np.empty((frames, len(cast), *size), np.uint8)
    for frame in range(frames):
        time = frame / max(frames - 1, 1)
        shift = pan[0] * time, pan[1] * time
        people, seen = np.zeros((*size, 4), np.float32), np.zeros((len(cast), *size), np.float32)
        for place in range(len(cast)) if order is None else order(time):
            shown = _placed(cast[place][frame % len(cast[place])], walks[place], size, time, shift)
            seen *= 1 - shown[..., 3]
            seen[place], people = shown[..., 3], _over(shown, people)
        behind = _shifted(background, size, shift)
        picture = people[..., :3] + behind * (1 - people[..., 3:]) + random.normal(0, _NOISE, behind.shape)
        rgb[frame] = np.rint(np.clip(picture, 0, 1) * 255)
        alphas[frame] = np.rint(np.clip(seen, 0, 1) * 255)
    return rgb, alphas


def write_film(film: Film, path: Path, *, crf: int = 20) -> Path:
    """Compress a clip as H.264, as a video arrives."""
    with av.open(str(path), "w") as container:
        # With its macroblock tree x264 makes another file each time on some CPUs, with more threads on more cores:
        # errors differ by a few percent, of a first frame by half.
        options = {"crf": str(crf), "x264-params": "mbtree=0:threads=1"}
        stream = container.add_stream("libx264", rate=Fraction(25), options=options)
        stream.height, stream.width = film.rgb.shape[1:3]
        stream.pix_fmt = "yuv420p"
        for picture in film.rgb:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode(None))
    return path


def _background(
    size: tuple[int, int], cast: Sequence[Sequence[Rgba]], scenery: Sequence[Rgb], random: np.random.Generator
) -> Rgb:
    """A place, and two things in it of the people's own colours; larger than the picture by a fifth."""
    height, width = int(size[0] * 1.2), int(size[1] * 1.3)
    place = int(random.integers(len(scenery) + 2))
    if place < len(scenery):
        picture = _covering(scenery[place], height, width, random)
    elif place == len(scenery):
        picture = _covering(data.stereo_motorcycle()[0].astype(np.float32) / 255, height, width, random)
    else:
        picture = _yard(height, width, random)
    for _ in range(2):
        person = cast[int(random.integers(len(cast)))][0]
        colors = person[person[..., 3] > 0.99][:, :3]
        color = colors[int(random.integers(len(colors)))]
        middle = int(random.integers(width)), int(random.integers(height))
        axes = int(random.integers(8, height // 6)), int(random.integers(8, height // 5))
        mask = np.zeros((height, width), np.float32)
        cv2.ellipse(mask, middle, axes, float(random.uniform(0, 180)), 0, 360, 1.0, -1)
        share = 0.8 * cv2.GaussianBlur(mask, (0, 0), height / 90)[..., None]
        picture = picture * (1 - share) + color * share
    return np.clip(picture, 0, 1).astype(np.float32)


def _covering(scene: Rgb, height: int, width: int, random: np.random.Generator) -> Rgb:
    """A scene at least so large, beside its mirror image where it is too narrow, somewhat out of focus."""
    scale = height / scene.shape[0]
    scene = cv2.resize(scene, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA)
    if random.random() < 0.5:
        scene = scene[:, ::-1]
    while scene.shape[1] < width:
        scene = np.hstack([scene, scene[:, ::-1]])
    return cv2.GaussianBlur(scene[:height, :width], (0, 0), height / 400)


def _yard(height: int, width: int, random: np.random.Generator) -> Rgb:
    """A wall of brick above gravel or grass."""
    edge = int(height * random.uniform(0.55, 0.8))
    parts = ((data.brick(), edge), ((data.gravel, data.grass)[int(random.integers(2))](), height - edge))
    painted = []
    for texture, rows in parts:
        tint = random.uniform(0.5, 0.9) * (1 + 0.15 * random.standard_normal(3))
        tile = cv2.resize(texture, (height // 2, height // 3), interpolation=cv2.INTER_AREA)
        tiles = np.tile(tile, (-(-rows // tile.shape[0]), -(-width // tile.shape[1])))[:rows, :width]
        painted.append(tiles[..., None].astype(np.float32) / 255 * tint)
    return np.vstack(painted).astype(np.float32)


def _shifted(background: Rgba, size: tuple[int, int], shift: tuple[float, float]) -> Rgba:
    """What the camera sees of the background, half as far away as people: it moves half as much."""
    height, width = size
    left = (background.shape[1] - width) / 2 + shift[0] / 2
    top = (background.shape[0] - height) / 2 + shift[1] / 2
    moved = np.array([[1, 0, -left], [0, 1, -top]], np.float64)
    return cv2.warpAffine(
        background, moved, (width, height), flags=cv2.INTER_LINEAR, borderMode=cv2.BORDER_REFLECT
    )


def _placed(person: Rgba, walk: Walk, size: tuple[int, int], time: float, shift: tuple[float, float]) -> Rgba:
    """A person where they stand, in a picture of this size."""
    return _drawn(person, size, *_place(person, walk, size, time, shift))


def _place(
    person: Rgba, walk: Walk, size: tuple[int, int], time: float, shift: tuple[float, float]
) -> tuple[float, float, float]:
    """Scale, left and top. Who was cut off by a picture's lower edge is cut off by this one's, too."""
    height, width = size
    scale = walk.height * height / person.shape[0]
    left = walk.x(time) * width - scale * person.shape[1] / 2 - shift[0]
    if person[-1, :, 3].max() > 0.5:
        inside = scale * person.shape[0] * (1 - _UNSURE)
        return scale, left, max(walk.foot, 1.0) * height - inside + abs(shift[1])
    return scale, left, walk.foot * height - scale * person.shape[0] - shift[1]


@dataclass(frozen=True)
class _Head:
    """Where a head is in a figure's picture."""

    top: int
    """Its first row."""
    temples: int
    """The row in which it is widest."""
    middle: float
    """The column between its temples."""
    breadth: int
    """Columns from temple to temple."""


def _head(person: Rgba) -> _Head:
    """Find where a person is widest before they narrow, or go on as wide for a tenth of that."""
    shown = person[..., 3] > 0.5
    top, widths = int(shown.any(axis=1).argmax()), shown.sum(axis=1)
    temples = top
    for row in range(top, len(widths)):
        if widths[row] > widths[temples]:
            temples = row
        elif row - temples > widths[temples] / 10 > 1:
            break
    columns = np.flatnonzero(shown[temples])
    return _Head(top, temples, float(columns[0] + columns[-1] + 1) / 2, int(columns[-1] + 1 - columns[0]))


def _heads(people: Sequence[Rgba]) -> list[_Head]:
    """Find a person's head in each picture; it is as large in all."""
    heads = [_head(person) for person in people]
    height = int(np.median([head.temples - head.top for head in heads]))
    breadth = int(np.median([head.breadth for head in heads]))
    return [_Head(head.top, head.top + height, head.middle, breadth) for head in heads]


def _hair_tones(person: Rgba, head: _Head) -> Rgb:
    """Colours of a person's hair: what they show at the top of their head, away from the rim of the old background."""
    left = max(int(head.middle - head.breadth / 2), 0)
    above = person[: head.top + head.breadth // 4, left : left + head.breadth]
    sure = (above[..., 3] > 0.99).astype(np.uint8)
    inside = cv2.erode(sure, np.ones((3, 3)), iterations=max(head.breadth // 20, 1), borderValue=0)
    return above[inside > 0, :3]


def _placed_hair(wig: Rgba, head: _Head, place: tuple[float, float, float], size: tuple[int, int]) -> Rgba:
    """Hair around a person's head, over the rim of the old background."""
    scale, left, top = place
    own = scale * head.breadth * 1.8 / wig.shape[1]
    return _drawn(
        wig,
        size,
        own,
        left + scale * head.middle - own * wig.shape[1] / 2,
        top + scale * head.temples - own * (1 - _BELOW) * wig.shape[0],
    )


def _drawn(picture: Rgba, size: tuple[int, int], scale: float, left: float, top: float) -> Rgba:
    if scale < 1:  # averaged first: each sample covers several
        small = max(round(picture.shape[1] * scale), 1), max(round(picture.shape[0] * scale), 1)
        picture, scale = cv2.resize(picture, small, interpolation=cv2.INTER_AREA), 1.0
    moved = np.array([[scale, 0, left], [0, scale, top]], np.float64)
    return cv2.warpAffine(picture, moved, size[::-1], flags=cv2.INTER_LINEAR)


def _over(above: Rgba, below: Rgba) -> Rgba:
    return above + below * (1 - above[..., 3:])


def _pillar(width: int, time: float) -> slice:
    """Columns that hide who stands there; it passes while the clip lasts."""
    left = round(width * (time * 1.4 - 0.4))
    return slice(max(left, 0), max(left + width * 3 // 8, 0))
