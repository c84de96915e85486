"""Environments by name: a gymnasium id, `module:Class`, or `path/to/file.py:Class`."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib
import importlib.util
import inspect
import itertools
import logging
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import gymnasium
import msgspec
import orjson

from agentrl.env.base import Env
from agentrl.errors import ConfigError
from agentrl.types import Task

logger = logging.getLogger(__name__)

PLUGIN_GROUP = "gymnasium.envs"
"""Entry points of this group are functions that register environments. gymnasium 1 no longer calls them itself."""


def make(env_id: str, **kwargs: Any) -> gymnasium.Env[Any, Any]:
    """A new environment. `kwargs` go to its constructor.

    A gymnasium id keeps the wrappers that its registration asks for (a time limit, its own), without the checker.
    Raises ConfigError for an id that names nothing; what the constructor raises is left as it is.
    """
    if _is_path(env_id):
        env = _load_class(env_id)(**kwargs)
        if not isinstance(env, gymnasium.Env):
            raise ConfigError(
                f"{env_id} made a {type(env).__name__}, which is not a gymnasium.Env; subclass agentrl.Env"
            )
        return env
    # The rollout keeps the order of calls itself. Without this wrapper an async environment can be awaited.
    plain = dataclasses.replace(_spec(env_id), order_enforce=False)
    return gymnasium.make(plain, disable_env_checker=True, **kwargs)


def tasks(env_id: str, *, split: str, seed: int, count: int | None = None) -> Iterator[Task]:
    """The first `count` tasks of one pass over a split; without `count` all of them, which may never end.

    Raises ConfigError for an unknown id, and when the environment cannot give tasks for the split.
    """
    creator = env_class(env_id)
    named = _absolute(env_id)
    source = creator.tasks if isinstance(creator, type) and issubclass(creator, Env) else Env.tasks
    try:
        for task in itertools.islice(source(split, seed), count):
            if not isinstance(task, Task):
                raise ValueError(f"one of them is of type {type(task).__name__}; yield agentrl.Task")
            yield msgspec.structs.replace(task, env_id=named, split=split, options=_plain(task.options))
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:  # `tasks` is the environment's own code
        why = str(error) if isinstance(error, ValueError | OSError) else f"{type(error).__name__}: {error}"
        raise ConfigError(f"{env_id} gives no tasks for split {split!r}: {why}") from error


def _plain(options: dict[str, Any]) -> dict[str, Any]:
    """Options as every process and the store will see them. Raises ValueError when they are no JSON."""
    try:
        plain: dict[str, Any] = orjson.loads(orjson.dumps(options, option=orjson.OPT_SERIALIZE_NUMPY))
    except TypeError as error:
        raise ValueError(f"the options of a task are no JSON: {error}") from error
    return plain


def task_stream(env_id: str, *, split: str, seed: int) -> Iterator[Task]:
    """Tasks without end: pass after pass, each with the next seed. Ends only when the environment has none.

    Ids of later passes end in `@1`, `@2`, …, so that each stays unique.
    """
    for epoch in itertools.count():
        empty = True
        for task in tasks(env_id, split=split, seed=seed + epoch):
            empty = False
            yield msgspec.structs.replace(task, id=f"{task.id}@{epoch}") if epoch else task
        if empty:
            return


def env_class(env_id: str) -> Callable[..., Any]:
    """The class (or other creator) behind an id. Raises ConfigError as `make` does."""
    if _is_path(env_id):
        return _load_class(env_id)
    entry_point = _spec(env_id).entry_point
    if isinstance(entry_point, str):
        return _attribute(entry_point, env_id)
    assert entry_point is not None
    return entry_point


def known() -> list[str]:
    """Ids that plug-ins registered, gymnasium's own games left out."""
    _load_plugins()
    return sorted(env_id for env_id, spec in gymnasium.registry.items() if not _is_gymnasiums_own(spec.entry_point))


def _spec(env_id: str) -> Any:
    _load_plugins()
    try:
        return gymnasium.spec(env_id)
    except (gymnasium.error.Error, ModuleNotFoundError) as error:
        raise ConfigError(
            f"no environment is called {env_id!r} ({error}); known: {', '.join(known()) or 'none'}; "
            "your own is named as 'module:Class' or 'path/to/file.py:Class'"
        ) from None


def _is_gymnasiums_own(entry_point: Any) -> bool:
    home = entry_point if isinstance(entry_point, str) else getattr(entry_point, "__module__", "")
    return str(home).partition(".")[0].partition(":")[0] == "gymnasium"


@functools.cache
def _load_plugins() -> None:
    """One that fails costs its own environments and says so by name."""
    for point in entry_points(group=PLUGIN_GROUP):
        try:
            point.load()()
        except (Exception, SystemExit) as error:
            package = point.dist.name if point.dist is not None else "an unknown package"
            logger.warning(
                "plug-in %r (%s) of %s failed, so its environments are missing: %r; mend or uninstall it",
                point.name, point.value, package, error, exc_info=logger.isEnabledFor(logging.DEBUG),
            )  # fmt: skip


def _is_path(env_id: str) -> bool:
    """Whether this is `module:Class` or `file.py:Class`; gymnasium's own `module:Namespace/Name-v0` is not."""
    head, _, attribute = env_id.rpartition(":")
    return bool(head) and attribute.replace(".", "_").isidentifier()


def _absolute(env_id: str) -> str:
    """The id as it works from any working directory: workers have their own."""
    head, _, attribute = env_id.rpartition(":")
    return f"{Path(head).expanduser().resolve()}:{attribute}" if head.endswith(".py") else env_id


def _load_class(env_id: str) -> Callable[..., Any]:
    head, _, attribute = env_id.rpartition(":")
    if not head.endswith(".py"):
        return _attribute(env_id, env_id)
    return _getattr(_load_file(Path(head).expanduser().resolve(), env_id), attribute, env_id)


def _attribute(path: str, env_id: str) -> Callable[..., Any]:
    module_name, _, attribute = path.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise ConfigError(
            f"environment {env_id!r} cannot be imported: {error}; install its package, or name its file as "
            "'path/to/file.py:Class'"
        ) from error
    except (Exception, SystemExit) as error:  # the module is somebody's own code
        raise ConfigError(
            f"environment {env_id!r}: importing {module_name} raised {type(error).__name__}: {error}"
        ) from error
    return _getattr(module, attribute, env_id)


def _getattr(module: Any, attribute: str, env_id: str) -> Callable[..., Any]:
    try:
        found = functools.reduce(getattr, attribute.split("."), module)
    except AttributeError:
        classes = [name for name, value in vars(module).items() if inspect.isclass(value) and issubclass(value, Env)]
        raise ConfigError(f"{env_id!r}: there is no {attribute!r} in it; its environments: {classes}") from None
    if not callable(found):
        raise ConfigError(f"{env_id!r} is a {type(found).__name__}; name a class")
    return found


@functools.cache
def _load_file(path: Path, env_id: str) -> Any:
    """The file as a module, run once. Files next to it can be imported from it, as if it were run as a script."""
    if not path.is_file():
        raise ConfigError(f"environment {env_id!r}: there is no file {path}")
    name = f"agentrl_user_{path.stem}_{hashlib.blake2b(str(path).encode(), digest_size=4).hexdigest()}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise ConfigError(f"environment {env_id!r}: running {path} raised {type(error).__name__}: {error}") from error
    return module
