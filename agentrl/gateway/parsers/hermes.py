"""Hermes, Qwen 2.5 and 3, and the embedded policy: <tool_call>{"name": …, "arguments": …}</tool_call>.

A call is a closed block with a JSON object that has a string `name` and `arguments`. Strings in it may spell the tags.
"""

from __future__ import annotations

import json
from typing import Any

from agentrl.gateway.parsers.base import Family, Tools
from agentrl.gateway.parsers.forced import constraint, one_or_more, schema, tag, wanted
from agentrl.gateway.parsers.json_call import call_of
from agentrl.gateway.parsers.script import Script
from agentrl.gateway.parsers.source import Marks, Steps
from agentrl.types import Constraint

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_OPEN, _CLOSE = Marks(OPEN), Marks(CLOSE)


class HermesParser(Script):
    def _answer(self) -> Steps[None]:
        while (yield from self.source.until(_OPEN, self.out.content)):
            yield from self._call()

    def _call(self) -> Steps[None]:
        source = self.source
        start = source.keep()
        yield from source.space()
        begin = source.position
        result = (yield from source.json()) if (yield from source.peek()) == "{" else "bad"
        if result == "whole":
            call = call_of(source.taken(begin))
            yield from source.space()
            if call and (yield from source.one_of(_CLOSE)):
                self.out.call(*call)
                source.drop()
                return
        elif result == "bad":
            source.back(start)
        self.out.content(OPEN + source.taken(start))
        source.drop()


def forced(tools: Tools, name: str | None, parallel: bool, in_reasoning: bool = False) -> Constraint:
    calls: list[dict[str, Any]] = []
    for tool in wanted(tools, name):
        spelled = json.dumps(tool["name"], ensure_ascii=False)
        for begin in (f'{{"name": {spelled}, "arguments": ', f'{{"name":{spelled},"arguments":'):
            calls.append(tag(f"{OPEN}\n{begin}", schema(tool), f"}}\n{CLOSE}"))
    return constraint(one_or_more(calls, "\n", parallel), HermesParser.think, in_reasoning)


FAMILY = Family("hermes", HermesParser, forced, CLOSE, lambda template: OPEN in template)
