"""Digests that prove identity: of token ids and of files."""

from __future__ import annotations

import hashlib
import importlib
from array import array
from collections.abc import Sequence
from pathlib import Path

HELD_BYTES = 2047
"""hashlib gives up Python's lock to hash more at once. Other threads then keep it for milliseconds."""
LONG_BYTES = 2**17
"""From so many on, hashing takes long enough to let other threads work meanwhile."""


def digest_of(token_ids: Sequence[int]) -> str:
    """32 hex digits that identify a sequence of token ids (blake2b over little-endian int32)."""
    return RunningDigest().to(token_ids).hex


class RunningDigest:
    """`digest_of` the beginning of sequences: one that begins with it costs the length of its rest."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=16)
        self.length = 0

    def to(self, token_ids: Sequence[int]) -> RunningDigest:
        """That of a sequence which begins with all the ids of this one."""
        ids = array("i", token_ids[self.length :] if self.length else token_ids)
        if ids.itemsize != 4:
            raise RuntimeError(f"array('i') has {ids.itemsize} bytes an item here, 4 are needed")
        found = RunningDigest.__new__(RunningDigest)
        found._hash, found.length = self._hash.copy(), len(token_ids)
        update(found._hash, ids.tobytes())
        return found

    @property
    def hex(self) -> str:
        return self._hash.hexdigest()


def update(digest: hashlib.blake2b, data: bytes) -> None:
    """`digest.update(data)`; what is hashed in some microseconds is hashed without giving up Python's lock."""
    if len(data) > LONG_BYTES:
        digest.update(data)
        return
    for start in range(0, len(data), HELD_BYTES):
        digest.update(data[start : start + HELD_BYTES])


def digest_of_file(path: Path) -> str:
    """32 hex digits that identify a file's bytes (blake2b)."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def digest_of_weights(data: Path | bytes) -> str:
    """32 hex digits that identify a file of weights, or its bytes (blake3, several times as fast as blake2b).

    Needs the package blake3, which comes with vLLM and with the trainers.
    """
    blake3 = importlib.import_module("blake3").blake3
    digest = blake3(max_threads=-1)  # as many as there are cores
    found: str = (digest.update_mmap(data) if isinstance(data, Path) else digest.update(data)).hexdigest(length=16)
    return found
