"""Recorded logprobs against exported weights: what is handed to the check, and what is made of its answer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from runs import a_run
from trajectories import TrajectoryBuilder, boot

from agentrl.audit.report import CheckResult
from agentrl.audit.runner import Audit, AuditOptions
from agentrl.audit.stored_run import StoredRun
from agentrl.errors import AuditError
from agentrl.store.sql import SqlStore
from agentrl.types import Row, Segment, SwapRecord, Trajectory, VersionSpan


class Recording:
    """A logprob check that notes what it is asked and answers the same difference for each row."""

    def __init__(self, difference: float = 0.0) -> None:
        self.difference = difference
        self.asked: list[tuple[str, int, list[Row], list[float]]] = []

    def __call__(
        self, model_dir: Path, rows: Sequence[Row], temperatures: Sequence[float], version: int
    ) -> list[float | None]:
        self.asked.append((model_dir.name, version, list(rows), list(temperatures)))
        return [self.difference for _ in rows]


def swap(version: int, mode: str, *, engine_id: str = "engine-0") -> SwapRecord:
    at = 100.0 + version / 100
    return SwapRecord(engine_id=engine_id, version=version, mode=mode, started_at=at, finished_at=at)  # type: ignore[arg-type]


def weights(
    tmp_path: Path,
    trajectories: Sequence[Trajectory],
    check: object,
    *,
    swaps: Sequence[SwapRecord] = (boot(),),
    versions: Sequence[int] = (0,),
    **options: object,
) -> CheckResult:
    path = a_run(tmp_path / "run", trained=trajectories, swaps=swaps)
    for version in versions:
        (path / f"checkpoints/v{version}").mkdir(parents=True)
        (path / f"checkpoints/v{version}/config.json").write_text("{}")
    (path / "checkpoints/v77").mkdir()  # an export that did not finish: no config.json
    store = SqlStore.at(path / "trajectories.db")
    try:
        options["logprob_check"] = lambda: check
        report = Audit(StoredRun.open(path), store, AuditOptions(**options)).execute()  # type: ignore[arg-type]
    finally:
        store.close()
    return next(result for result in report.results if result.name == "weights")


def test_a_version_is_asked_for_its_own_tokens(tmp_path: Path) -> None:
    """Ids [1, 2] prompt, two tokens of version 0, three of version 1."""
    trajectory = TrajectoryBuilder("s0").call([1, 2], [5, 6, 7, 8, 9], versions=[(0, 2), (1, 3)]).build()
    logprobs = trajectory.calls[0].logprobs or []
    check = Recording()
    result = weights(tmp_path, [trajectory], check, swaps=[boot(), swap(1, "recompute")], versions=[0, 1])
    ids = [1, 2, 5, 6, 7, 8, 9]
    of_0 = Row(
        token_ids=ids,
        loss_mask=[0, 0, 1, 1, 0, 0, 0],
        logprobs=[None, None, logprobs[0], logprobs[1], None, None, None],
        versions=[VersionSpan(0, 2, 4)],
    )
    of_1 = Row(
        token_ids=ids,
        loss_mask=[0, 0, 0, 0, 1, 1, 1],
        logprobs=[None, None, None, None, logprobs[2], logprobs[3], logprobs[4]],
        versions=[VersionSpan(1, 4, 7)],
    )
    assert check.asked == [("v0", 0, [of_0], [1.0]), ("v1", 1, [of_1], [1.0])]
    assert (result.items, result.findings) == (5, 0)


def test_each_temperature_is_a_row_of_its_own(tmp_path: Path) -> None:
    builder = TrajectoryBuilder("s0").call([1], 2, temperature=1.0).call([2], 3, temperature=0.5)
    check = Recording()
    weights(tmp_path, [builder.build()], check)
    ((_, _, rows, temperatures),) = check.asked
    assert temperatures == [0.5, 1.0]
    assert [row.loss_mask for row in rows] == [[0, 0, 0, 0, 1, 1, 1], [0, 1, 1, 0, 0, 0, 0]]


@pytest.mark.parametrize("difference", [2e-3, math.nan, math.inf])
def test_a_difference_past_the_tolerance_names_the_session(tmp_path: Path, difference: float) -> None:
    result = weights(tmp_path, [TrajectoryBuilder("s0").call([1], 2).build()], Recording(difference))
    assert [(each.session_id, each.detail) for each in result.offenders] == [
        ("s0", f"row 0: recorded logprobs differ from v0's forward pass by {difference}, tolerance 0.001")
    ]


def test_a_difference_within_the_tolerance_passes(tmp_path: Path) -> None:
    trajectory = TrajectoryBuilder("s0").call([1], 2).build()
    result = weights(tmp_path, [trajectory], Recording(2e-3), tolerance=2e-3)
    assert (result.items, result.findings, result.notes) == (2, 0, ["largest difference 0.002"])


def test_tokens_over_kept_keys_and_values_are_left_out_and_counted(tmp_path: Path) -> None:
    """Two tokens of version 0 from a fresh engine, three of version 1 swapped in with `keep`."""
    trajectory = TrajectoryBuilder("s0").call([1], 5, versions=[(0, 2), (1, 3)]).build()
    check = Recording()
    result = weights(tmp_path, [trajectory], check, swaps=[boot(), swap(1, "keep")], versions=[0, 1])
    assert [name for name, *_ in check.asked] == ["v0"]
    assert result.items == 2
    assert "v1: no comparable row" in result.notes
    assert "3 tokens not comparable (swap mode keep, or reshaped sampling)" in result.notes


def test_of_a_call_that_two_engines_sampled_each_part_is_judged_by_its_engine(tmp_path: Path) -> None:
    """Five tokens of version 1: two from engine 0, which kept its old keys and values, three from engine 1."""
    trajectory = TrajectoryBuilder("s0").call([1], 5, versions=[(1, 5)], engine_id="engine-1").build()
    trajectory.calls[0].segments = [Segment("engine-0", 0, 2), Segment("engine-1", 2, 5)]
    check = Recording()
    swaps = [boot(), boot("engine-1"), swap(1, "keep"), swap(1, "recompute", engine_id="engine-1")]
    result = weights(tmp_path, [trajectory], check, swaps=swaps, versions=[1])
    ((_, _, (row,), _),) = check.asked
    assert (row.loss_mask, row.versions) == ([0, 0, 0, 1, 1, 1], [VersionSpan(1, 3, 6)])
    assert result.items == 3
    assert "2 tokens not comparable (swap mode keep, or reshaped sampling)" in result.notes


@pytest.mark.parametrize("changed", [{"top_p": 0.9}, {"top_k": 5}, {"temperature": 0.0}, {"repetition_penalty": 1.1}])
def test_reshaped_sampling_is_left_out(tmp_path: Path, changed: dict[str, float]) -> None:
    trajectory = TrajectoryBuilder("s0").call([1], 2).build()
    trajectory.calls[0].sampling = msgspec.structs.replace(trajectory.calls[0].sampling, **changed)
    check = Recording()
    result = weights(tmp_path, [trajectory], check)
    assert check.asked == []
    assert result.items == 0


def test_at_most_max_rows_of_a_version_are_drawn_and_the_same_ones_again(tmp_path: Path) -> None:
    trajectories = [TrajectoryBuilder(f"s{index:02}").call([index + 1], [5, 6]).build() for index in range(30)]
    first, second = Recording(), Recording()
    result = weights(tmp_path, trajectories, first, max_rows=4)
    (tmp_path / "again").mkdir()
    weights(tmp_path / "again", trajectories, second, max_rows=4)
    assert result.items == 8
    assert first.asked == second.asked
    assert len({row.token_ids[0] for row in first.asked[0][2]}) == 4


def test_a_check_that_answers_too_little_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(AuditError, match="of v0 answered 0 of 1 rows"):
        weights(tmp_path, [TrajectoryBuilder("s0").call([1], 2).build()], lambda *asked: [])


def test_a_checkpoint_that_cannot_be_read_is_a_finding_and_the_others_are_compared(tmp_path: Path) -> None:
    """Three tokens of each version; v0's weights are half a file."""
    trajectory = TrajectoryBuilder("s0").call([1], 6, versions=[(0, 3), (1, 3)]).build()

    def check(model_dir: Path, rows: Sequence[Row], temperatures: Sequence[float], version: int) -> list[float | None]:
        if version == 0:
            raise OSError("header too short:\n 3 bytes")
        return [0.0 for _ in rows]

    result = weights(tmp_path, [trajectory], check, swaps=[boot(), swap(1, "recompute")], versions=[0, 1])
    where = tmp_path / "run/checkpoints/v0"
    assert [(each.session_id, each.detail) for each in result.offenders] == [
        ("", f"v0 at {where} gives no logprobs to compare with: OSError: header too short: 3 bytes")
    ]
    assert result.items == 3


def test_without_weights_the_check_is_not_even_loaded(tmp_path: Path) -> None:
    path = a_run(tmp_path / "run", trained=[TrajectoryBuilder("s0").call([1], 2).build()])

    def load() -> Recording:
        raise AssertionError("loaded without weights to check")

    store = SqlStore.at(path / "trajectories.db")
    report = Audit(StoredRun.open(path), store, AuditOptions(logprob_check=load)).execute()
    store.close()
    assert report.results[-1].notes == ["no exported weights in checkpoints/, and the initial model is not here"]
