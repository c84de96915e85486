"""Written calculator episodes, right and wrong, for supervised warm starts. Deterministic by the given generator.

Each fault is a choice at one place, not noise on the digits: copying stays sharp, guesses are drawn without a look at
the answer, and a policy gradient can tell each fault from the right way. Each assistant turn is held as the text that
a model would sample, well formed or not.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

from agentrl.messages import Message, assistant, tool, user
from agentrl_envs.calculator.tasks import CalculatorProblem, evaluate, problem
from agentrl_envs.transcripts import Behaviour, Mix, Transcript, broken_calls, drawn_from, wordy

# About two fifths solve the task; the rest are faults that a policy gradient can tell apart and suppress.
WARM_START: Mix = {"correct": 0.35, "guess": 0.19, "malformed": 0.14, "rejected": 0.08, "operands": 0.12, "copy": 0.12}


def transcript(rng: random.Random, mix: Mix) -> Transcript[CalculatorProblem]:
    """One episode on a training problem, its behaviour drawn from `mix` (weights by behaviour)."""
    behaviour = drawn_from(mix, rng)
    question = problem(rng.getrandbits(31), "train")
    return Transcript(behaviour, question, [user(question.question), *_BEHAVIOURS[behaviour](rng, question)])


def tool_call(expression: str) -> str:
    """The well-formed call, as the model has to write it."""
    return f'<tool_call>\n{{"name":"calculate","arguments":{{"expression":"{expression}"}}}}\n</tool_call>'


def _correct(rng: random.Random, asked: CalculatorProblem) -> list[Message]:
    return [*_called(asked.expression), assistant(str(asked.answer))]


def _guess(rng: random.Random, asked: CalculatorProblem) -> list[Message]:
    return [assistant(_number(rng))]


def _operands(rng: random.Random, asked: CalculatorProblem) -> list[Message]:
    """Asks the tool for something else, and copies its result faithfully."""
    other = rng.choice([op for op in "+-*" if op != asked.op])
    wrong = rng.choice([replace(asked, op=other).expression, str(asked.a)])
    return [*_called(wrong), assistant(evaluate(wrong))]


def _copy(rng: random.Random, asked: CalculatorProblem) -> list[Message]:
    """Calls the tool well, and then does not answer with the bare result."""
    answer = rng.choice(wordy(asked.answer))
    return [*_called(asked.expression), assistant(answer)]


def _malformed(rng: random.Random, asked: CalculatorProblem) -> list[Message]:
    """Text that no parser takes for a call, so that it ends the episode as its answer."""
    broken = rng.choice([*broken_calls(tool_call(asked.expression)), f"calculate({asked.expression})"])
    return [assistant(broken)]


def _rejected(rng: random.Random, asked: CalculatorProblem) -> list[Message]:
    """A call that the environment answers with an error; then a second try, or a guess."""
    name = rng.choice(["calc", "expr", "math"])
    good = tool_call(asked.expression)
    rejected, error = rng.choice(
        [
            (good.replace("calculate", name), f"unknown tool {name!r}"),
            (good.replace('"expression"', f'"{name}"'), f"missing argument 'expression'; unknown argument {name!r}"),
            (tool_call(asked.expression + rng.choice("=?/")), "only digits, + - * and brackets are allowed"),
        ]
    )
    rest = _correct(rng, asked) if rng.random() < 0.3 else _guess(rng, asked)
    return [assistant(rejected), tool(f"Error: {error}", tool_call_id="call"), *rest]


def _called(expression: str) -> list[Message]:
    return [assistant(tool_call(expression)), tool(evaluate(expression), tool_call_id="call")]


def _number(rng: random.Random) -> str:
    """A number of a plausible size that says nothing about the right one."""
    return str(rng.randint(-999, 1998)) if rng.random() < 0.6 else str(rng.randint(100, 998001))


_BEHAVIOURS: dict[Behaviour, Callable[[random.Random, CalculatorProblem], list[Message]]] = {
    "correct": _correct,
    "guess": _guess,
    "operands": _operands,
    "copy": _copy,
    "malformed": _malformed,
    "rejected": _rejected,
}
