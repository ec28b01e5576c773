"""Finds when each sound of a known text is spoken, by forced alignment with PocketSphinx (English).

github.com/cmusphinx/pocketsphinx. Its wheel contains an acoustic model of English and a dictionary of 135,000 words.
Other words are spelled out letter by letter, which is accurate enough for lips.
"""

from __future__ import annotations

import re
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np

from vitascope.animation.face import FloatArray
from vitascope.animation.speech.hearing import SAMPLE_RATE
from vitascope.animation.speech.visemes import Sound, viseme_of_ipa
from vitascope.errors import EngineError, InputError, MissingDependencyError, UsageError

MOST_SECONDS = 600.0
"""Maximum length of sound that is aligned with a text."""
_MOST_BYTES = 1 << 20
_LEAST_PEAK = 1e-4
"""Minimum peak, -80 dB or three steps of 16 bits: no voice is quieter."""
_FRAMES_A_SECOND = 100
_IPA = {
    "P": "p", "B": "b", "M": "m", "F": "f", "V": "v", "TH": "θ", "DH": "ð", "T": "t", "D": "d", "N": "n",
    "L": "l", "S": "s", "Z": "z", "SH": "ʃ", "ZH": "ʒ", "CH": "ʃ", "JH": "ʒ", "K": "k", "G": "g",
    "NG": "ŋ", "HH": "h", "R": "r", "ER": "ɹ", "W": "w", "Y": "j", "AA": "ɑ", "AE": "æ", "AH": "ʌ",
    "EH": "ɛ", "EY": "eɪ", "IH": "ɪ", "IY": "i", "OW": "oʊ", "AO": "ɔ", "OY": "ɔɪ", "UH": "ʊ", "UW": "u",
    "AW": "aʊ", "AY": "aɪ",
}  # fmt: skip
_BURST_SECONDS = 0.015
"""Length of the burst that ends a p or b, in which the lips have parted."""
_CLOSURE_SECONDS = 0.1
"""Length of a p or b, closure and burst (Lisker 1957: closures of 75 to 120 ms)."""
_SPELLED = {
    "sch": "SH", "tch": "CH", "igh": "AY", "ch": "CH", "sh": "SH", "th": "TH", "ph": "F", "ck": "K",
    "ng": "NG", "qu": "K W", "wh": "W", "ee": "IY", "ea": "IY", "oo": "UW", "ou": "AW", "ow": "OW",
    "ai": "EY", "ay": "EY", "oa": "OW", "oi": "OY", "oy": "OY", "au": "AO", "aw": "AO", "a": "AE",
    "b": "B", "c": "K", "d": "D", "e": "EH", "f": "F", "g": "G", "h": "HH", "i": "IH", "j": "JH", "k": "K",
    "l": "L", "m": "M", "n": "N", "o": "OW", "p": "P", "q": "K", "r": "R", "s": "S", "t": "T", "u": "UW",
    "v": "V", "w": "W", "x": "K S", "y": "IY", "z": "Z", "0": "Z IH R OW", "1": "W AH N", "2": "T UW",
    "3": "TH R IY", "4": "F AO R", "5": "F AY V", "6": "S IH K S", "7": "S EH V AH N", "8": "EY T",
    "9": "N AY N",
}  # fmt: skip
_PIECES = re.compile("|".join(_SPELLED))


class Alignment:
    """The sounds of a text with their times.

    Attributes:
        sounds: The sounds, in order. guessed: Words that are missing from the dictionary.
    """

    def __init__(self, sounds: list[Sound], guessed: list[str]) -> None:
        self.sounds = sounds
        self.guessed = guessed


def require_pocketsphinx() -> Any:
    """Import ``pocketsphinx``.

    Raises:
        MissingDependencyError: It is not installed, or cannot be loaded.
    """
    try:
        import pocketsphinx
    except ImportError as error:
        raise MissingDependencyError(
            f"--text needs PocketSphinx ({error}); install it with `pip install 'vitascope[voice]'`, "
            "or leave out --text: the sound alone is enough"
        ) from error
    return pocketsphinx


def read_transcript(text: str) -> str:
    """Read the user's text: words, or the name of a text file.

    Raises:
        InputError: The file cannot be read, is not text, or is larger than a megabyte.
        UsageError: It contains no words.
    """
    path = Path(text)
    if path.suffix.lower() == ".txt" or (len(text) < 256 and path.is_file()):
        try:
            if path.stat().st_size > _MOST_BYTES:
                raise InputError(f"{path}: the transcript is larger than 1 MB")
            text = path.read_text(encoding="utf-8-sig")
        except OSError as error:
            raise InputError(f"{path}: cannot be read ({error.strerror or error})") from error
        except UnicodeDecodeError as error:
            raise InputError(f"{path}: not a UTF-8 text file") from error
    if not _words(text):
        raise UsageError("--text: it contains no words")
    return text


def align(samples: FloatArray, text: str) -> Alignment:
    """Find when each sound of a text is spoken.

    Args:
        samples: float32 [n], -1..1, one channel at ``SAMPLE_RATE``.
        text: The English words spoken in it.

    Raises:
        MissingDependencyError: PocketSphinx is not installed.
        InputError: The sound is too long, or these words are not spoken in it.
        EngineError: PocketSphinx failed.
    """
    sphinx = require_pocketsphinx()
    if len(samples) > MOST_SECONDS * SAMPLE_RATE:
        raise InputError(
            f"--text works with up to {MOST_SECONDS / 60:.0f} minutes of sound; shorten it with --start and --end"
        )
    words, guessed = _words(text), []
    peak = float(np.abs(samples).max(initial=0))
    if peak < _LEAST_PEAK:  # else words would be aligned with rounding noise
        raise InputError("--text: these words were not found: the sound is silent")
    pcm = np.asarray(samples * (0.7 * 32767 / peak), np.int16).tobytes()
    try:
        # Wide beams: the words are known, and accuracy is worth the time.
        decoder = sphinx.Decoder(
            samprate=SAMPLE_RATE,
            loglevel="FATAL",
            lm=None,
            beam=1e-80,
            wbeam=1e-60,
            pbeam=1e-80,
            bestpath=False,
        )
        for word in dict.fromkeys(words):
            if decoder.lookup_word(word) is None:
                guessed.append(word)
                decoder.add_word(word, _spelled(word), True)
        decoder.set_align_text(" ".join(words))
        _decode(decoder, pcm)
        if decoder.hyp() is None:
            raise InputError(
                "--text: these words were not found in the sound; are they what is said, and in English?"
            )
        decoder.set_alignment()
        _decode(decoder, pcm)
        phones = [
            (phone.name, phone.start / _FRAMES_A_SECOND, (phone.start + phone.duration) / _FRAMES_A_SECOND)
            for word in decoder.get_alignment()
            for phone in word
        ]
    except RuntimeError as error:
        raise EngineError(
            f"--text: PocketSphinx could not align the words with the sound: {error}"
        ) from error
    return Alignment([sound for phone in _with_closures(phones) for sound in _sounds(*phone)], guessed)


def _with_closures(phones: list[tuple[str, float, float]]) -> list[tuple[str, float, float]]:
    """Start p and b with the silence of their closure, which the aligner counts as part of a pause before it."""
    before, closed = 0.0, []
    for name, start, end in phones:
        if name in ("P", "B") and end - start < _CLOSURE_SECONDS:
            start = max(before, end - _CLOSURE_SECONDS)
        if name != "SIL":
            before = end
        closed.append((name, start, end))
    return closed


def _decode(decoder: Any, pcm: bytes) -> None:
    decoder.start_utt()
    decoder.process_raw(pcm, full_utt=True)
    decoder.end_utt()


def _sounds(name: str, start: float, end: float) -> list[Sound]:
    visemes = viseme_of_ipa(_IPA.get(name, ""))
    if name in ("P", "B") and end - start > 3 * _BURST_SECONDS:
        end -= _BURST_SECONDS
    edges = np.linspace(start, end, len(visemes) + 1)
    return [
        Sound(viseme, float(a), float(b)) for viseme, a, b in zip(visemes, edges, edges[1:], strict=False)
    ]


def _words(text: str) -> list[str]:
    """Split a text into words as in the dictionary: lower case, without punctuation and accents."""
    plain = unicodedata.normalize("NFKD", text.casefold().replace("’", "'"))
    plain = "".join(letter for letter in plain if not unicodedata.combining(letter))
    return [word for word in (found.strip("'") for found in re.findall(r"[a-z0-9']+", plain)) if word]


def _spelled(word: str) -> str:
    """Spell a word in phones, from its letters alone."""
    return " ".join(_SPELLED[piece] for piece in _PIECES.findall(word))
