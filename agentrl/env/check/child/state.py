"""Fingerprints of what all instances of an environment share: class attributes and module globals."""

from __future__ import annotations

import inspect
import random
from collections import deque
from types import FunctionType, MappingProxyType, ModuleType
from typing import Any

import numpy as np

from agentrl.env.check.child.author import Author
from agentrl.env.check.child.source import assignment
from agentrl.env.check.records import StateChange

_MOST = 2000  # values of one attribute that are looked at
_SHOWN = 120  # characters


class SharedState:
    """What the author's classes and modules hold now, to be compared with later.

    Left out: functions, classes and modules, what was None (it is made once, on first use), and whatever has
    "cache" in its name.
    """

    def __init__(self, author: Author) -> None:
        self._author = author
        self._before = {name: (owner, _described(value)) for name, (owner, value) in _shared(author).items()}

    def changes(self) -> list[StateChange]:
        found: list[StateChange] = []
        for name, (owner, value) in _shared(self._author).items():
            if name not in self._before:
                continue
            before, after = self._before[name][1], _described(value)
            if before not in (after, "None"):
                attribute = name.rpartition(".")[2]
                found.append(StateChange(name, before[:_SHOWN], after[:_SHOWN], assignment(owner, attribute)))
        return found


def _shared(author: Author) -> dict[str, tuple[type | ModuleType, Any]]:
    found: dict[str, tuple[type | ModuleType, Any]] = {}
    for module in author.modules():
        owners: list[tuple[str, type | ModuleType]] = [(module.__name__, module)]
        classes = [value for value in vars(module).values() if inspect.isclass(value)]
        owners += [(cls.__qualname__, cls) for cls in classes if cls.__module__ == module.__name__]
        for owner_name, owner in owners:
            for name, value in list(vars(owner).items()):
                if not name.startswith("__") and "cache" not in name.lower() and _is_data(value):
                    found[f"{owner_name}.{name}"] = (owner, value)
    return found


def _is_data(value: Any) -> bool:
    if isinstance(value, FunctionType | ModuleType | property | staticmethod | classmethod) or inspect.isclass(value):
        return False
    return not callable(value) and not inspect.isdatadescriptor(value) and not inspect.ismethoddescriptor(value)


def _described(value: Any) -> str:
    budget = [_MOST]
    return _text(value, budget, 0)


def _text(value: Any, budget: list[int], depth: int) -> str:
    budget[0] -= 1
    if budget[0] < 0 or depth > 8:
        return "…"
    if value is None or isinstance(value, bool | int | float | complex | str | bytes | bytearray):
        return repr(value)
    if isinstance(value, dict | MappingProxyType):
        inside = ", ".join(
            f"{_text(k, budget, depth + 1)}: {_text(v, budget, depth + 1)}" for k, v in list(value.items())[:_MOST]
        )
        return f"{{{inside}}}" + (f" of {len(value)}" if len(value) > _MOST else "")
    if isinstance(value, set | frozenset):
        return "{" + ", ".join(sorted(_text(part, budget, depth + 1) for part in list(value)[:_MOST])) + "}"
    if isinstance(value, list | tuple | deque):
        inside = ", ".join(_text(part, budget, depth + 1) for part in list(value)[:_MOST])
        return f"[{inside}]" + (f" of {len(value)}" if len(value) > _MOST else "")
    if isinstance(value, random.Random):
        return f"Random in state {hash(value.getstate()) & 0xFFFFFFFF:08x}"
    if isinstance(value, np.random.Generator):
        return f"Generator in state {value.bit_generator.state}"
    if isinstance(value, np.ndarray):
        return f"array{value.shape} {value.tobytes()[:_MOST]!r}"
    own = getattr(value, "__dict__", None)
    name = type(value).__name__
    return f"{name}({_text(own, budget, depth + 1)})" if isinstance(own, dict) and own else f"a {name}"
