"""The sink that writes `metrics.jsonl`."""

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
