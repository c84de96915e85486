"""Where two recordings of the same episode part."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from agentrl.env.check.records import EpisodeRecord

_COMPARED = ("raised", "observation", "tools", "reward", "reward_kind", "terminated", "truncated")


class Difference(Struct, frozen=True):
    """The first value that is not the same. `tools` are those that the step called."""

    method: str
    step: int  # 0 is the reset
    field: str
    left: str
    right: str
    tools: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.field} of {self.method} (step {self.step}) was {self.left}, then {self.right}"


def first_difference(left: EpisodeRecord, right: EpisodeRecord) -> Difference | None:
    """None where the episodes agree as far as both go."""
    pairs = zip(_told(left), _told(right), strict=False)
    step = 0
    for mine, other in pairs:
        step += mine.method in ("step", "ask")
        for field in _COMPARED:
            one, two = _value(mine, field), _value(other, field)
            if one != two:
                shown = _apart(str(one), str(two))
                return Difference(mine.method, step, field, *shown, tools=_called(mine.action))
    return None


def _told(episode: EpisodeRecord) -> list[Any]:
    return [call for call in episode.calls if call.method in ("reset", "tools", "step", "ask", "grade")]


def _value(call: Any, field: str) -> Any:
    value = getattr(call, field)
    return (value.type, value.text) if field == "raised" and value is not None else value


def _apart(one: str, two: str) -> tuple[str, str]:
    """Both from shortly before the first character that differs."""
    at = next((index for index, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), min(len(one), len(two)))
    start = max(0, at - 30)
    return tuple(("…" if start else "") + text[start : at + 40] for text in (one, two))  # type: ignore[return-value]


def _called(action: dict[str, Any] | None) -> tuple[str, ...]:
    calls = (action or {}).get("tool_calls") or []
    return tuple(str((call.get("function") or {}).get("name")) for call in calls)
