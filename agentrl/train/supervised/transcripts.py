"""Conversations to token ids with exact loss masks, by the renderer that serves the policy.

A row is what the gateway would have recorded had a policy said the assistant's words: the prompt, what it sampled, what
the template writes before the next prompt ends, and so on; each piece encoded by itself. A template that rewrites the
history when something follows begins another row there, as the gateway does.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentrl.gateway.render import Renderer
from agentrl.messages import Message, tool, user

MARKS = ("xzzx", "qyyq")  # two contents that begin and end with different tokens


@dataclass
class LabelledIds:
    token_ids: list[int] = field(default_factory=list)  # [T]
    loss_mask: list[int] = field(default_factory=list)  # [T]

    def add(self, token_ids: Sequence[int], loss_mask: Sequence[int]) -> None:
        self.token_ids += token_ids
        self.loss_mask += loss_mask

    def trimmed(self) -> LabelledIds:
        """Without what follows the last trained token, which changes nothing."""
        last = max((at for at, on in enumerate(self.loss_mask) if on), default=-1)
        return LabelledIds(self.token_ids[: last + 1], self.loss_mask[: last + 1])


def rows_of(
    renderer: Renderer,
    messages: Sequence[Message],
    tools: Sequence[Mapping[str, Any]],
    *,
    trained: Sequence[bool],
    roles: Collection[str] = ("assistant",),
    variables: Mapping[str, Any] | None = None,
) -> list[LabelledIds]:
    """The rows of one conversation that train something; mostly one. Every message is trained in one of them at most.

    trained: `[messages]`, whether the message may be trained, where its role is. variables: further ones of the chat
    template. Raises RenderError when the template refuses the messages, or when an answer comes first, which nothing
    prompts.
    """
    wanted = [flag and _role(message) in roles for message, flag in zip(messages, trained, strict=True)]
    script = _Script(renderer, messages, tools, variables or {}, wanted)
    answers = [at for at, message in enumerate(messages) if message.role == "assistant"]
    for at in answers:
        script.go_on(at)
        script.say(at)
    last = answers[-1] if answers else -1
    if any(wanted[last + 1 :]):
        script.go_on(len(messages))
    else:
        script.end(last)
    return [row for row in (row.trimmed() for row in script.rows) if row.token_ids]


def _role(message: Message) -> str:
    return "system" if message.role == "developer" else message.role


class _Script:
    """A conversation while it is written down, answer after answer."""

    def __init__(
        self,
        renderer: Renderer,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]],
        variables: Mapping[str, Any],
        wanted: Sequence[bool],
    ) -> None:
        self.rows: list[LabelledIds] = []
        self._renderer, self._messages, self._tools = renderer, messages, tools
        self._variables, self._wanted = variables, wanted
        self._answer, self._sample = -1, list[int]()  # the answer before, and its ids

    def go_on(self, until: int) -> None:
        """What stands between the answer before and message `until`: behind it, or as the beginning of another row."""
        new = list(self._messages[self._answer + 1 : until])
        ids = self._behind(new) if self._answer >= 0 else None
        if ids is not None:
            mask = self._mask(ids, new, self._behind)
            if self._ends_by(ids) and self._wanted[self._answer]:
                mask[0] = 1
            self.rows[-1].add(ids, mask)
            return
        before = list(self._messages[: self._answer + 1])
        ids = self._first([*before, *new])
        self.rows.append(LabelledIds())
        self.rows[-1].add(ids, self._mask(ids, new, lambda given: self._first([*before, *given])))

    def say(self, at: int) -> None:
        """The answer that is message `at`."""
        self._answer = at
        self._sample = self._renderer.answer(self._messages[: at + 1], self._tools, self._variables)
        self.rows[-1].add(self._sample, [int(self._wanted[at])] * len(self._sample))

    def end(self, last: int) -> None:
        """Where the next role's marker ends a turn, a policy has to sample it after its last answer too."""
        if last < 0 or not self._wanted[last]:
            return
        calls = self._messages[last].tool_calls
        behind = self._behind([tool(MARKS[0], tool_call_id=calls[0]["id"]) if calls else user(MARKS[0])])
        if behind and self._ends_by(behind):
            self.rows[-1].add(behind[:1], [1])

    def _ends_by(self, behind: Sequence[int]) -> bool:
        """Whether the answer before has no end of its own, and what follows begins with one."""
        ends = self._renderer.end_ids
        return bool(behind) and behind[0] in ends and (not self._sample or self._sample[-1] not in ends)

    def _mask(
        self, ids: Sequence[int], new: Sequence[Message], render: Callable[[Sequence[Message]], list[int] | None]
    ) -> list[int]:
        """Of `ids`, which are `render(new)`: the words of those among `new` that are wanted."""
        mask = [0] * len(ids)
        for index in range(len(new)):
            if not self._wanted[self._answer + 1 + index]:
                continue
            others = [render(_replaced(new, index, mark)) or [] for mark in MARKS]
            start, end = content_span(ids, others)
            if end < len(ids) and ids[end] in self._renderer.end_ids:
                end += 1  # who says something ends the turn too
            mask[start:end] = [1] * (end - start)
        return mask

    def _first(self, messages: Sequence[Message]) -> list[int]:
        return self._renderer.first(messages, self._tools, self._variables)

    def _behind(self, new: Sequence[Message]) -> list[int] | None:
        history, answer = self._messages[: self._answer], self._messages[self._answer]
        return self._renderer.extension(history, answer, new, self._tools, self._sample, self._variables)


def content_span(token_ids: Sequence[int], others: Sequence[Sequence[int]]) -> tuple[int, int]:
    """Which tokens carry one message's content: `[start, end)`, those that differ where other words stand there.

    others: the same with each of MARKS in its place. A token that holds a piece of the content and a piece of the
    template counts. The marks begin and end with different tokens, so at most one can agree with the content by chance.
    """
    start = min(_common(token_ids, other) for other in others)
    behind = min(_common(token_ids[::-1], other[::-1]) for other in others)
    return start, max(start, len(token_ids) - behind)


def _common(ours: Sequence[int], theirs: Sequence[int]) -> int:
    pairs = enumerate(zip(ours, theirs, strict=False))
    return next((at for at, (one, other) in pairs if one != other), min(len(ours), len(theirs)))


def _replaced(messages: Sequence[Message], index: int, content: str) -> list[Message]:
    return [Message(one | {"content": content}) if at == index else one for at, one in enumerate(messages)]
