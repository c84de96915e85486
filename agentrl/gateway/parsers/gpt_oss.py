"""gpt-oss (harmony): messages `<|channel|>CHANNEL to=RECIPIENT<|constrain|>json<|message|>TEXT<|end|>`, of which the
prompt began the first. `analysis` is reasoning; what goes to functions.NAME is a call; `final`, and `commentary` to
nobody, is content. What is no such message is content as it was sampled, marks included.

Several messages of a kind are joined by a newline.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from agentrl.gateway.parsers.base import Family, ParseOptions, Tools
from agentrl.gateway.parsers.forced import (
    constraint,
    either,
    optional,
    schema,
    sequence,
    tag,
    text,
    wanted,
)
from agentrl.gateway.parsers.script import Script
from agentrl.gateway.parsers.source import Marks, Steps
from agentrl.types import Constraint

START, CHANNEL, MESSAGE, CONSTRAIN = "<|start|>", "<|channel|>", "<|message|>", "<|constrain|>"
END, CALL, RETURN = "<|end|>", "<|call|>", "<|return|>"
FUNCTIONS = "functions."
WORD, RECIPIENT = re.compile(r"[a-z]*"), re.compile(r"[^\s<>|]*")

_ROLE, _TO, _CONSTRAIN = Marks(f"{START}assistant"), Marks("to="), Marks(CONSTRAIN)
_CHANNEL, _MESSAGE = Marks(CHANNEL), Marks(MESSAGE)
_START, _BEGIN = Marks(START), Marks(START, CHANNEL)
_ENDS = Marks(END, CALL, RETURN, START)


class Header(NamedTuple):
    channel: str
    recipient: str


class GptOssParser(Script):
    def __init__(self, options: ParseOptions) -> None:
        self._num_said = {"reasoning": 0, "content": 0}
        super().__init__(options)

    def _all(self) -> Steps[None]:
        if self.options.in_reasoning:
            yield from self._analysis(0)
        while (yield from self.source.peek()):
            start = self.source.keep()
            header = yield from self._header()
            yield from self._message(header, start)
            self.source.drop()

    def _header(self) -> Steps[Header | None]:
        """None where the text is no header; it is read up to what it should not have."""
        source = self.source
        yield from source.space()
        yield from source.one_of(_ROLE)
        recipient = yield from self._recipient()
        if not (yield from source.one_of(_CHANNEL)):
            return None
        channel = yield from source.run(WORD)
        recipient = (yield from self._recipient()) or recipient
        yield from source.space()
        yield from source.one_of(_CONSTRAIN)
        yield from source.run(RECIPIENT)  # the content's type
        yield from source.space()
        return Header(channel, recipient) if (yield from source.one_of(_MESSAGE)) else None

    def _recipient(self) -> Steps[str]:
        yield from self.source.space()
        return (yield from self.source.run(RECIPIENT)) if (yield from self.source.one_of(_TO)) else ""

    def _message(self, header: Header | None, start: int) -> Steps[None]:
        """The text after a header that began at `start`."""
        if header and header.recipient.startswith(FUNCTIONS) and self.options.tools:
            yield from self._call(header.recipient.removeprefix(FUNCTIONS), start)
        elif header and header.channel == "analysis" and not header.recipient:
            self.source.drop()
            yield from self._analysis(start)
        elif header and header.channel in ("final", "commentary") and not header.recipient:
            self.source.drop()
            self._join("content")
            self._reread_start((yield from self.source.until(_ENDS, self.out.content)))
        else:
            yield from self._no_message(start)

    def _analysis(self, start: int) -> Steps[None]:
        self._join("reasoning")
        before = self._reasoning_end
        self._thinking_from = start
        self._thinking = True
        self._reread_start((yield from self.source.until(_ENDS, self.out.reasoning)))
        self._thinking = False
        self._reasoning_end = before + self.source.position - start
        self.out.end_reasoning()

    def _call(self, name: str, start: int) -> Steps[None]:
        payload = yield from self.source.payload(_ENDS)
        if name and payload and (payload[1] or self.stopped):
            self.out.call(name, payload[0])
            self._reread_start(payload[1])
        else:
            yield from self._no_message(start)

    def _no_message(self, start: int) -> Steps[None]:
        if self.source.position == start:
            yield from self.source.one_of(_START)  # of another role
        self.out.content(self.source.taken(start))
        self.source.drop()
        mark = yield from self.source.until(_BEGIN, self.out.content)
        self.source.back(self.source.position - len(mark or ""))

    def _reread_start(self, mark: str | None) -> None:
        """A message that begins ends the one before it, but it is not its end mark."""
        if mark == START:
            self.source.back(self.source.position - len(START))

    def _join(self, kind: str) -> None:
        if self._num_said[kind]:
            (self.out.reasoning if kind == "reasoning" else self.out.content)("\n")
        self._num_said[kind] += 1

    @property
    def reasoning_end(self) -> int:
        return self._reasoning_end + (self.source.fed - self._thinking_from if self._thinking else 0)


def forced(tools: Tools, name: str | None, parallel: bool, in_reasoning: bool = False) -> Constraint:
    """One call. The model ends it with <|call|>, which ends its turn, so there are no parallel calls."""
    calls = [
        tag(f"{head}{constrain}{MESSAGE}", schema(tool), "")
        for tool in wanted(tools, name)
        for constrain in (f" {CONSTRAIN}json", f"{CONSTRAIN}json", " json", "")
        for head in (
            f"{CHANNEL}commentary to={FUNCTIONS}{tool['name']}",
            f" to={FUNCTIONS}{tool['name']}{CHANNEL}commentary",
        )
    ]
    anything = {"type": "any_text"}
    again = text(f"{START}assistant")
    begin = "" if in_reasoning else f"{CHANNEL}analysis{MESSAGE}"
    analysis = sequence(tag(begin, anything, END), again)
    preamble = sequence(tag(f"{CHANNEL}commentary{MESSAGE}", anything, END), again)
    whole = sequence(analysis if in_reasoning else optional(analysis), optional(preamble), either(calls))
    return constraint(whole, {}, False)


FAMILY = Family("gpt_oss", GptOssParser, forced, CALL, lambda template: CHANNEL in template and MESSAGE in template)
