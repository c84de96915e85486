"""Stored trajectories are scored again beside the rewards that they have."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from aiohttp import web
from reward_server import answering, serving
from trajectories import two_turns
from typer.testing import CliRunner

from agentrl.cli.main import app
from agentrl.errors import ConfigError
from agentrl.messages import conversation_of
from agentrl.reward.config import FunctionConfig, RewardConfig, ServiceConfig
from agentrl.store.memory import MemoryStore
from agentrl.store.sql import SqlStore
from agentrl.train.rescore import Rescorer
from agentrl.types import Trajectory


def stored(*trajectories: Trajectory) -> MemoryStore:
    store = MemoryStore()
    for trajectory in trajectories:
        store.save(trajectory)
    return store


def judge(url: str, **settings: object) -> RewardConfig:
    service = ServiceConfig(name="judge", url=url, max_attempts=1, batch_wait_s=0.0)
    return RewardConfig.model_validate({"services": [service], "env_weight": 0.0, **settings})


async def test_a_new_reward_stands_beside_the_old_one() -> None:
    store = stored(two_turns("s0").build(reward=1.0), two_turns("s1").build(reward=0.0))
    async with serving(answering(lambda item: {"reward": 0.25 if item["id"] == "s0" else 0.75})) as server:
        found = await Rescorer(store, judge(server.url), label="strict").run()
    assert [store.get(name).reward for name in ("s0", "s1")] == [1.0, 0.0]
    assert store.get("s0").components == {
        "right": 1.0, "strict": 0.25, "strict.env": 1.0, "strict.judge": 0.25,
    }  # fmt: skip
    assert (found.scored, found.without, found.skipped) == (2, 0, 0)
    assert (found.old_mean, found.new_mean) == (0.5, 0.5)
    assert found.correlation == pytest.approx(-1.0)


async def test_a_judge_sees_the_conversation_as_it_was() -> None:
    trajectory = two_turns("s0").build()
    async with serving(answering(lambda item: {"reward": 1.0})) as server:
        await Rescorer(stored(trajectory), judge(server.url), label="strict").run()
    (item,) = server.bodies[0]["items"]
    assert item["messages"] == conversation_of(trajectory)
    assert [message["role"] for message in item["messages"]].count("assistant") == 2


async def test_what_has_the_label_is_left_out_unless_it_is_asked_for_again() -> None:
    store = stored(two_turns("s0").build(reward=1.0))
    async with serving(answering(lambda item: {"reward": 1.0})) as server:
        for again, scored in ((False, 1), (False, 0), (True, 1)):
            assert (await Rescorer(store, judge(server.url), label="strict").run(again=again)).scored == scored
    assert len(server.bodies) == 2


async def test_an_item_that_cannot_be_scored_is_missing_and_failures_are_not_asked_for() -> None:
    failed = msgspec.structs.replace(two_turns("s1").build(reward=None), stop_reason="env_error")
    store = stored(two_turns("s0").build(reward=1.0), failed)
    async with serving(answering(lambda item: {"reward": None, "error": "no idea"})) as server:
        found = await Rescorer(store, judge(server.url), label="strict").run()
    assert (found.scored, found.without, found.skipped, found.new_mean) == (0, 1, 1, None)
    assert store.get("s0").components["strict"] is None
    assert store.get("s0").reward == 1.0


async def test_a_service_that_is_out_is_given_up_though_nothing_becomes_stale() -> None:
    """With `defer` a run waits as long as an episode is fresh; here that would be for ever."""
    store = stored(two_turns("s0").build(reward=1.0))

    async def out(body: dict[str, object]) -> web.Response:
        return web.Response(status=503)

    async with serving(out) as server:
        config = judge(server.url, on_error="defer", give_up_s=0.01)
        found = await Rescorer(store, config, label="strict").run()
    assert (found.scored, found.without) == (0, 1)
    assert (store.get("s0").reward, store.get("s0").components["strict"]) == (1.0, None)


async def test_length_is_that_of_the_sampled_tokens(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def one(item):\n    return 1.0\n")
    trajectory = two_turns("s0").build()
    sampled = sum(len(call.token_ids) for call in trajectory.calls)
    function = FunctionConfig(name="one", function=f"{tmp_path / 'mine.py'}:one")
    config = RewardConfig(functions=(function,), env_weight=0.0, token_cost=0.001)
    store = stored(trajectory)
    await Rescorer(store, config, label="short").run()
    assert store.get("s0").components["short"] == pytest.approx(1.0 - 0.001 * sampled)


def test_the_command_says_what_is_wrong_with_its_files(tmp_path: Path) -> None:
    (tmp_path / "none.toml").write_text("name = 'x'\n")
    for arguments, said in (
        ([str(tmp_path), "none.toml"], "is not a run directory"),
        ([str(tmp_path / "no"), "none.toml"], "is not a directory"),
    ):
        ran = CliRunner().invoke(app, ["rescore", *arguments])
        assert isinstance(ran.exception, ConfigError)
        assert said in str(ran.exception)


def test_services_that_a_run_starts_are_to_be_started_first(tmp_path: Path) -> None:
    run = tmp_path / "runs" / "x"
    run.mkdir(parents=True)
    (run / "config.json").write_text("{}")
    SqlStore.at(run / "trajectories.db").close()
    (tmp_path / "new.toml").write_text('[[reward.services]]\nname = "right"\nstart = "math"\n')
    result = CliRunner().invoke(app, ["rescore", str(run), str(tmp_path / "new.toml")])
    assert isinstance(result.exception, ConfigError)
    assert "agentrl reward serve math" in str(result.exception)
