"""verifiers environments (its v1): it drives the exchange itself, so each is an agent program."""

from __future__ import annotations

import contextlib
import importlib
import itertools
import os
import random
import secrets
import sys
import threading
from collections.abc import Iterator, Mapping
from typing import Any

from agentrl.env.adapters.imports import package
from agentrl.env.policy import Policy
from agentrl.env.program import Program
from agentrl.errors import ConfigError, EnvironmentFault
from agentrl.types import Task

HARNESS = "agentrl_verifiers_chat"
"""The id of our in-process harness: verifiers imports harnesses by the name of a top-level module."""

_TRAIN = "train"


class Verifiers(Program):
    """`taskset` is the name of a verifiers taskset, an installed module; `config` its settings.

    `env` is the id of an environment to pair it with, `agents` what verifiers calls the agents' settings, by role
    (`{agent = {max_turns = 4}}`). An agent without a harness has a chat loop in this process, with the task's tools;
    one without a runtime runs where the worker runs. `role` says whose reward is the episode's where there are
    several; where it played several times, the mean.

    Tasks: of a taskset with a `split` in its settings, `eval_config` gives the settings of every other split than
    "train". Without it one task in `held_out` is kept for those.
    """

    def __init__(
        self,
        taskset: str,
        *,
        config: dict[str, Any] | None = None,
        eval_config: dict[str, Any] | None = None,
        held_out: int = 10,
        env: str = "",
        agents: dict[str, dict[str, Any]] | None = None,
        role: str | None = None,
    ) -> None:
        self._options = _Options(taskset, config or {}, eval_config, held_out)
        self._env_id = env
        self._agents = agents or {}
        self._role = role

    @classmethod
    def tasks(cls, split: str, seed: int, env_kwargs: Mapping[str, Any] | None = None) -> Iterator[Task]:
        """In an order that `seed` fixes, where the taskset ends; in its own where it does not."""
        given = dict(env_kwargs or {})
        options = _Options(
            given.get("taskset", ""), given.get("config") or {}, given.get("eval_config"), given.get("held_out", 10)
        )
        loaded = _loaded(options.of_split(split))
        numbers: Iterator[int] = (number for number in loaded.numbers() if options.is_of_split(number, split))
        if loaded.bounded:
            kept = list(numbers)
            random.Random(seed).shuffle(kept)
            numbers = iter(kept)
        for number in numbers:
            yield Task(id=f"{split}-{number}", seed=number, options={"index": number}, split=split)

    async def run(self, task: Task, policy: Policy) -> float | dict[str, float | None] | None:
        verifiers = _verifiers()
        loaded = _loaded(self._options.of_split(task.split))
        variable = f"AGENTRL_VERIFIERS_{secrets.token_hex(8)}"  # it takes keys from variables only
        client = verifiers.EvalClientConfig(base_url=policy.base_url, api_key_var=variable)
        env = self._env(task.split)
        os.environ[variable] = policy.api_key
        try:
            async with env.serving():
                context = verifiers.ModelContext(model=policy.model, client=client)
                episode = await env.run_episode(loaded.task(int(task.options["index"])), context)
        finally:
            os.environ.pop(variable, None)
        return self._reward(episode)

    def _env(self, split: str) -> Any:
        loaders = package("verifiers.v1.utils.loaders", extra="verifiers")
        config = self._options.of_split(split)
        try:
            roles = _roles(loaders.env_config_type(config["id"], self._env_id))
            unknown = [name for name in self._agents if name not in roles]
            if unknown:
                raise ConfigError(f"{config['id']} has no agent called {unknown[0]!r}; it has {', '.join(roles)}")
            seats = {name: _in_process(self._agents.get(name, {})) for name in roles}
            resolved = loaders.resolve_env_config({"id": self._env_id, "taskset": config, **seats})
            return loaders.load_environment(resolved)
        except (ImportError, AttributeError, TypeError, ValueError) as error:
            raise ConfigError(f"verifiers cannot make {config['id']!r}: {_first_line(error)}") from error

    def _reward(self, episode: Any) -> float | dict[str, float | None]:
        errors = [*episode.errors, *(error for trace in episode.traces for error in trace.errors)]
        if errors or any(trace.is_timeout for trace in episode.traces):
            told = f"{errors[0].type}: {errors[0].message}" if errors else "a stage took longer than its timeout"
            raise EnvironmentFault(f"the verifiers episode failed: {told}")
        played = [trace for trace in episode.traces if self._role is None or trace.agent.name == self._role]
        if not played:
            raise EnvironmentFault(f"no agent of the episode is called {self._role!r}")
        if len(played) > 1:
            names = {trace.agent.name for trace in played}
            if len(names) > 1:
                raise ConfigError(
                    f"the episode has the roles {sorted(map(str, names))}; give `role`, whose reward counts"
                )
            return float(sum(trace.reward for trace in played) / len(played))
        return {
            name: None if reward is None else float(reward.value) for name, reward in played[0].rewards.items()
        } or None  # type: ignore[return-value]


class _Options:
    """What tasks depend on."""

    def __init__(self, taskset: str, config: dict[str, Any], eval_config: dict[str, Any] | None, held_out: int) -> None:
        if not taskset:
            raise ConfigError("a verifiers environment names its taskset; give the option `taskset`")
        if held_out < 2:
            raise ConfigError(f"held_out = {held_out}; one task in that many is held out, so give 2 or more")
        self._taskset = taskset
        self._config = config
        self._eval_config = eval_config
        self._held_out = held_out

    def of_split(self, split: str) -> dict[str, Any]:
        own = self._config if split == _TRAIN or self._eval_config is None else self._eval_config
        return {**own, "id": self._taskset}

    def is_of_split(self, number: int, split: str) -> bool:
        return self._eval_config is not None or (number % self._held_out == 0) == (split != _TRAIN)


class _Loaded:
    """The tasks of a taskset, as far as they were asked for; each is made once in a process."""

    def __init__(self, taskset: Any) -> None:
        self.bounded = bool(taskset.bounded)
        self._source = iter(taskset)
        self._known: list[Any] = []
        self._lock = threading.Lock()

    def numbers(self) -> Iterator[int]:
        for number in itertools.count():
            if not self._has(number):
                return
            yield number

    def task(self, number: int) -> Any:
        if not self._has(number):
            raise ConfigError(f"the taskset has {len(self._known)} tasks, and none of index {number}")
        return self._known[number]

    def _has(self, number: int) -> bool:
        with self._lock:
            self._known.extend(itertools.islice(self._source, max(0, number + 1 - len(self._known))))
            return number < len(self._known)


_TASKSETS: dict[str, _Loaded] = {}
_LOADING = threading.Lock()


def _loaded(config: dict[str, Any]) -> _Loaded:
    _verifiers()
    loaders = package("verifiers.v1.utils.loaders", extra="verifiers")
    key = repr(sorted(config.items()))
    with _LOADING:
        if key not in _TASKSETS:
            try:
                taskset = loaders.load_taskset(loaders.taskset_config_type(config["id"]).model_validate(config))
            except (ImportError, AttributeError, TypeError, ValueError) as error:
                raise ConfigError(
                    f"verifiers has no taskset {config['id']!r} with {config}: {_first_line(error)}"
                ) from error
            _TASKSETS[key] = _Loaded(taskset)
        return _TASKSETS[key]


def _verifiers() -> Any:
    """The package, with our harness where it looks for harnesses."""
    verifiers = package("verifiers.v1", extra="verifiers")
    if HARNESS not in sys.modules:
        sys.modules[HARNESS] = importlib.import_module("agentrl.env.adapters.verifiers_chat")
    return verifiers


def _roles(config_type: Any) -> list[str]:
    agent = package("verifiers.v1", extra="verifiers").AgentConfig
    return [name for name, field in config_type.model_fields.items() if isinstance(field.default, agent)]


def _in_process(given: dict[str, Any]) -> dict[str, Any]:
    return {"harness": {"id": HARNESS}, "runtime": {"type": "subprocess"}, **given}


def _first_line(error: BaseException) -> str:
    with contextlib.suppress(IndexError):
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"
    return type(error).__name__
