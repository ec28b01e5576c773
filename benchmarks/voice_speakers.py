"""Speakers whose sounds are known to the millisecond: eSpeak NG (any language) and Festival (diphones of people).

Debian: ``apt install espeak-ng festival festvox-kallpc16k festvox-kdlpc16k festvox-us-slt-hts festvox-italp16k
festvox-itapc16k festvox-suopuhe-lj festvox-suopuhe-mv festvox-czech-ph festvox-czech-dita festvox-czech-machac
festvox-czech-krb``. What they say is not covered by the programs' licences.
"""

from __future__ import annotations

import ctypes
import subprocess
import wave
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from math import gcd
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.signal import resample_poly

from vitascope.animation.speech.hearing import SAMPLE_RATE
from vitascope.animation.speech.visemes import Sound, viseme_of_ipa

__all__ = ["FESTIVAL", "Spoken", "nonsense", "speak_with_espeak", "speak_with_festival"]

FESTIVAL = {
    "kal": "voice_kal_diphone", "ked": "voice_ked_diphone", "slt": "voice_cmu_us_slt_arctic_hts",
    "lp": "voice_lp_diphone", "pc": "voice_pc_diphone", "lj": "voice_suo_fi_lj_diphone",
    "mv": "voice_hy_fi_mv_diphone", "ph": "voice_czech_ph", "dita": "voice_czech_dita",
    "machac": "voice_czech_machac", "krb": "voice_czech_krb",
}  # fmt: skip
"""Festival's voices by the names of their packages: three American ones, Italian, Finnish, and Czech."""
_ARPABET = {
    "p": "p", "b": "b", "m": "m", "f": "f", "v": "v", "th": "θ", "dh": "ð", "t": "t", "d": "d", "n": "n",
    "l": "l", "s": "s", "z": "z", "sh": "ʃ", "zh": "ʒ", "ch": "ʃ", "jh": "ʒ", "k": "k", "g": "g",
    "ng": "ŋ", "hh": "h", "r": "r", "er": "r", "w": "w", "y": "j", "aa": "ɑ", "ae": "æ", "ah": "ʌ",
    "ax": "ə", "eh": "ɛ", "ey": "eɪ", "ih": "ɪ", "iy": "i", "ow": "oʊ", "ao": "ɔ", "oy": "ɔɪ", "uh": "ʊ",
    "uw": "u", "aw": "aʊ", "ay": "aɪ",
}  # fmt: skip
_OTHERS = {letter: letter for letter in "aeioupbmfvtdnlrszkgjhwxy"} | {
    "S": "ʃ", "tS": "ʃ", "ts": "s", "dz": "z", "dZ": "ʒ", "Z": "ʒ", "E": "ɛ", "O": "ɔ", "ng": "ŋ", "nf": "ɱ",
    "ch": "ʃ", "sh": "ʃ", "zh": "ʒ", "n~": "n", "d~": "d", "t~": "t", "n*": "ŋ", "c": "s", "A": "æ",
}  # fmt: skip
_AMERICAN = {"kal", "ked", "slt"}
_CONSONANTS = (*"pbmfvtdnlrszkg", "sh", "ch", *"hjw")
_OFTEN = np.array([2.2] * 3 + [1.5] * 2 + [1.0] * 14)

Samples = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class Spoken:
    """What a speaker said, and when each sound of it was made."""

    samples: Samples
    sounds: list[Sound]


def nonsense(random: np.random.Generator, *, words: int = 8) -> str:
    """Syllables that every language can read, with lips often."""
    said = []
    for _ in range(words):
        word = ""
        for _ in range(int(random.integers(1, 4))):
            word += (
                _CONSONANTS[int(random.choice(19, p=_OFTEN / _OFTEN.sum()))]
                + "aeiou"[int(random.integers(5))]
            )
            if random.random() < 0.25:
                word += "nmlstp"[int(random.integers(6))]
        said.append(word)
    return f"{' '.join(said[: words // 2])}, {' '.join(said[words // 2 :])}."


# --- Festival -------------------------------------------------------------------------------------------------------


def speak_with_festival(voice: str, texts: Sequence[str], folder: Path) -> Iterator[Spoken]:
    """Let a voice say texts, one file each in ``folder``."""
    lines = [f"({FESTIVAL[voice]})"]
    for index, text in enumerate(texts):
        path = folder / f"{voice}-{index}"
        lines += [
            f'(set! said (utt.synth (Utterance Text "{text}")))',
            f'(utt.save.wave said "{path}.wav" "riff")',
            f'(utt.save.segs said "{path}.lab")',
        ]
    script = folder / f"{voice}.scm"
    script.write_text("\n".join(lines), encoding="utf-8")
    subprocess.run(["festival", "-b", str(script)], check=True, capture_output=True)
    for index in range(len(texts)):
        path = folder / f"{voice}-{index}.wav"
        with wave.open(str(path)) as file:
            pcm = np.frombuffer(file.readframes(file.getnframes()), np.int16)
            yield Spoken(
                _resampled(pcm / 32768, file.getframerate()), _labelled(path.with_suffix(".lab"), voice)
            )


def _labelled(path: Path, voice: str) -> list[Sound]:
    """The segments of a label file: end in seconds, a number, the phone."""
    segments, start = [], 0.0
    for line in path.read_text(encoding="utf-8").splitlines():
        if len(parts := line.split()) == 3:
            end, phone = float(parts[0]), parts[2]
            known = _ARPABET if voice in _AMERICAN else _OTHERS
            segments.append((start, end, known.get(phone) or known.get(phone.rstrip(":12"), "")))
            start = end
    return _sounds(segments)


# --- eSpeak NG ------------------------------------------------------------------------------------------------------


class _Event(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_int), ("unique", ctypes.c_uint), ("text_position", ctypes.c_int), ("length", ctypes.c_int),
        ("audio_position", ctypes.c_int), ("sample", ctypes.c_int), ("user_data", ctypes.c_void_p),
        ("phoneme", ctypes.c_char * 8),
    )  # fmt: skip


_Callback = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.POINTER(_Event)
)
_SYNCHRONOUS, _PHONEME_EVENTS_IN_IPA, _PHONEME, _UTF8 = 2, 3, 7, 1
_RATE_PARAMETER, _PITCH_PARAMETER = 1, 3


class _Espeak:
    """The library, and what it said last (espeak-ng/speak_lib.h)."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL("libespeak-ng.so.1")
        self._rate = self._library.espeak_Initialize(_SYNCHRONOUS, 200, None, _PHONEME_EVENTS_IN_IPA)
        self._parts: list[npt.NDArray[np.int16]] = []
        self._events: list[tuple[float, str]] = []
        self._callback = _Callback(self._take)
        self._library.espeak_SetSynthCallback(self._callback)

    def _take(self, samples: Any, count: int, events: Any) -> int:
        if samples and count:
            self._parts.append(np.ctypeslib.as_array(samples, (count,)).copy())
        index = 0
        while (event := events[index]).type:
            if event.type == _PHONEME:
                self._events.append((event.audio_position / 1000, event.phoneme.decode(errors="replace")))
            index += 1
        return 0

    def speak(self, text: str, voice: str, *, words_a_minute: int, pitch: int) -> Spoken:
        if self._library.espeak_SetVoiceByName(voice.encode()):
            raise SystemExit(f"eSpeak NG has no voice {voice}")
        self._library.espeak_SetParameter(_RATE_PARAMETER, words_a_minute, 0)
        self._library.espeak_SetParameter(_PITCH_PARAMETER, pitch, 0)
        self._parts, self._events = [], []
        data = text.encode() + b"\0"
        self._library.espeak_Synth(data, len(data), 0, 1, 0, _UTF8, None, None)
        samples = np.concatenate(self._parts) / 32768
        return Spoken(_resampled(samples, self._rate), _timed(samples, self._events, self._rate))


@cache
def _espeak() -> _Espeak:
    return _Espeak()


def speak_with_espeak(
    text: str, voice: str = "en-us", *, words_a_minute: int = 165, pitch: int = 50
) -> Spoken:
    """Let eSpeak NG say a text."""
    return _espeak().speak(text, voice, words_a_minute=words_a_minute, pitch=pitch)


def _timed(samples: npt.NDArray[Any], events: Sequence[tuple[float, str]], rate: int) -> list[Sound]:
    """Sounds of eSpeak's events, of which stops are told where they burst and begin where it falls silent before."""
    size = rate // 200
    peaks = np.array([np.abs(samples[at : at + size]).max(initial=0) for at in range(0, len(samples), size)])
    segments: list[tuple[float, float, str]] = []
    ends = [moment for moment, _ in events[1:]] + [len(samples) / rate]
    for (start, phoneme), end in zip(events, ends, strict=True):
        phoneme = phoneme.replace("tʃ", "ʃ").replace("dʒ", "ʒ").replace("ts", "s").replace("dz", "z")
        if phoneme[:1] in tuple("pbtdkg") and start > 0.02:
            burst = at = int(start * 200) - 1
            while at > 0 and burst - at < 30 and peaks[at - 1] < 0.03:
                at -= 1
            if burst - at > 2:
                start = at / 200
                if segments and segments[-1][1] > start:
                    before, _, name = segments[-1]
                    segments[-1] = (before, max(start, before + 0.01), name)
                if phoneme[0] in "ptk":
                    end = (burst + 1) / 200 + 0.025
        if phoneme == "m":  # the vowel has begun 20 ms before it is told
            end = max(end - 0.02, start + 0.03)
        segments.append((start, end, phoneme))
    return _sounds(segments)


def _sounds(segments: Sequence[tuple[float, float, str]]) -> list[Sound]:
    """Segments (start, end, IPA) as visemes; p and b without their burst."""
    found = []
    for start, end, phoneme in segments:
        if phoneme in ("p", "b") and end - start > 0.04:
            end -= 0.015
        visemes = viseme_of_ipa(phoneme)
        edges = np.linspace(start, end, len(visemes) + 1)
        found += [Sound(viseme, float(edges[at]), float(edges[at + 1])) for at, viseme in enumerate(visemes)]
    return found


def _resampled(samples: npt.NDArray[Any], rate: int) -> Samples:
    shared = gcd(SAMPLE_RATE, rate)
    return np.asarray(resample_poly(samples, SAMPLE_RATE // shared, rate // shared), np.float32)
