"""Where a run's tasks come from: what is drawn next follows from the seed and a small state."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from agentrl.types import Task


class TaskSource(Protocol):
    """Two sources of the same configuration, one of them restored from the state of the other, go on alike."""

    def draw(self) -> Task | None:
        """The next one; None when there are no tasks at all."""
        ...

    def observe(self, task: Task, successes: Sequence[bool]) -> None:
        """What came of a task's group: its attempts that have a reward, each a success or not."""
        ...

    def stats(self) -> dict[str, dict[str, float]]:
        """Of each of several sources, what is worth a metric."""
        ...

    def state(self) -> dict[str, Any]:
        """JSON, a few kB at most: it is written with every group's books."""
        ...

    def restore(self, state: Mapping[str, Any]) -> None:
        """Before the first draw. Raises ConfigError when the state is another configuration's."""
        ...


class IteratedTasks:
    """Any iterator as a source. Restoring draws again what was drawn before."""

    def __init__(self, tasks: Iterator[Task]) -> None:
        self._tasks = tasks
        self._drawn = 0

    def draw(self) -> Task | None:
        task = next(self._tasks, None)
        self._drawn += task is not None
        return task

    def observe(self, task: Task, successes: Sequence[bool]) -> None:
        """The order is the iterator's."""

    def stats(self) -> dict[str, dict[str, float]]:
        return {}

    def state(self) -> dict[str, Any]:
        return {"drawn": self._drawn}

    def restore(self, state: Mapping[str, Any]) -> None:
        while self._drawn < state["drawn"] and self.draw() is not None:
            pass
