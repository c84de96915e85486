"""How the turns of one chat template end, found out by letting it write a few short conversations.

An answer's turn ends by a marker of its own (`<|im_end|>`), by the marker of the next role (GLM), by one marker when it
is last and another when it is not (harmony's `<|return|>` and `<|end|>`), or by plain text.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Any

from agentrl.errors import AgentRLError, ConfigError
from agentrl.gateway.template import RenderError, Template
from agentrl.gateway.template_messages import CALL_ID, NAME, QUESTION, MessageForm
from agentrl.gateway.untrusted import Spellings

Joint = tuple[int, bool]
"""An offset in characters, and whether the control token that begins there is the last of the sample already."""

ANSWER, NEXT = "zqanswermark", "zqnextmark"  # words that no template writes by itself


class NoJoint(AgentRLError):
    """The template does not write what comes next behind this answer."""


@dataclass(frozen=True)
class Endings:
    """`closing` and `call_closing` are what is written after the text, and after the last call, of a last answer."""

    closing: str
    call_closing: str
    own: Set[int]  # markers that end a last answer
    openers: Set[int]  # the next role's markers, where they alone end an answer
    closers: Set[int]  # whatever marker may come first after an answer, last or not
    structural: Set[int]  # every marker between an answer and the next message's text, or before an answer

    @property
    def sampled(self) -> Set[int]:
        """The markers that a model samples to end its turn."""
        return self.own | self.openers

    def joint(self, found: Sequence[tuple[int, int, int]], sample: Sequence[int], *, is_call: bool) -> Joint | None:
        """Where in the text behind an answer the recorded ids go on. None: no marker ends the turn, plain text does.

        `found` are the control tokens of that text, as `Spellings.find` gives them; behind a call it begins with what
        closes the call. Raises NoJoint: the sample opened the turn of a role which does not come next.
        """
        ends = (i for i, (number, _, _) in enumerate(found) if number in self.closers)
        at = next(ends, None) if is_call else 0 if found and found[0][0] in self.closers else None
        if at is None:
            return None
        marker, start, _ = found[at]
        last = sample[-1] if sample else None
        if last == marker or last in self.own:  # harmony: `<|return|>` was sampled where `<|end|>` is written
            return start, True
        if last in self.openers:
            raise NoJoint("the sample opened the turn of a role which does not come next")
        for number, inner, _ in reversed(found[:at]):
            if number == last:  # a stop string ended the sample inside what closes a call
                return inner, True
        return (start if is_call else 0), False

    def plain_joint(self, tail: str, turn: str) -> int:
        """The same where plain text ends the turn; `turn` is the tail of the answer when nothing follows it.

        Raises NoJoint: the template closes the answer in another way when something follows.
        """
        at = len(turn) - len(self.closing)
        if not turn.endswith(self.closing) or not tail.startswith(turn[:at]):
            raise NoJoint("the answer is closed in another way when something follows")
        return at


def endings_of(template: Template, form: MessageForm, spellings: Spellings, end_ids: Set[int]) -> Endings:
    """`end_ids` are known to end turns. Raises ConfigError: the template cannot write a question and its answer."""
    answer, call = {"role": "assistant", "content": ANSWER}, form.call({"a": ANSWER})
    question = {"role": "user", "content": NEXT}
    result = {"role": "tool", "name": NAME, "tool_call_id": CALL_ID, "content": NEXT}
    try:
        closing = after(ANSWER, template.render([QUESTION, answer], generation_prompt=False)) or ""
    except RenderError as error:
        raise ConfigError(f"the chat template cannot write one question and its answer: {error}") from error
    to_question = _first_part(_tail(template, answer, question))
    own, openers = _pair(_first(spellings, closing), _first(spellings, to_question))

    call_tail = _tail(template, call)
    to_result = _first_part(_tail(template, call, result))
    known = end_ids | own | openers
    at = _position(spellings, call_tail, known)
    if at is None:  # harmony's `<|call|>`, when nobody said that it ends turns
        at = _position(spellings, call_tail, spellings.special)
    call_marker = None if at is None else _first(spellings, call_tail[at:])
    call_opener = None
    if call_marker is None and to_result.startswith(call_tail):
        call_opener = _first(spellings, to_result[len(call_tail) :])
    call_own, call_openers = _pair(call_marker, call_opener)

    prompt = after(NEXT, _tail(template, answer, question, generation_prompt=True)) or ""
    closers = own | openers | call_own | call_openers | _pair(_first(spellings, to_question), None)[0]
    turn_at = _position(spellings, to_result, closers)
    turn = "" if turn_at is None else to_result[turn_at:]
    return Endings(
        closing=closing,
        call_closing=call_tail[at:] if at is not None else closing if call_tail.endswith(closing) else "",
        own=own | call_own,
        openers=openers | call_openers,
        closers=closers,
        structural={number for text in (to_question, prompt, turn) for number, _, _ in spellings.find(text)},
    )


def after(mark: str, text: str) -> str | None:
    """What comes after the last `mark`; None when there is none."""
    _, found, tail = text.rpartition(mark)
    return tail if found else None


def _tail(template: Template, *messages: dict[str, Any], generation_prompt: bool = False) -> str:
    """What comes after the answer; "" for a template that does not write such messages."""
    try:
        text = template.render([QUESTION, *messages], generation_prompt=generation_prompt)
    except RenderError:
        return ""
    return after(ANSWER, text) or ""


def _first_part(tail: str) -> str:
    return tail.partition(NEXT)[0]


def _first(spellings: Spellings, text: str) -> int | None:
    return next((number for number, _, _ in spellings.find(text)), None)


def _position(spellings: Spellings, text: str, wanted: Set[int]) -> int | None:
    return next((start for number, start, _ in spellings.find(text) if number in wanted), None)


def _pair(own: int | None, opener: int | None) -> tuple[Set[int], Set[int]]:
    """A marker of its own, or for want of one the next role's."""
    if own is not None:
        return frozenset({own}), frozenset()
    return frozenset(), frozenset() if opener is None else frozenset({opener})
