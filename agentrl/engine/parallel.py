"""How many workers a vLLM server has, by its flags."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from agentrl.errors import ConfigError

PARALLEL_FLAGS = {
    "--tensor-parallel-size": ("-tp",),
    "--pipeline-parallel-size": ("-pp",),
    "--data-parallel-size": ("-dp",),
}
"""vLLM's flags whose sizes multiply to the workers of one server, and their short forms."""


def workers_of_engine(extra_args: Sequence[str]) -> int:
    """Of one server with these flags, each with a GPU of its own where there are any.

    Raises ConfigError for a size that is no number.
    """
    spelt = {form: flag for flag, short in PARALLEL_FLAGS.items() for form in (flag, *short)}
    sizes: dict[str, int] = {}
    words = [word for arg in extra_args for word in arg.split("=", 1)]
    for word, value in zip(words, [*words, ""][1:], strict=True):
        flag = spelt.get(word.replace("_", "-"))
        if flag is None:
            continue
        if not value.isdigit() or int(value) < 1:
            raise ConfigError(f"engine.extra_args: {word} is followed by {value!r}; write a size of 1 or more")
        sizes[flag] = int(value)
    return prod(sizes.values())
