"""Sinks that write into the run directory: `metrics.jsonl` and TensorBoard event files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec


class JsonLines:
    """`metrics.jsonl`: one object a line, `kind` says which record it is. Flushed line by line."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab")

    def stepped(self, record: Any) -> None:
        self._write("step", record)

    def evaluated(self, record: Any) -> None:
        self._write("evaluation", record)

    def resumed(self, record: Any) -> None:
        self._write("resume", record)

    def evaluation_failed(self, version: int, reason: str) -> None:
        self._line({"kind": "evaluation_failed", "version": version, "reason": reason})

    def close(self) -> None:
        self._file.close()

    def _write(self, kind: str, record: msgspec.Struct) -> None:
        self._line({"kind": kind, **msgspec.to_builtins(record, str_keys=True)})

    def _line(self, line: dict[str, Any]) -> None:
        self._file.write(msgspec.json.encode(line) + b"\n")
        self._file.flush()


class TensorBoard:
    """Event files for `tensorboard --logdir`; every number of a record under its dotted name."""

    def __init__(self, directory: Path) -> None:
        from tensorboardX import SummaryWriter  # imports protobuf: only runs that want it pay

        self._writer = SummaryWriter(str(directory))

    def stepped(self, record: Any) -> None:
        self._write("", msgspec.to_builtins(record, str_keys=True), record.step)

    def evaluated(self, record: Any) -> None:
        self._write("evaluation/", msgspec.to_builtins(record), record.version)

    def resumed(self, record: Any) -> None:
        """Nothing: its lines go on."""

    def evaluation_failed(self, version: int, reason: str) -> None:
        """Nothing: the next step's counts have it."""

    def close(self) -> None:
        self._writer.close()

    def _write(self, prefix: str, values: dict[str, Any], step: int) -> None:
        for name, value in values.items():
            if isinstance(value, dict):
                self._write(f"{prefix}{name}/", value, step)
            elif isinstance(value, int | float):
                self._writer.add_scalar(f"{prefix}{name}", value, step)
