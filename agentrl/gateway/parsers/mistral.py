"""Mistral: [TOOL_CALLS] and a JSON list of {"name": …, "arguments": …}, or [TOOL_CALLS]NAME[ARGS]{…} for each call,
where [ARGS] may be missing.

The newer form has no closing mark: a call ends where the next begins, or where the model ends its turn. Its arguments
are what is there, as written, JSON or not.
"""

from __future__ import annotations

import json
from typing import Any, ClassVar

from agentrl.gateway.parsers.base import Family, Tools
from agentrl.gateway.parsers.forced import (
    constraint,
    either,
    one_or_more,
    optional,
    schema,
    sequence,
    tag,
    text,
    wanted,
)
from agentrl.gateway.parsers.json_call import calls_of
from agentrl.gateway.parsers.script import Script
from agentrl.gateway.parsers.source import NAME, Marks, Steps
from agentrl.types import Constraint

CALLS, ARGS, CALL_ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"
_CALLS, _ARGS, _CALL_ID = Marks(CALLS), Marks(ARGS), Marks(CALL_ID)


class MistralParser(Script):
    think: ClassVar = {**Script.think, "[THINK]": "[/THINK]"}

    def _answer(self) -> Steps[None]:
        while (yield from self.source.until(_CALLS, self.out.content)):
            while (yield from self._call()):
                pass

    def _call(self) -> Steps[bool]:
        """What comes after a mark. True when the next mark was read as its end."""
        source = self.source
        start = source.keep()
        yield from source.space()
        if (yield from source.peek()) in ("[", "{"):
            yield from self._list(start)
            return False
        name = yield from source.run(NAME)
        if name and (yield from source.one_of(_CALL_ID)):
            yield from source.run(NAME)
        if name and ((yield from source.one_of(_ARGS)) or (yield from source.peek()) == "{"):
            payload = yield from source.payload(_CALLS)
            if payload and (payload[1] or self.stopped):
                self.out.call(name, payload[0])
                source.drop()
                return payload[1] is not None
        self.out.content(CALLS + source.taken(start))
        source.drop()
        return False

    def _list(self, start: int) -> Steps[None]:
        source = self.source
        begin = source.position
        result = yield from source.json()
        calls = calls_of(source.taken(begin)) if result == "whole" else None
        for call in calls or ():
            self.out.call(*call)
        if calls is None:
            if result == "bad":
                source.back(start)
            self.out.content(CALLS + source.taken(start))
        source.drop()


def forced(tools: Tools, name: str | None, parallel: bool, in_reasoning: bool = False) -> Constraint:
    functions = wanted(tools, name)
    items: list[dict[str, Any]] = []
    for tool in functions:
        spelled = json.dumps(tool["name"], ensure_ascii=False)
        items.append(tag(f'{{"name": {spelled}, "arguments": ', schema(tool), "}"))
    listed = sequence(text(CALLS), optional(text(" ")), tag("[", one_or_more(items, ", ", parallel), "]"))
    named = [tag(f"{CALLS}{tool['name']}{args}", schema(tool), "") for args in (ARGS, "") for tool in functions]
    calls = either([listed, one_or_more(named, "", parallel)])
    return constraint(calls, MistralParser.think, in_reasoning)


FAMILY = Family("mistral", MistralParser, forced, "", lambda template: CALLS in template)
