"""GLM 4.5 and later: <tool_call>NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value>…</tool_call>.

White space may stand between the marks, not in a value: a value is all that is before its </arg_value>, whatever it
spells, so text in a value that looks like a call is never run.
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
ARG_KEY = "<arg_key>"
KEY = re.compile(r"[^<>]*")

_NEXT = Marks(ARG_KEY, CLOSE)
_KEY_END, _VALUE, _VALUE_END = Marks("</arg_key>"), Marks("<arg_value>"), Marks("</arg_value>")


class GlmParser(BlockScript):
    opens = OPEN

    def _call(self) -> Steps[NamedCall | None]:
        source = self.source
        yield from source.space()
        name = yield from source.run(NAME)
        pairs: list[tuple[str, str]] = []
        while name:
            yield from source.space()
            mark = yield from source.one_of(_NEXT)
            if mark == CLOSE:
                return name, arguments_json(name, pairs, self.options.tools)
            pair = (yield from self._pair()) if mark else None
            if pair is None:
                return None
            pairs.append(pair)
        return None

    def _pair(self) -> Steps[tuple[str, str] | None]:
        source = self.source
        key = (yield from source.run(KEY)).strip()
        if not key or not (yield from source.one_of(_KEY_END)):
            return None
        yield from source.space()
        if not (yield from source.one_of(_VALUE)):
            return None
        pieces: list[str] = []
        if not (yield from source.until(_VALUE_END, pieces.append)):
            return None
        return key, "".join(pieces)


def forced(tools: Tools, name: str | None, parallel: bool, in_reasoning: bool = False) -> Constraint:
    calls = []
    for tool in wanted(tools, name):
        begin = f"{OPEN}{tool['name']}"
        calls.append(tag(f"{begin}\n", schema(tool, "glm_xml"), f"\n{CLOSE}"))
        if may_be_empty(tool):
            calls.append(tag(begin, text("\n"), CLOSE))
    return constraint(one_or_more(calls, "\n", parallel), GlmParser.think, in_reasoning)


FAMILY = Family("glm", GlmParser, forced, CLOSE, lambda template: ARG_KEY in template)
