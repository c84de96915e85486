"""Tasks of several sources: in which shares, in which order, and from which place on after a resume."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.errors import ConfigError
from agentrl.train.curriculum import Curriculum
from agentrl.train.environment import CurriculumConfig, EnvironmentConfig
from agentrl.train.tasks import TaskMix, held_out_tasks, shares
from agentrl.types import Task

MIXED, SOLVED, FAILED = [True, False], [True, True], [False, False]


def a_curriculum(seed: int = 0, weights: dict[str, float] | None = None, **config: Any) -> Curriculum:
    return Curriculum(weights or {"easy": 1.0, "hard": 1.0}, CurriculumConfig(**config), seed=seed)


def drawn(curriculum: Curriculum, count: int) -> list[str]:
    return [curriculum.choose(["easy", "hard"]) for _ in range(count)]


def a_mix(tmp_path: Path, seed: int = 3, rows: int = 5, **curriculum: Any) -> TaskMix:
    return TaskMix(an_environment(tmp_path, rows, **curriculum), seed=seed)


def an_environment(tmp_path: Path, rows: int = 5, **curriculum: Any) -> EnvironmentConfig:
    """A file of a few tasks, drawn three times as often as the calculator's own, which have no end."""
    file = tmp_path / "few.jsonl"
    file.write_text("".join(json.dumps({"id": f"f{row}"}) + "\n" for row in range(rows)))
    return EnvironmentConfig.model_validate(
        {
            "id": "agentrl/Calculator-v0",
            "mix": [{"name": "few", "weight": 3.0, "train_tasks": file}, {"name": "own"}],
            "curriculum": curriculum,
        }
    )


def test_sources_are_drawn_by_their_weights() -> None:
    count = Counter(drawn(a_curriculum(weights={"easy": 3.0, "hard": 1.0}), 4000))
    assert count["easy"] == pytest.approx(3000, abs=100)


def test_the_seed_decides_the_order() -> None:
    assert drawn(a_curriculum(1), 50) == drawn(a_curriculum(1), 50) != drawn(a_curriculum(2), 50)


def test_a_source_that_is_solved_or_hopeless_is_drawn_less_but_never_given_up() -> None:
    curriculum = a_curriculum(prefer="learnable", floor=0.25, window=1)
    for flat in (SOLVED, FAILED):
        curriculum.observe("easy", flat)
        assert (curriculum.weight("easy"), curriculum.weight("hard")) == (0.25, 1.0)
        curriculum.observe("easy", MIXED)
        assert curriculum.weight("easy") == 1.0


def test_the_share_of_learnable_groups_is_a_moving_average() -> None:
    curriculum = a_curriculum(prefer="learnable", window=4)
    curriculum.observe("easy", SOLVED)
    assert curriculum.weight("easy") == 0.75
    curriculum.observe("easy", SOLVED)
    assert curriculum.weight("easy") == 0.5625
    curriculum.observe("easy", MIXED)
    assert curriculum.weight("easy") == 0.671875


@pytest.mark.parametrize("successes", [[], [True], [False]])
def test_one_attempt_alone_says_nothing(successes: list[bool]) -> None:
    curriculum = a_curriculum(prefer="learnable", window=1)
    curriculum.observe("easy", successes)
    assert curriculum.weight("easy") == 1.0


def test_without_a_preference_the_weights_stay_as_they_are() -> None:
    curriculum = a_curriculum(window=1)
    curriculum.observe("easy", SOLVED)
    assert curriculum.weight("easy") == 1.0


def test_another_mixs_state_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"drew its tasks from easy, hard, and environment\.mix names no mix"):
        a_curriculum(weights={"": 1.0}).restore(a_curriculum().state())


@given(
    before=st.lists(st.sampled_from([MIXED, SOLVED, FAILED]), max_size=30),
    after=st.lists(st.sampled_from([MIXED, SOLVED, FAILED]), max_size=30),
    seed=st.integers(0, 2**63 - 1),
)
def test_a_restored_curriculum_goes_on_alike(before: list[list[bool]], after: list[list[bool]], seed: int) -> None:
    def played(curriculum: Curriculum, outcomes: list[list[bool]]) -> list[str]:
        names = []
        for successes in outcomes:
            names += drawn(curriculum, 1)
            curriculum.observe(names[-1], successes)
        return names

    first, second = (a_curriculum(seed, prefer="learnable", window=3) for _ in range(2))
    played(first, before)
    second.restore(json.loads(json.dumps(first.state())))
    assert played(second, after) == played(first, after)
    assert second.state() == first.state()


def test_a_task_of_a_mix_says_its_source(tmp_path: Path) -> None:
    mix = a_mix(tmp_path)
    tasks = [mix.draw() for _ in range(40)]
    assert {(task.source, task.env_id) for task in tasks if task} == {
        ("few", "agentrl/Calculator-v0"),
        ("own", "agentrl/Calculator-v0"),
    }
    assert all(task.id.startswith(f"{task.source}-") for task in tasks if task)
    assert len({task.id for task in tasks if task}) == 40, "a pass over the file more is another id"


@pytest.mark.parametrize("draws", [0, 1, 17, 60])
def test_a_restored_mix_goes_on_alike_wherever_its_passes_end(tmp_path: Path, draws: int) -> None:
    first, second = a_mix(tmp_path, prefer="learnable", window=2), a_mix(tmp_path, prefer="learnable", window=2)
    for number in range(draws):
        task = first.draw()
        assert task is not None
        first.observe(task, SOLVED if number % 3 else MIXED)
    second.restore(msgspec.json.decode(msgspec.json.encode(first.state())))
    assert [second.draw() for _ in range(30)] == [first.draw() for _ in range(30)]
    assert second.stats() == first.stats()


def test_what_was_drawn_is_counted_beside_the_shares(tmp_path: Path) -> None:
    mix = a_mix(tmp_path)
    for _ in range(8):
        mix.draw()
    stats = mix.stats()
    assert (stats["few"]["share"], stats["own"]["share"]) == (0.75, 0.25)
    assert stats["few"]["drawn"] + stats["own"]["drawn"] == 8


def test_held_out_tasks_come_from_each_source_in_its_share(tmp_path: Path) -> None:
    tasks = held_out_tasks(an_environment(tmp_path), seed=0, count=8)
    assert [task.source for task in tasks] == ["few"] * 6 + ["own"] * 2
    assert {task.split for task in tasks} == {"eval"}


@pytest.mark.parametrize(
    ("weights", "count", "expected"),
    [([3.0, 1.0], 7, [5, 2]), ([1.0, 1.0, 1.0], 10, [4, 3, 3]), ([1.0, 99.0], 2, [0, 2]), ([2.0], 5, [5])],
)
def test_shares_round_the_largest_remainders_up(weights: list[float], count: int, expected: list[int]) -> None:
    assert shares(weights, count) == expected


def test_a_source_of_another_environment_does_not_inherit_its_options() -> None:
    environment = EnvironmentConfig.model_validate(
        {
            "id": "agentrl/Calculator-v0",
            "options": {"a": 1},
            "train_tasks": "t.jsonl",
            "mix": [{"name": "same"}, {"name": "own", "options": {"a": 2}}, {"name": "other", "id": "x:Y"}],
        }
    )
    found = [(source.name, source.id, source.options, source.train_tasks) for source in environment.sources]
    assert found == [
        ("same", "agentrl/Calculator-v0", {"a": 1}, Path("t.jsonl")),
        ("own", "agentrl/Calculator-v0", {"a": 2}, Path("t.jsonl")),
        ("other", "x:Y", {}, None),
    ]


@pytest.mark.parametrize(
    ("mix", "named"),
    [
        ([{"name": "a"}, {"name": "a"}], "mix names 'a' twice"),
        ([{"name": "a", "train_split": "eval"}], "train_split and eval_split of mix source 'a' are both 'eval'"),
        ([{"name": "a", "weight": 0}], "greater than 0"),
        ([{"name": "a b"}], "match pattern"),
    ],
)
def test_a_mix_that_cannot_be_meant_is_refused(mix: list[dict[str, object]], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        EnvironmentConfig.model_validate({"id": "x:Y", "mix": mix})


def test_a_task_is_of_no_source_without_a_mix() -> None:
    mix = TaskMix(EnvironmentConfig(id="agentrl/Calculator-v0"), seed=0)
    task = mix.draw()
    assert isinstance(task, Task)
    assert (task.source, mix.stats()) == ("", {})
