"""Clips whose cuts are known: scenes made here, one behind the other; and splices of real clips."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import av
import cv2
import numpy as np
import numpy.typing as npt
from skimage import data

__all__ = ["KINDS", "Spliced", "make_clip", "splice_clips"]

Picture = npt.NDArray[np.float32]
"""[H, W, 3], 0..1."""
Scene = Callable[[float], Picture]
"""The picture at a frame."""

_SIZE = 180, 320
_PHOTOGRAPHS = "astronaut chelsea coffee rocket retina motorcycle_left brick grass gravel camera coins moon"


@dataclass(frozen=True)
class Spliced:
    """A clip, and where its shots begin."""

    kind: str
    frames: npt.NDArray[np.uint8]
    """[T, H, W, 3]."""
    cuts: tuple[tuple[int, int], ...]
    """First and last frame at which the next shot may be said to begin: one frame for a hard cut."""


def _photographs() -> list[Picture]:
    pictures = []
    for name in _PHOTOGRAPHS.split():
        picture = _read(name)
        scale = 1.6 * _SIZE[1] / min(picture.shape[:2])
        pictures.append(cv2.resize(picture, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA))
    return pictures


def _read(name: str) -> Picture:
    picture = data.stereo_motorcycle()[0] if name == "motorcycle_left" else getattr(data, name)()
    rgb = np.dstack([picture] * 3) if picture.ndim == 2 else picture[..., :3]
    return rgb.astype(np.float32) / 255


_SHELF: list[Picture] = []


def _shelf() -> list[Picture]:
    if not _SHELF:
        _SHELF.extend(_photographs())
    return _SHELF


def _window(picture: Picture, x: float, y: float, zoom: float) -> Picture:
    """The part of a picture around (x, y), shares of its sides; mirrored beyond its border."""
    height, width = _SIZE
    moved = np.array(
        [
            [zoom, 0, width / 2 - zoom * x * picture.shape[1]],
            [0, zoom, height / 2 - zoom * y * picture.shape[0]],
        ]
    )
    return cv2.warpAffine(
        picture, moved, (width, height), flags=cv2.INTER_LINEAR, borderMode=cv2.BORDER_REFLECT
    )


def _scene(random: np.random.Generator, *, photograph: int | None = None, speed: float = 0.002) -> Scene:
    """Part of a photograph, seen by a camera that moves, and who moves before it.

    Args:
        random: Decides.
        photograph: Which; any when omitted.
        speed: Of the camera, in shares of the photograph a frame.
    """
    shelf = _shelf()
    picture = shelf[int(random.integers(len(shelf))) if photograph is None else photograph]
    x, y = random.uniform(0.3, 0.7, 2)
    zoom = random.uniform(0.7, 1.3)
    angle = random.uniform(0, 2 * np.pi)
    grade, tint = random.uniform(0.6, 1.1), random.uniform(0.85, 1.15, 3).astype(np.float32)
    people = [_person(random) for _ in range(int(random.integers(0, 3)))]

    def at(frame: float) -> Picture:
        seen = _window(picture, x + np.cos(angle) * speed * frame, y + np.sin(angle) * speed * frame, zoom)
        for person in people:
            seen = person(seen, frame)
        return np.clip(seen * grade * tint, 0, 1)

    return at


def _person(
    random: np.random.Generator, *, size: float | None = None, speed: float | None = None
) -> Callable[[Picture, float], Picture]:
    """Who stands and sways, or crosses the picture at a speed in shares of its width a frame."""
    shelf = _shelf()
    texture = _window(shelf[int(random.integers(len(shelf)))], *random.uniform(0.3, 0.7, 2), 0.8)
    tall = random.uniform(0.3, 0.8) if size is None else size
    at_x, begin = random.uniform(0.2, 0.8), random.uniform(0, 20)
    shade = random.uniform(0.5, 1.2)

    def draw(picture: Picture, frame: float) -> Picture:
        height, width = _SIZE
        x = at_x + 0.03 * np.sin(frame / 5) if speed is None else speed * (frame - begin) - 0.3
        mask = np.zeros((height, width), np.float32)
        middle = round(x * width), round(height * (1 - tall / 2 + 0.1))
        cv2.ellipse(
            mask, middle, (round(tall * height * 0.28), round(tall * height * 0.5)), 0, 0, 360, 1.0, -1
        )
        head = middle[0], round(height * (1 - tall + 0.06))
        cv2.circle(mask, head, round(tall * height * 0.14), 1.0, -1)
        mask = cv2.GaussianBlur(mask, (0, 0), 1)[..., None]
        shifted = np.roll(texture, middle[0], axis=1)
        return picture * (1 - mask) + shifted * shade * mask

    return draw


def _lengths(random: np.random.Generator, shots: int) -> list[int]:
    return [int(count) for count in random.integers(14, 40, shots)]


def _cut(scenes: Sequence[Scene], lengths: Sequence[int]) -> tuple[list[Picture], list[tuple[int, int]]]:
    frames: list[Picture] = []
    cuts = []
    for number, (scene, length) in enumerate(zip(scenes, lengths, strict=True)):
        if number:
            cuts.append((len(frames), len(frames)))
        frames += [scene(frame) for frame in range(length)]
    return frames, cuts


def _alike(random: np.random.Generator, shots: int) -> list[Scene]:
    """Scenes whose colours have the same mean and spread."""
    wanted = random.uniform(0.3, 0.6, 3), random.uniform(0.12, 0.2, 3)

    def matched(scene: Scene) -> Scene:
        first = scene(0)
        mean, spread = first.mean((0, 1)), first.std((0, 1)) + 1e-3

        def at(frame: float) -> Picture:
            made = (scene(frame) - mean) / spread * wanted[1] + wanted[0]
            return np.clip(made, 0, 1).astype(np.float32)

        return at

    return [matched(_scene(random)) for _ in range(shots)]


def _flashed(random: np.random.Generator, frames: list[Picture], count: int) -> list[Picture]:
    """Some frames lit by a flash, which may fill one frame, parts of two, or fade over three."""
    lit = list(frames)
    for at in random.integers(2, len(frames) - 4, count):
        strength = random.uniform(0.6, 4)
        light = cv2.GaussianBlur(random.random(_SIZE).astype(np.float32), (0, 0), 60)[..., None]
        light = 0.4 + 3 * (light - light.min()) / (np.ptp(light) + 1e-6)

        def shone(
            picture: Picture, share: float, light: Picture = light, strength: float = strength
        ) -> Picture:
            return np.clip(picture * (1 + share * strength * light) + share * 0.15 * strength, 0, 1)

        shape = int(random.integers(3))
        row = int(random.integers(30, _SIZE[0] - 30))
        if shape == 0:
            lit[at] = shone(lit[at], 1)
        elif shape == 1:  # of a shutter that rolls
            upper, lower = lit[at].copy(), lit[at + 1].copy()
            upper[row:], lower[:row] = shone(upper, 1)[row:], shone(lower, 1)[:row]
            lit[at], lit[at + 1] = upper, lower
        else:
            for later, share in enumerate((1, 0.4, 0.12)):
                lit[at + later] = shone(lit[at + later], share)
    return lit


def _several(random: np.random.Generator, shots: int) -> list[Scene]:
    order = random.permutation(len(_shelf()))
    return [_scene(random, photograph=int(order[number])) for number in range(shots)]


def _hard(random: np.random.Generator) -> tuple[list[Picture], list[tuple[int, int]]]:
    return _cut(_several(random, 4), _lengths(random, 4))


def _similar(random: np.random.Generator) -> tuple[list[Picture], list[tuple[int, int]]]:
    return _cut(_alike(random, 4), _lengths(random, 4))


def _reframed(random: np.random.Generator) -> tuple[list[Picture], list[tuple[int, int]]]:
    """Other parts of the same photograph, nearer or farther."""
    photograph = int(random.integers(6))
    return _cut([_scene(random, photograph=photograph) for _ in range(3)], _lengths(random, 3))


def _flashes(random: np.random.Generator) -> tuple[list[Picture], list[tuple[int, int]]]:
    frames, _ = _cut([_scene(random)], [40])
    return _flashed(random, frames, 8), []


def _flashes_and_cuts(random: np.random.Generator) -> tuple[list[Picture], list[tuple[int, int]]]:
    frames, cuts = _cut(_several(random, 3), _lengths(random, 3))
    return _flashed(random, frames, 5), cuts


def _pan(random: np.random.Generator) -> tuple[list[Picture], list[tuple[int, int]]]:
    """The camera moves by up to a twelfth of the picture a frame, blurred."""
    scene = _scene(random, speed=float(random.uniform(0.01, 0.05)))
    return [np.mean([scene(frame + part / 8) for part in range(5)], axis=0) for frame in range(40)], []


def _runners(random: np.random.Generator) -> tuple[list[Picture], list[tuple[int, int]]]:
    """Large people cross the picture, each within five to fifteen frames."""
    scene = _scene(random)
    people = [
        _person(random, size=float(random.uniform(0.6, 1.3)), speed=float(random.uniform(0.07, 0.2) * sign))
        for sign in (1, 1, 1)
    ]

    def at(frame: float) -> Picture:
        picture = scene(frame)
        for person in people:
            picture = person(picture, frame)
        return picture

    return [at(frame) for frame in range(40)], []


def _shaken(random: np.random.Generator) -> tuple[list[Picture], list[tuple[int, int]]]:
    """A camera held by a hand that shakes."""
    scene = _scene(random)
    shifts = random.normal(0, 9, (40, 2))
    frames = []
    for frame, (x, y) in enumerate(shifts):
        moved = np.array([[1, 0, x], [0, 1, y]])
        frames.append(cv2.warpAffine(scene(frame), moved, _SIZE[::-1], borderMode=cv2.BORDER_REFLECT))
    return frames, []


def _lights(random: np.random.Generator) -> tuple[list[Picture], list[tuple[int, int]]]:
    """A lamp is switched on and off, and the exposure follows slowly."""
    frames, _ = _cut([_scene(random)], [40])
    gain = np.ones(40)
    for at in random.integers(4, 36, 3):
        gain[at:] *= random.choice([0.45, 0.6, 1.6, 2.0])
    gain = 0.3 + 0.7 * np.clip(gain, 0.2, 2)
    return [np.clip(picture * share, 0, 1) for picture, share in zip(frames, gain, strict=True)], []


def _dissolve(random: np.random.Generator) -> tuple[list[Picture], list[tuple[int, int]]]:
    first, second = _several(random, 2)
    length = int(random.integers(6, 25))
    frames = []
    for frame in range(30 + length + 30):
        share = np.clip((frame - 29) / (length + 1), 0, 1)
        frames.append(first(frame) * (1 - share) + second(frame) * share)
    return frames, [(30, 30 + length + 4)]


def _fade(random: np.random.Generator) -> tuple[list[Picture], list[tuple[int, int]]]:
    """Out to black, and in with the next scene."""
    first, second = _several(random, 2)
    length, dark = int(random.integers(4, 16)), int(random.integers(0, 6))
    out = [first(frame) * (1 - max(frame - 24, 0) / length) for frame in range(24 + length)]
    back = [second(frame) * min((frame + 1) / length, 1) for frame in range(24 + length)]
    black = [np.zeros((*_SIZE, 3), np.float32)] * dark
    return out + black + back, [(24 + 2, len(out) + dark + length + 2)]


def _jump(random: np.random.Generator) -> tuple[list[Picture], list[tuple[int, int]]]:
    """The camera stays, and who is before it is somewhere else, or somebody else, from one frame to the next."""
    scene = _scene(random)
    people = [_person(random, size=float(random.uniform(0.7, 1.0))) for _ in range(3)]

    def shot(person: Callable[[Picture, float], Picture]) -> Scene:
        return lambda frame: person(scene(frame * 0.0), frame)

    return _cut([shot(person) for person in people], _lengths(random, 3))


_MAKERS = {
    "hard": _hard,
    "similar colours": _similar,
    "same place, other framing": _reframed,
    "flashes": _flashes,
    "flashes and cuts": _flashes_and_cuts,
    "pans": _pan,
    "people running through": _runners,
    "shaken camera": _shaken,
    "lamps": _lights,
    "dissolves": _dissolve,
    "fades": _fade,
    "jumps inside a scene": _jump,
}
KINDS = tuple(_MAKERS)
"""Kinds of clips that are made here."""


def make_clip(kind: str, *, seed: int) -> Spliced:
    """A clip of one of the ``KINDS``; the same for the same seed.

    Of two seeds one is noisy, and of three one is blurred as a small video is when it is enlarged.
    """
    random = np.random.default_rng([KINDS.index(kind), seed])
    frames, cuts = _MAKERS[kind](random)
    noise = (seed % 2) * random.uniform(0.01, 0.05)
    made = []
    for frame in frames:
        picture = frame + random.normal(0, noise, frame.shape) if noise else frame
        if seed % 3 == 2:
            small = cv2.resize(picture.astype(np.float32), (64, 36), interpolation=cv2.INTER_AREA)
            picture = cv2.resize(small, _SIZE[::-1], interpolation=cv2.INTER_LINEAR)
        made.append(np.rint(np.clip(picture, 0, 1) * 255).astype(np.uint8))
    return Spliced(kind, np.stack(made), tuple(cuts))


def splice_clips(
    paths: Sequence[Path], *, seed: int, shots: int = 8, within: bool = False, width: int = 320
) -> Spliced:
    """Parts of real clips one behind the other, cut hard.

    Args:
        paths: Clips, cropped and shrunk to one shape.
        seed: Decides which parts, and how long.
        shots: How many parts; 1 is a whole clip.
        within: All parts are of one clip, a second or more apart, as many as it has; else no two neighbours are.
        width: Of the pictures.
    """
    random = np.random.default_rng(seed)
    if shots == 1:
        return Spliced("whole", _decoded(paths[0], width), ())
    order = [int(random.integers(len(paths)))]
    while len(order) < shots:
        step = 0 if within else int(random.integers(1, len(paths)))
        order.append((order[-1] + step) % len(paths))
    frames: list[npt.NDArray[np.uint8]] = []
    cuts = []
    last = -1000
    for number in order:
        film = _decoded(paths[number], width)
        length = int(random.integers(8, 40))
        first = int(random.integers(0, len(film) - length + 1))
        while within and abs(first - last) < 25:
            if max(last, len(film) - length - last) < 25:  # no such part of a short clip is left
                return Spliced("splice", np.stack(frames), tuple(cuts))
            first = int(random.integers(0, len(film) - length + 1))
        if frames:
            cuts.append((len(frames), len(frames)))
        frames += list(film[first : first + length])
        last = first + length
    return Spliced("splice", np.stack(frames), tuple(cuts))


_FILMS: dict[tuple[Path, int], npt.NDArray[np.uint8]] = {}


def _decoded(path: Path, width: int) -> npt.NDArray[np.uint8]:
    if (path, width) not in _FILMS:
        height = width * 9 // 16
        frames = []
        with av.open(str(path)) as container:
            for frame in container.decode(video=0):
                rgb = frame.to_ndarray(format="rgb24")
                rows = min(rgb.shape[0], rgb.shape[1] * 9 // 16)
                top = (rgb.shape[0] - rows) // 3
                frames.append(
                    cv2.resize(rgb[top : top + rows], (width, height), interpolation=cv2.INTER_AREA)
                )
        _FILMS[path, width] = np.stack(frames)
    return _FILMS[path, width]
