"""Which problems are held out, and the order in which a split's are asked: one rule for every environment here."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Literal, get_args

from agentrl import Task

Split = Literal["train", "eval"]


def split_of(problem: str) -> Split:
    """A fifth of all problems is held out, by hash of what is asked: no seed can leak one into training."""
    digest = hashlib.blake2b(problem.encode(), digest_size=8).digest()
    return "eval" if int.from_bytes(digest, "big") % 5 == 0 else "train"


def require_split(split: str, environment: str) -> None:
    """Raises ValueError, naming the environment, for a split that there is not."""
    if split not in get_args(Split):
        raise ValueError(f"{environment} has no split {split!r}; use 'train' or 'eval'")


def distinct(tasks: Iterable[Task], problem: Callable[[Task], Hashable], *, drawn: int) -> Iterator[Task]:
    """The tasks among the first `drawn` whose problem none before them has."""
    seen: set[Hashable] = set()
    for task in itertools.islice(tasks, drawn):
        asked = problem(task)
        if asked not in seen:
            seen.add(asked)
            yield task
