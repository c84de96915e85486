"""Environments by name: a gymnasium id, `module:Class`, or `path/to/file.py:Class`."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import itertools
import logging
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import gymnasium
import msgspec
import orjson

from agentrl.env.base import Env
from agentrl.env.program import Program, is_program, program_class
from agentrl.env.roles import Role
from agentrl.env.task_files import file_tasks
from agentrl.env.task_stream import TaskStream
from agentrl.errors import ConfigError
from agentrl.loading import absolute, is_path, load
from agentrl.types import Limits, Task

logger = logging.getLogger(__name__)

PLUGIN_GROUP = "gymnasium.envs"
"""Entry points of this group are functions that register environments. gymnasium 1 no longer calls them itself."""


def make(env_id: str, **kwargs: Any) -> gymnasium.Env[Any, Any]:
    """A new environment. `kwargs` go to its constructor.

    A gymnasium id keeps the wrappers that its registration asks for (a time limit, its own), without the checker.
    Raises ConfigError for an id that names nothing; what the constructor raises is left as it is.
    """
    if is_path(env_id):
        env = _load(env_id)(**kwargs)
        if not isinstance(env, gymnasium.Env):
            raise ConfigError(
                f"{env_id} made a {type(env).__name__}, which is not a gymnasium.Env; subclass agentrl.Env"
            )
        return env
    # The rollout keeps the order of calls itself. Without this wrapper an async environment can be awaited.
    plain = dataclasses.replace(_spec(env_id), order_enforce=False)
    return gymnasium.make(plain, disable_env_checker=True, **kwargs)


def tasks(
    env_id: str,
    *,
    split: str,
    seed: int,
    count: int | None = None,
    start: int = 0,
    env_kwargs: Mapping[str, Any] | None = None,
    file: Path | None = None,
) -> Iterator[Task]:
    """The first `count` tasks of one pass over a split, after `start` that are left out; without `count` all of them,
    which may never end.

    They are the environment's own, or the rows of a `file` (`agentrl.env.task_files`). `env_kwargs` are what `make`
    gives to the constructor; a `tasks` with a parameter of this name is given them too. One with a parameter `start`
    leaves those out itself.
    Raises ConfigError for an unknown id, and when the environment cannot give tasks for the split.
    """
    creator = env_class(env_id)
    named = absolute(env_id)
    source: Callable[..., Iterator[Task]] = Env.tasks
    if is_program(creator):
        source = program_class(creator).tasks
    elif isinstance(creator, type) and issubclass(creator, Env):
        source = creator.tasks
    if file is not None:
        source = functools.partial(file_tasks, file)
    try:
        wants = inspect.signature(source).parameters
        if "env_kwargs" in wants:
            source = functools.partial(source, env_kwargs={**_registered_kwargs(env_id), **(env_kwargs or {})})
        if "start" in wants:
            source, start = functools.partial(source, start=start), 0
        for task in itertools.islice(source(split, seed), start, None if count is None else start + count):
            if not isinstance(task, Task):
                raise ValueError(f"one of them is of type {type(task).__name__}; yield agentrl.Task")
            yield msgspec.structs.replace(task, env_id=named, split=split, options=_plain(task.options))
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:  # `tasks` is the environment's own code
        why = str(error) if isinstance(error, ValueError | OSError) else f"{type(error).__name__}: {error}"
        raise ConfigError(f"{env_id} gives no tasks for split {split!r}: {why}") from error


def program(env_id: str) -> type[Program] | None:
    """The class behind an id that names an agent program; None when it names an environment. Raises ConfigError."""
    creator = env_class(env_id)
    return program_class(creator) if is_program(creator) else None


def placed(env_id: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Constructor arguments as they work from any working directory."""
    own = getattr(described(env_id), "placed", None)
    return dict(options) if own is None else own(options)


def described(env_id: str) -> Any:
    """The class whose attributes say how its episodes go. Raises ConfigError."""
    return program(env_id) or env_class(env_id)


def limits_of(env_id: str) -> Limits:
    """What the environment or program says that an episode may use. Raises ConfigError."""
    own = getattr(described(env_id), "limits", None)
    return own if isinstance(own, Limits) else Limits()


def roles_of(env_id: str) -> dict[str, Role]:
    """The roles of an environment or program, in their order; none when it has one speaker. Raises ConfigError."""
    found = getattr(described(env_id), "roles", None) or {}
    if not isinstance(found, Mapping) or not all(isinstance(role, Role) for role in found.values()):
        raise ConfigError(f"the roles of {env_id} are {found!r:.200}; give a dict from names to agentrl.Role")
    return dict(found)


def _plain(options: dict[str, Any]) -> dict[str, Any]:
    """Options as every process and the store will see them. Raises ValueError when they are no JSON."""
    try:
        plain: dict[str, Any] = orjson.loads(orjson.dumps(options, option=orjson.OPT_SERIALIZE_NUMPY))
    except TypeError as error:
        raise ValueError(f"the options of a task are no JSON: {error}") from error
    return plain


def task_stream(
    env_id: str,
    *,
    split: str,
    seed: int,
    env_kwargs: Mapping[str, Any] | None = None,
    file: Path | None = None,
    at: tuple[int, int] = (0, 0),
) -> TaskStream:
    """Tasks without end, from a place (pass, task of the pass) on: pass after pass, each with the next seed.

    Raises ConfigError as `tasks` does, at any task.
    """

    def one_pass(number: int, start: int) -> Iterator[Task]:
        return tasks(env_id, split=split, seed=seed + number, start=start, env_kwargs=env_kwargs, file=file)

    return TaskStream(one_pass, at)


def env_class(env_id: str) -> Callable[..., Any]:
    """The class (or other creator) behind an id. Raises ConfigError as `make` does."""
    if is_path(env_id):
        return _load(env_id)
    entry_point = _spec(env_id).entry_point
    if isinstance(entry_point, str):
        return _load(entry_point)
    assert entry_point is not None
    return entry_point


def _load(name: str) -> Callable[..., Any]:
    return load(name, "environment", base=Env)


def _registered_kwargs(env_id: str) -> Mapping[str, Any]:
    """The constructor arguments that the registration of a gymnasium id gives."""
    return {} if is_path(env_id) else _spec(env_id).kwargs


def known() -> list[str]:
    """Ids that plug-ins registered, gymnasium's own games left out."""
    _load_plugins()
    return sorted(env_id for env_id, spec in gymnasium.registry.items() if not _is_gymnasiums_own(spec.entry_point))


def _spec(env_id: str) -> Any:
    _load_plugins()
    if env_id.endswith(".py"):
        raise ConfigError(f"environment {env_id!r} names a file only; name the class in it as well: '{env_id}:Class'")
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
