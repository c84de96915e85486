"""Sinks that write into the run directory: `metrics.jsonl` and TensorBoard event files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from agentrl.observe.records import EvalRecord, StepRecord


class JsonLines:
    """`metrics.jsonl`: one object a line, `kind` says which record it is. Flushed line by line."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab")

    def stepped(self, record: StepRecord) -> None:
        self._write("step", record)

    def evaluated(self, record: EvalRecord) -> None:
        self._write("evaluation", record)

    def close(self) -> None:
        self._file.close()

    def _write(self, kind: str, record: StepRecord | EvalRecord) -> None:
        line = {"kind": kind, **msgspec.to_builtins(record, str_keys=True)}
        self._file.write(msgspec.json.encode(line) + b"\n")
        self._file.flush()


class TensorBoard:
    """Event files for `tensorboard --logdir`; every number of a record under its dotted name."""

    def __init__(self, directory: Path) -> None:
        from tensorboardX import SummaryWriter  # imports protobuf: only runs that want it pay

        self._writer = SummaryWriter(str(directory))

    def stepped(self, record: StepRecord) -> None:
        self._write("", msgspec.to_builtins(record, str_keys=True), record.step)

    def evaluated(self, record: EvalRecord) -> None:
        self._write("evaluation/", msgspec.to_builtins(record), record.version)

    def close(self) -> None:
        self._writer.close()

    def _write(self, prefix: str, values: dict[str, Any], step: int) -> None:
        for name, value in values.items():
            if isinstance(value, dict):
                self._write(f"{prefix}{name}/", value, step)
            elif isinstance(value, int | float):
                self._writer.add_scalar(f"{prefix}{name}", value, step)
