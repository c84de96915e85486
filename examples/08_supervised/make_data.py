"""Writes the data of these examples: right episodes of the calculator, and pairs of a right one and a wrong one.

`python examples/08_supervised/make_data.py` writes both files anew, always the same.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from agentrl import Message, assistant
from agentrl_envs.calculator.env import Calculator
from agentrl_envs.calculator.reference import reference

HERE = Path(__file__).parent
TRANSCRIPTS, PAIRS = 160, 120


def episode(env: Calculator, seed: int) -> list[Message]:
    """One task, solved by the reference policy: the tool is called, and its result is the answer."""
    messages, _ = env.reset(seed=seed, options={"split": "train"})
    done = False
    while not done:
        answer = reference(messages)
        new, _, terminated, truncated, _ = env.step(answer)
        messages = [*messages, answer, *new]
        done = terminated or truncated
    return messages


def wrong(rng: random.Random, right: list[Message]) -> list[Message]:
    """The same question, guessed or badly copied."""
    guess = assistant(str(rng.randint(1000, 99999)))
    if rng.random() < 0.5:
        return [guess]
    return [*right[1:-1], assistant(f"It is {right[-1].text}.")]


def lines() -> tuple[Iterator[dict[str, Any]], Iterator[dict[str, Any]]]:
    env, rng = Calculator(), random.Random(0)
    seeds = (task.seed for task in Calculator.tasks("train", 0))
    episodes = (episode(env, seed) for seed in seeds)
    transcripts = ({"messages": messages, "tools": env.tools} for messages in islice(episodes, TRANSCRIPTS))
    pairs = (
        {"messages": messages[:1], "chosen": messages[1:], "rejected": wrong(rng, messages), "tools": env.tools}
        for messages in islice(episodes, PAIRS)
    )
    return transcripts, pairs


def written(rows: Iterator[dict[str, Any]]) -> str:
    return "".join(f"{json.dumps(row)}\n" for row in rows)


if __name__ == "__main__":
    for name, rows in zip(("transcripts.jsonl", "pairs.jsonl"), lines(), strict=True):
        (HERE / name).write_text(written(rows))
