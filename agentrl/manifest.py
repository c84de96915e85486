"""A directory that is whole or not there: its manifest, written last, lists every file with its size and digest."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
from msgspec import Struct

from agentrl.digest import digest_of_file
from agentrl.errors import CheckpointError

NAME = "manifest.json"
FORMAT = 1
READERS = 4  # files that are flushed and digested at the same time
FIX = "restore it from a copy, or take another checkpoint"


class FileEntry(Struct, frozen=True):
    """digest: of `agentrl.digest.digest_of_file`."""

    bytes: int
    digest: str


class Manifest(Struct, frozen=True):
    """files: by path relative to the directory, the manifest itself left out. scores: what retention ranks by."""

    version: int
    files: dict[str, FileEntry]
    scores: dict[str, float] = {}
    format: int = FORMAT

    @property
    def num_bytes(self) -> int:
        return sum(entry.bytes for entry in self.files.values())


def seal(directory: Path, version: int, scores: dict[str, float] | None = None) -> Manifest:
    """Write the manifest of what lies in `directory`, after all of it is on the disk. Raises OSError."""
    paths = sorted(path for path in directory.rglob("*") if path.is_file() and path != directory / NAME)
    with ThreadPoolExecutor(READERS) as pool:
        files = dict(zip((_name(path, directory) for path in paths), pool.map(_flushed, paths), strict=True))
    for folder in [*(path for path in directory.rglob("*") if path.is_dir()), directory]:
        flush(folder)
    manifest = Manifest(version, files, scores or {})
    _write(directory, manifest)
    return manifest


def add_scores(directory: Path, scores: dict[str, float]) -> None:
    """To those of a sealed directory. Raises CheckpointError when it is not whole, OSError."""
    manifest = read(directory)
    _write(directory, msgspec.structs.replace(manifest, scores={**manifest.scores, **scores}))


def _write(directory: Path, manifest: Manifest) -> None:
    partial = directory / f".{NAME}.partial"
    partial.write_bytes(msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n")
    flush(partial)
    partial.rename(directory / NAME)
    flush(directory)


def read(directory: Path) -> Manifest:
    """The manifest, and nothing checked but itself. Raises CheckpointError when it is not there or not readable."""
    path = directory / NAME
    try:
        manifest = msgspec.json.decode(path.read_bytes(), type=Manifest)
    except FileNotFoundError:
        raise CheckpointError(
            f"{directory} is not a whole checkpoint: it has no {NAME}, which is written last; take another checkpoint"
        ) from None
    except (OSError, msgspec.MsgspecError) as error:
        raise CheckpointError(f"{path} cannot be read ({error}); {FIX}") from error
    if manifest.format != FORMAT:
        raise CheckpointError(
            f"{path} is of format {manifest.format}, this agentrl reads {FORMAT}; use the version that wrote it"
        )
    return manifest


def check(directory: Path, wanted: Callable[[str], bool] | None = None, *, digests: bool = True) -> Manifest:
    """The manifest, after the files (those whose path is `wanted`) were compared with it; sizes only without `digests`.

    Raises CheckpointError naming the first file that is missing or damaged.
    """
    manifest = read(directory)
    entries = {directory / name: entry for name, entry in manifest.files.items() if wanted is None or wanted(name)}
    for path, entry in entries.items():
        if not path.is_file():
            raise CheckpointError(f"{path} is missing; {FIX}")
        if (size := path.stat().st_size) != entry.bytes:
            raise CheckpointError(f"{path} has {size} bytes instead of {entry.bytes}; {FIX}")
    if digests:
        with ThreadPoolExecutor(READERS) as pool:
            for (path, entry), digest in zip(entries.items(), pool.map(digest_of_file, entries), strict=True):
                if digest != entry.digest:
                    raise CheckpointError(f"{path} is damaged: its digest is not the one of {NAME}; {FIX}")
    return manifest


def _name(path: Path, directory: Path) -> str:
    return path.relative_to(directory).as_posix()


def _flushed(path: Path) -> FileEntry:
    flush(path)
    return FileEntry(path.stat().st_size, digest_of_file(path))


def flush(path: Path) -> None:
    """Return when the file, or the directory's list of names, is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
