"""A reward of your own without a service: a function, called in a process of its own."""

from agentrl.reward.protocol import Item


def is_number(item: Item) -> float:
    """1 when the last message is a whole number and nothing else."""
    return float(item.text.strip().removeprefix("-").isdecimal())
