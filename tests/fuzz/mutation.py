"""Ways to damage a file: what disks, downloads and editors do to one, and what nobody would."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

__all__ = ["MUTATORS", "mutated"]

Mutator = Callable[[random.Random, bytes], bytes]
_EXTREMES = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)


def _span(rng: random.Random, size: int, most: int) -> tuple[int, int]:
    length = min(rng.randint(1, most), max(size, 1))
    begin = rng.randint(0, max(size - length, 0))
    return begin, begin + length


def truncate(rng: random.Random, data: bytes) -> bytes:
    """A download that broke off."""
    return data[: rng.randint(0, max(len(data) - 1, 0))]


def zero(rng: random.Random, data: bytes) -> bytes:
    """A hole: sectors that could not be read."""
    begin, end = _span(rng, len(data), max(len(data) // 3, 1))
    return data[:begin] + bytes(end - begin) + data[end:]


def flip(rng: random.Random, data: bytes) -> bytes:
    """Some bits turned over."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 4, 64))):
        if changed:
            changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def noise(rng: random.Random, data: bytes) -> bytes:
    """A part of something else."""
    begin, end = _span(rng, len(data), 4096)
    return data[:begin] + rng.randbytes(end - begin) + data[end:]


def extreme(rng: random.Random, data: bytes) -> bytes:
    """A size, a count or an offset at the end of its range, near the beginning, where headers are."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 2, 8))):
        width = rng.choice((1, 2, 4))
        if len(changed) >= width:
            place = rng.randrange(min(len(changed) - width + 1, 2048))
            value = rng.choice(_EXTREMES) & (1 << 8 * width) - 1
            changed[place : place + width] = value.to_bytes(width, rng.choice(("big", "little")))
    return bytes(changed)


def drop(rng: random.Random, data: bytes) -> bytes:
    """A part left out."""
    begin, end = _span(rng, len(data), max(len(data) // 3, 1))
    return data[:begin] + data[end:]


def repeat(rng: random.Random, data: bytes) -> bytes:
    """A part twice."""
    begin, end = _span(rng, len(data), max(len(data) // 3, 1))
    return data[:end] + data[begin:end] + data[end:]


def swap(rng: random.Random, data: bytes) -> bytes:
    """Two parts in the other order."""
    places = sorted(rng.randrange(len(data) + 1) for _ in range(3))
    a, b, c = places
    return data[:a] + data[b:c] + data[a:b] + data[c:]


def digits(rng: random.Random, data: bytes) -> bytes:
    """A number of a text, or its sign, made another."""
    found = list(re.finditer(rb"-?\d+(\.\d+)?", data))
    if not found:
        return flip(rng, data)
    match = rng.choice(found)
    number = rng.choice(
        (b"-1", b"0", b"1e309", b"nan", b"99999999999999999999", b"0.0000001", b"[]", b"~", b'"x"')
    )
    return data[: match.start()] + number + data[match.end() :]


def lines(rng: random.Random, data: bytes) -> bytes:
    """Lines of a text indented, joined or repeated."""
    parts = data.split(b"\n")
    place = rng.randrange(len(parts))
    parts[place] = rng.choice(
        (b"  " + parts[place], parts[place] * 2, b"\t" + parts[place], b"- " + parts[place])
    )
    return b"\n".join(parts)


def control(rng: random.Random, data: bytes) -> bytes:
    """Characters that mean something to terminals and parsers."""
    place = rng.randint(0, len(data))
    what = rng.choice(
        (b"\x00", b"\x1b]52;c;eA==\x07", b"\xff\xfe", b"&a *a", b"{" * 200, b"[" * 5000, b"!!python/name:os")
    )
    return data[:place] + what + data[place:]


MUTATORS: dict[str, tuple[Mutator, ...]] = {
    "binary": (truncate, zero, flip, noise, extreme, drop, repeat, swap),
    "text": (truncate, flip, drop, repeat, swap, digits, lines, control),
}


def mutated(rng: random.Random, data: bytes, kind: str) -> tuple[bytes, list[str]]:
    """A file damaged in one to three ways, and their names.

    Args:
        rng: Decides everything.
        data: The whole file.
        kind: ``binary`` or ``text``.
    """
    names = []
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        mutator = rng.choice(MUTATORS[kind])
        data = mutator(rng, data)
        names.append(mutator.__name__)
    return data, names
