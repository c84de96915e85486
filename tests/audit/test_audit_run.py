"""A whole run under audit: the books, the command, its exit status."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
import typer
from runs import a_clean_run, a_run
from trajectories import TrajectoryBuilder, boot, task, two_turns
from typer.testing import CliRunner

from agentrl.audit.report import Report
from agentrl.audit.runner import Audit, AuditOptions
from agentrl.audit.stored_run import StoredRun
from agentrl.cli.audit import audit as audit_command
from agentrl.errors import ConfigError
from agentrl.store.base import Settlement
from agentrl.store.sql import SqlStore
from agentrl.types import SwapRecord


def audit(path: Path, **options: object) -> Report:
    directory = StoredRun.open(path)
    store = SqlStore(directory.store_url, create=False)
    try:
        return Audit(directory, store, AuditOptions(**options)).execute()  # type: ignore[arg-type]
    finally:
        store.close()


def results(report: Report) -> dict[str, tuple[int, int]]:
    """check -> (items, findings)"""
    return {result.name: (result.items, result.findings) for result in report.results}


def details(report: Report, check: str) -> list[tuple[str, str]]:
    found = next(result for result in report.results if result.name == check)
    return [(offender.session_id, offender.detail) for offender in found.offenders]


def execute(path: Path, statement: str) -> None:
    """Past every refusal of the API: as a bug or a stray hand would."""
    with sqlite3.connect(path / "trajectories.db") as connection:
        connection.executescript(f"PRAGMA foreign_keys=OFF; {statement}")
    connection.close()


def test_a_clean_run_passes_and_says_what_it_checked(tmp_path: Path) -> None:
    """3 sessions of two turns: 2 prompts + 2 samples, 32 sampled and 72 row tokens, 2 version spans each."""
    report = audit(a_clean_run(tmp_path / "run"))
    assert report.clean
    assert results(report) == {
        "stored": (3, 0),
        "identity": (12, 0),
        "once": (96, 0),
        "logprobs": (216, 0),
        "versions": (96, 0),
        "swap log": (6, 0),
        "trained once": (2, 0),
        "groups": (2, 0),
        "staleness": (64, 0),
        "weights": (0, 0),
    }


def test_the_first_offender_is_the_first_in_the_stream(tmp_path: Path) -> None:
    trajectories = [two_turns(f"s{index}").build() for index in range(4)]
    trajectories[1].rows[0].logprobs[40] = None
    trajectories[2].rows[0].token_ids[33] += 1
    report = audit(a_run(tmp_path / "run", trained=trajectories))
    assert report.first is not None
    assert (report.first.session_id, report.first.check) == ("s1", "logprobs")
    assert not report.clean


SETTLED_TWICE = """
    CREATE TABLE copy AS SELECT * FROM settlements;
    DROP TABLE settlements;
    ALTER TABLE copy RENAME TO settlements;
    INSERT INTO settlements SELECT seq + 100, session_id, group_id, outcome, step + 1, tokens FROM settlements
        WHERE session_id = 's1';
"""

TAMPERED: dict[str, tuple[str, str, str, str]] = {
    "settled twice": (SETTLED_TWICE, "trained once", "s1", "settled 2 times"),
    "trained in an eval session": (
        "UPDATE trajectories SET mode = 'eval' WHERE session_id = 's0'",
        "trained once",
        "s0",
        "trained at step 1 but of mode eval",
    ),
    "trained but not stored": (
        "UPDATE settlements SET session_id = 'ghost' WHERE session_id = 's0'",
        "trained once",
        "ghost",
        "trained at step 1 but not in the store",
    ),
    "trained at another step than its group": (
        "UPDATE settlements SET step = 2 WHERE session_id = 's0'",
        "trained once",
        "s0",
        "trained at step 2 but its group g0 is trained at step 1",
    ),
    "trained in an open group": (
        "UPDATE groups SET outcome = NULL, step = NULL WHERE group_id = 'g1'",
        "trained once",
        "s1",
        "trained at step 1 but its group g1 is open at step None",
    ),
    "more tokens trained than sampled": (
        "UPDATE settlements SET tokens = 33 WHERE session_id = 's0'",
        "trained once",
        "s0",
        "trained at step 1 with 33 tokens, its rows hold 32",
    ),
    "trained with no token": (
        "UPDATE settlements SET tokens = 0 WHERE session_id = 's0'",
        "trained once",
        "s0",
        "trained at step 1 with 0 tokens, its rows hold 32",
    ),
    "a group that was never admitted": (
        "UPDATE trajectories SET metadata = '{\"group_id\":\"g9\"}', group_id = 'g9' WHERE session_id = 's0'",
        "groups",
        "s0",
        "belongs to group g9, which was never admitted",
    ),
    "forgotten in a trained group": (
        "DELETE FROM settlements WHERE session_id = 's0'",
        "groups",
        "s0",
        "has no settlement though its group g0 is trained at step 1",
    ),
    "open though the run has ended": (
        "UPDATE groups SET outcome = NULL, step = NULL WHERE group_id = 'g1'",
        "groups",
        "g1",
        "admitted but neither trained nor dropped though the run has ended",
    ),
    "trained too late": (
        "UPDATE settlements SET step = 3 WHERE session_id = 's0'; UPDATE groups SET step = 3 WHERE group_id = 'g0'",
        "staleness",
        "s0",
        "32 tokens trained at step 3, 0 were sampled by versions 1 to 2",
    ),
    "an id on disk": (
        "UPDATE calls SET prompt_digest = 'beef' WHERE session_id = 's1' AND position = 1",
        "identity",
        "s1",
        "the engine was given beef",
    ),
    "an engine on disk": (
        "UPDATE calls SET engine_id = 'engine-7' WHERE session_id = 's1' AND position = 1",
        "swap log",
        "s1",
        "call s1-1, tokens [0, 12): engine engine-7 is not in the swap log",
    ),
}


@pytest.mark.parametrize(("statement", "check", "offender", "detail"), TAMPERED.values(), ids=TAMPERED)
def test_tampering_is_named(tmp_path: Path, statement: str, check: str, offender: str, detail: str) -> None:
    path = a_clean_run(tmp_path / "run")
    execute(path, statement)
    report = audit(path)
    assert not report.clean
    assert any(name == offender and detail in text for name, text in details(report, check)), details(report, check)


def test_a_damaged_blob_is_a_finding_and_not_a_pass(tmp_path: Path) -> None:
    path = a_clean_run(tmp_path / "run")
    execute(path, "UPDATE calls SET token_ids = x'00' WHERE session_id = 's1' AND position = 0")
    report = audit(path)
    assert details(report, "stored") == [
        ("", "stored trajectory 's1' is damaged: unknown array tag b'\\x00'"),
    ]
    assert results(report)["trained once"] == (0, 0)
    assert next(r for r in report.results if r.name == "trained once").notes == [
        "not checked: a trajectory could not be read"
    ]


def test_open_groups_of_a_stopped_run_are_counted_and_pass(tmp_path: Path) -> None:
    path = a_run(tmp_path / "run", trained=[two_turns().build()], ended="interrupted")
    store = SqlStore.at(path / "trajectories.db")
    store.admit("late", task(), 1)
    store.close()
    report = audit(path)
    assert report.clean
    assert next(r for r in report.results if r.name == "groups").notes == ["1 open: the run was stopped or goes on"]
    assert details(audit(path, complete=True), "groups") == [
        ("late", "admitted but neither trained nor dropped though the run has ended")
    ]


def test_dropped_groups_need_no_trajectory(tmp_path: Path) -> None:
    path = a_clean_run(tmp_path / "run")
    store = SqlStore.at(path / "trajectories.db")
    store.admit("dead", task(), 1)
    store.settle("dead", "too_few_rewards", 2, [Settlement(session_id="gone", outcome="too_few_rewards", step=2)])
    store.close()
    assert audit(path).clean


@pytest.mark.parametrize(("max_lag", "clean"), [(0, False), (1, True)])
def test_staleness_counts_the_tokens_within_the_bound(tmp_path: Path, max_lag: int, clean: bool) -> None:
    """Trained at step 2, from version 1: all 6 tokens have lag 0 or 1; within K=0 there are only 4."""
    path = a_run(
        tmp_path / "run",
        trained=[TrajectoryBuilder("s0").call([1, 2], 6, versions=[(0, 2), (1, 4)]).build()],
        swaps=[boot(), SwapRecord(engine_id="engine-0", version=1, mode="keep", started_at=100.1, finished_at=100.2)],
        max_lag=max_lag,
    )
    execute(path, "UPDATE settlements SET step = 2; UPDATE groups SET step = 2")
    report = audit(path)
    assert report.clean is clean
    if not clean:
        assert details(report, "staleness") == [("s0", "6 tokens trained at step 2, 4 were sampled by versions 1 to 1")]


def test_a_version_from_the_future_of_its_step_is_stale(tmp_path: Path) -> None:
    """Step 1 trains from version 0; a token of version 1 cannot be in its batch."""
    swaps = [boot(), SwapRecord(engine_id="engine-0", version=1, mode="keep", started_at=1.0, finished_at=2.0)]
    trajectory = TrajectoryBuilder("s0").call([1, 2], 6, versions=[(1, 6)]).build()
    report = audit(a_run(tmp_path / "run", trained=[trajectory], swaps=swaps))
    assert details(report, "staleness") == [("s0", "6 tokens trained at step 1, 0 were sampled by versions 0 to 0")]


def test_without_a_bound_staleness_says_that_it_checked_nothing(tmp_path: Path) -> None:
    report = audit(a_run(tmp_path / "run", trained=[two_turns().build()], max_lag=None))
    assert results(report)["staleness"] == (0, 0)
    assert next(r for r in report.results if r.name == "staleness").notes == ["config.json names no staleness.max_lag"]


def test_trajectories_and_calls_of_several_versions_are_counted(tmp_path: Path) -> None:
    between = TrajectoryBuilder("s0").call([1], 2).call([2], 2, versions=[(1, 2)]).build()
    within = TrajectoryBuilder("s1").call([1], 4, versions=[(0, 2), (1, 2)]).build()
    swaps = [boot(), SwapRecord(engine_id="engine-0", version=1, mode="keep", started_at=100.0, finished_at=100.6)]
    report = audit(a_run(tmp_path / "run", trained=[between, within, two_turns("s2").build()], swaps=swaps))
    assert (report.trajectories, report.multi_version_trajectories, report.multi_version_calls) == (3, 2, 1)


def test_findings_are_all_counted_and_some_kept(tmp_path: Path) -> None:
    trajectories = [two_turns(f"s{index:02}").build() for index in range(25)]
    for trajectory in trajectories:
        trajectory.rows[0].logprobs[40] = None
    report = audit(a_run(tmp_path / "run", trained=trajectories))
    assert results(report)["logprobs"][1] == 25
    assert len(details(report, "logprobs")) == 20


# ---- the command ----


@pytest.fixture
def command() -> Callable:
    app = typer.Typer()
    app.command()(audit_command)
    return lambda *arguments: CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_the_command_prints_a_table_and_passes(tmp_path: Path, command: Callable) -> None:
    result = command(a_clean_run(tmp_path / "run"))
    assert result.exit_code == 0, result.output
    for words in ("identity", "sampled tokens", "nothing to check", "3 trajectories, 0 of them", "clean"):
        assert words in result.output


def test_the_command_names_the_first_offender_and_fails(tmp_path: Path, command: Callable) -> None:
    trajectory = two_turns("s0").build()
    trajectory.rows[0].token_ids[33] = 349
    trajectory.calls[0].token_ids[2] = 348
    result = command(a_run(tmp_path / "run", trained=[trajectory]))
    assert result.exit_code == 1
    expected = (
        "first offender (identity): s0: row 0 trains tokens [31, 51), "
        "but at index 33 it has 349 where call s0-0 sampled 348\n"
    )
    assert expected in result.output


def test_the_command_speaks_json(tmp_path: Path, command: Callable) -> None:
    path = a_clean_run(tmp_path / "run")
    execute(path, TAMPERED["settled twice"][0])
    result = command(path, "--json")
    report = json.loads(result.stdout)
    assert result.exit_code == 1
    assert report["clean"] is False
    assert report["first"] == {"check": "trained once", "session_id": "s1", "detail": "settled 2 times"}
    assert {check["name"]: check["findings"] for check in report["results"]}["trained once"] == 2


def test_a_run_without_trajectories_is_not_called_clean(tmp_path: Path, command: Callable) -> None:
    result = command(a_run(tmp_path / "run"))
    assert result.exit_code == 0
    assert "no finding, and no trajectory to find one in" in result.output
    ended = command(a_run(tmp_path / "ended", ended="done"))
    assert ended.exit_code == 1
    assert "the run has ended and stored no trajectory" in ended.output


@pytest.mark.parametrize(
    ("prepare", "named"),
    [
        (lambda path: None, "is not a directory; give the directory of a run"),
        (lambda path: path.mkdir(), "is not a run directory: it has no trajectories.db"),
        (lambda path: (path.mkdir(), (path / "config.json").write_text("{")), "config.json cannot be read"),
        (lambda path: (path.mkdir(), (path / "config.json").write_text('{"a": ' + "[" * 10**5)), "cannot be read: max"),
    ],
    ids=["nothing there", "empty", "broken config", "deep config"],
)
def test_what_is_not_a_run_directory_is_a_configuration_error(
    tmp_path: Path, command: Callable, prepare: Callable, named: str
) -> None:
    """`agentrl.cli.main` ends a ConfigError with status 2."""
    prepare(tmp_path / "run")
    result = command(tmp_path / "run")
    assert isinstance(result.exception, ConfigError)
    assert named in str(result.exception)


def test_the_store_may_be_elsewhere(tmp_path: Path) -> None:
    path = a_clean_run(tmp_path / "run")
    (path / "trajectories.db").rename(tmp_path / "elsewhere.db")
    (path / "config.json").write_text(json.dumps({"store_url": f"sqlite:///{tmp_path}/elsewhere.db"}))
    assert audit(path).trajectories == 3


@pytest.mark.parametrize("model", ["a" * 5000, "\0", "", "/nowhere", 5])
def test_an_initial_model_that_is_not_here_leaves_its_weights_out(tmp_path: Path, model: object) -> None:
    run = a_clean_run(tmp_path / "run")
    (run / "config.json").write_text(json.dumps({"model": model}))
    assert StoredRun.open(run).weights == {}
