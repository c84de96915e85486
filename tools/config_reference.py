"""Writes docs/configuration.md from the configuration models: every table, key, default and what it means.

`python tools/config_reference.py` after changing a model; a test compares.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from agentrl.config import RunConfig
from agentrl.kinds import SUPERVISED, SupervisedConfig
from agentrl_trainers.config import TrainerConfig
from agentrl_trainers.supervised.config import REINFORCEMENT, DpoTrainerConfig

PAGE = Path(__file__).parents[1] / "docs" / "configuration.md"

HEAD = """\
# Configuration

A run is one TOML file. Every key below may also be given on the command line, as in
`--set trainer.learning_rate=1e-5`; `agentrl train FILE --dry-run` prints what it resolves to. An unknown key, a wrong
value or an impossible combination ends the command before anything starts, with exit status 2. TOML has no null:
`"off"` says "no value" for every key that may have none and is not text.

This page is written by `tools/config_reference.py` from the models themselves.
"""


def page() -> str:
    sections = [HEAD, _section("The run", RunConfig, only_values=True)]
    for name, field in RunConfig.model_fields.items():
        model = TrainerConfig if name == "trainer" else _model(field.annotation)
        if model is not None:
            sections += _with_children(name, model)
    return "\n".join([*sections, *_supervised()])


def _supervised() -> Iterator[str]:
    """The other kinds: their own tables, and in words what they share."""
    unread = ", ".join(f"`{key}`" for key in REINFORCEMENT)
    kinds = ", ".join(f'`"{kind}"`' for kind in SUPERVISED)
    yield (
        f"# Kinds that learn from data\n\n`kind` may also be {kinds} ([supervised.md](supervised.md)). Such a run has "
        "the keys `name`, `runs_dir`, `model` and `seed` and the tables `[trainer]`, `[tensorboard]` and, for "
        "the trainer's ranks, `[cluster]` as above, "
        f"without what of `[trainer]` is about rewards and sampled tokens: {unread} (`aggregation` is read by "
        '`"sft"`). Its other tables are these.\n'
    )
    for kind, model in SUPERVISED.items():
        data = _model(model.model_fields["data"].annotation)
        assert data is not None
        yield _section(f'`[data]` of `kind = "{kind}"`', data)
    for table in ("loop", "checkpoint"):
        shared = _model(SupervisedConfig.model_fields[table].annotation)
        assert shared is not None
        yield _section(f"`[{table}]` of all three", shared)
    dpo = _model(DpoTrainerConfig.model_fields["dpo"].annotation)
    assert dpo is not None
    yield _section('`[trainer.dpo]` of `kind = "dpo"`', dpo)


def _with_children(name: str, model: type[BaseModel]) -> Iterator[str]:
    yield _section(f"`[{name}]`", model)
    for key, field in model.model_fields.items():
        if (child := _model(field.annotation)) is not None:
            yield from _with_children(f"{name}.{key}", child)
        elif (item := _item_model(field.annotation)) is not None:
            yield _section(f"`[[{name}.{key}]]`", item)


def _section(title: str, model: type[BaseModel], *, only_values: bool = False) -> str:
    about = "" if only_values else f"{(model.__doc__ or '').strip().splitlines()[0]}\n\n"
    rows = [
        f"| `{key}` | {_type(field.annotation)} | {_default(field)} | {_description(model, key, field)} |"
        for key, field in model.model_fields.items()
        if not (_model(field.annotation) or _item_model(field.annotation) or field.annotation is BaseModel)
        and not (only_values and key == "trainer")
    ]
    return f"## {title}\n\n{about}| key | type | default | |\n|---|---|---|---|\n" + "\n".join(rows) + "\n"


def _description(model: type[BaseModel], key: str, field: FieldInfo) -> str:
    if not field.description:
        raise SystemExit(f"{model.__name__}.{key} has no docstring; say what it means, then run this again")
    return " ".join(field.description.split()).replace("|", "\\|")


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value: Any = field.get_default(call_default_factory=True)
    if value is None:
        return "none"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, Path):
        value = str(value)
    if isinstance(value, tuple):
        value = list(value)
    return f"`{value!r}`".replace("'", '"')


def _type(annotation: Any) -> str:
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Literal:
        return " or ".join(f"`{value}`" for value in arguments)
    if origin in (typing.Union, types.UnionType):
        return _type(next(argument for argument in arguments if argument is not type(None)))
    if origin is typing.Annotated:
        return _type(arguments[0])
    if origin in (tuple, list):
        return f"list of {_type(arguments[0])}"
    if origin is dict:
        return "table"
    return {Path: "path", str: "text", int: "integer", float: "number", bool: "true or false"}.get(
        annotation, getattr(annotation, "__name__", str(annotation))
    )


def _model(annotation: Any) -> type[BaseModel] | None:
    is_model = isinstance(annotation, type) and issubclass(annotation, BaseModel) and annotation is not BaseModel
    return annotation if is_model else None


def _item_model(annotation: Any) -> type[BaseModel] | None:
    arguments = typing.get_args(annotation) if typing.get_origin(annotation) in (tuple, list) else ()
    return _model(arguments[0]) if arguments else None


if __name__ == "__main__":
    PAGE.write_text(page())
    print(f"wrote {PAGE}")
