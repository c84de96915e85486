"""The checks are functions of a recording: what is found where, and what is let pass."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, TypeAdapter, ValidationError

from agentrl.env.check.analysis import findings
from agentrl.env.check.arguments import fitting, misfitting
from agentrl.env.check.checks.cost import costs, quantile
from agentrl.env.check.codes import CODES
from agentrl.env.check.differences import first_difference
from agentrl.env.check.finding import Finding
from agentrl.env.check.policies import SCRIPTED, Turn, scripted
from agentrl.env.check.records import (
    Begin,
    CallRecord,
    Death,
    EpisodeRecord,
    Growth,
    Kind,
    Left,
    Place,
    Recording,
    Snapshot,
    Stall,
    Subject,
    TasksRecord,
    decode,
    encode,
)
from agentrl.env.tool import tool, tools_of
from agentrl.messages import user

ROOT = Path(__file__).parents[2]
STEP = Place("mine.py", 10, "Mine.step")
PLACES = {"class": Place("mine.py", 1), "reset": Place("mine.py", 5), "step": STEP, "tasks": Place("mine.py", 3)}


def step(reward: float | None = 0.0, text: str = "go on", *, over: bool = False, **more: Any) -> CallRecord:
    kind = "missing" if reward is None else "number"
    observation = [] if over else [{"role": "user", "content": text}]
    return CallRecord(method="step", observation=observation, reward=reward, reward_kind=kind, terminated=over, **more)


def episode(*steps: CallRecord, kind: Kind = "alone", policy: str = "text", task: str = "t") -> EpisodeRecord:
    reset = CallRecord(method="reset", observation=[{"role": "user", "content": "begin"}])
    ended = bool(steps) and steps[-1].terminated
    return EpisodeRecord(kind=kind, task_id=task, policy=policy, calls=[reset, *steps], ended=ended)


def recording(*episodes: EpisodeRecord, **more: Any) -> Recording:
    subject = Subject(name="Mine", documented=True, places=PLACES, reward_range=more.pop("reward_range", None))
    return Recording(env_id="mine.py:Mine", subject=subject, episodes=list(episodes), **more)


def codes(found: Recording) -> list[str]:
    return [finding.code for finding in findings(found)]


def test_nothing_is_found_in_two_plain_episodes() -> None:
    assert codes(recording(episode(step(), step(1.0, over=True)), episode(step(0.0, over=True)))) == []


def test_every_code_has_its_section_in_the_docs_and_no_other_is_there() -> None:
    page = (ROOT / "docs" / "env-check.md").read_text()
    assert set(re.findall(r"^### (.+)$", page, re.MULTILINE)) == CODES


def test_a_finding_of_an_unknown_code_is_refused() -> None:
    with pytest.raises(ValueError, match=r"no finding has the code 'oops'"):
        Finding("oops", "error", "", "")


def test_a_code_is_found_once_for_a_line_and_counted() -> None:
    broken = [episode(step(None, over=True)) for _ in range(3)]
    for record in broken:
        record.calls[-1].reward_kind = "not_finite"
        record.calls[-1].reward_text = "nan"
    (finding,) = findings(recording(*broken))
    assert finding.message == "a step gave the reward nan (policy 'text') (3 times)"


def test_errors_come_before_warnings() -> None:
    found = recording(
        episode(step(None, over=True)),
        tasks=[TasksRecord(split="train", process=0, reading=0, ids=["a", "a"], keys=["1", "2"])],
    )
    assert [(finding.code, finding.severity) for finding in findings(found)] == [
        ("task-ids", "error"),
        ("reward-missing", "warning"),
    ]


@pytest.mark.parametrize(
    ("earned", "expected"),
    [
        ({"silent": 0.0, "reference": 1.0, "text": 1.0}, []),
        ({"silent": 0.0, "reference": 1.0, "repeat": 3.0}, ["reference-not-best"]),
        ({"silent": 1.0, "reference": 1.0}, ["reference-not-best"]),
        ({"silent": 0.5}, ["reward-empty-answer"]),
        ({"silent": -1.0, "text": 2.0}, []),
    ],
)
def test_no_policy_earns_more_than_the_reference_and_silence_earns_less(
    earned: dict[str, float], expected: list[str]
) -> None:
    played = [episode(step(reward, over=True), policy=policy) for policy, reward in earned.items()]
    assert codes(recording(*played)) == expected


def test_the_range_holds_for_the_sum_of_an_episode() -> None:
    within = episode(step(0.5), step(0.5, over=True))
    above = episode(step(1.0), step(0.5, over=True))
    assert codes(recording(within, reward_range=(0.0, 1.0))) == []
    assert codes(recording(within, above, reward_range=(0.0, 1.0))) == ["reward-range"]


def test_what_two_processes_with_the_same_history_agree_on_is_interference_not_chance() -> None:
    def played(kind: Kind, text: str) -> EpisodeRecord:
        return episode(step(text=text), step(over=True), kind=kind)

    by_history = [played("alone", "1"), played("repeat", "2"), played("again", "1"), played("again_repeat", "2")]
    by_chance = [played("alone", "1"), played("repeat", "2"), played("again", "3"), played("again_repeat", "4")]
    by_hash = [played("alone", "1"), played("repeat", "1"), played("again", "2"), played("again_repeat", "2")]
    assert codes(recording(*by_history)) == ["instances-interfere"]
    assert codes(recording(*by_chance)) == ["not-deterministic"]
    assert codes(recording(*by_hash)) == ["not-deterministic-across-processes"]


def test_episodes_of_other_lengths_are_compared_as_far_as_both_go() -> None:
    short, long = episode(step()), episode(step(), step(), step(text="other"))
    assert first_difference(short, long) is None
    other = first_difference(episode(step(), step(), step()), long)
    assert other is not None
    assert (other.method, other.step, other.field) == ("step", 3, "observation")


def snapshots(counts: list[int], *, kib: list[float] | None = None) -> list[Snapshot]:
    sizes = kib or [0.0] * len(counts)
    return [
        Snapshot(index=index, left=[Left("thread", f"t{number}", STEP) for number in range(count)], traced_kib=size)
        for index, (count, size) in enumerate(zip(counts, sizes, strict=True))
    ]


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ([1, 2, 3, 4, 5, 6, 7, 8], ["leak-thread"]),
        ([1, 2, 3, 4, 4, 4, 4, 4], []),  # a pool that fills
        ([3, 3, 3, 3, 3, 3, 3, 3], []),
        ([1, 2], []),  # too few to tell
    ],
)
def test_only_what_grows_with_every_episode_is_a_leak(counts: list[int], expected: list[str]) -> None:
    assert codes(recording(snapshots=snapshots(counts))) == expected


def test_memory_grows_when_it_does_in_both_halves() -> None:
    steady = snapshots([0] * 8, kib=[100.0 * index for index in range(8)])
    steady[-1].growth = [Growth(700.0, STEP)]
    once = snapshots([0] * 8, kib=[0.0, 0.0, 0.0, 900.0, 900.0, 900.0, 900.0, 900.0])
    (finding,) = findings(recording(snapshots=steady))
    assert (finding.code, finding.place) == ("memory-growth", STEP)
    assert codes(recording(snapshots=once)) == []


def test_one_stall_is_a_first_connection_and_two_block_the_loop() -> None:
    stalled = step(over=True, on_loop=True, stalls=[Stall(150.0, STEP)])
    assert codes(recording(episode(stalled))) == []
    (finding,) = findings(recording(episode(stalled), episode(stalled)))
    assert (finding.code, finding.place) == ("blocks-event-loop", STEP)
    assert "150 ms, and 2 times" in finding.message


def test_a_death_says_what_was_going_on() -> None:
    death = Death("signal", 11, Begin("alone", "step", "t-1", "tools"))
    (finding,) = findings(recording(deaths=[death]))
    assert finding.message == "the process was killed by SIGSEGV while step ran with policy 'tools' on task 't-1'"
    assert finding.place == STEP


def reading(split: str, keys: list[str], asked: list[str], *, finite: bool = False) -> TasksRecord:
    ids = [f"{split}-{number}" for number in range(len(keys))]
    return TasksRecord(split=split, process=0, reading=0, ids=ids, keys=keys, asked=asked, finite=finite)


@pytest.mark.parametrize(
    ("train", "held_out", "expected"),
    [
        (reading("train", ["1", "2"], ["a", "b"]), reading("eval", ["3", "4"], ["c", "d"]), []),
        (reading("train", ["1", "2"], ["a", "b"]), reading("eval", ["3", "4"], ["b", "c"]), ["splits-overlap"]),
        # The same first message for every task says nothing.
        (reading("train", ["1", "2"], ["a", "a"]), reading("eval", ["3", "4"], ["a", "a"]), []),
        (
            reading("train", ["1", "2"], ["a", "a"], finite=True),
            reading("eval", ["2", "3"], ["a", "a"], finite=True),
            ["splits-overlap"],
        ),
    ],
)
def test_held_out_tasks_are_not_trained_on(train: TasksRecord, held_out: TasksRecord, expected: list[str]) -> None:
    assert codes(recording(tasks=[train, held_out])) == expected


def test_an_environment_needs_no_split_called_eval() -> None:
    failed = TasksRecord(split="eval", process=0, reading=0, error="there is no split 'eval'")
    assert codes(recording(tasks=[failed])) == []


def test_costs_are_medians_and_largest_values_of_the_episodes_alone() -> None:
    calls = [step(over=True, wall_ms=float(ms), cpu_ms=1.0) for ms in (1, 2, 3, 100)]
    others = episode(step(over=True, wall_ms=9999.0), kind="leaks")
    (cost,) = [cost for cost in costs(recording(*map(episode, calls), others)) if cost.method == "step"]
    assert (cost.calls, cost.wall_p50_ms, cost.wall_p99_ms, cost.cpu_p50_ms) == (4, 2.0, 100.0, 1.0)
    assert quantile([5.0], 0.5) == 5.0


def test_a_record_survives_the_pipe() -> None:
    record = episode(step(1.5, over=True))
    assert decode(encode(record)) == record


class Item(BaseModel):
    name: str
    count: int = 1


class Tools:
    @tool
    def use(self, item: Item, others: list[Item] | None = None, deep: bool = False, share: float = 0.5) -> None:
        """Use things."""


@given(st.integers(0, 10**6))
def test_made_up_arguments_fit_their_schema(seed: int) -> None:
    described = tools_of(Tools)["use"]
    TypeAdapter(described.arguments).validate_python(fitting(described.parameters, random.Random(seed), ["a", "b"]))


def test_arguments_that_are_to_be_wrong_are_wrong_in_every_way() -> None:
    described = tools_of(Tools)["use"]
    seen: set[str] = set()
    for seed in range(200):
        try:
            described.arguments.model_validate(misfitting(described.parameters, random.Random(seed), ["a"]))
        except ValidationError as refused:
            seen |= {problem["type"] for problem in refused.errors()}
    assert {"missing", "extra_forbidden", "model_type", "list_type", "bool_type"} <= seen


@pytest.mark.parametrize("policy", SCRIPTED)
def test_a_scripted_policy_says_the_same_again(policy: str) -> None:
    tools = [described.schema for described in tools_of(Tools).values()]
    turns = [Turn([user("Take the lamp and go on.")], tools, index) for index in range(12)]
    first, second = (list(map(scripted(policy, "task-1"), turns)) for _ in range(2))
    assert first == second
