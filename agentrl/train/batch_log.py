"""What each step was about to train, written down before it: after a death it is trained again from here, bit for bit.

An entry is written whole before its step begins, and is kept until a checkpoint of a later version is whole. So the
newest checkpoint and the entries from its version on make every version that was ever published.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections import Counter
from pathlib import Path
from typing import Any, Protocol, get_origin

import msgspec

from agentrl.errors import CheckpointError, RunError
from agentrl.manifest import flush
from agentrl.patience import is_full, patiently
from agentrl.train.batch import PreparedBatch

MAGIC = b"agentrl batch 1\n"
DIGEST_BYTES = 16


class BatchLog(Protocol):
    """Entry v holds the batch that is trained from version v. Synchronous; one caller at a time."""

    def write(self, prepared: PreparedBatch) -> None:
        """On the disk when this returns. Raises RunError when the disk does not take it."""
        ...

    def read(self, version: int) -> PreparedBatch:
        """Raises CheckpointError when it is missing or damaged."""
        ...

    def versions(self) -> list[int]:
        """Of the entries, in order."""
        ...

    def forget(self, before: int) -> None:
        """Entries of versions below `before`, of which a checkpoint is whole."""
        ...


class DiskBatchLog:
    """`batches/v<version>`, each whole under its name or not there; the digest finds what is damaged later.

    A disk without room is waited for, `waits_s` at most.
    """

    def __init__(self, directory: Path, *, waits_s: float = 60.0) -> None:
        self._directory = directory
        self._waits_s = waits_s

    def write(self, prepared: PreparedBatch) -> None:
        data, version = encode(prepared), prepared.batch.version
        try:
            patiently(lambda: self._write(version, data), passes=is_full, limit_s=self._waits_s)
        except OSError as error:
            raise RunError(
                f"the batch of version {version} cannot be written to {self._directory} ({error}), so it is not "
                "trained. If the disk is full, free space and go on with `agentrl train --resume`"
            ) from error

    def read(self, version: int) -> PreparedBatch:
        path = self._path(version)
        try:
            written = path.read_bytes()
        except OSError as error:
            raise CheckpointError(f"the batch {path} cannot be read ({error}); restore it from a copy") from error
        start = len(MAGIC) + DIGEST_BYTES
        data = written[start:]
        if not written.startswith(MAGIC) or written[len(MAGIC) : start] != _digest(data):
            raise CheckpointError(f"the batch {path} is damaged: its digest is another one; restore it from a copy")
        return decode(data)

    def versions(self) -> list[int]:
        if not self._directory.is_dir():
            return []
        matches = (re.fullmatch(r"v([0-9]+)", path.name) for path in self._directory.iterdir())
        return sorted(int(match[1]) for match in matches if match)

    def forget(self, before: int) -> None:
        """What an interrupted write left goes too."""
        for path in self._directory.glob(".v*.partial"):
            path.unlink(missing_ok=True)
        for version in self.versions():
            if version < before:
                self._path(version).unlink(missing_ok=True)

    def _write(self, version: int, data: bytes) -> None:
        partial = self._directory / f".v{version}.partial"
        self._directory.mkdir(parents=True, exist_ok=True)
        with partial.open("wb") as file:
            file.write(MAGIC + _digest(data) + data)
            file.flush()
            os.fsync(file.fileno())
        partial.rename(self._path(version))
        flush(self._directory)

    def _path(self, version: int) -> Path:
        return self._directory / f"v{version}"


class MemoryBatchLog:
    """The twin: the same entries, encoded; gone with the process."""

    def __init__(self) -> None:
        self._entries: dict[int, bytes] = {}

    def write(self, prepared: PreparedBatch) -> None:
        self._entries[prepared.batch.version] = encode(prepared)

    def read(self, version: int) -> PreparedBatch:
        if version not in self._entries:
            raise CheckpointError(f"there is no batch of version {version}")
        return decode(self._entries[version])

    def versions(self) -> list[int]:
        return sorted(self._entries)

    def forget(self, before: int) -> None:
        self._entries = {version: entry for version, entry in self._entries.items() if version >= before}


class NoBatchLog:
    """Where checkpoints hold no trainer (`checkpoint.trainer_state = false`), there is nothing to train on from."""

    def write(self, prepared: PreparedBatch) -> None:
        return None

    def read(self, version: int) -> PreparedBatch:
        raise CheckpointError(
            f"version {version} cannot be trained again: checkpoint.trainer_state is false, so no batches are kept"
        )

    def versions(self) -> list[int]:
        return []

    def forget(self, before: int) -> None:
        return None


def encode(prepared: PreparedBatch) -> bytes:
    """Numbers come back equal: msgpack has float64 and integers as they are."""
    return msgspec.msgpack.encode(prepared)


def decode(data: bytes) -> PreparedBatch:
    """Raises CheckpointError for what another version of agentrl wrote."""
    try:
        return msgspec.msgpack.decode(data, type=PreparedBatch, dec_hook=_counter)
    except msgspec.MsgspecError as error:
        raise CheckpointError(f"a batch of the log cannot be read ({error}); use the agentrl that wrote it") from error


def _counter(kind: Any, value: Any) -> Any:
    if get_origin(kind) is Counter and isinstance(value, dict):
        return Counter(value)
    raise NotImplementedError(f"{kind} in a batch")


def _digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest()
