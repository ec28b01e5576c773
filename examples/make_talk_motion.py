"""Author ``talk.motion``: a few words, a glance, a turn of the head, blinks and a smile, all curves of our own.

Run it with ``python examples/make_talk_motion.py``; nothing is recorded from anybody. It is also an example of how
motion can be written by any program: pose and expression weights, a row for each moment.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from vitascope.animation.face import BLENDSHAPE_INDEX, BLENDSHAPES, FaceMotion, rotation_from_degrees
from vitascope.animation.motion_file import write_motion

FRAME_RATE = 30
SECONDS = 10.0

# Seconds, then SHAPES: roughly "Hello. How do you do? I am on my way!"
SHAPES = ("jawOpen", "mouthSmile", "mouthPucker", "mouthFunnel", "mouthStretch", "mouthPress")
WORDS = (
    (0.6, 0.00, 0.0, 0.0, 0.0, 0.0, 0.0),
    (0.75, 0.32, 0.1, 0.0, 0.0, 0.2, 0.0),
    (0.9, 0.12, 0.1, 0.0, 0.0, 0.1, 0.0),
    (1.05, 0.30, 0.0, 0.3, 0.4, 0.0, 0.0),
    (1.3, 0.05, 0.0, 0.5, 0.1, 0.0, 0.0),
    (1.6, 0.00, 0.1, 0.0, 0.0, 0.0, 0.1),
    (2.0, 0.00, 0.1, 0.0, 0.0, 0.0, 0.0),
    (2.15, 0.45, 0.0, 0.0, 0.1, 0.2, 0.0),
    (2.35, 0.12, 0.0, 0.6, 0.2, 0.0, 0.0),
    (2.5, 0.10, 0.0, 0.4, 0.3, 0.0, 0.0),
    (2.65, 0.08, 0.1, 0.2, 0.0, 0.2, 0.0),
    (2.8, 0.10, 0.0, 0.5, 0.3, 0.0, 0.0),
    (3.0, 0.05, 0.0, 0.5, 0.1, 0.0, 0.0),
    (3.3, 0.00, 0.2, 0.0, 0.0, 0.0, 0.0),
    (5.6, 0.00, 0.2, 0.0, 0.0, 0.0, 0.0),
    (5.75, 0.50, 0.2, 0.0, 0.0, 0.3, 0.0),
    (5.9, 0.00, 0.1, 0.0, 0.0, 0.0, 0.5),
    (6.05, 0.38, 0.0, 0.1, 0.4, 0.0, 0.0),
    (6.2, 0.10, 0.1, 0.0, 0.0, 0.2, 0.0),
    (6.3, 0.00, 0.1, 0.0, 0.0, 0.0, 0.4),
    (6.45, 0.45, 0.3, 0.0, 0.0, 0.3, 0.0),
    (6.6, 0.08, 0.2, 0.5, 0.1, 0.0, 0.0),
    (6.8, 0.34, 0.4, 0.0, 0.0, 0.4, 0.0),
    (7.1, 0.06, 0.7, 0.0, 0.0, 0.0, 0.0),
    (8.6, 0.04, 0.7, 0.0, 0.0, 0.0, 0.0),
    (9.4, 0.00, 0.0, 0.0, 0.0, 0.0, 0.0),
)
BLINKS_SECONDS = (0.35, 1.75, 3.55, 5.3, 7.3, 9.0)
# (seconds, yaw, pitch, roll) in degrees.
HEAD = (
    (0.0, 0, 0, 0), (0.7, 0, 2, 1), (1.2, 1, -3, 0), (1.9, -2, 0, -2), (2.3, 3, 3, 2), (3.1, 1, -2, 1), (3.5, 0, 0, 0),
    (4.2, 15, 1, 2), (4.7, 15, 1, 2), (5.4, -12, -1, -3), (5.8, -6, 3, -2), (6.4, 0, -3, 1), (6.9, 3, 2, 3),
    (7.6, 4, 4, 5), (8.6, 3, 3, 4), (9.5, 0, 0, 0),
)  # fmt: skip
# (seconds, to the person's left, down), -1..1.
GAZE = (
    (0.0, 0, 0), (3.4, 0, 0), (3.55, 0.8, 0), (4.5, 0.5, -0.1), (4.7, -0.2, 0), (4.85, -0.8, 0.1), (5.5, -0.3, 0),
    (5.7, 0, 0), (10.0, 0, 0),
)  # fmt: skip
# (seconds, browInnerUp, browOuterUp, browDown)
BROWS = (
    (0.0, 0, 0, 0), (0.6, 0, 0, 0), (0.8, 0.3, 0.4, 0), (1.4, 0, 0, 0), (2.0, 0, 0, 0), (2.4, 0.2, 0.1, 0.2),
    (2.9, 0.6, 0.5, 0), (3.4, 0, 0, 0), (5.6, 0, 0, 0), (5.9, 0.1, 0.3, 0), (6.6, 0.3, 0.4, 0), (7.4, 0.1, 0.1, 0),
    (9.4, 0, 0, 0),
)  # fmt: skip


def curve(keys: tuple[tuple[float, ...], ...], seconds: float) -> list[float]:
    """The values between keys, with level ends at each."""
    times = [key[0] for key in keys]
    if seconds <= times[0] or seconds >= times[-1]:
        return list(keys[0 if seconds <= times[0] else -1][1:])
    after = next(index for index, time in enumerate(times) if time > seconds)
    share = (seconds - times[after - 1]) / (times[after] - times[after - 1])
    share = share * share * (3 - 2 * share)
    return [a + (b - a) * share for a, b in zip(keys[after - 1][1:], keys[after][1:], strict=True)]


def blink(seconds: float) -> float:
    """How far the eyes are shut: 70 ms down, 130 ms up."""
    for begin in BLINKS_SECONDS:
        if 0 <= (passed := seconds - begin) < 0.2:
            return math.sin(math.pi / 2 * (passed / 0.07 if passed < 0.07 else 1 - (passed - 0.07) / 0.13))
    return 0.0


def motions() -> Iterator[FaceMotion]:
    """A motion for each thirtieth of a second."""
    for index in range(round(SECONDS * FRAME_RATE)):
        seconds = index / FRAME_RATE
        weights = np.zeros(len(BLENDSHAPES), np.float32)

        def put(name: str, value: float, weights: np.ndarray = weights) -> None:
            for full in (name, f"{name}Left", f"{name}Right"):
                if full in BLENDSHAPE_INDEX:
                    weights[BLENDSHAPE_INDEX[full]] = min(max(value, 0.0), 1.0)

        for name, value in zip(SHAPES, curve(WORDS, seconds), strict=True):
            put(name, value)
        inner, outer, down = curve(BROWS, seconds)
        put("browInnerUp", inner)
        put("browOuterUp", outer)
        put("browDown", down)
        put("cheekSquint", 0.5 * weights[BLENDSHAPE_INDEX["mouthSmileLeft"]])
        put("eyeBlink", 0.62 * blink(seconds))
        left, downward = curve(GAZE, seconds)
        for side, sign in (("Left", 1), ("Right", -1)):
            put(f"eyeLookOut{side}", sign * left)
            put(f"eyeLookIn{side}", -sign * left)
            put(f"eyeLookDown{side}", downward)
            put(f"eyeLookUp{side}", -downward)
        yaw, pitch, roll = curve(HEAD, seconds)
        breath = math.sin(2 * math.pi * seconds / 3.7)
        yield FaceMotion(
            rotation=rotation_from_degrees(yaw, pitch + 0.4 * breath, roll),
            translation=np.array([0.06 * yaw, -0.05 * pitch - 0.08 * breath], np.float32),
            blendshapes=weights,
            pts_seconds=seconds,
        )


if __name__ == "__main__":
    path = Path(__file__).with_name("talk.motion")
    write_motion(path, motions(), frame_rate=FRAME_RATE, title="talk, blink, glance, turn (authored)")
    print(f"{path.name}: {path.stat().st_size / 1e3:.0f} kB")
