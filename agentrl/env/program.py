"""Agent programs: code that calls the policy itself, instead of being called with its messages as an `Env` is."""

from __future__ import annotations

import inspect
import math
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, ClassVar, TypeVar

from msgspec import Struct

from agentrl.env.base import Env
from agentrl.env.policy import Policy
from agentrl.env.roles import Role
from agentrl.errors import EnvironmentFault
from agentrl.types import Limits, Task

Parts = Mapping[str, float | None]
"""Named parts of a reward, which is their sum; missing when one is."""

Result = float | Parts | Mapping[str, float | Parts | None] | None
"""What a program gives: a reward, its parts, or with roles one of both per role. None is missing, which is not 0."""

F = TypeVar("F", bound=Callable[..., Any])

_OPTIONS = "__agentrl_program__"


class Program:
    """Subclasses give `run`. It is made for one episode, run once, and closed, whatever happens.

    Methods may be plain or `async def`; each episode's run in threads of its own, so they may block.
    """

    limits: ClassVar[Limits] = Limits()
    """What an episode may use; the run's limits and the task's hold as well. Each role has them to itself."""

    roles: ClassVar[Mapping[str, Role]] = {}
    """Its speakers, when there is more than one: `policy.role(name)`. The first one is `policy` itself."""

    grade_timeout_s: ClassVar[float | None] = None
    """Longest that `grade` may take, in seconds; None is `rollout.env_timeout_s`."""

    @classmethod
    def tasks(cls, split: str, seed: int, env_kwargs: Mapping[str, Any] | None = None) -> Iterator[Task]:
        """As `Env.tasks`: by default without end, each with a seed of its own."""
        return Env.tasks(split, seed)

    @classmethod
    def placed(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        """The constructor's arguments as they work from any working directory; asked where a run is started."""
        return dict(options)

    def run(self, task: Task, policy: Policy) -> Result | Awaitable[Result] | Any:
        """One attempt. What it returns is graded, and without a `grade` is the reward.

        What it raises is a failure of the program: the episode has no reward. Where a limit of the episode was the
        cause, that is no failure: the episode ends with the limit, and with a result of None.
        """
        raise NotImplementedError(f"{type(self).__name__} needs a method `run(self, task, policy)`")

    def grade(self, task: Task, result: Any) -> Result | Awaitable[Result] | Any:
        """The reward, once the policy can no longer be called."""
        return result

    @property
    def grades(self) -> bool:
        """Whether it has a `grade` of its own."""
        return type(self).grade is not Program.grade

    def close(self) -> Awaitable[None] | None:
        """Frees what the program holds."""
        return None

    def is_async(self, method: str) -> bool:
        """Whether `run`, `grade` or `close` is to be awaited, by its name."""
        return inspect.iscoroutinefunction(getattr(type(self), method))


class Score(Struct, frozen=True):
    """The reward of one role, and its parts."""

    reward: float | None
    components: dict[str, float | None]


def scores(name: str, result: Any, roles: Mapping[str, Role]) -> dict[str, Score]:
    """Scores by role, "" where a program has none. Raises EnvironmentFault for what is no reward."""
    if not roles:
        return {"": _score(name, result)}
    if not isinstance(result, Mapping):
        return dict.fromkeys(roles, _score(name, result))
    unknown = [role for role in result if role not in roles]
    if unknown:
        raise EnvironmentFault(f"{name} gave a reward to {unknown[0]!r}; its roles are {', '.join(roles)}")
    return {role: _score(f"{name}, for {role},", result.get(role)) for role in roles}


def _score(name: str, result: Any) -> Score:
    if isinstance(result, Mapping):
        parts = {str(part): _finite(name, value) for part, value in result.items()}
        known = [value for value in parts.values() if value is not None]
        return Score(math.fsum(known) if known and len(known) == len(parts) else None, parts)
    reward = _finite(name, result)
    return Score(reward, {"env": reward})


def _finite(name: str, value: Any) -> float | None:
    if value is None:
        return None
    try:
        number = float(value)
    except Exception as error:  # a stranger's `__float__`
        raise EnvironmentFault(
            f"{name} gave a reward of type {type(value).__name__}; give a number, a dict of numbers, or None"
        ) from error
    if not math.isfinite(number):
        raise EnvironmentFault(f"{name} gave the reward {number}; give a finite number, or None when it is missing")
    return number


class ProgramOptions(Struct, frozen=True, kw_only=True):
    """What `@agentrl.program` says of a function."""

    tasks: Callable[[str, int], Iterator[Task]] | None = None
    grade: Callable[[Task, Any], Any] | None = None
    limits: Limits = Limits()
    roles: Mapping[str, Role] = {}


def program(
    *,
    tasks: Callable[[str, int], Iterator[Task]] | None = None,
    grade: Callable[[Task, Any], Any] | None = None,
    limits: Limits | None = None,
    roles: Mapping[str, Role] | None = None,
) -> Callable[[F], F]:
    """Says of a function `solve(task, policy)` what a class `Program` says in its attributes. It stays a function."""
    options = ProgramOptions(tasks=tasks, grade=grade, limits=limits or Limits(), roles=roles or {})

    def mark(function: F) -> F:
        setattr(function, _OPTIONS, options)
        return function

    return mark


def is_program(creator: Any) -> bool:
    """Whether this is an agent program: a subclass of `Program`, or a function `solve(task, policy)`."""
    if isinstance(creator, type):
        return issubclass(creator, Program)
    return hasattr(creator, _OPTIONS) or inspect.iscoroutinefunction(creator) or _takes_task_and_policy(creator)


def program_class(creator: Callable[..., Any]) -> type[Program]:
    """The class behind a program; for a function one that calls it. Arguments of the class go to the function."""
    if isinstance(creator, type) and issubclass(creator, Program):
        return creator
    options: ProgramOptions = getattr(creator, _OPTIONS, ProgramOptions())
    return _class_of(creator, options)


def _class_of(function: Callable[..., Any], options: ProgramOptions) -> type[Program]:
    class Function(Program):
        limits = options.limits
        roles = options.roles

        def __init__(self, **kwargs: Any) -> None:
            self._kwargs = kwargs

        @classmethod
        def tasks(cls, split: str, seed: int, env_kwargs: Mapping[str, Any] | None = None) -> Iterator[Task]:
            return Env.tasks(split, seed) if options.tasks is None else options.tasks(split, seed)

        def run(self, task: Task, policy: Policy) -> Any:
            return function(task, policy, **self._kwargs)

        def grade(self, task: Task, result: Any) -> Any:
            return result if options.grade is None else options.grade(task, result)

        @property
        def grades(self) -> bool:
            return options.grade is not None

        def is_async(self, method: str) -> bool:
            own = {"run": function, "grade": options.grade}.get(method)
            return inspect.iscoroutinefunction(own)

    Function.__name__ = Function.__qualname__ = getattr(function, "__name__", "program")
    return Function


def _takes_task_and_policy(creator: Any) -> bool:
    try:
        names = list(inspect.signature(creator).parameters)
    except (TypeError, ValueError):
        return False
    return names[:2] == ["task", "policy"]
