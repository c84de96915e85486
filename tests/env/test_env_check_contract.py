"""What an environment returns, read into a record: every breach of the contract is seen where the value is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import agentrl
from agentrl.env.check.analysis import findings
from agentrl.env.check.child.contract import read_reset, read_step, read_tools
from agentrl.env.check.records import CallRecord, EpisodeRecord, Place, Raised, Recording, Subject, TasksRecord

HELLO = agentrl.user("hello")
PLACES = {"class": Place("mine.py", 1), "step": Place("mine.py", 9)}


class Spiteful:
    def __repr__(self) -> str:
        raise RuntimeError("no")

    def __float__(self) -> float:
        raise RuntimeError("no")


@pytest.mark.parametrize(
    ("result", "code"),
    [
        (([HELLO], 0.0, False, False, {}), None),
        (([HELLO], np.float32(0.5), np.bool_(False), False, {"n": np.int64(3)}), None),
        (([], 1, True, False, {}), None),
        (None, "result-shape"),
        (([HELLO], 0.0, False, {}), "result-shape"),
        (([HELLO], 0.0, "no", False, {}), "result-shape"),
        (([HELLO], 0.0, False, False, None), "result-shape"),
        (([], 0.0, False, False, {}), "observation-empty"),
        (("hello", 0.0, False, False, {}), "message-form"),
        (([{"role": "robot", "content": "x"}], 0.0, False, False, {}), "message-form"),
        (([{"role": "user", "content": "x", "extra": {1, 2}}], 0.0, False, False, {}), "not-json"),
        (([HELLO], 0.0, False, False, {"me": object()}), "info-not-json"),
        (Spiteful(), "result-shape"),
    ],
)
def test_a_step_keeps_the_contract_or_the_breach_is_named(result: Any, code: str | None) -> None:
    record = CallRecord(method="step")
    read_step(record, result)
    assert [breach.code for breach in record.breaches] == ([] if code is None else [code])


@pytest.mark.parametrize(
    ("reward", "kind", "value"),
    [
        (None, "missing", None),
        (1, "number", 1.0),
        (np.float64(0.25), "number", 0.25),
        (float("inf"), "not_finite", None),
        (float("nan"), "not_finite", None),
        ("much", "not_a_number", None),
        (Spiteful(), "not_a_number", None),
        (10**400, "not_a_number", None),
    ],
)
def test_a_reward_is_a_finite_number_or_missing_and_anything_else_is_said(
    reward: Any, kind: str, value: float | None
) -> None:
    record = CallRecord(method="step")
    read_step(record, ([], reward, True, False, {}))
    assert (record.reward_kind, record.reward) == (kind, value)


def test_the_observation_is_kept_as_json_and_given_back_as_it_was() -> None:
    record = CallRecord(method="reset")
    given = read_reset(record, ([HELLO], {}))
    assert record.observation == [{"role": "user", "content": "hello"}]
    assert given[0] is HELLO


@pytest.mark.parametrize(("tools", "code"), [([{"a": {1}}], "not-json"), (["look"], "tool-schema"), (3, "not-json")])
def test_tools_are_json_dicts(tools: Any, code: str) -> None:
    record = CallRecord(method="tools")
    read_tools(record, tools)
    assert [breach.code for breach in record.breaches] == [code]


def found(*calls: CallRecord, **more: Any) -> dict[str, str]:
    """Codes and messages of one episode that ended."""
    reset = CallRecord(method="reset", observation=[{"role": "user", "content": "begin"}])
    episode = EpisodeRecord(kind="alone", task_id="t", policy="text", calls=[reset, *calls], ended=True)
    subject = Subject(name="Mine", documented=more.pop("documented", True), places=PLACES)
    recording = Recording(env_id="mine", subject=subject, episodes=[episode], **more)
    return {finding.code: finding.message for finding in findings(recording)}


END = CallRecord(method="step", observation=[], reward=0.0, reward_kind="number", terminated=True)


def test_a_class_without_a_docstring_is_said() -> None:
    assert found(END, documented=False) == {
        "undocumented": "Mine has no docstring, so `agentrl env list` cannot say what it is"
    }


@pytest.mark.parametrize(
    ("method", "role", "code"),
    [("step", "system", "system-late"), ("reset", "assistant", "first-message"), ("reset", "system", None)],
)
def test_roles_that_templates_refuse_are_said(method: str, role: str, code: str | None) -> None:
    call = CallRecord(method=method, observation=[{"role": role, "content": "x"}], reward=0.0, reward_kind="number")
    assert set(found(call, END)) == ({code} if code else set())


def test_a_reference_that_raises_is_said() -> None:
    broken = CallRecord(method="reference", raised=Raised("ValueError", "unknown question", Place("reference.py", 3)))
    assert found(broken, END) == {"reference-fails": "the reference solution raised ValueError: unknown question"}


def test_a_split_without_tasks_is_said() -> None:
    empty = TasksRecord(split="train", process=0, reading=0, finite=True)
    assert found(END, tasks=[empty]) == {"tasks-empty": "split 'train' has no task"}


def test_a_step_that_keeps_the_processor_busy_is_slow() -> None:
    busy = CallRecord(
        method="step", observation=[], reward=0.0, reward_kind="number", terminated=True, wall_ms=900.0, cpu_ms=300.0
    )
    assert found(busy) == {"slow": "step takes 300 ms of processor time at the median of 1 calls"}
