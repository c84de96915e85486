"""The sink that writes `metrics.jsonl`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from agentrl.errors import RunError
from agentrl.observe.appended import AppendedFile
from agentrl.patience import is_full, patiently


class JsonLines:
    """`metrics.jsonl`: one object a line, `kind` says which record it is. In the file when it returns.

    A disk without room is waited for, `waits_s` at most; then it raises RunError, as the record would be missing.
    """

    def __init__(self, path: Path, *, waits_s: float = 20.0) -> None:
        self._path = path
        self._file = AppendedFile(path)
        self._waits_s = waits_s

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
        data = msgspec.json.encode(line) + b"\n"
        try:
            patiently(lambda: self._file.append(data), passes=is_full, limit_s=self._waits_s)
        except OSError as error:
            raise RunError(
                f"a {line['kind']} record cannot be written to {self._path} ({error}). If the disk is full, free space "
                "and go on with `agentrl train --resume`"
            ) from error
