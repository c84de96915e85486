"""A chat template, compiled once, in the language that transformers gives them.

Chat templates are programs of strangers: they run in jinja's sandbox and may fail in any way.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment

from agentrl.errors import AgentRLError, ConfigError

RESERVED = frozenset({"messages", "tools", "documents", "add_generation_prompt", "chat_template", "tokenize"})
CACHED_SCHEMAS = 256


class RenderError(AgentRLError):
    """The chat template refused these messages, in its own words."""


class Template:
    """`source` is one template or several by name, as tokenizers hold it; `special_tokens` are its variables.

    Raises ConfigError: the template is not in the language.
    """

    def __init__(self, source: str | Mapping[str, str], special_tokens: Mapping[str, Any]) -> None:
        named = {"default": source} if isinstance(source, str) else dict(source)
        self._special_tokens = dict(special_tokens)
        environment = _environment()
        try:
            self._named = {name: environment.from_string(text) for name, text in named.items()}
        except jinja2.TemplateError as error:
            raise ConfigError(f"the chat template cannot be compiled: {error}") from error
        self._globals = dict(environment.globals)
        self.source = "\n".join(named.values())

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Any = None,
        variables: Mapping[str, Any] | None = None,
        *,
        generation_prompt: bool,
    ) -> str:
        """The conversation as text. Raises RenderError in the template's own words."""
        taken = (RESERVED | self._special_tokens.keys()) & (variables or {}).keys()
        if taken:
            raise RenderError(f"template variables {sorted(taken)} are set by the gateway; leave them out")
        if not messages:
            raise RenderError("there are no messages to render; give at least one")
        given = {**self._globals, **self._special_tokens, **(variables or {}), "messages": messages}
        given |= {"tools": tools or None, "documents": None, "add_generation_prompt": generation_prompt}
        try:
            return _rendered(self._for(tools), given)
        except Exception as error:
            raise RenderError(f"the chat template refused the messages: {error}") from error

    def _for(self, tools: Any) -> jinja2.Template:
        if tools and "tool_use" in self._named:
            return self._named["tool_use"]
        if "default" not in self._named:
            raise jinja2.TemplateError(f"there is none named default among {sorted(self._named)}")
        return self._named["default"]


def _rendered(template: jinja2.Template, variables: dict[str, Any]) -> str:
    """As `template.render` does it, and leaves nothing behind: macros and their context hold each other, and all of a
    conversation with them, until the garbage collector comes."""
    environment = template.environment
    context = environment.context_class(environment, variables, template.name, template.blocks)
    try:
        return "".join(template.root_render_func(context))
    finally:
        context.vars.clear()


class _Generation(Extension):
    """`{% generation %}`, which marks the assistant's text for trainers that re-tokenise; it changes nothing here."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


class _Environment(ImmutableSandboxedEnvironment):
    """The sandbox, with short ways for what templates do most: their own macros, `message.role`, `content.strip`,
    `loop.last`.

    None reaches anything that the sandbox would keep from a template.
    """

    def call(self, context: Context, obj: Any, *args: Any, **kwargs: Any) -> Any:
        if type(obj) is not Macro:
            return super().call(context, obj, *args, **kwargs)
        for name in ("_loop_vars", "_block_vars"):  # for functions that take the context
            kwargs.pop(name, None)
        return obj(context.eval_ctx, *args, **kwargs)

    def getattr(self, obj: Any, attribute: str) -> Any:
        kind = type(obj)
        if kind is dict and attribute not in DICT_NAMES:
            try:
                return obj[attribute]
            except KeyError:
                return self.undefined(obj=obj, name=attribute)
        if (kind is str and attribute in STR_METHODS) or (kind is dict and attribute in DICT_READERS):
            return getattr(obj, attribute)
        if kind is LoopContext and attribute in LOOP_FIELDS:
            return getattr(obj, attribute)
        return super().getattr(obj, attribute)


DICT_NAMES = frozenset(dir(dict))
LOOP_FIELDS = frozenset({"index", "index0", "first", "last", "length", "previtem", "nextitem"})
DICT_READERS = frozenset({"items", "keys", "values", "get"})
STR_METHODS = frozenset(
    {"strip", "lstrip", "rstrip", "split", "rsplit", "startswith", "endswith", "replace", "lower", "upper", "title"}
)


def _environment() -> jinja2.Environment:
    """The filters, globals and settings that transformers promises to templates."""
    environment = _Environment(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, LoopControlExtension])
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(spec: str) -> str:
    return datetime.now().strftime(spec)


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """Without HTML's escapes. Indented schemas are kept: the indenting encoder is slow, and they come every turn."""
    dumps: Callable[..., str] = json.dumps
    if indent is None:
        return dumps(value, ensure_ascii=ensure_ascii, separators=separators, sort_keys=sort_keys)
    key = dumps(value, ensure_ascii=ensure_ascii)
    return _indented(key, ensure_ascii, indent, tuple(separators) if separators else None, sort_keys)


@lru_cache(CACHED_SCHEMAS)
def _indented(key: str, ensure_ascii: bool, indent: int, separators: Any, sort_keys: bool) -> str:
    return json.dumps(
        json.loads(key), ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
