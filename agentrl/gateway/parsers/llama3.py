"""Llama 3.1 to 3.3: {"name": …, "parameters": …}, also after <|python_tag|>, several with `;` between them.

There is no opening mark but <|python_tag|>, so an object is a call only where the answer begins, after the mark, or
after another call. There is no closing mark but the turn's: a call ends where the next begins or the model stopped.
"""

from __future__ import annotations

import json

from agentrl.gateway.parsers.base import Family, Tools
from agentrl.gateway.parsers.forced import constraint, one_or_more, schema, tag, wanted
from agentrl.gateway.parsers.json_call import call_of
from agentrl.gateway.parsers.script import Script
from agentrl.gateway.parsers.source import Marks, Steps
from agentrl.types import Constraint

PYTHON_TAG, SEMICOLON = "<|python_tag|>", ";"
TURN_ENDS = ("<|eom_id|>", "<|eot_id|>")
_PYTHON_TAG, _AFTER = Marks(PYTHON_TAG), Marks(PYTHON_TAG, SEMICOLON, *TURN_ENDS)


class Llama3Parser(Script):
    def _answer(self) -> Steps[None]:
        yield from self._calls("")
        while mark := (yield from self.source.until(_PYTHON_TAG, self.out.content)):
            yield from self._calls(mark)

    def _calls(self, mark: str) -> Steps[None]:
        """The calls after `mark`; what is no call is content from the mark on."""
        source = self.source
        while True:
            start = source.keep()
            yield from source.space()
            begin = source.position
            result = (yield from source.json()) if (yield from source.peek()) == "{" else "bad"
            call = call_of(source.taken(begin), or_parameters=True) if result == "whole" else None
            after = None
            if call:
                yield from source.space()
                after = yield from source.one_of(_AFTER)
            behind = source.position
            if call is None or not (yield from self._ended(after)):
                break
            self.out.call(*call)
            source.back(behind)
            source.drop()
            if after != SEMICOLON and after != PYTHON_TAG:
                return
            mark = after
        if result == "bad":
            source.back(start)
        self.out.content(mark + source.taken(start))
        source.drop()

    def _ended(self, after: str | None) -> Steps[bool]:
        """Whether a call ends here, where `after` was read behind it."""
        if after == SEMICOLON:
            yield from self.source.space()
            return (yield from self.source.peek()) == "{"
        return after is not None or ((yield from self.source.peek()) == "" and self.stopped)


def forced(tools: Tools, name: str | None, parallel: bool, in_reasoning: bool = False) -> Constraint:
    calls = []
    for tool in wanted(tools, name):
        begin = f'{{"name": {json.dumps(tool["name"], ensure_ascii=False)}, "parameters": '
        calls.append(tag(begin, schema(tool), "}"))
    return constraint(one_or_more(calls, "; ", parallel), Llama3Parser.think, in_reasoning)


def recognises(template: str) -> bool:
    return PYTHON_TAG in template or ('"parameters": ' in template and "<|start_header_id|>" in template)


FAMILY = Family("llama3", Llama3Parser, forced, "", recognises)
