"""`@tool`: a function that the policy may call, described by its type hints and docstring."""

from __future__ import annotations

import functools
import inspect
import json
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, overload

import docstring_parser
import numpy as np
from pydantic import BaseModel, ConfigDict, Field, PydanticUserError, TypeAdapter, ValidationError, create_model
from pydantic_core import to_json

F = TypeVar("F", bound=Callable[..., Any])

MARK = "__agentrl_tool__"  # the attribute of a tool that holds its ToolOptions
_MAX_ERROR = 1000  # characters of an error that the policy is shown


class ToolError(Exception):
    """Told to the policy as a tool message; the episode goes on. Tools may raise it themselves."""


@dataclass(frozen=True)
class ToolOptions:
    name: str | None
    timeout_s: float | None
    parallel: bool | None


@overload
def tool(function: F) -> F: ...
@overload
def tool(
    *, name: str | None = None, timeout_s: float | None = None, parallel: bool | None = None
) -> Callable[[F], F]: ...
def tool(
    function: F | None = None,
    *,
    name: str | None = None,
    timeout_s: float | None = None,
    parallel: bool | None = None,
) -> F | Callable[[F], F]:
    """Offers a method of a `ToolEnv` to the policy; plain or `async def`. It stays an ordinary method.

    Every parameter needs a type hint: pydantic makes the JSON schema from the hints and checks the arguments
    against it. The docstring gives the descriptions. `timeout_s` bounds one call, in seconds.

    Neighbouring calls of one message run at the same time when their tools are `parallel`: `async def` ones unless
    told otherwise, plain ones, which then run in threads of their own, when told so. All others run in order.
    """
    if timeout_s is not None and timeout_s <= 0:
        raise ValueError(f"timeout_s of a tool is {timeout_s}; leave it out for no limit, or give a positive number")

    def mark(marked: F) -> F:
        setattr(marked, MARK, ToolOptions(name, timeout_s, parallel))
        return marked

    return mark if function is None else mark(function)


@dataclass(frozen=True)
class Tool:
    """One tool of one environment class, ready to be offered and called."""

    name: str
    description: str
    parameters: dict[str, Any]  # JSON schema of an object
    attribute: str  # the method's name
    is_async: bool
    timeout_s: float | None
    parallel: bool
    arguments: type[BaseModel]

    @property
    def schema(self) -> dict[str, Any]:
        """The tool as an entry of OpenAI's `tools`."""
        function = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": function}

    def parse(self, raw: str | Mapping[str, Any] | None) -> dict[str, Any]:
        """Keyword arguments from a call's `arguments`. Raises ToolError saying what is wrong with them."""
        given = json_object(raw)
        try:
            parsed = self.arguments.model_validate(given)
        except ValidationError as error:
            raise ToolError("; ".join(_explain(problem) for problem in error.errors())) from None
        fields = self.arguments.model_fields
        return {str(fields[field].alias): getattr(parsed, field) for field in parsed.model_fields_set}


def tools_of(cls: type) -> Mapping[str, Tool]:
    """The tools of a class by name, base classes first. Raises TypeError for one that cannot be described."""
    return _collect(cls)


@functools.cache
def _collect(cls: type) -> Mapping[str, Tool]:
    attributes = dict.fromkeys(name for base in reversed(cls.__mro__) for name in vars(base))
    found: dict[str, Tool] = {}
    for attribute in attributes:
        function = inspect.getattr_static(cls, attribute, None)
        options = getattr(function, MARK, None)
        if isinstance(options, ToolOptions) and callable(function):
            described = _describe(attribute, function, options)
            if described.name in found:
                raise TypeError(f"{cls.__name__} has two tools called {described.name!r}")
            found[described.name] = described
    return found


def result_text(result: Any) -> str:
    """What the policy reads of a tool's result: strings as they are, everything else as JSON."""
    return result if isinstance(result, str) else to_json(result, fallback=_plain).decode()


def _plain(value: Any) -> Any:
    """numpy's numbers and arrays as Python's; what is neither as its text."""
    return value.tolist() if isinstance(value, np.generic | np.ndarray) else str(value)


def error_text(error: BaseException) -> str:
    """What the policy reads of a failed call. A ValueError speaks to the caller; others carry their type."""
    text = str(error)
    if not isinstance(error, ToolError | ValueError) or not text:
        text = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return f"Error: {text[:_MAX_ERROR]}"


def _describe(attribute: str, function: Callable[..., Any], options: ToolOptions) -> Tool:
    doc = docstring_parser.parse(inspect.getdoc(function) or "")
    described = {param.arg_name: param.description for param in doc.params}
    hints = _hints(attribute, function)
    fields: dict[str, Any] = {}
    parameters = list(inspect.signature(function).parameters.values())[1:]  # without self
    for index, parameter in enumerate(parameters):
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise TypeError(f"tool {attribute} has the parameter {parameter}; name each parameter instead")
        if parameter.name not in hints:
            raise TypeError(f"parameter {parameter.name!r} of tool {attribute} has no type hint; add one")
        default = ... if parameter.default is parameter.empty else parameter.default
        # The alias keeps any parameter name usable, also those that a pydantic model reserves.
        field = Field(default, alias=parameter.name, description=described.get(parameter.name))
        _check_describable(attribute, parameter.name, hints[parameter.name])
        fields[f"argument_{index}"] = (hints[parameter.name], field)
    model = create_model(attribute, __config__=ConfigDict(extra="forbid"), **fields)
    return Tool(
        name=options.name or attribute,
        description="\n\n".join(part for part in (doc.short_description, doc.long_description) if part),
        parameters=_without_titles(model.model_json_schema()),
        attribute=attribute,
        is_async=inspect.iscoroutinefunction(function),
        timeout_s=options.timeout_s,
        parallel=inspect.iscoroutinefunction(function) if options.parallel is None else options.parallel,
        arguments=model,
    )


def _hints(attribute: str, function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function, include_extras=True)
    except NameError as error:
        raise TypeError(f"a type hint of tool {attribute} is unknown: {error}; import it where the class is") from error


def _check_describable(attribute: str, parameter: str, hint: Any) -> None:
    try:
        TypeAdapter(hint).json_schema()
    except PydanticUserError as error:
        shown = hint.__name__ if isinstance(hint, type) else hint
        raise TypeError(
            f"parameter {parameter!r} of tool {attribute} is a {shown}, of which no JSON schema can be made; use str, "
            "int, float, bool, Literal, list, dict or a pydantic model"
        ) from error


def json_object(raw: str | Mapping[str, Any] | None) -> dict[str, Any]:
    """A call's `arguments`, whatever they are, as a dict. Raises ToolError when they are no JSON object."""
    if isinstance(raw, Mapping):
        return dict(raw)
    try:
        value = json.loads(raw or "")
    except (ValueError, TypeError, RecursionError) as error:
        raise ToolError(f"the arguments are not valid JSON ({error}); send one JSON object") from None
    if not isinstance(value, dict):
        raise ToolError(f"the arguments have to be one JSON object, got {json.dumps(value)[:100]}")
    return value


def _explain(problem: Any) -> str:
    """One short line per fault; a small policy has to read it."""
    path = [str(part) for part in problem["loc"]]
    where = ".".join(path)
    if problem["type"] == "extra_forbidden":
        return f"unknown argument {where!r}"
    if problem["type"] == "missing":
        return f"missing argument {where!r}"
    return f"argument {where!r}: {problem['msg']}"


def _without_titles(schema: Any) -> Any:
    """Pydantic titles every property after itself, which only costs tokens. A property called 'title' stays."""
    if isinstance(schema, list):
        return [_without_titles(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    kept = {key: value for key, value in schema.items() if not (key == "title" and isinstance(value, str))}
    named = ("properties", "$defs")
    return {
        key: {name: _without_titles(part) for name, part in value.items()} if key in named else _without_titles(value)
        for key, value in kept.items()
    }
