"""Ways to damage a file: what disks, downloads and editors do, and what nobody would."""

from __future__ import annotations

import random
import re
import zlib
from collections.abc import Callable

import onnx

__all__ = ["MUTATORS", "mutated"]

Mutator = Callable[[random.Random, bytes], bytes]
_EXTREMES = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)


def _span(rng: random.Random, size: int, most: int) -> tuple[int, int]:
    length = min(rng.randint(1, most), max(size, 1))
    begin = rng.randint(0, max(size - length, 0))
    return begin, begin + length


def truncate(rng: random.Random, data: bytes) -> bytes:
    """Cut off the end, as a broken download."""
    return data[: rng.randint(0, max(len(data) - 1, 0))]


def zero(rng: random.Random, data: bytes) -> bytes:
    """Zero a part, as unreadable sectors."""
    begin, end = _span(rng, len(data), max(len(data) // 3, 1))
    return data[:begin] + bytes(end - begin) + data[end:]


def flip(rng: random.Random, data: bytes) -> bytes:
    """Flip some bits."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 4, 64))):
        if changed:
            changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def noise(rng: random.Random, data: bytes) -> bytes:
    """Replace a part with noise."""
    begin, end = _span(rng, len(data), 4096)
    return data[:begin] + rng.randbytes(end - begin) + data[end:]


def extreme(rng: random.Random, data: bytes) -> bytes:
    """Set a size, a count or an offset to an end of its range, near the beginning, where headers are."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 2, 8))):
        width = rng.choice((1, 2, 4))
        if len(changed) >= width:
            place = rng.randrange(min(len(changed) - width + 1, 2048))
            value = rng.choice(_EXTREMES) & (1 << 8 * width) - 1
            changed[place : place + width] = value.to_bytes(width, rng.choice(("big", "little")))
    return bytes(changed)


def drop(rng: random.Random, data: bytes) -> bytes:
    """Leave out a part."""
    begin, end = _span(rng, len(data), max(len(data) // 3, 1))
    return data[:begin] + data[end:]


def repeat(rng: random.Random, data: bytes) -> bytes:
    """Repeat a part."""
    begin, end = _span(rng, len(data), max(len(data) // 3, 1))
    return data[:end] + data[begin:end] + data[end:]


def swap(rng: random.Random, data: bytes) -> bytes:
    """Swap two parts."""
    places = sorted(rng.randrange(len(data) + 1) for _ in range(3))
    a, b, c = places
    return data[:a] + data[b:c] + data[a:b] + data[c:]


def digits(rng: random.Random, data: bytes) -> bytes:
    """Change a number in a text, or its sign."""
    found = list(re.finditer(rb"-?\d+(\.\d+)?", data))
    if not found:
        return flip(rng, data)
    match = rng.choice(found)
    number = rng.choice(
        (b"-1", b"0", b"1e309", b"nan", b"99999999999999999999", b"0.0000001", b"[]", b"~", b'"x"')
    )
    return data[: match.start()] + number + data[match.end() :]


def lines(rng: random.Random, data: bytes) -> bytes:
    """Indent, join or repeat lines of a text."""
    parts = data.split(b"\n")
    place = rng.randrange(len(parts))
    parts[place] = rng.choice(
        (b"  " + parts[place], parts[place] * 2, b"\t" + parts[place], b"- " + parts[place])
    )
    return b"\n".join(parts)


def control(rng: random.Random, data: bytes) -> bytes:
    """Insert characters with a meaning for terminals and parsers."""
    place = rng.randint(0, len(data))
    what = rng.choice(
        (b"\x00", b"\x1b]52;c;eA==\x07", b"\xff\xfe", b"&a *a", b"{" * 200, b"[" * 5000, b"!!python/name:os")
    )
    return data[:place] + what + data[place:]


def sealed(rng: random.Random, data: bytes) -> bytes:
    """Change the content of a PNG chunk, and update its checksum."""
    kind, at = rng.choice((b"IHDR", b"IDAT")), data.find(b"IHDR")
    if at < 4 or not data.startswith(b"\x89PNG"):
        return flip(rng, data)
    at = data.find(kind)
    length = int.from_bytes(data[at - 4 : at], "big")
    content = kind + rng.choice((extreme, flip))(rng, data[at + 4 : at + 4 + length])
    return data[:at] + content + zlib.crc32(content).to_bytes(4, "big") + data[at + 8 + length :]


def header(rng: random.Random, data: bytes) -> bytes:
    """Change the line of text that announces numbers, after the line with the file's type."""
    parts = data.split(b"\n", 2)
    if len(parts) < 3:
        return flip(rng, data)
    mutator = rng.choice((digits, control, drop, repeat, swap))
    return b"\n".join((parts[0], mutator(rng, parts[1]), parts[2]))


def declared(rng: random.Random, data: bytes) -> bytes:
    """Change a size, a type, an operator or a link of a network."""
    try:
        model = onnx.load_from_string(data)
    except Exception:  # already damaged
        return flip(rng, data)
    graph = model.graph
    tensors = [value.type.tensor_type for value in (*graph.input, *graph.output)]
    dims = [dim for tensor in tensors for dim in tensor.shape.dim]
    what = rng.randrange(5)
    if what == 0 and dims:
        rng.choice(dims).dim_value = rng.choice((0, -1, 3, 65536, 2**31, 2**62))
    elif what == 1 and dims:
        rng.choice(dims).dim_param = rng.choice(("n", "height", "batch"))
    elif what == 2 and graph.initializer:
        shape = rng.choice(graph.initializer).dims
        shape[:] = [rng.choice((0, 1, -1, 2**40, side)) for side in shape]
    elif what == 3 and graph.node:
        node = rng.choice(graph.node)
        node.op_type = rng.choice(("Loop", "Reshape", "Gather", "ConvTranspose", "NoSuchOperator"))
        node.domain = rng.choice(("", "com.example"))
    elif tensors:
        rng.choice(tensors).elem_type = rng.randrange(20)
    return bytes(model.SerializeToString())


MUTATORS: dict[str, tuple[Mutator, ...]] = {
    "binary": (truncate, zero, flip, noise, extreme, drop, repeat, swap),
    "picture": (truncate, zero, flip, noise, extreme, drop, repeat, swap, sealed, sealed),
    "motion": (truncate, zero, flip, noise, extreme, drop, repeat, swap, header, header),
    "network": (truncate, zero, flip, noise, extreme, drop, repeat, swap, declared, declared, declared),
    "text": (truncate, flip, drop, repeat, swap, digits, lines, control),
}


def mutated(rng: random.Random, data: bytes, kind: str) -> tuple[bytes, list[str]]:
    """A file damaged in one to three ways, and their names.

    Args:
        rng: Decides everything.
        data: The whole file.
        kind: Of ``MUTATORS``.
    """
    names = []
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        mutator = rng.choice(MUTATORS[kind])
        data = mutator(rng, data)
        names.append(mutator.__name__)
    return data, names
