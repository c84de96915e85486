"""Episodes that a failure ended are played again, in a new session, by policy; what the policy did itself never is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from test_rollout_gateway import solve, stack, tasks

from agentrl.engine.scripted import ScriptedEngine
from agentrl.errors import EngineUnavailable
from agentrl.rollout.config import RolloutConfig
from agentrl.rollout.scripted import ScriptedGateway
from agentrl.rollout.worker import RolloutWorker
from agentrl.types import Task


def a_task(**options: Any) -> Task:
    return Task(id="t", env_id="hostile_envs:Hostile", options=options)


def a_worker(policy: Any = lambda messages: "x", **settings: Any) -> tuple[RolloutWorker, ScriptedGateway]:
    gateway = ScriptedGateway(policy)
    return RolloutWorker(RolloutConfig(**settings), "unused", "unused", gateway=gateway), gateway


async def test_a_crashed_episode_is_played_again_in_a_new_session_and_both_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTRL_TEST_CRASHED", str(tmp_path / "mark"))
    worker, gateway = a_worker(isolation="process")
    group = await worker.run_group("g", a_task(how="crash_once"), size=1, version=3)
    await worker.close()
    (episode,), (failed,) = group.episodes, group.retried
    assert (episode.stop_reason, episode.reward, failed.stop_reason, failed.reward) == ("done", 1.0, "env_crash", None)
    assert [(session.id, session.stop_reason) for session in gateway.sessions] == [
        (failed.session_id, "env_crash"),
        (episode.session_id, "done"),
    ]
    assert gateway.sessions[1].request.metadata == {"group_id": "g", "index": 0, "attempt": 1}
    assert "exit status 9" in (failed.error or "")


async def test_the_budget_ends_and_the_last_failure_is_the_episodes() -> None:
    worker, gateway = a_worker(episode_retries=2)
    group = await worker.run_group("g", a_task(how="raise_one"), size=2, version=0)
    assert [episode.stop_reason for episode in group.episodes] == ["env_error", "env_error"]
    assert [episode.stop_reason for episode in group.retried] == ["env_error"] * 4
    assert len(gateway.sessions) == 6
    assert all(session.final_reward is None for session in gateway.sessions)


async def test_a_failure_of_the_engines_is_played_again_too() -> None:
    failures = iter([EngineUnavailable("none is there")])

    def policy(messages: Any) -> str:
        for failure in failures:
            raise failure
        return "x"

    worker, _ = a_worker(policy)
    group = await worker.run_group("g", a_task(), size=1, version=0)
    assert [episode.stop_reason for episode in (*group.retried, *group.episodes)] == ["policy_error", "done"]


@pytest.mark.parametrize("settings", [{"episode_retries": 0}, {"retry_on": ["env_timeout"]}])
async def test_what_the_run_does_not_want_again_is_played_once(settings: dict[str, Any]) -> None:
    worker, gateway = a_worker(**settings)
    group = await worker.run_group("g", a_task(how="raise_one"), size=1, version=0)
    assert (group.episodes[0].stop_reason, group.retried, len(gateway.sessions)) == ("env_error", [], 1)


async def test_an_end_by_the_policys_own_doing_is_final() -> None:
    worker, gateway = a_worker(max_turns=1)
    task = Task(id="t", env_id="hostile_envs:CountsSteps", options={"steps": 2})
    group = await worker.run_group("g", task, size=1, version=0)
    assert (group.episodes[0].stop_reason, len(gateway.sessions)) == ("max_turns", 1)
    for reason in ("done", "max_turns", "cancelled"):
        with pytest.raises(ValueError, match="retry_on"):
            RolloutConfig.model_validate({"retry_on": [reason]})


async def test_an_evaluation_plays_again_as_well() -> None:
    worker, gateway = a_worker()
    (episode,) = await worker.run_episodes([a_task(how="raise_one")])
    assert (episode.stop_reason, len(gateway.sessions)) == ("env_error", 2)


async def test_both_attempts_are_in_the_store_with_what_they_sampled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Case 58, from scratch: nothing of the first attempt is in the second.

    The real gateway and a scripted engine: one call before the crash, two in the attempt that solves the task.
    """
    monkeypatch.setenv("AGENTRL_TEST_CRASHED", str(tmp_path / "mark"))
    task = msgspec.structs.replace(tasks(1)[0], env_id="hostile_envs:CrashingCalculator")
    async with ScriptedEngine(solve) as engine, stack(engine, RolloutConfig()) as (worker, store):
        group = await worker.run_group("g", task, size=1, version=0)
        failed, solved = (store.get(episode.session_id) for episode in (*group.retried, *group.episodes))
        assert (failed.stop_reason, failed.reward, failed.components) == ("env_crash", None, {"env": None})
        assert (solved.stop_reason, solved.reward) == ("done", 1.0)
        assert [len(trajectory.calls) for trajectory in (failed, solved)] == [1, 2]
        assert {trajectory.session_id for trajectory in store.iterate(group_id="g")} == {
            failed.session_id,
            solved.session_id,
        }
