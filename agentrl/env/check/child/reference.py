"""Finds an environment's solution: `reference(messages) -> Message`, in its class or in `reference.py` beside it."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable
from typing import Any

from agentrl.env.check.child.author import source_file
from agentrl.messages import Message
from agentrl.types import Task

_NAME = "reference"


def find(cls: type) -> tuple[str, Callable[..., Any]] | None:
    """Where it is, and the function: of the class (any kind of method), else of the module beside it."""
    own = inspect.getattr_static(cls, _NAME, None)
    if own is not None:
        return f"{cls.__name__}.{_NAME}", own
    file = source_file(cls)
    if file is None:
        return None
    beside = os.path.join(os.path.dirname(file), f"{_NAME}.py")
    if not os.path.isfile(beside):
        return None
    module = _module(cls, beside)
    function = getattr(module, _NAME, None)
    return (beside, function) if callable(function) else None


def bound(function: Callable[..., Any], env: Any, task: Task) -> Callable[[list[Message]], Any]:
    """`messages -> message`. A function with a second parameter, `task`, is given that too."""
    if getattr(type(env), _NAME, None) is not None:
        function = getattr(env, _NAME)
    wants_task = "task" in inspect.signature(function).parameters
    return lambda messages: function(messages, task=task) if wants_task else function(messages)


def _module(cls: type, beside: str) -> Any:
    package = cls.__module__.rpartition(".")[0]
    if package:
        return importlib.import_module(f"{package}.{_NAME}")
    name = f"agentrl_reference_of_{cls.__module__}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, beside)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules[name]
