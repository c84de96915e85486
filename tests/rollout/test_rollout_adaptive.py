"""Episodes under way follow what the engines bear: the limit by itself, the slots that it moves, the load as read."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_rollout_gateway import solve, stack

from agentrl.engine.scripted import ScriptedEngine
from agentrl.errors import EngineUnavailable
from agentrl.rollout.adaptive import AdaptiveLimit, Load
from agentrl.rollout.concurrency import Concurrency
from agentrl.rollout.config import AdaptiveConfig, RolloutConfig
from agentrl.rollout.load import EngineLoad, parse
from agentrl.rollout.scripted import ScriptedGateway
from agentrl.rollout.slots import Slots
from agentrl.rollout.worker import RolloutWorker
from agentrl.types import Task

IDLE = Load(kv_use=0.1, running=8)
FULL = Load(kv_use=0.9, running=8)


def a_limit(maximum: int = 64, **config: Any) -> AdaptiveLimit:
    return AdaptiveLimit(AdaptiveConfig(**{"minimum": 8, "target_kv_use": 0.85, **config}), maximum)


def seen(limit: AdaptiveLimit, *loads: Load) -> list[int]:
    """Each with as many episodes under way as the limit allows."""
    return [limit.see(load, under_way=limit.limit) for load in loads]


def test_it_doubles_until_the_first_pressure_and_then_rises_by_small_steps() -> None:
    assert seen(a_limit(), IDLE, IDLE, FULL, IDLE, IDLE) == [16, 32, 24, 26, 28]  # 32 * 0.75, then 64 / 32 each


def test_it_stays_between_its_bounds() -> None:
    assert seen(a_limit(), *[IDLE] * 9)[-1] == 64
    assert seen(a_limit(), *[FULL] * 9)[-1] == 8
    assert a_limit(maximum=4).limit == 4, "concurrency is the most, whatever the minimum"


@pytest.mark.parametrize(
    "pressed",
    [Load(kv_use=0.86, running=8), Load(running=8, waiting=9), Load(running=8, preemptions=1)],
    ids=["KV cache", "more waiting than running", "a preemption"],
)
def test_pressure_takes_a_quarter_of_what_is_under_way(pressed: Load) -> None:
    limit = a_limit(minimum=32)
    limit.see(Load(running=8), under_way=20)
    assert limit.see(pressed, under_way=32) == 32
    assert a_limit(minimum=8).see(Load(kv_use=0.9, running=8), under_way=8) == 8
    grown = a_limit()
    seen(grown, Load(running=8), Load(running=8), Load(running=8))
    assert grown.see(pressed, under_way=64) == 48


def test_preemptions_of_before_and_of_an_engine_that_was_restarted_are_none_now() -> None:
    limit = a_limit()
    counts = (7, 7, 0)
    assert seen(limit, *(Load(running=8, preemptions=count) for count in counts)) == [16, 32, 64]


def test_with_requests_waiting_it_does_not_rise() -> None:
    assert seen(a_limit(), Load(running=8, waiting=1)) == [8]


def test_it_does_not_rise_when_it_keeps_nobody_waiting() -> None:
    assert a_limit().see(IDLE, under_way=7) == 8


def test_while_more_are_under_way_than_it_says_it_waits_for_the_effect() -> None:
    limit = a_limit()
    seen(limit, IDLE, IDLE, IDLE)
    assert limit.see(FULL, under_way=64) == 48
    assert limit.see(FULL, under_way=60) == 48
    assert limit.see(FULL, under_way=48) == 36


LOADS = st.builds(
    Load,
    kv_use=st.floats(0, 1),
    running=st.integers(0, 50),
    waiting=st.integers(0, 50),
    preemptions=st.integers(0, 5),
)


@given(loads=st.lists(st.tuples(LOADS, st.integers(0, 100))), minimum=st.integers(1, 20), maximum=st.integers(1, 90))
def test_whatever_the_engines_say_it_keeps_its_bounds(
    loads: list[tuple[Load, int]], minimum: int, maximum: int
) -> None:
    limit = a_limit(maximum, minimum=minimum)
    for load, under_way in loads:
        before = limit.limit
        assert min(minimum, maximum) <= limit.see(load, under_way=under_way) <= maximum
        assert limit.limit <= before or (load.kv_use <= 0.85 and load.waiting == 0 and under_way == before)


async def test_slots_are_handed_out_in_order_and_a_lower_limit_takes_none_away() -> None:
    slots, order, done = Slots(2), [], [asyncio.Event() for _ in range(4)]

    async def one(number: int) -> None:
        async with slots:
            order.append(number)
            await done[number].wait()

    running = [asyncio.create_task(one(number)) for number in range(4)]
    await asyncio.sleep(0)
    assert (order, slots.taken) == ([0, 1], 2)
    slots.limit = 1
    done[0].set()
    await asyncio.wait([running[0]])
    assert (order, slots.taken) == ([0, 1], 1)
    slots.limit = 3
    running[2].cancel()
    done[1].set()
    done[3].set()
    await asyncio.wait(running)
    assert (order, slots.taken) == ([0, 1, 3], 0)


async def test_a_slot_that_comes_with_a_cancellation_is_given_back() -> None:
    slots = Slots(1)
    async with slots:
        waiting = asyncio.create_task(slots.__aenter__())
        await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert slots.taken == 0


class Told:
    """A load that is whatever the test says; `asked` is set each time."""

    def __init__(self, load: Load | None) -> None:
        self.load = load
        self.asked = asyncio.Event()
        self.closed = False

    async def read(self) -> Load:
        self.asked.set()
        if self.load is None:
            raise EngineUnavailable("nobody tells")
        return self.load

    async def close(self) -> None:
        self.closed = True


def a_config(**adaptive: Any) -> RolloutConfig:
    return RolloutConfig(concurrency=64, adaptive=AdaptiveConfig(**{"enabled": True, "every_s": 0.001, **adaptive}))


async def test_a_load_that_cannot_be_read_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    told = Told(None)
    concurrency = Concurrency(a_config(), told)
    concurrency.start()
    for _ in range(3):
        told.asked.clear()
        await asyncio.wait_for(told.asked.wait(), 10)
    assert concurrency.stats() == {"under_way": 0, "limit": 8}
    await concurrency.close()
    assert told.closed
    assert caplog.text.count("as many episodes as before") == 1


async def test_a_worker_starts_more_episodes_as_its_engines_bear_them() -> None:
    """Nine episodes that end only together: with a minimum of two they get there by the limit's doing alone."""
    together = asyncio.Barrier(9)
    told = Told(IDLE)
    worker = RolloutWorker(
        a_config(minimum=2), "unused", "unused", gateway=ScriptedGateway(lambda messages: "x"), load=told
    )

    async def play(*_: object, **__: object) -> Any:
        await together.wait()
        return await played(*_, **__)  # type: ignore[arg-type]

    played, worker._attempts.play = worker._attempts.play, play  # type: ignore[method-assign]
    async with asyncio.timeout(30):
        group = await worker.run_group(
            "g", Task(id="t", env_id="hostile_envs:CountsSteps", options={"steps": 1}), size=9, version=0
        )
    await worker.close()
    assert len(group.episodes) == 9
    assert group.concurrency["limit"] >= 9
    assert (group.concurrency["kv_use"], group.concurrency["running"]) == (0.1, 8)


async def test_without_it_the_limit_is_the_configurations() -> None:
    concurrency = Concurrency(RolloutConfig(concurrency=3), Told(FULL))
    concurrency.start()
    assert concurrency.stats() == {"under_way": 0, "limit": 3}
    await concurrency.close()


async def test_the_load_is_read_from_the_engines_behind_the_gateway() -> None:
    async with ScriptedEngine(solve) as engine, stack(engine, RolloutConfig()) as (worker, _):
        engine.kv_use, engine.waiting, engine.preemptions = 0.25, 3, 2
        gateway: Any = worker._gateway
        source = EngineLoad(gateway.url, gateway._admin_key, None)
        assert await source.read() == Load(kv_use=0.25, running=0, waiting=3, preemptions=2)
        await source.close()


async def test_a_gateway_that_is_not_there_tells_no_load() -> None:
    source = EngineLoad("http://127.0.0.1:9", "key", None)
    with pytest.raises(EngineUnavailable, match="the gateway does not tell its engines"):
        await source.read()
    await source.close()


def test_metrics_are_read_with_and_without_labels() -> None:
    text = (
        "# HELP a:b text\n"
        'a:b{engine="0",model_name="x } y"} 0.5\n'
        'a:b{engine="1"} 1.0 1700000000\n'
        "a:b_total 9\n"
        "c 3.0\n"
        "c nothing\n"
        "c\n"
    )
    assert parse(text, ("a:b", "c", "d")) == {"a:b": [0.5, 1.0], "c": [3.0], "d": []}
