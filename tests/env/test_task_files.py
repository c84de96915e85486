"""Tasks of the user's own, in JSONL or Parquet."""

from __future__ import annotations

from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from agentrl.config import RunConfig
from agentrl.env import registry
from agentrl.errors import ConfigError
from agentrl.types import Task

MATH = "agentrl/MathWord-v0"


def written(path: Path, *lines: str) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def tasks(path: Path, seed: int = 0) -> list[Task]:
    return list(registry.tasks(MATH, split="train", seed=seed, file=path))


def test_a_row_is_a_task_and_its_columns_are_what_reset_is_given(tmp_path: Path) -> None:
    file = written(tmp_path / "mine.jsonl", '{"id": "a", "seed": 7, "question": "1+1?", "answer": 2}')
    assert tasks(file) == [Task(id="a", env_id=MATH, seed=7, options={"question": "1+1?", "answer": 2}, split="train")]


def test_options_and_columns_are_one(tmp_path: Path) -> None:
    file = written(tmp_path / "mine.jsonl", '{"level": 1, "options": {"size": 2}}')
    assert tasks(file)[0].options == {"level": 1, "size": 2}


def test_parquet_rows_are_the_same_tasks_as_jsonl_rows(tmp_path: Path) -> None:
    rows = [{"id": f"q{i}", "question": f"{i}+1?", "answer": i + 1} for i in range(3000)]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "mine.parquet")
    lines = [f'{{"id": "{row["id"]}", "question": "{row["question"]}", "answer": {row["answer"]}}}' for row in rows]
    assert tasks(tmp_path / "mine.parquet", 5) == tasks(written(tmp_path / "mine.jsonl", *lines), 5)


def test_the_order_is_the_seeds_and_each_pass_has_every_row_once(tmp_path: Path) -> None:
    file = written(tmp_path / "mine.jsonl", *('{"x": 1}' for _ in range(20)))
    orders = [[task.id for task in tasks(file, seed)] for seed in (0, 0, 1)]
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[0], key=int) == [str(number) for number in range(1, 21)]


def test_a_row_without_a_seed_keeps_one_for_every_pass_of_its_seed(tmp_path: Path) -> None:
    file = written(tmp_path / "mine.jsonl", '{"id": "a"}', '{"id": "b"}', '{"id": null, "seed": null}')
    seeds = {task.id: task.seed for task in tasks(file)}
    assert seeds == {task.id: task.seed for task in tasks(file)}
    assert len(set(seeds.values())) == 3


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([], "has no rows"),
        (["{"], "mine.jsonl:1: not JSON"),
        (["[1]"], r"mine.jsonl:1: a row is a JSON object, got \[1\]"),
        (['{"id": 1}', "", '{"id": "1"}'], "mine.jsonl:3: the id '1' is there twice"),
        (['{"id": "a", "options": 3}'], "the options of row 'a' are 3; give an object"),
        (['{"id": "a", "seed": -1}'], "the seed of row 'a' is -1; give a whole number from 0"),
    ],
)
def test_a_file_with_a_fault_is_refused_by_row(tmp_path: Path, lines: list[str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        tasks(written(tmp_path / "mine.jsonl", *lines))


@pytest.mark.parametrize(("name", "said"), [("no.jsonl", "there is no task file"), ("a.csv", "ends in one of .jsonl")])
def test_a_file_that_is_none_is_refused(tmp_path: Path, name: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        tasks(tmp_path / name)


def test_a_parquet_file_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is no Parquet file that can be read"):
        tasks(written(tmp_path / "mine.parquet", "no"))


def test_held_out_tasks_need_a_file_of_their_own() -> None:
    with pytest.raises(ValueError, match=r"train_tasks and eval_tasks are both mine\.jsonl"):
        RunConfig.model_validate(
            {"name": "x", "environment": {"id": MATH, "train_tasks": "mine.jsonl", "eval_tasks": "mine.jsonl"}}
        )


def test_later_passes_over_a_file_have_ids_of_their_own(tmp_path: Path) -> None:
    file = written(tmp_path / "mine.jsonl", '{"id": "a"}')
    stream = registry.task_stream(MATH, split="train", seed=0, file=file)
    assert [next(stream).id for _ in range(3)] == ["a", "a@1", "a@2"]
