"""Number arrays as blobs: exact, small, readable in any language, never pickled.

One byte names the item type, then come its little-endian bytes, plain or deflated:

    b B  uint8      i I  int32      f F  float32      d D  float64      (capital: byte planes, deflated)

A capital's bytes are stored plane by plane (all lowest bytes first), which is where token ids are compressible. Floats
take float32 when every value survives the round trip, which engine logprobs do (they are float32 numbers printed in
full), and float64 otherwise. float32 is stored plain: deflating it saved a twentieth, at twice the cost of all else.
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


def pack_ints(values: Sequence[int]) -> bytes:
    """Raises TypeError or OverflowError for what is not a 32-bit integer."""
    return _deflated(b"i", as_ids(values).astype("<i4", copy=False).tobytes())


def pack_mask(values: Sequence[int]) -> bytes:
    """Small numbers, mostly 0 and 1. Raises TypeError or OverflowError for what is not a 32-bit integer."""
    try:
        return _deflated(b"b", bytes(values))
    except ValueError:
        return pack_ints(values)


def pack_floats(values: Sequence[float]) -> bytes:
    """Raises TypeError or ValueError for what is not a number. NaN and infinities are kept."""
    narrow = array("f", values)
    if narrow.tolist() == values:  # as a rule, and at a fraction of the time
        return b"f" + np.frombuffer(narrow, np.float32).astype("<f4", copy=False).tobytes() if narrow else b"f"
    wide = np.array(array("d", values), "<f8")
    with np.errstate(over="ignore"):
        halved = wide.astype("<f4")
    if halved.astype("<f8").tobytes() == wide.tobytes():
        return b"f" + halved.tobytes()
    return _deflated(b"d", wide.tobytes())


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


def _deflated(tag: bytes, plain: bytes) -> bytes:
    """Plain all the same where deflating is not worth it."""
    if len(plain) < _WORTH_DEFLATING:
        return tag + plain
    planes = np.frombuffer(plain, np.uint8).reshape(-1, _DTYPES[tag].itemsize).T.tobytes()
    deflated = zlib.compress(planes, level=1)  # a third of the default's time for a few per cent more bytes
    return tag.upper() + deflated if len(deflated) < len(plain) else tag + plain
