"""The sink that writes event files for `tensorboard --logdir`.

Each record is one event, written at once and whole or not at all. tensorboardX's own writer has a thread that dies of a
full disk, and then whoever adds an event waits for ever.
"""

from __future__ import annotations

import logging
import socket
import struct
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from agentrl.observe.appended import AppendedFile

logger = logging.getLogger(__name__)


class EventFile:
    """Records as TFRecord frames them: length, its checksum, data, its checksum."""

    def __init__(self, path: Path) -> None:
        from tensorboardX.record_writer import masked_crc32c

        self._checksum = masked_crc32c
        self._file = AppendedFile(path)

    def append(self, data: bytes) -> None:
        """Raises OSError with nothing of it left in the file: what follows a torn record is never read."""
        length = struct.pack("<Q", len(data))
        self._file.append(length + self._sum_of(length) + data + self._sum_of(data))

    def close(self) -> None:
        self._file.close()

    def _sum_of(self, data: bytes) -> bytes:
        return struct.pack("<I", self._checksum(data))


class TensorBoard:
    """Every number of a record under its dotted name. What the disk does not take is missing there alone."""

    def __init__(self, directory: Path) -> None:
        from tensorboardX.proto.event_pb2 import Event  # imports protobuf: only runs that want it pay

        self._new_event = Event
        directory.mkdir(parents=True, exist_ok=True)
        now = time.time_ns()
        self._file = EventFile(directory / f"events.out.tfevents.{now // 10**9}.{socket.gethostname()}.{now % 10**9}")
        self._lost = 0  # events
        self._append(Event(file_version="brain.Event:2"))

    def stepped(self, record: Any) -> None:
        self._write("", msgspec.to_builtins(record, str_keys=True), record.step)

    def evaluated(self, record: Any) -> None:
        self._write("evaluation/", msgspec.to_builtins(record), record.version)

    def resumed(self, record: Any) -> None:
        """Nothing: its lines go on."""

    def evaluation_failed(self, version: int, reason: str) -> None:
        """Nothing: the next step's counts have it."""

    def close(self) -> None:
        if self._lost:
            logger.warning("TensorBoard's files lack %d records, which could not be written", self._lost)
        self._file.close()

    def _write(self, prefix: str, values: Mapping[str, Any], step: int) -> None:
        event = self._new_event(step=step)
        for name, value in _numbers(prefix, values):
            event.summary.value.add(tag=name, simple_value=value)
        self._append(event)

    def _append(self, event: Any) -> None:
        event.wall_time = time.time()
        try:
            self._file.append(event.SerializeToString())
        except OSError as error:
            if not self._lost:
                logger.warning("TensorBoard's files miss a record (%s); metrics.jsonl has all of them", error)
            self._lost += 1


def _numbers(prefix: str, values: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _numbers(f"{prefix}{name}/", value)
        elif isinstance(value, int | float):
            yield f"{prefix}{name}", value
