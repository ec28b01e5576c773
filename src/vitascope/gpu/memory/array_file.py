"""One NumPy array in one file that can tell whether it is whole: a checksum, the name it was put under, no pickle.

::

    8 bytes   magic
    16        BLAKE2b (RFC 7693) of all that follows
    4, 4      lengths of the name and of the description, little-endian
    8         bytes of the array's values as they stand in the file
    1, 7      1 when they are packed (zlib, RFC 1950); zeros
    …         name, description (dtype as NPY files tell it, and shape: a Python literal), both UTF-8; values in C order
"""

from __future__ import annotations

import ast
import hashlib
import struct
import zlib
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["DamagedEntryError", "pack_array", "unpack_array"]

_MAGIC = b"VSARRAY1"
_DIGEST_BYTES = 16
_HEAD = struct.Struct("<IIQB7x")
_FIXED_BYTES = len(_MAGIC) + _DIGEST_BYTES + _HEAD.size
_PLAIN_KINDS = "biufcmMSUV"

# Mattes and masks are mostly flat and shrink to a few percent; noise and camera pictures do not shrink at all, and
# trying costs more than writing them. A sample of them decides.
_LEVEL = 1
_SAMPLES = 16
_SAMPLE_BYTES = 4096
_WORTH_PACKING = 0.8


class DamagedEntryError(Exception):
    """The content is not what was written under this name: cut off, changed, or something else."""


def pack_array(name: str, array: npt.NDArray[Any]) -> list[bytes | memoryview]:
    """An array as the parts of a file, in order; they may show the array's own memory.

    Args:
        name: Any string.
        array: Any shape and order; numbers, booleans, dates, fixed-length strings and records of these.

    Raises:
        ValueError: The dtype cannot be told in a file without pickle: objects, or a type of another library.
    """
    description = _description(array)
    dense = np.asarray(array, order="C")
    values: bytes | memoryview = dense.reshape(-1).view(np.uint8).data if dense.nbytes else b""
    packed = _is_worth_packing(values)
    if packed:
        values = zlib.compress(values, _LEVEL)
    title = name.encode("utf-8", "surrogatepass")
    head = _HEAD.pack(len(title), len(description), len(values), packed) + title + description
    digest = hashlib.blake2b(head, digest_size=_DIGEST_BYTES)
    digest.update(values)
    return [_MAGIC + digest.digest() + head, values]


def unpack_array(name: str, content: bytes) -> npt.NDArray[Any]:
    """The array of a file.

    Args:
        name: That it was written under.
        content: Of the whole file.

    Returns:
        Read-only, C-contiguous; it shows ``content`` where the values are not packed.

    Raises:
        DamagedEntryError: The file is not whole, or belongs to another name.
    """
    if len(content) < _FIXED_BYTES or not content.startswith(_MAGIC):
        raise DamagedEntryError("it does not begin as such a file does")
    begin = len(_MAGIC) + _DIGEST_BYTES
    body = memoryview(content)[begin:]
    if hashlib.blake2b(body, digest_size=_DIGEST_BYTES).digest() != content[len(_MAGIC) : begin]:
        raise DamagedEntryError("its checksum is another")
    title_bytes, description_bytes, value_bytes, packed = _HEAD.unpack_from(body)
    description_at = _HEAD.size + title_bytes
    values_at = description_at + description_bytes
    if len(body) != values_at + value_bytes:
        raise DamagedEntryError("its length is another")
    if body[_HEAD.size : description_at] != name.encode("utf-8", "surrogatepass"):
        raise DamagedEntryError("it was written under another name")
    try:
        dtype, shape = _described(bytes(body[description_at:values_at]))
        size_bytes = int(np.prod(shape, dtype=object)) * dtype.itemsize
        if packed:
            unpacker = zlib.decompressobj()
            # Never more than the description promises, whatever the packed bytes would grow to.
            values = unpacker.decompress(body[values_at:], max_length=size_bytes + 1)
            return np.ndarray(shape, dtype, _exactly(values, size_bytes))
        return np.ndarray(shape, dtype, _exactly(body[values_at:], size_bytes))
    except (ValueError, TypeError, SyntaxError, EOFError, zlib.error, MemoryError, RecursionError) as error:
        raise DamagedEntryError(str(error)) from error


def _exactly(values: Any, size_bytes: int) -> Any:
    if len(values) != size_bytes:
        raise DamagedEntryError(f"{len(values)} bytes of values, expected {size_bytes}")
    return values


def _description(array: npt.NDArray[Any]) -> bytes:
    refused = ValueError(f"arrays of dtype {array.dtype} cannot be kept in a file: only plain values can")
    if array.dtype.hasobject or array.dtype.kind not in _PLAIN_KINDS:
        raise refused
    try:
        told = np.lib.format.dtype_to_descr(array.dtype)
        if np.lib.format.descr_to_dtype(told) != array.dtype:
            raise refused
    except (ValueError, TypeError) as error:
        raise refused from error
    return repr((told, array.shape)).encode("utf-8", "surrogatepass")


def _described(description: bytes) -> tuple[np.dtype[Any], tuple[int, ...]]:
    told, shape = ast.literal_eval(description.decode("utf-8", "surrogatepass"))
    return np.lib.format.descr_to_dtype(told), shape


def _is_worth_packing(values: bytes | memoryview) -> bool:
    if len(values) < _SAMPLE_BYTES:
        return False
    step = max(len(values) // _SAMPLES, _SAMPLE_BYTES)
    sample = b"".join(bytes(values[at : at + _SAMPLE_BYTES]) for at in range(0, len(values), step))
    return len(zlib.compress(sample, _LEVEL)) < _WORTH_PACKING * len(sample)
