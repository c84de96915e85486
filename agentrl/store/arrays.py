"""Number arrays as blobs: exact, small, readable in any language, never pickled.

One byte names the item type, then come its little-endian bytes, plain or deflated:

    b B  uint8      i I  int32      f F  float32      d D  float64      (capital: byte planes, deflated)

A capital's bytes are stored plane by plane (all lowest bytes first), which is where token ids and logprobs are
compressible. Floats take float32 when every value survives the round trip, which engine logprobs do (they are float32
numbers printed in full), and float64 otherwise.
"""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np

_DTYPES: dict[bytes, np.dtype[Any]] = {
    b"b": np.dtype("u1"),
    b"i": np.dtype("<i4"),
    b"f": np.dtype("<f4"),
    b"d": np.dtype("<f8"),
}


_WORTH_DEFLATING = 256
"""Bytes; what deflating so few would save is less than what it costs."""


def as_ids(values: Sequence[int]) -> np.ndarray:
    """int32, [n]. Raises TypeError or OverflowError for what is not a 32-bit integer, where numpy would truncate."""
    items = array("i", values)
    return np.frombuffer(items, np.int32) if items else np.empty(0, np.int32)


def pack_ints(values: Sequence[int] | np.ndarray) -> bytes:
    """Raises TypeError or OverflowError for what is not a 32-bit integer. An array is one of `as_ids`."""
    items = values if isinstance(values, np.ndarray) else as_ids(values)
    return _pack(b"i", items.astype("<i4", copy=False))


def pack_mask(values: Sequence[int]) -> bytes:
    """Small numbers, mostly 0 and 1. Raises TypeError or OverflowError for what is not a 32-bit integer."""
    try:
        return _pack(b"b", np.frombuffer(bytes(values), np.uint8))
    except ValueError:
        return pack_ints(values)


def pack_floats(values: Sequence[float]) -> bytes:
    """Raises TypeError or ValueError for what is not a number. NaN and infinities are kept."""
    wide = np.array(values, "<f8").reshape(len(values))
    with np.errstate(over="ignore"):
        narrow = wide.astype("<f4")
    if narrow.astype("<f8").tobytes() == wide.tobytes():
        return _pack(b"f", narrow)
    return _pack(b"d", wide)


def unpack(blob: bytes) -> np.ndarray:
    """The array that was packed, [n]. Raises ValueError for bytes that no `pack_*` wrote."""
    tag, body = blob[:1], blob[1:]
    dtype = _DTYPES.get(tag.lower())
    if dtype is None:
        raise ValueError(f"unknown array tag {tag!r}")
    if tag.islower():
        return np.frombuffer(body, dtype)
    try:
        planes = np.frombuffer(zlib.decompress(body), np.uint8)
    except zlib.error as error:
        raise ValueError(f"array is damaged: {error}") from error
    return planes.reshape(dtype.itemsize, -1).T.copy().view(dtype).reshape(-1)


def _pack(tag: bytes, items: np.ndarray) -> bytes:
    plain = items.tobytes()
    if len(plain) < _WORTH_DEFLATING:
        return tag + plain
    planes = np.frombuffer(plain, np.uint8).reshape(-1, items.itemsize).T.tobytes()
    deflated = zlib.compress(planes, level=1)  # a third of the default's time for a few per cent more bytes
    return tag.upper() + deflated if len(deflated) < len(plain) else tag + plain
