"""What earlier starts of a run wrote into `metrics.jsonl`, for a start that goes on from there."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from agentrl.errors import ConfigError
from agentrl.observe.records import EvalRecord, ResumeRecord, StepRecord


class History(NamedTuple):
    """Records in the order in which they were written."""

    steps: list[StepRecord]
    evaluations: list[EvalRecord]
    resumes: list[ResumeRecord]

    @property
    def elapsed_s(self) -> float:
        """When the last of them was written, in seconds since the run began."""
        return max((record.elapsed_s for records in self for record in records), default=0.0)


def read_history(path: Path) -> History:
    """Reads the file and cuts off the line that a dying run left half written, so that the next one begins anew.

    Raises ConfigError for a line that is no record.
    """
    history = History([], [], [])
    if not path.exists():
        return history
    written = path.read_bytes()
    whole = written[: written.rfind(b"\n") + 1]
    for number, line in enumerate(whole.splitlines(), start=1):
        try:
            _add(history, msgspec.json.decode(line))
        except (msgspec.MsgspecError, AttributeError) as error:
            raise ConfigError(
                f"{path}, line {number} cannot be read ({error}); restore the file from a copy"
            ) from error
    if len(whole) < len(written):
        with path.open("r+b") as file:
            file.truncate(len(whole))
    return history


def _add(history: History, entry: dict[str, Any]) -> None:
    """Lines of other kinds are somebody else's."""
    match entry.get("kind"):
        case "step":
            history.steps.append(msgspec.convert(entry, StepRecord, str_keys=True))
        case "evaluation":
            history.evaluations.append(msgspec.convert(entry, EvalRecord))
        case "resume":
            history.resumes.append(msgspec.convert(entry, ResumeRecord))
