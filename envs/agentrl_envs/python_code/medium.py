"""Medium functions: one loop or two over a list or a text, with a number or a rule in the description."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from agentrl_envs.python_code.question import Question, question

WORDS = ("red", "sea", "fox", "ink", "oak", "sun", "map", "ice", "bee", "cup")
PAIRS = ("()", "[]", "{}", "<>")


def medium(rng: random.Random) -> Question:
    """A function of ten lines at most."""
    return rng.choice(_FAMILIES)(rng)


def _shift(rng: random.Random) -> Question:
    k = rng.randint(1, 25)
    return question(
        "shift(text)",
        f"replace each letter a to z of text by the letter {k} places later in the alphabet, going on from z to a; "
        "leave every other character as it is",
        f"return ''.join(chr((ord(c) - 97 + {k}) % 26 + 97) if 'a' <= c <= 'z' else c for c in text)",
        lambda tests: [_text(tests, "abcxyzABC 019.", 20)],
    )


def _rotate(rng: random.Random) -> Question:
    k = rng.randint(2, 40)
    side = rng.choice(["left", "right"])
    body = f"""
        if not items:
            return []
        k = {k if side == "left" else -k} % len(items)
        return items[k:] + items[:k]
    """
    description = f"the list of the items turned {k} places to the {side}; what leaves at one end comes in at the other"
    return question("rotate(items)", description, body, lambda tests: [_numbers(tests, 12)])


def _digit_sum(rng: random.Random) -> Question:
    base, times = rng.randint(2, 16), rng.randint(1, 9)
    body = f"""
        total = 0
        while n:
            n, digit = divmod(n, {base})
            total += digit
        return {times} * total
    """
    description = f"{times} times the sum of the digits of n, a whole number from 0, when it is written in base {base}"
    return question("digits(n)", description, body, lambda tests: [tests.choice([0, tests.randint(1, 10**9)])])


def _runs(rng: random.Random) -> Question:
    least = rng.randint(2, 6)
    body = f"""
        out, start = [], 0
        for i in range(1, len(text) + 1):
            if i == len(text) or text[i] != text[start]:
                count = i - start
                out.append(text[start] + str(count) if count >= {least} else text[start] * count)
                start = i
        return ''.join(out)
    """
    description = (
        f"text with each run of {least} or more of the same letter written as the letter and the length of the run; "
        "shorter runs stay as they are"
    )
    return question("pack(text)", description, body, _some_runs)


def _chunks(rng: random.Random) -> Question:
    k = rng.randint(2, 30)
    word, function = rng.choice([("sum", "sum"), ("largest", "max"), ("smallest", "min")])
    return question(
        "chunks(numbers)",
        f"cut numbers into pieces of {k}, the last of which may be shorter, and give the list of the {word} of each "
        "piece",
        f"return [{function}(numbers[i:i + {k}]) for i in range(0, len(numbers), {k})]",
        lambda tests: [_numbers(tests, 60)],
    )


def _frequent(rng: random.Random) -> Question:
    least, letter = rng.randint(2, 5), rng.choice("bcfimors")
    body = f"""
        words = text.split()
        return sorted(w for w in set(words) if words.count(w) >= {least} and w[0] != {letter!r})
    """
    description = (
        f"the sorted list of the words of text, each once, that are there at least {least} times and do not start with "
        f"{letter!r}; words are parted by white space"
    )
    return question("frequent(text)", description, body, _some_words)


def _window(rng: random.Random) -> Question:
    k = rng.randint(2, 30)
    word, sign = rng.choice([("largest", "max"), ("smallest", "min")])
    return question(
        "window(numbers)",
        f"the list of the {word} number of every {k} numbers in a row; the empty list when there are fewer than {k}",
        f"return [{sign}(numbers[i:i + {k}]) for i in range(len(numbers) - {k} + 1)]",
        lambda tests: [_numbers(tests, 50)],
    )


def _brackets(rng: random.Random) -> Question:
    pairs = rng.sample(PAIRS, 2)
    depth = rng.randint(2, 9)
    body = f"""
        stack = []
        for c in text:
            if c in {pairs[0][0] + pairs[1][0]!r}:
                stack.append(c)
                if len(stack) > {depth}:
                    return False
            elif c in {pairs[0][1] + pairs[1][1]!r}:
                if not stack or stack.pop() + c not in {pairs!r}:
                    return False
        return not stack
    """
    description = (
        f"whether the brackets {pairs[0]} and {pairs[1]} in text are balanced and never more than {depth} deep; every "
        "other character, other brackets too, is left out of account"
    )
    return question("balanced(text)", description, body, lambda tests: [_bracketed(tests, pairs)])


def _intervals(rng: random.Random) -> Question:
    gap = rng.randint(0, 60)
    body = f"""
        merged = []
        for start, end in sorted(intervals):
            if merged and start - merged[-1][1] <= {gap}:
                merged[-1][1] = max(merged[-1][1], end)
            else:
                merged.append([start, end])
        return merged
    """
    description = (
        f"join the [start, end] intervals that overlap or are at most {gap} apart, and give the list of [start, end] "
        "of what comes out, sorted"
    )
    return question("join(intervals)", description, body, _some_intervals)


def _kth(rng: random.Random) -> Question:
    k, modulus = rng.randint(2, 6), rng.randint(2, 9)
    body = f"""
        kept = sorted({{n for n in numbers if n % {modulus}}}, reverse=True)
        return kept[{k - 1}] if len(kept) >= {k} else None
    """
    description = (
        f"number {k} from the top of the different numbers that {modulus} does not divide, None when there are fewer"
    )
    return question("pick(numbers)", description, body, lambda tests: [_numbers(tests, 25)])


def _numbers(tests: random.Random, most: int) -> list[Any]:
    return [tests.randint(-50, 50) for _ in range(tests.randint(0, most))]


def _text(tests: random.Random, alphabet: str, most: int) -> str:
    return "".join(tests.choices(alphabet, k=tests.randint(0, most)))


def _bracketed(tests: random.Random, pairs: list[str]) -> str:
    """Balanced in about half of the cases, so that a constant answer fails."""
    text = ""
    for _ in range(tests.randint(0, 10)):
        pair, at = tests.choice(pairs), tests.randint(0, len(text))
        text = f"{text[:at]}{pair[0]}{text[at:]}{pair[1]}" if tests.random() < 0.7 else text + pair
    text += tests.choice(["", "a", "(" if "()" not in pairs else "b"])
    return text if tests.random() < 0.6 else text[1:] + tests.choice(pairs)[0]


def _some_words(tests: random.Random) -> list[Any]:
    return [" ".join(tests.choices(WORDS[: tests.randint(1, 10)], k=tests.randint(0, 30)))]


def _some_runs(tests: random.Random) -> list[Any]:
    return ["".join(c * tests.randint(1, 8) for c in _text(tests, "abc", 8))]


def _some_intervals(tests: random.Random) -> list[Any]:
    starts = [tests.randint(0, 500) for _ in range(tests.randint(0, 12))]
    return [[[start, start + tests.randint(0, 60)] for start in starts]]


_FAMILIES: tuple[Callable[[random.Random], Question], ...] = (
    _shift,
    _rotate,
    _digit_sum,
    _runs,
    _chunks,
    _frequent,
    _window,
    _brackets,
    _intervals,
    _kth,
)
