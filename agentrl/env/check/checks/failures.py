"""The environment cannot be made, raises, hangs, or takes its process with it."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator

from agentrl.env.check.finding import Finding, error, warning
from agentrl.env.check.records import Death, EpisodeRecord, Place, Recording

_DOING = {
    "import": "it was imported", "__init__": "it was made", "": "between two calls", "tasks": "its tasks were read",
    "gymnasium": "gymnasium's checker ran",
}  # fmt: skip


def check(recording: Recording) -> Iterator[Finding]:
    if recording.refused is not None:
        told = f"the environment cannot be made: {recording.refused.text}"
        place = recording.refused.place or recording.place("__init__")
        yield error("cannot-be-made", told, "mend what it raised; constructor arguments are given by --option", place)
    for death in recording.deaths:
        yield _died(recording, death)
    for episode in recording.episodes:
        yield from _of_episode(recording, episode)


_MEND = "mend it; an exception costs the whole episode"
_ANSWER = "answer what the policy does wrongly by a message; an exception costs the whole episode"


def _of_episode(recording: Recording, episode: EpisodeRecord) -> Iterator[Finding]:
    for call in episode.calls:
        if call.hung:
            told = f"{call.method} did not return within the limit of {call.wall_ms / 1000:.0f} s"
            yield error(
                "hang",
                told,
                "give every wait a timeout and every loop an end; the rest was not checked",
                call.stack or recording.place(call.method),
            )
        elif call.raised is not None and call.method == "reference":
            told = f"the reference solution raised {call.raised.type}: {call.raised.text}"
            yield error("reference-fails", told, "mend the reference solution", call.raised.place)
        elif call.raised is not None and call.method == "tools" and call.raised.type == "TypeError":
            told = f"the tools cannot be described: {call.raised.text}"
            place = _tool(recording, call.raised.text) or call.raised.place or recording.place("tools")
            yield error(
                "tool-schema",
                told,
                "give each parameter of a tool a name and a type hint of which a JSON schema can be made",
                place,
            )
        elif call.raised is not None:
            given = _given(episode, call.action)
            told = f"{call.method} raised {call.raised.type}: {call.raised.text}{given}"
            make = warning if call.method == "close" else error
            yield make(
                "raises",
                told,
                _MEND if call.method in ("__init__", "reset", "close") else _ANSWER,
                call.raised.place or recording.place(call.method),
            )


def _tool(recording: Recording, text: str) -> Place | None:
    """The tool or parameter that a sentence names."""
    places = recording.subject.places if recording.subject is not None else {}
    words = re.findall(r"\w+", text)
    named = [
        place
        for name, place in places.items()
        if name.startswith("tool ") and set(re.findall(r"\w+", name)) <= set(words)
    ]
    return named[-1] if named else None


def _given(episode: EpisodeRecord, action: dict[str, object] | None) -> str:
    if action is None:
        return ""
    shown = str(action.get("tool_calls") or action.get("content"))
    return f" (policy {episode.policy!r} gave {shown[:120]!r})"


def _died(recording: Recording, death: Death) -> Finding:
    during = death.during
    doing = _DOING.get(during.method, f"{during.method} ran")
    played = f" with policy {during.policy!r} on task {during.task_id!r}" if during.policy else ""
    place = death.place or recording.place(during.method)
    if death.how == "hang":
        return error(
            "hang",
            f"the process stood still while {doing}{played}, past the limit of {death.limit_s:g} s",
            "give every wait a timeout and every loop an end; the rest was not checked",
            place,
        )
    how = f"ended itself with status {death.status}"
    if death.how == "signal":
        how = f"was killed by {signal.Signals(death.status).name}"
    return error(
        "crash",
        f"the process {how} while {doing}{played}",
        "raise an exception instead of ending the process; run code that may crash in a process or sandbox of its own",
        place,
    )
