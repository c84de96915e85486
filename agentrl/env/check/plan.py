"""What the child is asked to do. Made by `runner`, taken by `child`."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

Section = Literal["tasks", "alone", "again", "together", "reused", "leaks", "gymnasium"]

HUNG_STATUS = 77
"""Exit status of a child that ended itself because a call hung; the episode that it wrote last says which."""

MAX_TURNS = 40
SAME_TASKS = 2  # tasks whose episodes are played again: in the same process, in another one, side by side
LEAK_EPISODES = 8
READ_TASKS = 32  # tasks of a split that are read and reset
BUDGET_S = 60.0  # of a section: what is left over then is not played


class Plan(Struct, frozen=True, kw_only=True):
    env_id: str
    sections: list[Section]
    output: int  # the file descriptor that lines are written to
    dump_file: str  # where Python's fault handler writes stacks
    options: dict[str, Any] = {}  # of the constructor
    split: str = "train"
    task_file: str | None = None  # in place of the environment's own tasks
    seed: int = 0
    tasks: int = 4
    timeout_s: float = 30.0  # of one call
    process: int = 0

    @property
    def start_s(self) -> float:
        """That importing the environment may take, in seconds: it may bring large libraries."""
        return max(10.0, 2 * self.timeout_s)
