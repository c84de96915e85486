"""One thing that is wrong with an environment, and how to mend it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from agentrl.env.check.codes import CODES
from agentrl.env.check.records import Place, Recording

Severity = Literal["error", "warning"]
"""An error spoils training or other episodes; a warning costs time or makes the environment harder to use."""


class Finding(Struct, frozen=True):
    """`code` is explained in docs/env-check.md; `message` is a sentence with the values, `place` a line to look at."""

    code: str
    severity: Severity
    message: str
    fix: str
    place: Place | None = None

    def __post_init__(self) -> None:
        if self.code not in CODES:
            raise ValueError(f"no finding has the code {self.code!r}; add it to codes.py and docs/env-check.md")


Check = Callable[[Recording], Iterable[Finding]]
"""Pure: the same recording gives the same findings."""


def error(code: str, message: str, fix: str, place: Place | None) -> Finding:
    return Finding(code, "error", message, fix, place)


def warning(code: str, message: str, fix: str, place: Place | None) -> Finding:
    return Finding(code, "warning", message, fix, place)


def distinct(findings: Iterable[Finding]) -> list[Finding]:
    """The first finding of each code and place; how often it was found is said. Errors first."""
    first: dict[tuple[str, Place | None], Finding] = {}
    times: dict[tuple[str, Place | None], int] = {}
    for finding in findings:
        key = (finding.code, finding.place)
        first.setdefault(key, finding)
        times[key] = times.get(key, 0) + 1
    counted = [
        finding if times[key] == 1 else replace(finding, message=f"{finding.message} ({times[key]} times)")
        for key, finding in first.items()
    ]
    return sorted(counted, key=lambda finding: finding.severity != "error")
