"""What a service is asked for while it is checked: the user's own items, or made-up ones."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import msgspec

from agentrl.errors import ConfigError
from agentrl.messages import assistant, user
from agentrl.reward.protocol import Item

LONG = 200_000  # characters
ODD_TEXTS = ("naïve 🙂 \u202eright to left", "\u0000 and \u0007", "e\u0301 ≠ é", "日本語のテキスト", "\ufffd", "")
"""Combining marks, a NUL, a text direction, a replacement character: a policy can say them all."""


def made_up(count: int) -> list[Item]:
    """Small sums, right and wrong by turns, with the answer where our own services look for it."""
    return [_sum(index) for index in range(count)]


def items_from(path: Path) -> list[Item]:
    """A JSONL file of items, as `POST /score` takes them. Raises ConfigError naming the line."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise ConfigError(f"the items cannot be read: {error}") from error
    items = [_read(path, number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if len({item.id for item in items}) < 2:
        raise ConfigError(f"{path} has {len(items)} items; at least two with different ids are needed")
    return items


def _read(path: Path, number: int, line: bytes) -> Item:
    try:
        return msgspec.json.decode(line, type=Item)
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise ConfigError(f"{path}:{number}: not an item ({error}); see POST /score in docs/rewards.md") from error


def renamed(items: Sequence[Item], prefix: str) -> list[Item]:
    """The same content under ids that the service has not seen, repeated without end where more are wanted."""
    return [msgspec.structs.replace(item, id=f"{prefix}-{index}") for index, item in enumerate(items)]


def enough(items: Sequence[Item], count: int, prefix: str) -> list[Item]:
    """`count` items under new ids, from the given ones over and over."""
    return renamed(list(itertools.islice(itertools.cycle(items), count)), prefix)


def with_text(item: Item, text: str, item_id: str) -> Item:
    return msgspec.structs.replace(item, id=item_id, text=text, messages=[user("Say something."), assistant(text)])


def _sum(index: int) -> Item:
    a, b = 10 + index, 3 * index + 7
    said = str(a + b + index % 2)
    task = {"id": f"sum-{index}", "env_id": "check", "seed": index, "split": "check", "options": {"answer": str(a + b)}}
    return Item(
        id=f"check-{index}",
        task=task,
        messages=[user(f"What is {a}+{b}?"), assistant(said)],
        text=said,
        metadata={"stop_reason": "done", "turns": 1, "group_id": f"group-{index // 2}"},
    )
