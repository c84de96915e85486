"""Digests that prove identity: of token ids and of files."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence
from pathlib import Path


def digest_of(token_ids: Sequence[int]) -> str:
    """32 hex digits that identify a sequence of token ids (blake2b over little-endian int32)."""
    ids = array("i", token_ids)
    if ids.itemsize != 4:
        raise RuntimeError(f"array('i') has {ids.itemsize} bytes an item here, 4 are needed")
    return hashlib.blake2b(ids.tobytes(), digest_size=16).hexdigest()


def digest_of_file(path: Path) -> str:
    """32 hex digits that identify a file's bytes (blake2b)."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()
