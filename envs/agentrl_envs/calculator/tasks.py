"""Arithmetic questions: which there are, which are held out, and how the tool computes their answers."""

from __future__ import annotations

import ast
import operator
import random
import re
from collections.abc import Callable
from dataclasses import dataclass

from agentrl_envs.splits import Split, require_split, split_of

OPERANDS = (10, 999)  # the smallest and the largest
MAX_EXPRESSION = 64  # characters; bounds the size of every intermediate number as well

_BINARY: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
}
_SYMBOLS: dict[str, Callable[[int, int], int]] = {"+": operator.add, "-": operator.sub, "*": operator.mul}
_ALLOWED = re.compile(r"[0-9+\-*() ]+")


@dataclass(frozen=True)
class CalculatorProblem:
    """`a op b` with operands in 10..999 and op one of `+ - *`."""

    a: int
    op: str
    b: int

    @property
    def expression(self) -> str:
        return f"{self.a}{self.op}{self.b}"

    @property
    def question(self) -> str:
        return f"What is {self.expression}?"

    @property
    def answer(self) -> int:
        return _SYMBOLS[self.op](self.a, self.b)

    @property
    def split(self) -> Split:
        """A fifth of all problems is held out, by hash of the problem: no seed can leak one into training."""
        return split_of(self.expression)


def problem(seed: int, split: str = "train") -> CalculatorProblem:
    """The problem of `split` that `seed` stands for; the same on every machine. Raises ValueError for another split."""
    require_split(split, "the calculator")
    rng = random.Random(seed)
    while True:
        found = CalculatorProblem(rng.randint(*OPERANDS), rng.choice("+-*"), rng.randint(*OPERANDS))
        if found.split == split:
            return found


def evaluate(expression: str) -> str:
    """The value of an expression of whole numbers, `+ - *` and brackets, in decimal.

    Raises ValueError with a message short enough to show to the model.
    """
    if len(expression) > MAX_EXPRESSION:
        raise ValueError(f"expression has {len(expression)} characters, at most {MAX_EXPRESSION} are allowed")
    if not _ALLOWED.fullmatch(expression):
        raise ValueError("only digits, + - * and brackets are allowed")
    try:
        tree = ast.parse(expression.strip(), mode="eval")
    except SyntaxError:
        raise ValueError("not a valid expression") from None
    return str(_value(tree.body))


def _value(node: ast.expr) -> int:
    match node:
        case ast.Constant(value=int(number)):
            return number
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand)
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return _value(operand)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            return _BINARY[type(op)](_value(left), _value(right))
    raise ValueError("only + - * of whole numbers are allowed")
