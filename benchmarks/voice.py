"""A voice that moves a portrait: do lips meet on p, b and m, do jaws open as they should, and how far behind is it?

Claims measured here:

- ``closure``:  speakers whose sounds are known (``voice_speakers``), none of them fitted to: the share of p, b and m
                with lips that meet within one frame (30 a second), of other frames with open mouths that are shown
                shut, and correlation and slope of the lip gap against the one that the known sounds give. ``heard``
                is the sound alone, ``text`` PocketSphinx's alignment of what was said.
- ``still``:    silence, noise, music, a tone: the lip gap's mean and 99th percentile, centimetres.
- ``channel``:  the same speech through a telephone, in noise, on one side of stereo beside noise, and under a second
                voice 10 dB softer: as ``closure``.
- ``live``:     the sound at its own pace, through the live source: how far the mouth is behind the sound.
- ``speed``:    seconds of sound that are heard in one second.

Usage: python benchmarks/voice.py [--sheet FILE.png]; needs eSpeak NG and Festival, see ``voice_speakers``; rows of
``text`` need PocketSphinx and are left out without it. Rows go to ``benchmarks/results/voice.json``; ``--sheet`` draws
the mouth over a sentence.
"""

from __future__ import annotations

import argparse
import platform
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import av
import numpy as np
import numpy.typing as npt

from fit_lips import music, noise, through_a_microphone
from row_stamp import commit, write_rows
from vitascope.animation.canonical_mesh import read_canonical_mesh
from vitascope.animation.expression import ExpressionBasis
from vitascope.animation.live.sources import open_voice
from vitascope.animation.speech.hearing import SAMPLE_RATE
from vitascope.animation.speech.transcript import align, require_pocketsphinx
from vitascope.animation.speech.visemes import ROWS_PER_SECOND, SEAL, Sound, Viseme, shapes_of, weights_of
from vitascope.animation.speech.voice import Voice, level_of
from vitascope.device import available_cores
from vitascope.errors import MissingDependencyError
from vitascope.media.reading.sound import OneChannel
from voice_speakers import Samples, Spoken, nonsense, speak_with_espeak, speak_with_festival

RESULTS = Path(__file__).parent / "results" / "voice.json"
FRAME_RATE = 30
SHUT_CM = 0.06
UPPER, LOWER = 13, 14
"""The middle of the inner lips."""
ENGLISH = (
    "Bob and Pam made a big bowl of apple soup.",
    "Please bring both of my papers back before noon.",
    "My mother bought a map of the park.",
    "People who smoke often cough in the morning.",
    "The quick brown fox jumps over the lazy dog.",
    "Would you open the window for me, please?",
    "We remember many happy summers by the sea.",
    "She sells sea shells, but he prefers bananas.",
)


class Mouth:
    """The gap between the lips that weights show, centimetres of an average face."""

    def __init__(self) -> None:
        basis = ExpressionBasis(read_canonical_mesh())
        vertices = read_canonical_mesh().vertices
        self._rest = float(vertices[UPPER, 1] - vertices[LOWER, 1])
        self._fields = np.stack([basis.displacement(row) for row in np.eye(52, dtype=np.float32)])
        self._gaps = self._fields[:, UPPER, 1] - self._fields[:, LOWER, 1]

    def gap(self, weights: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The gap of weights [n, 52]: [n], never below 0."""
        return np.maximum(np.asarray(weights) @ self._gaps, 0)


def shown(samples: Samples, shapes: npt.NDArray[Any] | None = None) -> tuple[npt.NDArray[Any], Voice]:
    """Weights [frames, 52] that a voice gives."""
    voice = Voice(frame_rate=FRAME_RATE, level_db=level_of(samples), shapes=shapes)
    voice.listen(samples)
    voice.finish()
    count = int(len(samples) / SAMPLE_RATE * FRAME_RATE)
    return np.stack([voice.motion_at(index / FRAME_RATE).blendshapes for index in range(count)]), voice


def wanted_gap(mouth: Mouth, spoken: Spoken, count: int) -> npt.NDArray[Any]:
    """Lip gap of the sounds that are known, at the frames."""
    shapes = shapes_of(spoken.sounds, seconds=len(spoken.samples) / SAMPLE_RATE + 1)
    rows = np.round(np.arange(count) / FRAME_RATE * ROWS_PER_SECOND).astype(int)
    near = np.stack([shapes[max(row - 2, 0) : row + 3].mean(axis=0) for row in rows])
    near[:, SEAL] = [shapes[max(row - 2, 0) : row + 3, SEAL].max() for row in rows]
    return mouth.gap(np.stack([weights_of(shape) for shape in near]))


def closures(sounds: Sequence[Sound]) -> list[tuple[float, float]]:
    """Each p, b and m: from when to when."""
    return [(sound.start_seconds, sound.end_seconds) for sound in sounds if sound.viseme is Viseme.LIPS]


class Score:
    """Adds up what speakers show."""

    def __init__(self, mouth: Mouth) -> None:
        self._mouth = mouth
        self._gaps: list[npt.NDArray[Any]] = []
        self._wanted: list[npt.NDArray[Any]] = []
        self._closures = self._met = self._open = self._wrongly_shut = 0

    def add(self, spoken: Spoken, weights: npt.NDArray[Any]) -> None:
        """Count what a speaker's frames show: weights [frames, 52]."""
        gaps, wanted = self._mouth.gap(weights), wanted_gap(self._mouth, spoken, len(weights))
        moments = np.arange(len(gaps)) / FRAME_RATE
        may_be_shut = wanted < 0.15
        for start, end in closures(spoken.sounds):
            near = (moments >= start - 1 / FRAME_RATE) & (moments <= end + 1 / FRAME_RATE)
            may_be_shut |= (moments >= start - 1.5 / FRAME_RATE) & (moments <= end + 1.5 / FRAME_RATE)
            if near.any():
                self._closures += 1
                self._met += bool(gaps[near].min() < SHUT_CM)
        self._open += int((~may_be_shut).sum())
        self._wrongly_shut += int((gaps[~may_be_shut] < SHUT_CM).sum())
        self._gaps.append(gaps)
        self._wanted.append(wanted)

    def row(self, claim: str, **labels: object) -> dict[str, Any]:
        """What was counted."""
        gaps, wanted = np.concatenate(self._gaps), np.concatenate(self._wanted)
        return {
            "claim": claim,
            **labels,
            "closures": self._closures,
            "met_share": round(self._met / max(self._closures, 1), 3),
            "open_shown_shut_share": round(self._wrongly_shut / max(self._open, 1), 3),
            "lip_gap_r": round(float(np.corrcoef(gaps, wanted)[0, 1]), 3),
            "lip_gap_slope": round(float(np.polyfit(wanted, gaps, 1)[0]), 2),
        }


def english() -> list[tuple[str, Spoken]]:
    """Sentences, by voices of eSpeak NG at a pace and pitch of their own."""
    voices = ("en-gb-x-rp", "en-us+f4")
    return [
        (text, speak_with_espeak(text, voices[index % 2], words_a_minute=150, pitch=40 + 5 * index))
        for index, text in enumerate(ENGLISH)
    ]


def speakers(folder: Path) -> Iterable[tuple[str, list[Spoken]]]:
    """Speakers that the network was not fitted to."""
    random = np.random.default_rng(77)
    yield "eSpeak NG, English sentences", [spoken for _, spoken in english()]
    for voice in ("hr", "da", "id+f3"):
        yield f"eSpeak NG, {voice}, nonsense", [speak_with_espeak(nonsense(random), voice) for _ in range(8)]
    names = {"slt": "American woman", "pc": "Italian man", "krb": "Czech child"}
    for voice, name in names.items():
        texts = [nonsense(random) for _ in range(12)]
        yield f"Festival {voice}, {name}, nonsense", list(speak_with_festival(voice, texts, folder))
    yield "Festival slt, American woman, sentences", list(speak_with_festival("slt", ENGLISH, folder))


def text_rows(mouth: Mouth, folder: Path) -> list[dict[str, Any]]:
    """The sentences with their texts; none without PocketSphinx."""
    try:
        require_pocketsphinx()
    except MissingDependencyError as error:
        print(f"no rows of text: {error}")
        return []
    rows = []
    said = {
        "eSpeak NG, English sentences": english(),
        "Festival slt, American woman, sentences": list(
            zip(ENGLISH, speak_with_festival("slt", ENGLISH, folder), strict=True)
        ),
    }
    for name, pairs in said.items():
        score = Score(mouth)
        for text, spoken in pairs:
            sounds = align(spoken.samples, text).sounds
            shapes = shapes_of(sounds, seconds=len(spoken.samples) / SAMPLE_RATE + 1)
            score.add(spoken, shown(spoken.samples, shapes)[0])
        rows.append(score.row("closure", speaker=name, by="text"))
    return rows


def still_rows(mouth: Mouth) -> list[dict[str, Any]]:
    """What is no speech."""
    random = np.random.default_rng(5)
    moments = np.arange(10 * SAMPLE_RATE) / SAMPLE_RATE
    sounds = {
        "silence": np.zeros(10 * SAMPLE_RATE),
        "noise at -40 dB": 0.01 * noise(random, 10 * SAMPLE_RATE),
        "music": music(np.random.default_rng(991), 10.0),
        "a tone": 0.3 * np.sin(2 * np.pi * 220 * moments),
    }
    rows = []
    for name, samples in sounds.items():
        weights, voice = shown(samples.astype(np.float32))
        gaps = mouth.gap(weights)
        rows.append(
            {
                "claim": "still",
                "sound": name,
                "lip_gap_mean_cm": round(float(gaps.mean()), 3),
                "lip_gap_p99_cm": round(float(np.percentile(gaps, 99)), 3),
                "opened_share": round(voice.opened_count / max(voice.row_count, 1), 3),
            }
        )
    return rows


def channel_rows(mouth: Mouth) -> list[dict[str, Any]]:
    """The English sentences as they reach people."""
    random = np.random.default_rng(6)
    spoken = [pair[1] for pair in english()]

    def telephone(samples: Samples) -> Samples:
        spectrum, hertz = np.fft.rfft(samples), np.fft.rfftfreq(len(samples), 1 / SAMPLE_RATE)
        return np.fft.irfft(spectrum * ((hertz > 300) & (hertz < 3400)), len(samples)).astype(np.float32)

    def noisy(samples: Samples) -> Samples:
        return samples + noise(random, len(samples)) * np.float32(np.std(samples) * 10 ** (-15 / 20))

    def one_side(samples: Samples) -> Samples:
        other = noise(random, len(samples)) * np.float32(0.1 * np.std(samples))
        return np.concatenate(
            [
                OneChannel()(np.stack((part, rest)))
                for part, rest in zip(np.array_split(samples, 50), np.array_split(other, 50), strict=True)
            ]
        )

    def two_voices(samples: Samples) -> Samples:
        other = np.resize(spoken[2].samples, len(samples))
        return samples + np.float32(10 ** (-10 / 20)) * other

    ways = {
        "telephone, 300 to 3400 Hz": telephone,
        "noise, 15 dB": noisy,
        "left of stereo": one_side,
        "another voice, 10 dB softer": two_voices,
        "a bad microphone": lambda s: through_a_microphone(random, s),
    }
    rows = []
    for name, way in ways.items():
        score = Score(mouth)
        for one in spoken:
            score.add(one, shown(way(one.samples))[0])
        rows.append(score.row("channel", way=name, by="heard"))
    return rows


def live_row(folder: Path) -> dict[str, Any]:
    """Delay of the live source: from a moment's sound to its motion, of a file at its own pace."""
    path = folder / "speech.wav"
    samples = np.concatenate([spoken.samples for _, spoken in english()[:3]])
    with av.open(str(path), "w") as container:
        stream = container.add_stream("pcm_s16le", rate=SAMPLE_RATE, layout="mono")
        pcm = (samples * 32767).clip(-32768, 32767).astype(np.int16)
        frame = av.AudioFrame.from_ndarray(pcm[None], format="s16", layout="mono")
        frame.sample_rate = SAMPLE_RATE
        container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    delays = []
    with open_voice(str(path), frame_rate=FRAME_RATE) as source:
        while not source.is_over:
            if (picture := source.take(timeout_seconds=1)) is not None:
                delays.append((time.monotonic() - picture.captured_seconds) * 1e3)
    return {
        "claim": "live",
        "pictures": len(delays),
        "seconds": round(len(samples) / SAMPLE_RATE, 1),
        "behind_ms_p50": round(float(np.percentile(delays, 50)), 1),
        "behind_ms_p95": round(float(np.percentile(delays, 95)), 1),
    }


def speed_row() -> dict[str, Any]:
    """A minute of speech, by one thread."""
    samples = np.resize(np.concatenate([spoken.samples for _, spoken in english()]), 60 * SAMPLE_RATE)
    began = time.perf_counter()
    shown(samples)
    return {"claim": "speed", "sound_seconds_per_second": round(60 / (time.perf_counter() - began), 1)}


def draw(mouth: Mouth, path: Path) -> None:
    """The lip gap over a sentence: heard, and known."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    text, spoken = english()[0]
    weights, _ = shown(spoken.samples)
    moments = np.arange(len(weights)) / FRAME_RATE
    figure, (top, bottom) = pyplot.subplots(2, 1, figsize=(16, 7), sharex=True)
    top.plot(np.arange(len(spoken.samples)) / SAMPLE_RATE, spoken.samples, linewidth=0.5)
    top.set_title(text)
    bottom.plot(moments, wanted_gap(mouth, spoken, len(weights)), label="of the known sounds")
    bottom.plot(moments, mouth.gap(weights), marker=".", label="heard")
    for start, end in closures(spoken.sounds):
        bottom.axvspan(start, end, color="red", alpha=0.15)
    bottom.set_ylabel("lip gap, cm")
    bottom.legend()
    figure.tight_layout()
    figure.savefig(path)


def main() -> None:
    """Measure everything."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sheet", type=Path, help="draw the mouth over a sentence")
    parser.add_argument("--out", type=Path, default=RESULTS)
    wanted = parser.parse_args()
    mouth = Mouth()
    if wanted.sheet is not None:
        draw(mouth, wanted.sheet)
    rows = []
    with TemporaryDirectory() as name:
        folder = Path(name)
        for speaker, said in speakers(folder):
            score = Score(mouth)
            for spoken in said:
                score.add(spoken, shown(spoken.samples)[0])
            rows.append(score.row("closure", speaker=speaker, by="heard"))
            print(rows[-1], flush=True)
        rows += text_rows(mouth, folder)
        rows += still_rows(mouth) + channel_rows(mouth) + [live_row(folder), speed_row()]
    stamp = {
        "commit": commit(),
        "date": time.strftime("%Y-%m-%d"),
        "cpu": platform.processor() or platform.machine(),
        "cores": available_cores(),
    }
    for row in rows:
        print(row)
    write_rows(wanted.out, [{**row, **stamp} for row in rows])


if __name__ == "__main__":
    main()
