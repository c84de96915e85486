"""`@tool`: the schema is that of the hints and the docstring, and arguments are checked against it."""

from __future__ import annotations

import contextlib
import json
import re
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

import agentrl
from agentrl.env.tool import Tool, ToolError, error_text, result_text, tools_of


class Point(BaseModel):
    x: int
    title: str = "p"


class Everything(agentrl.ToolEnv):
    @agentrl.tool
    def search(
        self,
        query: str,
        kind: Literal["web", "code"] = "web",
        limit: int | None = None,
        tags: list[str] | None = None,
        near: Point | None = None,
    ) -> str:
        """Look something up.

        Long words here.

        Args:
            query: What to look for.
            limit: How many.
        """
        return json.dumps([query, kind, limit, tags, near.x if near else None])

    @agentrl.tool(name="copy", timeout_s=2.5)
    async def duplicate(self, copy: int, schema: float = 0.5) -> int:
        return copy


def tool_called(name: str) -> Tool:
    return tools_of(Everything)[name]


def test_the_schema_has_types_defaults_and_descriptions() -> None:
    schema = tool_called("search").schema["function"]
    assert schema["name"] == "search"
    assert schema["description"] == "Look something up.\n\nLong words here."
    parameters = schema["parameters"]
    assert parameters["required"] == ["query"]
    assert parameters["additionalProperties"] is False
    assert parameters["properties"]["query"] == {"type": "string", "description": "What to look for."}
    assert parameters["properties"]["kind"] == {"enum": ["web", "code"], "type": "string", "default": "web"}
    assert parameters["properties"]["limit"] == {
        "anyOf": [{"type": "integer"}, {"type": "null"}],
        "default": None,
        "description": "How many.",
    }


class Item(BaseModel):
    name: str
    count: int = 1


def every_kind(
    self: Any,
    size: Literal["s", "m"],
    note: str | None = None,
    tags: list[str] = [],  # noqa: B006
    item: Item | None = None,
    items: list[Item] = [],  # noqa: B006
    weights: dict[str, float] = {},  # noqa: B006
) -> str:
    """Every kind of parameter."""
    return repr((size, note, tags, item, items, weights))


class EveryKind:
    use = agentrl.tool(every_kind)


def test_literals_optionals_lists_dicts_and_nested_models_are_described() -> None:
    (described,) = tools_of(EveryKind).values()
    properties = described.parameters["properties"]
    assert properties["size"] == {"enum": ["s", "m"], "type": "string"}
    assert properties["note"]["anyOf"] == [{"type": "string"}, {"type": "null"}]
    assert properties["tags"]["items"] == {"type": "string"}
    assert properties["weights"]["additionalProperties"] == {"type": "number"}
    assert properties["items"]["items"] == {"$ref": "#/$defs/Item"}
    assert described.parameters["$defs"]["Item"]["required"] == ["name"]
    assert described.parameters["required"] == ["size"]


def test_nested_arguments_arrive_as_the_models_that_they_are() -> None:
    (described,) = tools_of(EveryKind).values()
    given_arguments = {"size": "m", "note": None, "item": {"name": "cup"}, "items": [{"name": "pan", "count": 2}]}
    arguments = described.parse(given_arguments)
    assert arguments == {"size": "m", "note": None, "item": Item(name="cup"), "items": [Item(name="pan", count=2)]}
    assert EveryKind().use(**arguments).startswith("('m', None, [], Item(name='cup', count=1)")


@pytest.mark.parametrize(
    ("given_arguments", "said"),
    [
        ({"size": "xl"}, "argument 'size': Input should be 's' or 'm'"),
        ({"size": "s", "tags": ["a", 3]}, "argument 'tags.1'"),
        ({"size": "s", "items": [{"count": 2}]}, "missing argument 'items.0.name'"),
    ],
)
def test_what_is_wrong_deep_inside_is_named_by_its_path(given_arguments: dict[str, Any], said: str) -> None:
    (described,) = tools_of(EveryKind).values()
    with pytest.raises(ToolError, match=re.escape(said)):
        described.parse(given_arguments)


def test_a_nested_model_keeps_a_property_that_is_called_title() -> None:
    point = tool_called("search").parameters["$defs"]["Point"]
    assert point["properties"] == {"x": {"type": "integer"}, "title": {"type": "string", "default": "p"}}
    assert "title" not in point


def test_parameter_names_that_pydantic_reserves_work() -> None:
    assert tool_called("copy").parse('{"copy": 3, "schema": 1}') == {"copy": 3, "schema": 1.0}


def test_options_of_the_decorator_are_kept() -> None:
    assert (tool_called("copy").name, tool_called("copy").timeout_s, tool_called("copy").is_async) == (
        "copy",
        2.5,
        True,
    )


def test_only_given_arguments_are_passed_so_defaults_stay_the_functions_own() -> None:
    assert tool_called("search").parse('{"query": "q", "near": {"x": 1}}') == {"query": "q", "near": Point(x=1)}


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        ('{"a":', "not valid JSON"),
        ("", "not valid JSON"),
        (None, "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ("[1]", "one JSON object, got [1]"),
        ("null", "one JSON object, got null"),
        ('"x"', 'one JSON object, got "x"'),
        ("{}", "missing argument 'query'"),
        ('{"query": "q", "page": 2}', "unknown argument 'page'"),
        ('{"query": 1}', "argument 'query': Input should be a valid string"),
        ('{"query": "q", "near": {"x": "a"}}', "argument 'near.x'"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_by_name(raw: str | None, said: str) -> None:
    """Case 39."""
    with pytest.raises(ToolError) as refused:
        tool_called("search").parse(raw)
    assert said in str(refused.value)


@given(st.text())
def test_any_text_as_arguments_is_either_parsed_or_a_tool_error(raw: str) -> None:
    with contextlib.suppress(ToolError):
        assert "query" in tool_called("search").parse(raw)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(["query", "kind", "limit", "tags", "near", "other"]), json_values))
def test_any_json_object_is_parsed_or_refused_and_what_is_parsed_is_declared(given_arguments: dict[str, Any]) -> None:
    try:
        parsed = tool_called("search").parse(json.dumps(given_arguments))
    except ToolError:
        return
    assert parsed.keys() == given_arguments.keys() <= {"query", "kind", "limit", "tags", "near"}
    assert isinstance(parsed["query"], str)


def test_a_parameter_without_a_hint_is_a_type_error_that_names_it() -> None:
    class Untyped(agentrl.ToolEnv):
        @agentrl.tool
        def look(self, where):  # type: ignore[no-untyped-def]
            return where

    with pytest.raises(TypeError, match="'where' of tool look has no type hint"):
        tools_of(Untyped)


class Anything:
    """No JSON says what it is."""


def test_a_parameter_of_a_type_that_json_cannot_say_is_named_with_what_can() -> None:
    class Odd(agentrl.ToolEnv):
        @agentrl.tool
        def look(self, count: int, where: list[Anything]) -> str:
            return ""

    with pytest.raises(TypeError, match=r"'where' of tool look is a list\[.*Anything\], of which no .*; use str, int"):
        tools_of(Odd)


def test_a_type_hint_that_names_nothing_is_told() -> None:
    class Lost(agentrl.ToolEnv):
        @agentrl.tool
        def look(self, where: Nowhere) -> str:  # type: ignore[name-defined]  # noqa: F821
            return ""

    with pytest.raises(TypeError, match="type hint of tool look is unknown: name 'Nowhere' is not defined; import it"):
        tools_of(Lost)


def test_star_arguments_are_refused() -> None:
    class Open(agentrl.ToolEnv):
        @agentrl.tool
        def look(self, *places: str) -> str:
            return ""

    with pytest.raises(TypeError, match="places"):
        tools_of(Open)


def test_a_subclass_adds_to_and_replaces_its_bases_tools() -> None:
    class More(Everything):
        @agentrl.tool
        def search(self, text: str) -> str:
            """Another search."""
            return text

        @agentrl.tool
        def now(self) -> str:
            return "noon"

    assert list(tools_of(More)) == ["search", "copy", "now"]
    assert tools_of(More)["search"].description == "Another search."
    assert tools_of(More)["now"].parse("{}") == {}


def test_a_decorated_method_is_still_an_ordinary_method() -> None:
    assert Everything().search("q", limit=2) == '["q", "web", 2, null, null]'


@pytest.mark.parametrize(
    ("result", "text"),
    [("as is", "as is"), (7, "7"), (None, "null"), ({"a": [1.5]}, '{"a":[1.5]}'), (Point(x=1), '{"x":1,"title":"p"}')],
)
def test_results_become_text(result: Any, text: str) -> None:
    assert result_text(result) == text


def test_numpy_results_read_as_the_numbers_that_they_are() -> None:
    """A policy that copies `"3"` with its quotes would be scored wrong."""
    assert result_text(np.int64(3)) == "3"
    assert result_text({"n": np.float32(0.5), "of": np.arange(2)}) == '{"n":0.5,"of":[0,1]}'


def test_a_value_error_speaks_for_itself_and_others_carry_their_type() -> None:
    assert error_text(ValueError("too long")) == "Error: too long"
    assert error_text(ZeroDivisionError("division by zero")) == "Error: ZeroDivisionError: division by zero"
    assert error_text(KeyError()) == "Error: KeyError"
    assert len(error_text(RuntimeError("x" * 10_000))) < 1100


def test_a_timeout_of_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="timeout_s"):
        agentrl.tool(timeout_s=0)
