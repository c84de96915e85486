"""Tasks from a user's file: JSONL or Parquet, a row a task."""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson

from agentrl.errors import ConfigError
from agentrl.types import Task

SUFFIXES = (".jsonl", ".ndjson", ".parquet")
_BATCH = 1024  # rows of a Parquet file that are in memory as Python objects while it is read


def file_tasks(path: Path, split: str, seed: int, start: int = 0) -> Iterator[Task]:
    """One pass over the file, in an order that `seed` fixes, without its first `start` tasks.

    A row's `id` and `seed` are the task's (its number in the file, and a number that follows from `seed`, when it has
    none); `options`, an object, and every other column are what `reset` is given. Raises ConfigError, naming the
    row, for a file that cannot be read, is empty, or has an id twice.
    """
    rows = _rows(path)
    found: dict[str, dict[str, Any]] = {}
    for number, row in rows:
        named = row.get("id")
        task_id = str(number if named is None else named)
        if task_id in found:
            raise ConfigError(f"{path}:{number}: the id {task_id!r} is there twice; ids are unique within a file")
        found[task_id] = row
    if not found:
        raise ConfigError(f"{path} has no rows; a row is one task")
    ids = list(found)
    random.Random(seed).shuffle(ids)
    for task_id in ids[start:]:
        yield _task(path, task_id, found[task_id], split, seed)


def _task(path: Path, task_id: str, row: dict[str, Any], split: str, seed: int) -> Task:
    given = row.get("options") or {}
    if not isinstance(given, dict):
        raise ConfigError(f"{path}: the options of row {task_id!r} are {given!r:.100}; give an object")
    own_seed = row.get("seed")
    if own_seed is None:
        own_seed = zlib.crc32(task_id.encode(), seed & 0xFFFFFFFF)
    if not isinstance(own_seed, int) or isinstance(own_seed, bool) or own_seed < 0:
        raise ConfigError(f"{path}: the seed of row {task_id!r} is {own_seed!r:.100}; give a whole number from 0")
    columns = {name: value for name, value in row.items() if name not in ("id", "seed", "options", "split")}
    return Task(id=task_id, seed=own_seed, options={**columns, **given}, split=split)


def _rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """(number from 1, row)."""
    if path.suffix not in SUFFIXES:
        raise ConfigError(f"{path}: tasks come from a file that ends in one of {', '.join(SUFFIXES)}")
    if not path.is_file():
        raise ConfigError(f"there is no task file {path}")
    return _parquet(path) if path.suffix == ".parquet" else _jsonl(path)


def _jsonl(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                row = orjson.loads(line)
            except ValueError as error:
                raise ConfigError(f"{path}:{number}: not JSON: {error}") from None
            if not isinstance(row, dict):
                raise ConfigError(f"{path}:{number}: a row is a JSON object, got {line[:80].decode(errors='replace')}")
            yield number, row


def _parquet(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    try:
        from pyarrow import ArrowException, parquet  # an extra: half a second to import
    except ImportError:
        raise ConfigError(f"reading {path} needs pyarrow: pip install 'agentrl[parquet]'") from None
    try:
        with parquet.ParquetFile(path) as file:
            number = 0
            for batch in file.iter_batches(_BATCH):
                for row in batch.to_pylist():
                    number += 1
                    yield number, {name: value for name, value in row.items() if value is not None}
    except (ArrowException, OSError) as error:
        raise ConfigError(f"{path} is no Parquet file that can be read: {error}") from error
