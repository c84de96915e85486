"""The conversations through a model's chat template: it takes them, and each turn only adds tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from agentrl.env.check.finding import Finding, error, warning
from agentrl.env.check.records import EpisodeRecord, Recording
from agentrl.errors import AgentRLError

Render = Callable[[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]] | None], Sequence[int]]
"""From messages and tools to the ids of a prompt. Raises AgentRLError where the template refuses them."""

_EPISODES = 8
_TURNS = 12


def rendering(recording: Recording, render: Render) -> Iterator[Finding]:
    """Findings about the first episodes of each policy but the random one, whose answers are very long."""
    played = [episode for episode in recording.of("alone") if episode.policy != "text" and not episode.failed]
    for episode in played[:_EPISODES]:
        yield from _of_episode(recording, episode, render)


def _of_episode(recording: Recording, episode: EpisodeRecord, render: Render) -> Iterator[Finding]:
    conversation: list[dict[str, Any]] = []
    tools = next((call.tools for call in episode.calls if call.tools), None)
    before: Sequence[int] = []
    for call in [call for call in episode.calls if call.method in ("reset", "step")][:_TURNS]:
        conversation += ([call.action] if call.action is not None else []) + (call.observation or [])
        if call.terminated or call.truncated:
            return
        try:
            ids = render(conversation, tools)
        except AgentRLError as refused:
            yield error(
                "template-refuses",
                f"the chat template refuses the messages after {call.method}: {refused}",
                "keep to what templates take: system first, then user and assistant by turns, tools answered by id",
                recording.place(call.method),
            )
            return
        if list(ids[: len(before)]) != list(before):
            same = next((at for at, (a, b) in enumerate(zip(before, ids, strict=False)) if a != b), len(ids))
            yield warning(
                "prefix-changes",
                f"after {call.method} the template writes the first {len(before)} tokens otherwise, from {same} on",
                "a run is not hurt, for it extends what was sampled; other frameworks that render anew train on "
                "prompts that were never given",
                recording.place(call.method),
            )
            return
        before = ids
