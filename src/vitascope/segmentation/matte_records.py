"""The network's answers for a stretch of frames, as bytes: small, and exact where it matters.

Most of a matte is plainly background or plainly person. A sample of coefficients is *plain* where alpha is 0 (or 1)
whatever grey the picture shows there, and the same holds for its eight neighbours: everything that is interpolated
from it then is 0 (or 1), too. Plain samples are kept as two bits, the others as they are. What is unpacked refines to
the very same alpha for every picture whose greys lie in ``GREYS``: all colours that exist, with a margin for noise.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from vitascope.models.network import MatteEstimate

__all__ = ["GREYS", "DamagedRecordError", "pack_estimates", "unpack_estimates"]

GREYS = (-0.1, 1.1)
"""Means of R, G and B, full scale 1, that pictures may show."""

_HEAD = struct.Struct("<I")
_ZERO, _ONE, _OWN = 0, 1, 2
_NEIGHBOURS = np.ones((3, 3), np.uint8)


class DamagedRecordError(Exception):
    """The bytes are no record."""


def pack_estimates(estimates: Sequence[MatteEstimate]) -> npt.NDArray[np.uint8]:
    """Estimates as bytes.

    Args:
        estimates: gain and offset, float32 or float16 [E, C, h, w] in the host's memory, alpha's plane last; one and
            the same object repeatedly where a matte serves several frames, which is kept once.

    Returns:
        uint8 [n].
    """
    entries: list[dict[str, Any]] = []
    parts: list[bytes] = []
    at = 0
    known: dict[int, int] = {}
    for index, estimate in enumerate(estimates):
        if id(estimate) in known:
            entries.append({"same": known[id(estimate)]})
            continue
        known[id(estimate)] = index
        gain, offset = estimate.gain, estimate.offset
        assert gain is not None  # coefficients, by contract
        assert offset is not None
        kinds = _kinds(gain[:, -1], offset[:, -1])
        own = kinds == _OWN
        bits = np.packbits(np.stack([own, kinds == _ONE]))
        # Planes of the same sample apart: what is read is a run of each.
        values = [plane[:, channel][own] for plane in (gain, offset) for channel in range(gain.shape[1])]
        body = [bits.tobytes(), *(np.ascontiguousarray(value).tobytes() for value in values)]
        size = sum(map(len, body))
        entries.append({"at": at, "size": size, "shape": gain.shape, "dtype": gain.dtype.str})
        parts += body
        at += size
    head = json.dumps(entries).encode()
    return np.frombuffer(b"".join([_HEAD.pack(len(head)), head, *parts]), np.uint8)


def unpack_estimates(record: npt.NDArray[np.uint8]) -> list[MatteEstimate]:
    """The estimates of a record, in the host's memory.

    Raises:
        DamagedRecordError: The bytes are no record.
    """
    content = np.ascontiguousarray(record).data.cast("B")
    try:
        (length,) = _HEAD.unpack_from(content)
        entries = json.loads(bytes(content[_HEAD.size : _HEAD.size + length]))
        body = content[_HEAD.size + length :]
        estimates: list[MatteEstimate] = []
        for entry in entries:
            if "same" in entry:
                estimates.append(estimates[entry["same"]])
            else:
                estimates.append(
                    _unpacked(
                        body[entry["at"] : entry["at"] + entry["size"]],
                        tuple(entry["shape"]),
                        np.dtype(entry["dtype"]),
                    )
                )
    except (struct.error, ValueError, KeyError, TypeError, IndexError, UnicodeDecodeError) as error:
        raise DamagedRecordError(str(error)) from error
    return estimates


def _kinds(gain: npt.NDArray[Any], offset: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """What each sample [E, h, w] is: background, person, or to be kept."""
    slope, bias = gain.astype(np.float32), offset.astype(np.float32)
    ends = [slope * np.float32(grey) + bias for grey in GREYS]
    kinds = np.full(gain.shape, _OWN, np.uint8)
    for kind, plain in ((_ZERO, np.maximum(*ends) <= 0), (_ONE, np.minimum(*ends) >= 1)):
        for eye, own in zip(kinds, plain, strict=True):
            eye[cv2.erode(own.astype(np.uint8), _NEIGHBOURS) > 0] = kind
    return kinds


def _unpacked(body: memoryview, shape: tuple[int, ...], dtype: np.dtype[Any]) -> MatteEstimate:
    eyes, channels, height, width = shape
    count = eyes * height * width
    bit_bytes = -(-2 * count // 8)
    bits = np.unpackbits(np.frombuffer(body[:bit_bytes], np.uint8), count=2 * count)
    own, one = bits.reshape(2, eyes, height, width).astype(bool)
    kept = int(own.sum())
    values = np.frombuffer(body[bit_bytes:], dtype).reshape(2, channels, kept)
    planes = np.zeros((2, eyes, channels, height, width), dtype)
    planes[1, :, -1][one] = 1
    for target, source in zip(planes, values, strict=True):
        for channel in range(channels):
            target[:, channel][own] = source[channel]
    return MatteEstimate(gain=planes[0], offset=planes[1])
