"""DeepSeek. V3.1: <｜tool▁call▁begin｜>NAME<｜tool▁sep｜>{…}<｜tool▁call▁end｜>, and in V3 and R1
<｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME\n```json\n{…}\n```<｜tool▁call▁end｜>; one or more of these between
<｜tool▁calls▁begin｜> and <｜tool▁calls▁end｜>.

The arguments are what is between the marks, as written, JSON or not.
"""

from __future__ import annotations

from typing import Any

from agentrl.gateway.parsers.base import Family, Tools
from agentrl.gateway.parsers.forced import constraint, either, one_or_more, schema, tag, wanted
from agentrl.gateway.parsers.json_call import NamedCall
from agentrl.gateway.parsers.script import Script
from agentrl.gateway.parsers.source import NAME, Marks, Steps
from agentrl.types import Constraint

CALLS, CALLS_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
CALL, CALL_END, SEPARATOR = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>", "<｜tool▁sep｜>"
FENCE, FENCE_END = "\n```json\n", "```"

_BEGIN, _CALL, _NEXT = Marks(CALLS, CALL), Marks(CALL), Marks(CALL, CALLS_END)
_SEPARATOR, _FENCE, _CALL_END = Marks(SEPARATOR), Marks(FENCE), Marks(CALL_END)


class DeepSeekParser(Script):
    def _answer(self) -> Steps[None]:
        while mark := (yield from self.source.until(_BEGIN, self.out.content)):
            yield from self._calls(mark)

    def _calls(self, mark: str) -> Steps[None]:
        """The calls after `mark`. What is no call is content from where it began, the mark too if it was the first."""
        source = self.source
        start = source.keep()
        begun = mark == CALL
        if not begun:
            yield from source.space()
            begun = bool((yield from source.one_of(_CALL)))
        while begun:
            call = yield from self._call()
            if call is None:
                break
            self.out.call(*call)
            source.drop()
            start, mark = source.keep(), ""
            yield from source.space()
            following = yield from source.one_of(_NEXT)
            if following == CALLS_END:
                start = source.position
            begun = following == CALL
        self.out.content(mark + source.taken(start))
        source.drop()

    def _call(self) -> Steps[NamedCall | None]:
        source = self.source
        name = yield from source.run(NAME)
        if not name or not (yield from source.one_of(_SEPARATOR)):
            return None
        begin = source.position
        fenced = yield from source.run(NAME)
        if fenced and (yield from source.one_of(_FENCE)):
            name = fenced
        else:
            fenced = ""
            source.back(begin)
        payload = yield from source.payload(_CALL_END)
        if payload is None or payload[1] is None:
            return None
        arguments = payload[0].removesuffix(FENCE_END).rstrip() if fenced else payload[0]
        return name, arguments


def forced(tools: Tools, name: str | None, parallel: bool, in_reasoning: bool = False) -> Constraint:
    styles: list[list[dict[str, Any]]] = [[], []]
    for tool in wanted(tools, name):
        styles[0].append(tag(f"{CALL}{tool['name']}{SEPARATOR}", schema(tool), CALL_END))
        styles[1].append(
            tag(f"{CALL}function{SEPARATOR}{tool['name']}{FENCE}", schema(tool), f"\n{FENCE_END}{CALL_END}")
        )
    between = ("", "\n")
    sections = [
        tag(CALLS, one_or_more(calls, separator, parallel), CALLS_END)
        for calls, separator in zip(styles, between, strict=True)
    ]
    return constraint(either(sections), DeepSeekParser.think, in_reasoning)


FAMILY = Family("deepseek", DeepSeekParser, forced, CALL_END, lambda template: CALLS in template)
