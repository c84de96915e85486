"""Tools that a policy can understand, and that are not broken themselves."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from agentrl.env.check.finding import Finding, error, warning
from agentrl.env.check.records import Place, Recording, ToolRaised

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_TYPED = ("type", "$ref", "anyOf", "oneOf", "allOf", "enum", "const")
_FAULTS = (
    "NameError", "UnboundLocalError", "AttributeError", "ImportError", "ModuleNotFoundError", "TypeError",
    "NotImplementedError", "RecursionError", "AssertionError", "SystemExit",
)  # fmt: skip
"""A tool that raises one of these is broken; the arguments fitted its schema."""


def check(recording: Recording) -> Iterator[Finding]:
    offered: dict[str, Mapping[str, Any]] = {}
    for episode in recording.episodes:
        for call in episode.calls:
            names = [str(_function(tool).get("name")) for tool in call.tools or []]
            for name in sorted({name for name in names if names.count(name) > 1}):
                told = f"two tools are called {name!r}"
                yield error("tool-schema", told, "give each tool a name of its own", _place(recording, name))
            offered |= {str(_function(tool).get("name")): _function(tool) for tool in call.tools or []}
            for raised in call.tool_errors:
                yield from _raised(recording, raised)
    for name, function in offered.items():
        yield from _described(recording, name, function)


def _described(recording: Recording, name: str, function: Mapping[str, Any]) -> Iterator[Finding]:
    place = _place(recording, name)
    parameters = function.get("parameters")
    if not _NAME.fullmatch(name):
        told = f"a tool is called {name!r}; APIs take 1 to 64 letters, digits, _ and -"
        yield error("tool-schema", told, "rename it: @agentrl.tool(name='...')", place)
    if parameters is not None and (not isinstance(parameters, dict) or parameters.get("type") != "object"):
        told = f"the parameters of {name} are no JSON schema of an object: {str(parameters)[:80]}"
        yield error("tool-schema", told, "give {'type': 'object', 'properties': {...}}", place)
        return
    if not str(function.get("description") or "").strip():
        told = f"tool {name} has no docstring, so the policy is told its name only"
        yield warning("tool-undocumented", told, "say in its docstring what it does and returns", place)
    for parameter, schema in ((parameters or {}).get("properties") or {}).items():
        where = _place(recording, name, parameter)
        if not isinstance(schema, dict) or not any(key in schema for key in _TYPED):
            told = f"parameter {parameter!r} of tool {name} may be anything, for its hint says no type"
            yield warning("tool-untyped", told, "hint what it is: str, int, list[str], a Literal or a model", where)
        elif not str(schema.get("description") or "").strip() and "$ref" not in schema:
            told = f"parameter {parameter!r} of tool {name} is not described"
            yield warning(
                "tool-parameter-undocumented", told, f"add '{parameter}: ...' under 'Args:' in the docstring", where
            )


def _raised(recording: Recording, raised: ToolRaised) -> Iterator[Finding]:
    problem = raised.raised
    place = problem.place or _place(recording, raised.tool)
    called = f"{raised.tool}({raised.arguments})"
    if problem.type in _FAULTS:
        yield error(
            "tool-fault",
            f"{called} raised {problem.type}: {problem.text}, which the policy reads as its own mistake",
            "mend the tool; for arguments that it cannot take, raise ValueError with a sentence for the policy",
            place,
        )
    elif problem.type in ("KeyError", "IndexError", "StopIteration"):
        yield warning(
            "tool-message-unclear",
            f"{called} raised {problem.type}: {problem.text}, and that is all that the policy reads",
            "raise ValueError with a sentence that says what is wrong and what to do instead",
            place,
        )


def _function(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    function = tool.get("function")
    return function if isinstance(function, Mapping) else {}


def _place(recording: Recording, tool: str, parameter: str = "") -> Place | None:
    places = recording.subject.places if recording.subject is not None else {}
    return places.get(f"tool {tool}.{parameter}") or places.get(f"tool {tool}") or recording.place("tools")
