"""Where the right answer of an item is."""

from __future__ import annotations

from typing import Any

from agentrl.reward.protocol import Item
from agentrl.reward.service import CannotScore


def label_of(item: Item, key: str) -> Any:
    """The task's option `key`. Raises CannotScore when it is not there: without it nothing can be judged."""
    options = item.options
    if options.get(key) is None:
        there = ", ".join(sorted(options)) or "none"
        raise CannotScore(f"the task has no option {key!r} (it has {there}); put the right answer there")
    return options[key]
