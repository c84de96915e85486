"""The solution of every generated word problem, as a policy: it reads the question as a person would."""

from __future__ import annotations

import re
from collections.abc import Sequence

from agentrl.messages import Message, assistant


def reference(messages: Sequence[Message]) -> Message:
    """Works the problem out. Raises ValueError for a question of no known form."""
    question = messages[-1].text.partition("\n")[0]
    numbers = [int(number) for number in re.findall(r"\d+", question)]
    match numbers:
        case [had, gave, found] if "gives" in question:
            steps = f"{had} - {gave} + {found} = {had - gave + found}"
        case [boxes, each, broken] if "boxes" in question:
            steps = f"{boxes} * {each} - {broken} = {boxes * each - broken}"
        case [count, price, paid] if "pays" in question:
            steps = f"{paid} - {count} * {price} = {paid - count * price}"
        case [mine, theirs, friends] if "share them" in question:
            steps = f"({mine} + {theirs}) / {friends} = {(mine + theirs) // friends}"
        case [start, weekly, weeks, spent] if "saves" in question:
            steps = f"{start} + {weekly} * {weeks} - {spent} = {start + weekly * weeks - spent}"
        case _:
            raise ValueError(f"not one of math_word's questions: {question!r}")
    return assistant(f"{steps}\n{steps.rpartition('= ')[2]}")
