"""The tasks of a run or an evaluation: an environment's own, those of the user's files, or of several sources."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from agentrl.env import registry
from agentrl.env.task_stream import TaskStream
from agentrl.train.curriculum import Curriculum
from agentrl.train.environment import EnvironmentConfig, Source
from agentrl.types import Task


class TaskMix:
    """`agentrl.train.task_source.TaskSource` over the sources of a configuration, of which there may be one.

    `draw` raises ConfigError, at any task, as `registry.tasks` does.
    """

    def __init__(self, environment: EnvironmentConfig, *, seed: int) -> None:
        self._sources = {source.name: source for source in environment.sources}
        self._seed = seed
        self._curriculum = Curriculum(
            {name: source.weight for name, source in self._sources.items()}, environment.curriculum, seed=seed
        )
        self._streams = {name: stream_of(source, seed) for name, source in self._sources.items()}
        self._drawn = dict.fromkeys(self._sources, 0)
        self._empty: set[str] = set()

    def draw(self) -> Task | None:
        while len(self._empty) < len(self._sources):
            name = self._curriculum.choose(self._sources.keys() - self._empty)
            if (task := next(self._streams[name], None)) is not None:
                self._drawn[name] += 1
                return _of_source(task, name)
            self._empty.add(name)
        return None

    def observe(self, task: Task, successes: Sequence[bool]) -> None:
        self._curriculum.observe(task.source, successes)

    def stats(self) -> dict[str, dict[str, float]]:
        """Of each source of a mix: tasks drawn, its present share of the draws, how much of it is learnable."""
        if len(self._sources) == 1:
            return {}
        total = math.fsum(self._curriculum.weight(name) for name in self._sources)
        return {
            name: {
                "drawn": self._drawn[name],
                "share": self._curriculum.weight(name) / total,
                "learnable": self._curriculum.learnable(name),
            }
            for name in self._sources
        }

    def state(self) -> dict[str, Any]:
        places = {name: [*stream.at, self._drawn[name]] for name, stream in self._streams.items()}
        return {"sources": places, "curriculum": self._curriculum.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._curriculum.restore(state["curriculum"])
        for name, (number, index, drawn) in state["sources"].items():
            self._streams[name] = stream_of(self._sources[name], self._seed, at=(number, index))
            self._drawn[name] = drawn


def stream_of(source: Source, seed: int, *, at: tuple[int, int] = (0, 0)) -> TaskStream:
    """The source's training tasks from a place on. Raises ConfigError as `registry.tasks` does, at any task."""
    return registry.task_stream(
        source.id,
        split=source.train_split,
        seed=seed,
        env_kwargs=source.options,
        file=source.train_tasks,
        at=at,
    )


def training_tasks(environment: EnvironmentConfig, seed: int) -> TaskMix:
    """Pass after pass, without end."""
    return TaskMix(environment, seed=seed)


def held_out_tasks(environment: EnvironmentConfig, seed: int, count: int) -> list[Task]:
    """At most `count`, in the order that `seed` fixes; of a mix, each source's share by its weight.

    Raises ConfigError as `registry.tasks` does.
    """
    sources = environment.sources
    found: list[Task] = []
    for source, share in zip(sources, shares([source.weight for source in sources], count), strict=True):
        tasks = registry.tasks(
            source.id,
            split=source.eval_split,
            seed=seed,
            count=share,
            env_kwargs=source.options,
            file=source.eval_tasks,
        )
        found += [_of_source(task, source.name) for task in tasks]
    return found


def shares(weights: Sequence[float], count: int) -> list[int]:
    """`count` things divided in proportion to the weights: the largest remainders are rounded up."""
    exact = [count * weight / math.fsum(weights) for weight in weights]
    whole = [math.floor(share) for share in exact]
    for index in sorted(range(len(exact)), key=lambda index: whole[index] - exact[index])[: count - sum(whole)]:
        whole[index] += 1
    return whole


def _of_source(task: Task, name: str) -> Task:
    return msgspec.structs.replace(task, id=f"{name}-{task.id}", source=name) if name else task
