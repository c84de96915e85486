"""Untyped argument text → JSON by the tool's schema."""

from __future__ import annotations

from typing import Any

import pytest
from parser_builders import function

from agentrl.gateway.parsers.arguments import arguments_json


def converted(text: str, schema: Any, **of_parameters: Any) -> str:
    """The JSON of one argument `a`."""
    tool = function("f", a=schema)
    tool["function"]["parameters"].update(of_parameters)
    written = arguments_json("f", [("a", text)], [tool])
    return written.removeprefix('{"a": ').removesuffix("}")


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        ("string", "5", '"5"'),
        ("string", '{"a": 1}', '"{\\"a\\": 1}"'),
        ("string", ' é"\n', '" é\\"\\n"'),
        ("integer", "5", "5"),
        ("integer", " 5 ", "5"),
        ("integer", "123456789012345678901234567890", "123456789012345678901234567890"),
        ("integer", "five", '"five"'),
        ("number", "1.50", "1.50"),
        ("number", "NaN", '"NaN"'),
        ("boolean", "true", "true"),
        ("boolean", "False", "false"),
        ("boolean", "yes", '"yes"'),
        ("null", "null", "null"),
        ("null", "None", "null"),
        ("object", '{"b": [1]}', '{"b": [1]}'),
        ("object", "{'b': 1}", "\"{'b': 1}\""),
        ("array", '["x"]', '["x"]'),
        ("array", '["x"', '"[\\"x\\""'),
        ("array", "[" * 100_000, '"' + "[" * 100_000 + '"'),
    ],
)
def test_a_value_is_json_unless_its_type_is_string_or_it_is_no_json(kind: str, text: str, expected: str) -> None:
    assert converted(text, {"type": kind}) == expected


@pytest.mark.parametrize(
    ("schema", "text", "expected"),
    [
        ({"type": ["string", "null"]}, "null", "null"),
        ({"type": ["string", "null"]}, "5", '"5"'),
        ({"type": ["string", "integer"]}, '"5"', '"\\"5\\""'),
        ({"anyOf": [{"type": "string"}, {"type": "number"}]}, "5", "5"),
        ({"anyOf": [{"type": "string"}, {"type": "number"}]}, "true", '"true"'),
        ({"oneOf": [{"type": "integer"}, {"type": "boolean"}]}, "true", "true"),
        ({"allOf": [{"type": "array"}]}, "[1]", "[1]"),
        ({"enum": [1, 2]}, "1", "1"),
        ({"enum": ["1", "2"]}, "1", '"1"'),
        ({"const": True}, "true", "true"),
        ({}, "5", '"5"'),
        (None, "5", '"5"'),
        ({"type": 7}, "5", '"5"'),
        ({"$ref": "#/nowhere"}, "5", '"5"'),
    ],
)
def test_of_several_types_the_one_that_fits_counts_and_none_means_string(schema: Any, text: str, expected: str) -> None:
    assert converted(text, schema) == expected


def test_a_reference_into_the_schema_is_followed_even_if_it_leads_in_a_circle() -> None:
    definitions = {"Point": {"type": "object"}, "Loop": {"$ref": "#/$defs/Loop"}}
    assert converted('{"x": 1}', {"$ref": "#/$defs/Point"}, **{"$defs": definitions}) == '{"x": 1}'
    assert converted("1", {"$ref": "#/$defs/Loop"}, **{"$defs": definitions}) == '"1"'


@pytest.mark.parametrize("tools", [[], [{"type": "function", "function": {"name": "f"}}], [function("g")]])
def test_arguments_that_no_schema_describes_are_strings(tools: list[Any]) -> None:
    assert arguments_json("f", [("a", "1"), ("b", "x")], tools) == '{"a": "1", "b": "x"}'


def test_no_arguments_are_an_empty_object_and_the_last_of_two_counts() -> None:
    assert arguments_json("f", [], []) == "{}"
    assert arguments_json("f", [("a", "1"), ("a", "2")], []) == '{"a": "2"}'
