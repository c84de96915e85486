"""One version into many engines: what is asked of each, and what becomes of one that fails."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentrl.engine.config import EngineTimeouts
from agentrl.engine.control import EngineControl
from agentrl.engine.scripted import HANG, ScriptedEngine
from agentrl.engine.swap import WeightSwap
from agentrl.errors import EngineUnavailable, SwapError
from agentrl.types import SwapMode, SwapRecord, WeightGroup

CALLS = ("pause", "start_weight_update", "update_weights", "finish_weight_update", "weight_info", "resume")


def group(index: int, count: int, *, version: int = 1) -> WeightGroup:
    return WeightGroup(
        version=version,
        index=index,
        count=count,
        path=f"/dev/shm/group-{index}",
        digest=f"{index:032x}",
        names=(f"tensor-{index}",),
        num_bytes=8,
    )


@asynccontextmanager
async def fleet(size: int, timeouts: EngineTimeouts | None = None) -> AsyncIterator[tuple[list, list]]:
    """Engines that expect tensor-0 and tensor-1, and their controls, called a, b, c…"""
    async with AsyncExitStack() as stack:
        names = frozenset({"tensor-0", "tensor-1"})
        engines, controls = [], []
        for number in range(size):
            engine = await stack.enter_async_context(ScriptedEngine(lambda *_: [1], expected_names=names))
            control = EngineControl(engine.url, engine_id=chr(ord("a") + number), timeouts=timeouts)
            stack.push_async_callback(control.close)
            engines.append(engine)
            controls.append(control)
        yield engines, controls


async def run_swap(
    controls: Sequence[EngineControl], *, version: int = 1, mode: SwapMode = "recompute", groups: int = 2
) -> WeightSwap:
    async with WeightSwap(controls, version, mode) as swap:
        for index in range(groups):
            await swap.load(group(index, groups, version=version))
    return swap


@pytest.mark.parametrize(
    ("mode", "pause"),
    [
        ("keep", "pause?mode=keep&clear_cache=false"),
        ("recompute", "pause?mode=keep&clear_cache=true"),
        ("drain", "pause?mode=wait&clear_cache=true"),
    ],
)
async def test_each_mode_pauses_in_its_way_and_the_calls_come_in_order(mode: SwapMode, pause: str) -> None:
    async with fleet(1) as ([engine], controls):
        await run_swap(controls, mode=mode)
        assert engine.control_calls == [
            pause,
            "start_weight_update",
            "update_weights",
            "update_weights",
            "finish_weight_update",
            "weight_info",
            "resume",
        ]


async def test_a_swap_leaves_every_engine_serving_the_version_and_one_record_each() -> None:
    async with fleet(3) as (engines, controls):
        swap = await run_swap(controls, version=7, mode="keep")
        assert [(engine.version, engine.paused) for engine in engines] == [(7, None)] * 3
        assert [(record.engine_id, record.version, record.mode) for record in swap.records] == [
            ("a", 7, "keep"),
            ("b", 7, "keep"),
            ("c", 7, "keep"),
        ]
        assert all(record.started_at <= record.finished_at for record in swap.records)
        assert len({record.digest for record in swap.records}) == 1
        assert swap.failures == {}
        assert {part for part in swap.seconds if "." not in part} == {"pause", "load", "finish", "resume"}
        assert min(swap.seconds.values()) > 0


async def test_a_group_is_sent_whole_as_the_trainer_described_it() -> None:
    async with fleet(1) as ([engine], controls):
        await run_swap(controls)
        assert engine.updates[0] == {
            "version": 1,
            "index": 0,
            "count": 2,
            "path": "/dev/shm/group-0",
            "digest": "0" * 32,
            "names": ["tensor-0"],
            "num_bytes": 8,
            "kind": "tensors",
            "source": "",
            "kept": [],
            "seconds": {},
        }


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("status", [500, HANG])
async def test_one_engine_that_fails_anywhere_is_left_paused_and_the_others_go_on(call: str, status: int) -> None:
    timeouts = EngineTimeouts(swap_s=0.3, probe_s=0.3)
    async with fleet(3, timeouts) as (engines, controls):
        engines[1].refuse_swap[call] = status
        swap = await run_swap(controls, version=2)
        assert [record.engine_id for record in swap.records] == ["a", "c"]
        assert list(swap.failures) == ["b"]
        assert "engine b did not get version 2" in str(swap.failures["b"])
        assert [(engine.version, engine.paused) for engine in (engines[0], engines[2])] == [(2, None)] * 2
        assert engines[1].paused == (None if call == "pause" else "keep")
        if call not in ("resume", "weight_info"):
            assert engines[1].version == 0


async def test_an_engine_that_dies_in_a_swap_costs_nobody_else_anything() -> None:
    async with fleet(2) as (engines, controls):
        async with WeightSwap(controls, 1, "recompute") as swap:
            await swap.load(group(0, 2))
            await engines[0].crash()
            await swap.load(group(1, 2))
        assert [record.engine_id for record in swap.records] == ["b"]
        assert "cannot be reached" in str(swap.failures["a"])
        assert engines[1].version == 1


async def test_a_missing_tensor_fails_the_swap_and_the_version_is_not_raised() -> None:
    """Case 52."""
    async with fleet(1) as ([engine], controls):
        with pytest.raises(SwapError, match=r"no engine took version 1.*missing tensors.*tensor-1"):
            await run_swap(controls, groups=1)
        assert (engine.version, engine.paused) == (0, "keep")


async def test_an_engine_that_failed_takes_a_later_whole_swap() -> None:
    """The failed update is closed on the engine's side, so that the next one can begin."""
    async with fleet(1) as ([engine], controls):
        with pytest.raises(SwapError):
            await run_swap(controls, groups=1)
        await run_swap(controls, version=2)
        assert (engine.version, engine.paused) == (2, None)


async def test_a_sender_that_raises_fails_every_engine() -> None:
    async with fleet(2) as (engines, controls):
        swap = WeightSwap(controls, 1, "recompute")
        with pytest.raises(ZeroDivisionError):
            await raising(swap)
        assert swap.records == []
        assert list(swap.failures) == ["a", "b"]
        assert [(engine.version, engine.paused) for engine in engines] == [(0, "keep")] * 2


async def raising(swap: WeightSwap) -> None:
    async with swap:
        await swap.load(group(0, 2))
        raise ZeroDivisionError


async def test_a_sender_that_is_cancelled_while_loading_fails_every_engine() -> None:
    async with fleet(1) as ([engine], controls):
        engine.refuse_swap["update_weights"] = HANG
        swap = WeightSwap(controls, 1, "recompute")
        sending = asyncio.create_task(raising(swap))
        await engine.until(lambda: "update_weights" in engine.control_calls)
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        assert swap.records == []
        assert list(swap.failures) == ["a"]


async def test_a_sender_that_is_cancelled_while_pausing_fails_every_engine() -> None:
    """Also the one that was paused already."""
    async with fleet(2) as (engines, controls):
        engines[0].refuse_swap["pause"] = HANG
        swap = WeightSwap(controls, 1, "recompute")
        sending = asyncio.create_task(raising(swap))
        await engines[1].until(lambda: "start_weight_update" in engines[1].control_calls)
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        assert list(swap.failures) == ["a", "b"]


async def test_no_engine_left_stops_the_sender_at_once() -> None:
    async with fleet(2) as (engines, controls):
        for engine in engines:
            engine.refuse_swap["update_weights"] = 500
        with pytest.raises(SwapError, match=r"no engine took version 1.*engine a .*engine b .*scripted refusal"):
            await run_swap(controls)
        assert [engine.updates for engine in engines] == [[], []]


async def test_no_engines_at_all_is_an_error() -> None:
    with pytest.raises(SwapError, match="there is no engine"):
        await run_swap([])


async def test_a_group_of_another_version_is_refused() -> None:
    async with fleet(1) as (_, controls):
        swap = WeightSwap(controls, 1, "keep")
        async with swap:
            with pytest.raises(SwapError, match="group of version 9 in the swap to 1"):
                await swap.load(group(0, 2, version=9))
            await swap.load(group(0, 2))
            await swap.load(group(1, 2))


async def test_the_digest_tells_other_weights_apart() -> None:
    async with fleet(1) as (_, controls):
        first = await run_swap(controls)
        async with WeightSwap(controls, 2, "keep") as second:
            await second.load(group(1, 2, version=2))
            await second.load(group(0, 2, version=2))
        assert first.records[0].digest != second.records[0].digest


@settings(max_examples=40)
@given(st.lists(st.sampled_from((None, *CALLS)), min_size=1, max_size=4))
def test_whatever_fails_where_every_engine_is_committed_or_failed_and_never_serves_half(
    failing: list[str | None],
) -> None:
    """An engine that serves (is not paused) has whole weights: the new version, or its old one untouched."""

    async def scenario() -> None:
        async with fleet(len(failing)) as (engines, controls):
            for engine, call in zip(engines, failing, strict=True):
                if call is not None:
                    engine.refuse_swap[call] = 500
            swap = WeightSwap(controls, 3, "recompute")
            try:
                async with swap:
                    for index in range(2):
                        await swap.load(group(index, 2, version=3))
            except SwapError:
                assert None not in failing
            committed = {record.engine_id for record in swap.records}
            assert committed == {c.engine_id for c, call in zip(controls, failing, strict=True) if call is None}
            assert committed | set(swap.failures) == {control.engine_id for control in controls}
            for engine, control in zip(engines, controls, strict=True):
                if control.engine_id in committed:
                    assert (engine.version, engine.paused) == (3, None)
                elif engine.paused is None:
                    assert (engine.version, engine.updates) == (0, [])

    asyncio.run(scenario())


async def test_control_calls_quote_what_the_engine_said() -> None:
    async with fleet(1) as ([engine], [control]):
        engine.refuse_swap["resume"] = 503
        with pytest.raises(SwapError, match=r"engine a/resume answered 503: .*scripted refusal"):
            await control.resume()
        assert await control.healthy()
        await engine.crash()
        assert not await control.healthy()
        with pytest.raises(EngineUnavailable, match="engine a/weight_info cannot be reached"):
            await control.version()


async def test_a_call_after_a_refusal_takes_a_new_connection() -> None:
    """As uvicorn does after an exception in the application, this server answers once on each connection."""
    answered: list[bytes] = []

    async def answer_once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answered.append((await reader.readuntil(b"\r\n\r\n")).split(b" ")[1])
        writer.write(b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 4\r\n\r\nbusy")
        await reader.read(1)  # a second request, or the client's end
        writer.close()

    server = await asyncio.start_server(answer_once, "127.0.0.1", 0)
    control = EngineControl(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", engine_id="a")
    with pytest.raises(SwapError, match="answered 500: busy"):
        await control.start_weight_update()
    assert answered == [b"/start_weight_update", b"/update_weights", b"/start_weight_update"]
    await control.close()
    server.close()


async def test_the_log_has_a_version_before_the_engine_samples_with_it() -> None:
    """A driver that dies in between leaves no token that the swap log cannot explain."""
    async with fleet(1) as ([engine], controls):
        heard = []

        def log(record: SwapRecord) -> None:
            heard.append((record.engine_id, record.version, engine.control_calls[-1]))

        async with WeightSwap(controls, 1, "recompute", log=log) as swap:
            for index in range(2):
                await swap.load(group(index, 2))
        assert heard == [("a", 1, "weight_info")]
        assert engine.control_calls[-1] == "resume"
