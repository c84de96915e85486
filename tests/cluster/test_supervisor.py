"""Parts that die: told to whoever counts on them, started again within a budget, written down."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from agentrl.cluster.supervisor import Supervisor
from agentrl.errors import EngineError, RunError, first_error
from agentrl.observe.faults import FaultRecord
from agentrl.supervision import SupervisionConfig

QUICK = SupervisionConfig(
    max_restarts=3, window_s=600.0, backoff_s=0.001, backoff_max_s=0.001, probe_every_s=0.001, probe_failures=3
)


class TwinPart:
    """`running` and `answers` are what a look at it finds; `refusals` restarts fail before one succeeds."""

    def __init__(self, name: str = "engine-0", *, refusals: int = 0) -> None:
        self.name, self.log = name, Path(f"logs/{name}.log")
        self.running = self.answers = True
        self.refusals = refusals
        self.did: list[str] = []
        self.back = asyncio.Event()

    async def probe(self) -> tuple[bool, bool]:
        return self.running, self.running and self.answers

    async def lost(self) -> None:
        self.did.append("lost")

    async def restart(self) -> None:
        self.did.append("restart")
        if self.refusals:
            self.refusals -= 1
            raise EngineError("out of memory")
        self.running = self.answers = True
        self.back.set()


class Watched:
    def __init__(self, *parts: TwinPart, policy: SupervisionConfig = QUICK) -> None:
        self.faults: list[FaultRecord] = []
        self.said: list[str] = []
        self.over = asyncio.Event()
        self.supervisor = Supervisor(policy, parts, faulted=self._faulted, say=self.said.append)

    def _faulted(self, fault: FaultRecord) -> None:
        self.faults.append(fault)
        self.over.set()


@asynccontextmanager
async def watching(*parts: TwinPart, policy: SupervisionConfig = QUICK) -> AsyncIterator[Watched]:
    watched = Watched(*parts, policy=policy)
    task = asyncio.create_task(watched.supervisor.run())
    try:
        yield watched
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def gives_up(*parts: TwinPart, policy: SupervisionConfig = QUICK) -> tuple[Exception, Watched]:
    watched = Watched(*parts, policy=policy)
    with pytest.raises(BaseExceptionGroup) as caught:
        await watched.supervisor.run()
    error = first_error(caught.value)
    assert isinstance(error, RunError)
    return error, watched


async def test_a_part_that_died_is_told_then_started_again_and_written_down():
    part, other = TwinPart(), TwinPart("gateway")
    part.running = False
    async with watching(part, other) as watched:
        await watched.over.wait()
    [fault] = watched.faults
    assert (fault.part, fault.what, fault.restarts) == ("engine-0", "died", 1)
    assert fault.detected_s >= 0
    assert fault.recovered_s is not None
    assert part.did == ["lost", "restart"]
    assert other.did == []
    assert watched.said[0] == "engine-0 died; it is started again"
    assert watched.said[1].startswith("engine-0 is back after")


async def test_a_part_that_hangs_is_given_some_looks_first():
    part = TwinPart()
    part.answers = False
    async with watching(part) as watched:
        await watched.over.wait()
    assert watched.faults[0].what == "did not answer 3 health checks in a row"


async def test_a_part_that_others_report_is_not_looked_at_first():
    part = TwinPart()
    async with watching(part, policy=QUICK.model_copy(update={"probe_every_s": 600.0})) as watched:
        await asyncio.sleep(0)
        watched.supervisor.report("engine-0", "failed a swap: it hangs")
        await watched.over.wait()
        assert part.did == ["lost", "restart"]
    assert watched.faults[0].what == "failed a swap: it hangs"


async def test_what_is_reported_while_it_is_being_started_again_is_the_same_fault():
    part = TwinPart()
    async with watching(part, policy=QUICK.model_copy(update={"probe_every_s": 600.0})) as watched:
        await asyncio.sleep(0)
        for _ in range(3):
            watched.supervisor.report("engine-0", "died")
        await watched.over.wait()
        for _ in range(20):
            await asyncio.sleep(0)
        assert part.did == ["lost", "restart"]


async def test_a_restart_that_fails_is_tried_again_within_the_budget():
    part = TwinPart(refusals=2)
    part.running = False
    async with watching(part) as watched:
        await watched.over.wait()
    assert part.did == ["lost", "restart", "restart", "restart"]
    assert watched.faults[0].restarts == 3


async def test_past_the_budget_the_run_ends_with_the_parts_name_its_log_and_the_last_reason():
    part = TwinPart(refusals=9)
    part.running = False
    error, watched = await gives_up(part)
    assert str(error) == (
        "engine-0 did not come up again: out of memory; it was started again 3 times in 600 s already "
        "(supervision.max_restarts); see why in logs/engine-0.log"
    )
    [fault] = watched.faults
    assert (fault.what, fault.recovered_s, fault.restarts) == ("died", None, 3)


async def test_with_no_restarts_the_first_death_ends_the_run():
    part = TwinPart("gateway")
    part.running = False
    error, _ = await gives_up(part, policy=SupervisionConfig(max_restarts=0, probe_every_s=0.001))
    assert str(error) == "gateway died; see why in logs/gateway.log, then start the run again"
    assert part.did == ["lost"]


async def test_what_failed_because_of_a_dead_part_is_told_as_its_death():
    part = TwinPart("rollout-0")
    watched = Watched(part)
    await watched.supervisor.raise_for_the_dead()
    part.running = False
    with pytest.raises(RunError, match=r"rollout-0 died; see why in logs/rollout-0\.log"):
        await watched.supervisor.raise_for_the_dead()


class NeverBack(TwinPart):
    """As an engine whose node is gone."""

    async def restart(self) -> None:
        self.back.set()
        await asyncio.Event().wait()


async def test_a_part_that_is_not_back_when_the_run_ends_is_written_down_too():
    part = NeverBack()
    part.running = False
    async with watching(part) as watched:
        await part.back.wait()
        await watched.supervisor.raise_for_the_dead()  # it is waited for, so it is not why something else failed
    [fault] = watched.faults
    assert (fault.part, fault.what, fault.recovered_s, fault.restarts) == ("engine-0", "died", None, 1)
