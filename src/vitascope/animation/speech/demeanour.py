"""Moves a speaking face, except its mouth: blinks, glances, brows, nods and breath, also while nobody speaks.

Statistics come from studies of people; moments are drawn from a seeded generator, so a voice always gives the
same video:

- Blinks: 26 a minute in conversation, 17 at rest (Bentivoglio et al. 1997); a lid closes in about 90 ms and opens in
  about 240 (Kwon et al. 2013), and people like to blink where a phrase ends (Nakano and Kitazawa 2010).
- Glances: small ones are the most frequent, P(angle) falling by e every 6.9 degrees (Lee, Badler and Badler 2002).
- Head: moves with pitch and loudness (Yehia, Kuratate and Vatikiotis-Bateson 2002; Munhall et al. 2004).
- Brows: most rises go with a rise of pitch (Cavé et al. 1996).
- Breath: 17 a minute at rest (Tobin et al. 1983).
"""

from __future__ import annotations

import math

import numpy as np

from vitascope.animation.face import BLENDSHAPE_INDEX, FaceMotion, FloatArray, rotation_from_degrees

_BLINKS_A_MINUTE = {True: 26.0, False: 17.0}
"""Blinks per minute, while somebody speaks and while not."""
_CLOSING_SECONDS, _OPENING_SECONDS = 0.09, 0.24
_SHORTEST_PAUSE_SECONDS = 0.9
"""Minimum time between two blinks."""
_PHRASE_END_CHANCE = 0.45
"""Probability of a blink at the end of a phrase."""
_GLANCE_DEGREES = 6.9
_MOST_DEGREES = 9.0
_DEGREES_OF_WEIGHT = 28.0
"""Gaze angle for a weight of 1: the iris moves by 0.17 widths of the eye (30 mm; an eyeball's radius is 12)."""
_PAUSE_SECONDS = 0.25
_BREATHS_A_SECOND = 17 / 60
_BLINK = [BLENDSHAPE_INDEX["eyeBlinkLeft"], BLENDSHAPE_INDEX["eyeBlinkRight"]]
_SHUT_WEIGHT = 0.62
"""MediaPipe's blendshape for closed lids, see ``expression.eyes_of``."""


class _Glide:
    """Follows a value without jumps, as a critically damped spring."""

    def __init__(self, seconds: float) -> None:
        self._rate = 2 / seconds
        self.value = 0.0
        self._speed = 0.0

    def step(self, target: float, seconds: float) -> float:
        rate, passed = self._rate, min(seconds, 0.25)
        decay = math.exp(-rate * passed)
        apart = self.value - target
        drift = (self._speed + rate * apart) * passed
        self.value = target + (apart + drift) * decay
        self._speed = (self._speed - rate * drift) * decay
        return self.value


class Demeanour:
    """Moves head, lids, gaze and brows with a voice. Holds the state of one stream.

    Args:
        seed: Seed of the moments that the voice does not determine.
    """

    def __init__(self, seed: int = 0) -> None:
        self._random = np.random.default_rng(seed)
        self._last: float | None = None
        self._speaks_until = -math.inf
        self._spoke_before = False
        self._next_blink, self._blink_begin = 1.0 + float(self._random.exponential(1.5)), -math.inf
        self._next_glance, self._gaze = 1.5, (0.0, 0.0)
        self._next_posture, self._posture = 0.0, (0.0, 0.0, 0.0)
        self._usual_pitch = 0.0
        self._eyes = (_Glide(0.06), _Glide(0.06))
        self._turns = (_Glide(0.9), _Glide(0.35), _Glide(1.1))
        self._beat, self._brows = _Glide(0.18), _Glide(0.2)
        self._phases = self._random.uniform(0, 2 * math.pi, 4)

    def motion(
        self, weights: FloatArray, *, seconds: float, loudness_db: float, is_spoken: bool, pitch_hz: float
    ) -> FaceMotion:
        """Compute the face at the next moment.

        Args:
            weights: float32 [52], with the mouth set; modified in place.
            seconds: The moment; increases from call to call.
            loudness_db: Loudness of the voice, relative to its usual level.
            is_spoken: True while somebody speaks.
            pitch_hz: Pitch of the voice; 0 if it has none.
        """
        passed = 0.0 if self._last is None else seconds - self._last
        self._last = seconds
        if is_spoken:
            self._speaks_until = seconds + _PAUSE_SECONDS
        speaks = seconds < self._speaks_until
        phrase_ended = self._spoke_before and not speaks
        self._spoke_before = speaks
        self._put_lids(weights, seconds, speaks=speaks, phrase_ended=phrase_ended)
        gaze_x, gaze_y = self._glance(seconds, passed, speaks=speaks)
        rise = self._pitch_rise(pitch_hz, passed) if is_spoken else 0.0
        stress = rise + max(loudness_db + 6, 0) / 8 if is_spoken else 0.0
        brows = self._brows.step(min(max(rise - 0.15, 0) * 1.4, 0.7) if speaks else 0.0, passed)
        beat = self._beat.step(min(stress, 2.0), passed)
        yaw, pitch, roll = self._turn(seconds, passed, speaks=speaks, phrase_ended=phrase_ended)
        breath = math.sin(2 * math.pi * _BREATHS_A_SECOND * seconds + self._phases[0])
        sway = [
            math.sin(rate * seconds + phase)
            for rate, phase in zip((0.71, 0.53, 0.37), self._phases[1:], strict=True)
        ]
        _put(weights, "browInnerUp", 0.6 * brows)
        for side, outward in (("Left", 1.0), ("Right", -1.0)):
            _put(weights, f"browOuterUp{side}", 0.5 * brows)
            _put(weights, f"eyeLookOut{side}", outward * gaze_x)
            _put(weights, f"eyeLookIn{side}", -outward * gaze_x)
            _put(weights, f"eyeLookUp{side}", -gaze_y)
            _put(weights, f"eyeLookDown{side}", gaze_y)
        yaw += 0.5 * sway[0]
        # A stressed syllable comes with a nod: the nose goes down.
        pitch += 0.4 * sway[1] + 0.35 * breath - 1.6 * beat
        roll += 0.35 * sway[2]
        return FaceMotion(
            rotation=rotation_from_degrees(yaw, pitch, roll),
            translation=np.array([0.05 * yaw, -0.05 * pitch - 0.07 * breath], np.float32),
            blendshapes=weights,
            pts_seconds=seconds,
        )

    def _put_lids(self, weights: FloatArray, seconds: float, *, speaks: bool, phrase_ended: bool) -> None:
        random = self._random
        since = seconds - self._blink_begin
        if phrase_ended and since > _SHORTEST_PAUSE_SECONDS and random.random() < _PHRASE_END_CHANCE:
            self._next_blink = seconds
        if seconds >= self._next_blink:
            self._blink_begin, since = seconds, 0.0
            mean = 60 / _BLINKS_A_MINUTE[speaks] - _SHORTEST_PAUSE_SECONDS
            self._next_blink = seconds + _SHORTEST_PAUSE_SECONDS + float(random.exponential(mean))
        if since < _CLOSING_SECONDS:
            share = since / _CLOSING_SECONDS
        else:
            share = 1 - (since - _CLOSING_SECONDS) / _OPENING_SECONDS
        share = min(max(share, 0.0), 1.0)
        weights[_BLINK] = _SHUT_WEIGHT * share * share * (3 - 2 * share)

    def _glance(self, seconds: float, passed: float, *, speaks: bool) -> tuple[float, float]:
        """Compute the gaze as weights: to the person's left, and down."""
        random = self._random
        if seconds >= self._next_glance:
            away = random.random() < (0.45 if speaks else 0.6)
            degrees = min(float(random.exponential(_GLANCE_DEGREES)), _MOST_DEGREES) if away else 0.0
            direction = float(random.uniform(0, 2 * math.pi))
            self._gaze = (
                degrees * math.cos(direction) / _DEGREES_OF_WEIGHT,
                0.5 * degrees * math.sin(direction) / _DEGREES_OF_WEIGHT,
            )
            # Look aside for a moment, at the listener for longer.
            self._next_glance = seconds + 0.4 + float(random.exponential(0.7 if away else 2.2))
        x, y = (eye.step(target, passed) for eye, target in zip(self._eyes, self._gaze, strict=True))
        return x, y

    def _pitch_rise(self, pitch_hz: float, passed: float) -> float:
        """Compute how far the voice is above its usual pitch, in units of six semitones."""
        if pitch_hz <= 0:
            return 0.0
        octave = math.log2(pitch_hz)
        if not self._usual_pitch:
            self._usual_pitch = octave
        self._usual_pitch += (octave - self._usual_pitch) * min(passed / 3, 1.0)
        return min(max(2 * (octave - self._usual_pitch), -1.0), 1.0)

    def _turn(
        self, seconds: float, passed: float, *, speaks: bool, phrase_ended: bool
    ) -> tuple[float, float, float]:
        """Compute yaw, pitch and roll, in degrees, of a posture that is held for a phrase."""
        random = self._random
        if seconds >= self._next_posture or phrase_ended:
            reach = 1.0 if speaks or phrase_ended else 0.5
            yaw, pitch, roll = random.normal(0, reach, 3) * (2.6, 1.3, 1.5)
            self._posture = (
                float(np.clip(yaw, -6, 6)),
                float(np.clip(pitch, -3, 3)),
                float(np.clip(roll, -3.5, 3.5)),
            )
            self._next_posture = seconds + float(
                random.uniform(1.2, 3.0) if speaks else random.uniform(2.5, 5)
            )
        yaw, pitch, roll = (
            turn.step(target, passed) for turn, target in zip(self._turns, self._posture, strict=True)
        )
        return yaw, pitch, roll


def _put(weights: FloatArray, name: str, value: float) -> None:
    weights[BLENDSHAPE_INDEX[name]] = min(max(value, 0.0), 1.0)
