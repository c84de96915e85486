"""Tasks without end, from any place on."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from agentrl.types import Task


class TaskStream(Iterator[Task]):
    """Pass after pass. Ends only where a pass has no task.

    Ids of later passes end in `@1`, `@2`, …, so that each stays unique.
    """

    def __init__(self, one_pass: Callable[[int, int], Iterator[Task]], at: tuple[int, int] = (0, 0)) -> None:
        """`one_pass(number, start)` is a pass from its task `start` on; `at` is where to begin."""
        self._one_pass = one_pass
        self._pass, self._index = at
        self._tasks: Iterator[Task] | None = None

    @property
    def at(self) -> tuple[int, int]:
        """The pass and, within it, the number of the next task."""
        return self._pass, self._index

    def __next__(self) -> Task:
        while True:
            if self._tasks is None:
                self._tasks = self._one_pass(self._pass, self._index)
            for task in self._tasks:
                self._index += 1
                return msgspec.structs.replace(task, id=f"{task.id}@{self._pass}") if self._pass else task
            if self._index == 0:
                raise StopIteration
            self._pass, self._index, self._tasks = self._pass + 1, 0, None
