"""How adapters reach what is not theirs: another package, or code that the user names."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

from agentrl.errors import ConfigError
from agentrl.loading import absolute, load


def package(module: str, *, extra: str) -> Any:
    """The module. Raises ConfigError naming the pip extra when its package, or one that it needs, is missing."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(f"{module} cannot be imported ({error}); pip install 'agentrl[{extra}]'") from error


def named(name: str | Callable[..., Any]) -> Callable[..., Any]:
    """What `module:function` or `path/to/file.py:function` names; a function is itself. Raises ConfigError."""
    return name if callable(name) else load(name, "option")


def placed_names(options: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """Options with the files in these ones' names absolute, as workers have working directories of their own."""
    return {name: _placed(value) if name in names else value for name, value in options.items()}


def _placed(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_placed(part) for part in value]
    return absolute(value) if isinstance(value, str) else value
