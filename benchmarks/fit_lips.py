"""Fits the lip network, ``src/vitascope/models/data/lips.npz``; needs torch and the speakers.

Speakers of ``voice_speakers`` say nonsense in twenty-four voices of eSpeak NG and eight of Festival, whose diphones
were cut from recordings of people. Their sounds are known, and become mouth shapes (``visemes.shapes_of``).
They are varied with rooms, microphones, telephones and noise, faster and slower, higher and lower; music and
noise, during which the mouth is still, are added. ``voice.py`` tests the network with speakers that are not
among them.

Usage: python benchmarks/fit_lips.py [--epochs 9] [--examples FILE.npz] [--out FILE.npz]; some minutes.

``--examples`` saves sound and mouth shapes, which take half of the time; an existing file is read.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from vitascope.animation.speech.hearing import SAMPLE_RATE, Hearing
from vitascope.animation.speech.visemes import PARAMETERS, ROWS_PER_SECOND, SEAL, Sound, shapes_of
from vitascope.animation.speech.voice import ROWS_AHEAD, ROWS_BEFORE
from voice_speakers import Samples, Spoken, nonsense, speak_with_espeak, speak_with_festival

SHIPPED = Path(__file__).parents[1] / "src" / "vitascope" / "models" / "data" / "lips.npz"
FESTIVAL_VOICES = ("kal", "ked", "lp", "lj", "mv", "ph", "dita", "machac")
ESPEAK_VOICES = (
    "en", "en-us", "de", "fr", "es", "it", "pt", "ru", "pl", "cs", "nl", "tr", "fi", "sv", "ro", "hu", "en+f2", "de+f3",
    "es+f4", "fr+f1", "it+m3", "fi+f5", "en-us+croak", "pl+f2",
)  # fmt: skip
TEXTS_A_FESTIVAL_VOICE, TEXTS_AN_ESPEAK_VOICE = 60, 14
HIDDEN = (96, 64)
COMPONENTS = 96
"""Principal components of nineteen rows that the first layer is fitted on, and then folded into."""
IMPORTANCE = torch.tensor([6.0, 2, 2, 2, 1, 1])
"""Weights of the parameters except the seal; the jaw is the most visible."""
BATCH = 1024


def music(random: np.random.Generator, seconds: float) -> Samples:
    """Chords of plucked and blown tones, and a drum."""
    moments = np.arange(int(seconds * SAMPLE_RATE)) / SAMPLE_RATE
    sound, begin = np.zeros(len(moments)), 0.0
    while begin < seconds:
        length = float(random.choice([0.25, 0.5, 1.0]))
        root = 55 * 2 ** (int(random.integers(12, 40)) / 12)
        sounding = (moments >= begin) & (moments < begin + 1.5 * length)
        since = moments[sounding] - begin
        for interval in random.choice([0, 3, 4, 7, 12, 16], int(random.integers(1, 4)), replace=False):
            envelope = np.exp(-since * random.uniform(0.5, 5)) * (
                1 - np.exp(-since * random.choice([20, 200]))
            )
            for harmonic in range(1, int(random.integers(3, 14))):
                hertz = root * 2 ** (interval / 12) * harmonic
                if hertz < 7500:
                    wave = np.sin(2 * np.pi * hertz * since + random.uniform(0, 6))
                    sound[sounding] += envelope * wave * harmonic ** -random.uniform(0.5, 2)
        if random.random() < 0.6:
            struck = (moments >= begin) & (moments < begin + 0.2)
            decay = np.exp(-(moments[struck] - begin) * random.uniform(15, 60))
            sound[struck] += random.normal(size=struck.sum()) * decay * random.uniform(0.2, 2)
        begin += length
    return np.asarray(sound / np.abs(sound).max() * 0.5, np.float32)


def noise(random: np.random.Generator, count: int) -> Samples:
    """Noise between white and nearly brown, of unit power."""
    spectrum = np.fft.rfft(random.normal(size=count))
    spectrum *= np.arange(1, len(spectrum) + 1) ** -random.uniform(0, 1.2)
    made = np.fft.irfft(spectrum, count)
    return np.asarray(made / made.std(), np.float32)


def through_a_microphone(random: np.random.Generator, samples: Samples) -> Samples:
    """Tilted, bumpy, and of a quarter only what a telephone lets through."""
    hertz = np.fft.rfftfreq(len(samples), 1 / SAMPLE_RATE)
    gain = random.uniform(-3, 3) * np.log2(np.maximum(hertz, 100) / 1000)
    for _ in range(3):
        gain += random.uniform(-6, 6) * np.exp(
            -((np.log2(np.maximum(hertz, 50)) - random.uniform(7, 12.7)) ** 2) * 2
        )
    response = 10 ** (gain / 20)
    if random.random() < 0.25:
        response *= (hertz > random.uniform(100, 300)) & (hertz < random.uniform(3300, 3900))
    return np.asarray(np.fft.irfft(np.fft.rfft(samples) * response, len(samples)), np.float32)


def varied(random: np.random.Generator, spoken: Spoken) -> Spoken:
    """Another pace and size, a room, a microphone, noise, a level."""
    pace, before, after = random.uniform(0.7, 1.4), random.uniform(0.3, 1), random.uniform(0.3, 1)
    count = int(len(spoken.samples) / pace)
    samples = np.interp(np.arange(count) * pace, np.arange(len(spoken.samples)), spoken.samples)
    silence = [np.zeros(int(seconds * SAMPLE_RATE)) for seconds in (before, after)]
    samples = np.concatenate((silence[0], samples, silence[1])).astype(np.float32)
    samples = through_a_microphone(random, samples)
    if random.random() < 0.4:
        length = int(random.uniform(0.05, 0.3) * SAMPLE_RATE)
        room = (
            random.normal(size=length) * np.exp(-np.arange(length) / length * 6) * random.uniform(0.02, 0.15)
        )
        room[0] = 1
        size = 1 << (len(samples) + length).bit_length()
        echoed = np.fft.irfft(np.fft.rfft(samples, size) * np.fft.rfft(room, size), size)
        samples = echoed[: len(samples)].astype(np.float32)
    power = float(np.sqrt((samples**2).mean())) + 1e-6
    samples += noise(random, len(samples)) * power * 10 ** (-random.uniform(12, 50) / 20)
    samples *= 0.5 * 10 ** (random.uniform(-15, 5) / 20) / max(float(np.abs(samples).max()), 1e-6)
    sounds = [
        Sound(sound.viseme, sound.start_seconds / pace + before, sound.end_seconds / pace + before)
        for sound in spoken.sounds
    ]
    return Spoken(samples.astype(np.float32), sounds)


def examples(folder: Path) -> Iterator[tuple[Spoken, int]]:
    """Texts of every voice, and the number of variations."""
    for voice in FESTIVAL_VOICES:
        random = np.random.default_rng(sum(map(ord, voice)))
        texts = [nonsense(random) for _ in range(TEXTS_A_FESTIVAL_VOICE)]
        yield from ((spoken, 2) for spoken in speak_with_festival(voice, texts, folder))
    random = np.random.default_rng(0)
    for voice in ESPEAK_VOICES:
        for _ in range(TEXTS_AN_ESPEAK_VOICE):
            pace, pitch = int(random.integers(80, 210)), int(random.integers(15, 90))
            yield speak_with_espeak(nonsense(random), voice, words_a_minute=pace, pitch=pitch), 2


def heard_and_shown(samples: Samples, sounds: list[Sound]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Make bands, and their mouth shapes; NaN at the ends, which do not count."""
    bands = Hearing().listen(samples).bands
    shapes = shapes_of(sounds, seconds=len(bands) / ROWS_PER_SECOND)
    around = ((ROWS_BEFORE, ROWS_AHEAD), (0, 0))
    return np.pad(bands, around, mode="edge"), np.pad(shapes, around, constant_values=np.nan)


def collected() -> tuple[torch.Tensor, torch.Tensor]:
    """All examples, one after another: bands [rows, 26], shapes [rows, 7]."""
    random = np.random.default_rng(1)
    rows = []
    with TemporaryDirectory() as folder:
        for spoken, times in examples(Path(folder)):
            for _ in range(times):
                other = varied(random, spoken)
                rows.append(heard_and_shown(other.samples, other.sounds))
    for index in range(70):
        quiet = noise(random, 5 * SAMPLE_RATE) * 10 ** (-random.uniform(20, 50) / 20)
        sound = music(random, 5.0) if index % 2 else quiet
        bands, shapes = heard_and_shown(through_a_microphone(random, sound.astype(np.float32)), [])
        rows.append((bands, np.where(np.isnan(shapes), shapes, 0)))
    bands, shapes = (np.concatenate(parts).astype(np.float32) for parts in zip(*rows, strict=True))
    return torch.from_numpy(bands), torch.from_numpy(shapes)


Layer = tuple[npt.NDArray[Any], npt.NDArray[Any]]


def components(
    bands: torch.Tensor, rows: torch.Tensor, offsets: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Mean [inputs], and principal components [inputs, n] of unit variance, of the surroundings of rows."""
    some = rows[torch.randint(len(rows), (20_000,))]
    seen = bands[some[:, None] + offsets].reshape(len(some), -1)
    mean = seen.mean(dim=0)
    values, vectors = torch.linalg.eigh(torch.cov((seen - mean).T))
    return mean, vectors[:, -COMPONENTS:] / values[-COMPONENTS:].sqrt().clamp(min=0.05)


def fitted(bands: torch.Tensor, shapes: torch.Tensor, *, epochs: int) -> list[Layer]:
    """Weights [inputs, outputs] and biases of the layers, fitted by AdamW in one cycle."""
    torch.manual_seed(0)
    offsets = torch.arange(-ROWS_BEFORE, ROWS_AHEAD + 1)
    asked = torch.where(~torch.isnan(shapes[:, 0]))[0]
    mean, basis = components(bands, asked, offsets)
    parts = [
        (bands[part[:, None] + offsets].reshape(len(part), -1) - mean) @ basis for part in asked.split(4096)
    ]
    seen, wanted = torch.cat(parts), shapes[asked]
    network = torch.nn.Sequential(
        torch.nn.Linear(COMPONENTS, HIDDEN[0]), torch.nn.ReLU(),
        torch.nn.Linear(HIDDEN[0], HIDDEN[1]), torch.nn.ReLU(),
        torch.nn.Linear(HIDDEN[1], len(PARAMETERS)),
    )  # fmt: skip
    steps = epochs * len(asked) // BATCH
    optimiser = torch.optim.AdamW(network.parameters(), 2e-3, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 4e-3, total_steps=steps)
    for step in range(steps):
        rows = torch.randint(len(asked), (BATCH,))
        given = network(seen[rows] + 0.1 * torch.randn(BATCH, COMPONENTS))
        apart = ((torch.sigmoid(given[:, :SEAL]) - wanted[rows, :SEAL]) ** 2 * IMPORTANCE).mean()
        sealed = torch.nn.functional.binary_cross_entropy_with_logits(
            given[:, SEAL], wanted[rows, SEAL], pos_weight=torch.tensor(1.0)
        )
        loss = 10 * apart + sealed
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
        if step % 1000 == 0:
            print(f"step {step} of {steps}: {loss.item():.4f}", file=sys.stderr, flush=True)
    layers = [
        (layer.weight.detach().T, layer.bias.detach())
        for layer in network
        if isinstance(layer, torch.nn.Linear)
    ]
    weights, bias = layers[0]
    layers[0] = basis @ weights, bias - mean @ basis @ weights
    return [(weights.numpy(), bias.numpy()) for weights, bias in layers]


def save(layers: list[Layer], path: Path) -> None:
    """Write the layers as float16."""
    arrays = {}
    for number, (weights, bias) in enumerate(layers):
        arrays[f"weights{number}"] = weights.astype(np.float16)
        arrays[f"bias{number}"] = bias.astype(np.float16)
    np.savez_compressed(path, **arrays)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--epochs", type=int, default=9)
    parser.add_argument("--examples", type=Path)
    parser.add_argument("--out", type=Path, default=SHIPPED)
    wanted = parser.parse_args()
    if wanted.examples is not None and wanted.examples.exists():
        with np.load(wanted.examples) as file:
            examined = torch.from_numpy(file["bands"]), torch.from_numpy(file["shapes"])
    else:
        examined = collected()
        if wanted.examples is not None:
            np.savez(wanted.examples, bands=examined[0].numpy(), shapes=examined[1].numpy())
    save(fitted(*examined, epochs=wanted.epochs), wanted.out)
    print(f"{wanted.out}: {wanted.out.stat().st_size} bytes")
