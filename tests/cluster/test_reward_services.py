"""The reward services of a run: started with what they need, restarted when they die, gone with the run."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any, ClassVar

import httpx
import psutil
import pytest

from agentrl.cluster.reward_services import RewardServices
from agentrl.errors import first_error
from agentrl.observe.faults import FaultRecord
from agentrl.reward.client import RewardClient
from agentrl.reward.config import RewardConfig
from agentrl.reward.protocol import Item
from agentrl.reward.service import GATEWAY_KEY, GATEWAY_URL
from agentrl.supervision import SupervisionConfig

SOURCE = f'''
import asyncio, os

class Environment:
    """Says what it finds in its environment; "die" ends it."""

    def __init__(self, *, answer):
        self.answer = answer

    async def score(self, items):
        from agentrl.reward.protocol import Score
        if any(item.text == "die" for item in items):
            os._exit(3)
        if any(item.text == "hang" for item in items):
            await asyncio.Event().wait()
        right = os.environ["{GATEWAY_URL}"] == "http://gateway" and os.environ["{GATEWAY_KEY}"] == "the-key"
        return [Score(id=item.id, reward=self.answer if right else -1.0) for item in items]

    async def close(self):
        pass
'''


@pytest.fixture
def services(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RewardServices:
    (tmp_path / "mine_reward_service.py").write_text(SOURCE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    service = {"name": "mine", "start": "mine_reward_service:Environment", "options": {"answer": 0.25}}
    return services_of(service, tmp_path, SupervisionConfig(backoff_s=0.01, probe_every_s=0.05))


class Heard:
    said: ClassVar[list[str]] = []
    faults: ClassVar[list[FaultRecord]] = []


def services_of(service: dict[str, Any], logs: Path, supervision: SupervisionConfig) -> RewardServices:
    Heard.said, Heard.faults = [], []
    config = RewardConfig.model_validate({"services": [service]})
    return RewardServices(config, logs, supervision=supervision, faulted=Heard.faults.append, say=Heard.said.append)


async def test_a_service_is_started_found_restarted_and_stopped(services: RewardServices, tmp_path: Path) -> None:
    services.start("http://gateway", "the-key")
    watching = asyncio.create_task(services.watch())
    client = RewardClient(services.config.services[0], policy="retry")
    try:
        assert (await client.score([Item(id="a")]))["a"].reward == 0.25
        deadly = RewardClient(services.config.services[0].model_copy(update={"max_attempts": 1}), policy="drop")
        assert (await deadly.score([Item(id="b", text="die")]))["b"].reward is None
        await deadly.close()
        assert (await client.score([Item(id="c")]))["c"].reward == 0.25
        assert [(fault.part, fault.what, fault.restarts) for fault in Heard.faults] == [("reward-mine", "died", 1)]
        assert "the-key" not in (tmp_path / "reward-mine.log").read_text()
    finally:
        watching.cancel()
        await client.close()
        services.stop()
    assert "mine_reward_service:Environment" in Heard.said[0]
    children = [" ".join(child.cmdline()) for child in psutil.Process().children(recursive=True)]
    assert [command for command in children if "mine_reward_service" in command] == []
    async with httpx.AsyncClient() as http:
        with pytest.raises(httpx.ConnectError):
            await http.get(f"{services.config.services[0].url}/health")


async def test_a_service_that_dies_again_and_again_ends_the_run_with_its_name(tmp_path: Path) -> None:
    supervision = SupervisionConfig(max_restarts=1, backoff_s=0.01, probe_every_s=0.01)
    services = services_of({"name": "gone", "start": "no_such_module:Service"}, tmp_path, supervision)
    services.start("http://gateway", "key")
    try:
        with pytest.raises(BaseExceptionGroup) as caught:
            await asyncio.wait_for(services.watch(), 60)
    finally:
        services.stop()
    assert str(first_error(caught.value)).startswith("reward-gone died; it was started again 1 times in 900 s already")
    assert "no_such_module" in (tmp_path / "reward-gone.log").read_text()


@pytest.mark.slow
async def test_a_service_that_hangs_is_killed_and_started_again(services: RewardServices) -> None:
    services._supervision = SupervisionConfig(backoff_s=0.01, probe_every_s=0.05, probe_failures=2)
    services.start("http://gateway", "the-key")
    [one] = services._started.values()
    one._probe_timeout_s = 0.5
    client = RewardClient(services.config.services[0], policy="retry")
    watching = asyncio.create_task(services.watch())
    try:
        assert (await client.score([Item(id="a")]))["a"].reward == 0.25
        while not one._answered:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert one._process is not None
        os.kill(one._process.pid, signal.SIGSTOP)
        assert (await client.score([Item(id="b")]))["b"].reward == 0.25
        assert Heard.faults[0].what == "did not answer 2 health checks in a row"
    finally:
        watching.cancel()
        await client.close()
        await asyncio.to_thread(services.stop)


async def test_what_is_being_scored_holds_up_no_end_and_leaves_no_traceback(
    services: RewardServices, tmp_path: Path
) -> None:
    services.start("http://gateway", "the-key")
    client = RewardClient(services.config.services[0], policy="retry")
    assert (await client.score([Item(id="a")]))["a"].reward == 0.25
    hanging = asyncio.create_task(client.score([Item(id="b", text="hang")]))
    while not client._sending:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    assert (await client.score([Item(id="c")]))["c"].reward == 0.25
    processes = [one._process for one in services._started.values()]
    await asyncio.to_thread(services.stop)
    assert [process.returncode for process in processes if process is not None] == [-signal.SIGTERM], (
        "it was not killed"
    )
    assert not hanging.done(), "what had no score is waited for elsewhere"
    await client.close()
    assert (await hanging)["b"].reward is None
    assert "Traceback" not in (tmp_path / "reward-mine.log").read_text()
