"""Qwen3-Coder and Qwen 3.5: <tool_call><function=NAME><parameter=KEY>VALUE</parameter>…</function></tool_call>.

A value ends at its </parameter> and nowhere else, whatever it spells: text in a value that looks like a call is never
run. A newline at both ends of a value is the format's.
"""

from __future__ import annotations

import re

from agentrl.gateway.parsers.arguments import arguments_json
from agentrl.gateway.parsers.base import Family, Tools
from agentrl.gateway.parsers.forced import constraint, may_be_empty, one_or_more, schema, tag, text, wanted
from agentrl.gateway.parsers.json_call import NamedCall
from agentrl.gateway.parsers.script import BlockScript
from agentrl.gateway.parsers.source import NAME, Marks, Steps
from agentrl.types import Constraint

OPEN, CLOSE = "<tool_call>", "</tool_call>"
FUNCTION, FUNCTION_END = "<function=", "</function>"
PARAMETER, PARAMETER_END = "<parameter=", "</parameter>"
KEY = re.compile(r"[^<>\n]*")

_CLOSE, _FUNCTION, _TAG_END = Marks(CLOSE), Marks(FUNCTION), Marks(">")
_NEXT, _PARAMETER_END = Marks(PARAMETER, FUNCTION_END), Marks(PARAMETER_END)


class Qwen3CoderParser(BlockScript):
    opens = OPEN

    def _call(self) -> Steps[NamedCall | None]:
        source = self.source
        yield from source.space()
        if not (yield from source.one_of(_FUNCTION)):
            return None
        name = yield from source.run(NAME)
        if not name or not (yield from source.one_of(_TAG_END)):
            return None
        pairs: list[tuple[str, str]] = []
        while True:
            yield from source.space()
            mark = yield from source.one_of(_NEXT)
            if mark == FUNCTION_END:
                break
            pair = (yield from self._pair()) if mark else None
            if pair is None:
                return None
            pairs.append(pair)
        yield from source.space()
        if not (yield from source.one_of(_CLOSE)):
            return None
        return name, arguments_json(name, pairs, self.options.tools)

    def _pair(self) -> Steps[tuple[str, str] | None]:
        source = self.source
        key = (yield from source.run(KEY)).strip()
        if not key or not (yield from source.one_of(_TAG_END)):
            return None
        pieces: list[str] = []
        if not (yield from source.until(_PARAMETER_END, pieces.append)):
            return None
        return key, "".join(pieces).removeprefix("\n").removesuffix("\n")


def forced(tools: Tools, name: str | None, parallel: bool, in_reasoning: bool = False) -> Constraint:
    calls = []
    for tool in wanted(tools, name):
        begin, end = f"{OPEN}\n{FUNCTION}{tool['name']}>", f"{FUNCTION_END}\n{CLOSE}"
        calls.append(tag(f"{begin}\n", schema(tool, "qwen_xml"), f"\n{end}"))
        if may_be_empty(tool):
            calls.append(tag(begin, text("\n"), end))
    return constraint(one_or_more(calls, "\n", parallel), Qwen3CoderParser.think, in_reasoning)


FAMILY = Family(
    "qwen3_coder", Qwen3CoderParser, forced, CLOSE, lambda template: FUNCTION in template and PARAMETER in template
)
