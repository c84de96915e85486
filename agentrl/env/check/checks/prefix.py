"""Observations only add to the conversation: what was said stays as it was, and is not said again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from agentrl.env.check.finding import Finding, error, warning
from agentrl.env.check.records import CallRecord, EpisodeRecord, Recording


def check(recording: Recording) -> Iterator[Finding]:
    for episode in recording.episodes:
        for call in episode.calls:
            yield from _mutated(recording, call)
        yield from _repeated(recording, episode)


def _mutated(recording: Recording, call: CallRecord) -> Iterator[Finding]:
    for mutation in call.mutated:
        make = warning if mutation.role == "assistant" else error
        yield make(
            "message-changed",
            f"{call.method} changed an earlier {mutation.role} message: {mutation.before[:80]} became "
            f"{mutation.after[:80]}",
            "return new messages, and copy one before you change it; what was sampled after it can no longer be "
            "trained as it was",
            recording.place(call.method),
        )


def _repeated(recording: Recording, episode: EpisodeRecord) -> Iterator[Finding]:
    conversation: list[dict[str, Any]] = []
    for call in episode.calls:
        observation = call.observation or []
        if call.method == "step" and call.action is not None:
            conversation.append(call.action)
            start = 0
            while start < min(len(observation), len(conversation)) and observation[start] == conversation[start]:
                start += 1
            said = call.action.get("content") or call.action.get("tool_calls")
            echo = bool(said) and call.action in observation
            if start >= 2 or echo:
                what = "the action itself" if echo else f"the first {start} messages"
                yield error(
                    "history-repeated",
                    f"step returned {what} again",
                    "return only the messages that are new since the action; the conversation is kept for you",
                    recording.place("step"),
                )
        conversation += observation
