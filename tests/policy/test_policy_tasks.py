"""Calculator tasks: the same everywhere, held out by problem, and a tool that computes only what it should."""

from __future__ import annotations

import contextlib
import itertools
import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.env import registry
from agentrl.gateway.parsers import FAMILIES, read
from agentrl_envs.calculator.env import Calculator
from agentrl_envs.calculator.tasks import CalculatorProblem, evaluate, problem
from agentrl_envs.calculator.transcripts import WARM_START, tool_call, transcript

SEEDS = st.integers(min_value=0, max_value=2**53)
OPERANDS = st.integers(min_value=10, max_value=999)
TOOLS = Calculator().tools


def test_a_seed_names_one_problem_on_every_machine():
    assert [problem(seed, "train").expression for seed in range(4)] == ["874-786", "147*877", "988+103", "253*567"]
    assert [problem(seed, "eval").expression for seed in range(4)] == ["921-51", "130-789", "96-865", "143-947"]


@given(SEEDS, st.sampled_from(["train", "eval"]))
def test_a_problem_belongs_to_the_split_it_was_asked_for(seed, split):
    found = problem(seed, split)
    assert found.split == split
    assert 10 <= found.a <= 999
    assert 10 <= found.b <= 999
    assert found.op in "+-*"


def tasks(split, count, seed):
    return list(itertools.islice(Calculator.tasks(split, seed), count))


def test_no_problem_of_one_split_is_in_the_other():
    """By problem, whatever the seeds: 4,000 train and 1,000 held-out problems share none."""
    train = {problem(task.seed, "train") for task in tasks("train", 4000, seed=1)}
    held_out = {problem(task.seed, "eval") for task in tasks("eval", 1000, seed=1)}
    assert len(train) == 4000
    assert len(held_out) == 1000
    assert not train & held_out


def test_a_fifth_of_all_problems_is_held_out():
    """Of 30,000 problems drawn without regard to split, 6,000 give or take five standard deviations (69)."""
    rng = random.Random(0)
    drawn = {CalculatorProblem(rng.randint(10, 999), rng.choice("+-*"), rng.randint(10, 999)) for _ in range(30_000)}
    share = sum(found.split == "eval" for found in drawn) / len(drawn)
    assert abs(share - 0.2) < 0.0116


def test_tasks_are_distinct_and_repeatable():
    first = tasks("eval", 256, seed=3)
    assert first == tasks("eval", 256, seed=3)
    assert len({task.id for task in first}) == 256
    assert len({problem(task.seed, "eval") for task in first}) == 256
    assert {task.split for task in first} == {"eval"}
    assert {task.id for task in first} != {task.id for task in tasks("eval", 256, seed=4)}


def test_a_longer_list_of_tasks_starts_with_the_shorter():
    assert tasks("train", 50, seed=0)[:20] == tasks("train", 20, seed=0)


def test_a_pass_ends_and_the_next_one_has_other_problems(monkeypatch):
    monkeypatch.setattr("agentrl_envs.calculator.env.PASS", 300)
    monkeypatch.setattr("agentrl_envs.calculator.tasks.OPERANDS", (10, 14))  # 75 problems, about 15 of them held out
    held_out = {problem(task.seed, "eval") for task in Calculator.tasks("eval", 0)}
    assert held_out == {p for p in every_problem(10, 14) if p.split == "eval"}
    stream = registry.task_stream("agentrl/Calculator-v0", split="eval", seed=0)
    assert [task.id.partition("@")[2] for task in itertools.islice(stream, len(held_out) + 1)][-2:] == ["", "1"]


def every_problem(low, high):
    operands = range(low, high + 1)
    return {CalculatorProblem(a, op, b) for a, op, b in itertools.product(operands, "+-*", operands)}


def test_unknown_splits_are_refused():
    with pytest.raises(ValueError, match="no split 'test'; use 'train' or 'eval'"):
        problem(0, "test")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no split 'test'"):
        tasks("test", 1, seed=0)


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("123*45", "5535"),
        ("10-999", "-989"),
        ("999*999", "998001"),
        ("2+3*4", "14"),
        ("(2+3)*4", "20"),
        ("10-3-2", "5"),
        ("-5*-5", "25"),
        ("- -5", "5"),
        ("+7", "7"),
        (" 12 + 3 ", "15"),
        ("0", "0"),
        ("1" + "0" * 63, "1" + "0" * 63),
    ],
)
def test_evaluate_computes(expression, value):
    assert evaluate(expression) == value


@pytest.mark.parametrize(
    "expression",
    [
        "", " ", "12*", "(1", "()", "1 2", "012", "1(2)", "2**3", "7//2", "7/2", "1.5", "1e9", "1_000", "0x10", "True",
        "a", "a+1", "__import__('os')", "[1]", "1,2", "1;2", "1==1", "~1", "1\n+1", "1\x00", "\u0661+1", "1+1=",
        "9" * 65, "(" * 32 + "1" + ")" * 32,
    ],
)  # fmt: skip
def test_evaluate_refuses(expression):
    """With a message short enough for the model's context, and never with anything but ValueError."""
    with pytest.raises(ValueError, match=r"^.{1,80}$"):
        evaluate(expression)


@given(st.text() | st.text(alphabet="0123456789+-*() ", max_size=70))
def test_evaluate_never_fails_in_another_way(expression):
    with contextlib.suppress(ValueError):
        int(evaluate(expression))


@given(st.text(alphabet="0123456789+-*() ", max_size=64))
def test_evaluate_agrees_with_python_where_both_have_a_value(expression):
    try:
        value = evaluate(expression)
    except ValueError:
        return
    assert value == str(eval(expression.strip()))  # the independent oracle: digits and operators only


@given(OPERANDS, st.sampled_from("+-*"), OPERANDS)
def test_the_tool_gives_the_answer_of_every_problem(a, op, b):
    asked = CalculatorProblem(a, op, b)
    assert asked.question == f"What is {a}{op}{b}?"
    assert evaluate(asked.expression) == str(asked.answer)


@given(SEEDS)
def test_a_correct_transcript_calls_the_tool_and_answers_its_result(seed):
    written = transcript(random.Random(seed), {"correct": 1.0})
    question, call, result, answer = written.messages
    parsed = read(FAMILIES["hermes"], call.text, TOOLS)
    assert question.text == written.problem.question
    assert [json.loads(each["function"]["arguments"]) for each in parsed["tool_calls"]] == [
        {"expression": written.problem.expression}
    ]
    assert result.text == answer.text == str(written.problem.answer)
    assert written.problem.split == "train"


@given(SEEDS)
def test_a_malformed_transcript_holds_no_call_that_would_run(seed):
    written = transcript(random.Random(seed), {"malformed": 1.0})
    assert "tool_calls" not in read(FAMILIES["hermes"], written.messages[-1].text, TOOLS)
    assert written.messages[-1].text != tool_call(written.problem.expression)


def test_transcripts_are_repeatable_and_mix_as_told():
    """400 draws of a mix hold each behaviour, about as often as its weight says."""
    drawn = [transcript(rng, WARM_START) for rng in [random.Random(0)] for _ in range(400)]
    assert drawn == [transcript(rng, WARM_START) for rng in [random.Random(0)] for _ in range(400)]
    for behaviour, share in WARM_START.items():
        assert abs(sum(each.behaviour == behaviour for each in drawn) / 400 - share) < 0.1
