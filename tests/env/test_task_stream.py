"""Tasks without end can be taken up at any place, without the work of those before it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from agentrl.env import registry
from agentrl.env.base import Env
from agentrl.env.task_stream import TaskStream
from agentrl.types import Task

CALCULATOR = "agentrl/Calculator-v0"


class Skips(Env):
    """Says where it was asked to start."""

    started_at: ClassVar[list[int]] = []

    @classmethod
    def tasks(cls, split: str, seed: int, start: int = 0) -> Iterator[Task]:
        cls.started_at.append(start)
        return (Task(id=str(number)) for number in range(start, 4))


def ids(stream: TaskStream, count: int) -> list[str]:
    return [task.id for task in itertools.islice(stream, count)]


def a_stream(where: Path, at: tuple[int, int] = (0, 0)) -> TaskStream:
    where.write_text("".join(json.dumps({"id": f"t{row}"}) + "\n" for row in range(3)))
    return registry.task_stream(CALCULATOR, split="train", seed=5, file=where, at=at)


@pytest.mark.parametrize("taken", range(8))
def test_from_any_place_on_it_is_the_same(tmp_path: Path, taken: int) -> None:
    """Three rows: places in the middle of a pass, at its end, and in later ones."""
    first = a_stream(tmp_path / "t.jsonl")
    ids(first, taken)
    second = a_stream(tmp_path / "t.jsonl", at=first.at)
    assert ids(second, 7) == ids(first, 7)


def test_an_environment_that_can_leave_tasks_out_is_asked_to() -> None:
    Skips.started_at.clear()
    stream = registry.task_stream(f"{__file__}:Skips", split="train", seed=0, at=(2, 3))
    assert ids(stream, 3) == ["3@2", "0@3", "1@3"]
    assert registry.env_class(f"{__file__}:Skips").started_at == [3, 0]  # type: ignore[attr-defined]


def test_the_first_of_an_environments_own_tasks_are_left_out() -> None:
    whole = ids(registry.task_stream(CALCULATOR, split="train", seed=1), 6)
    assert ids(registry.task_stream(CALCULATOR, split="train", seed=1, at=(0, 4)), 2) == whole[4:]


def test_a_pass_without_tasks_is_the_end() -> None:
    stream = TaskStream(lambda number, start: iter(()))
    assert (list(stream), stream.at) == ([], (0, 0))
