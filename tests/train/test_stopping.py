"""A run that is asked to end does so between two steps, after a checkpoint of what it had reached."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from mortal import Fuse, Mortals

from agentrl.errors import Interrupted
from agentrl.train.stopping import Stopping
from agentrl.types import Batch


async def test_what_is_waited_for_is_cancelled_when_the_run_is_asked_to_end():
    stopping, cancelled = Stopping(), asyncio.Event()

    async def forever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    with stopping.heeded():
        waiting = asyncio.create_task(stopping.unless_asked(forever()))
        await asyncio.sleep(0)
        assert stopping.ask()
        with pytest.raises(Interrupted):
            await waiting
    assert cancelled.is_set()


async def test_what_comes_before_the_question_is_given_and_what_fails_is_raised():
    async def answer() -> int:
        return 7

    async def fails() -> None:
        raise ValueError("no")

    stopping = Stopping()
    assert await stopping.unless_asked(answer()) == 7
    with pytest.raises(ValueError, match="no"):
        await stopping.unless_asked(fails())


async def test_outside_of_the_steps_nobody_ends_by_himself():
    stopping = Stopping()
    with stopping.heeded():
        pass
    assert not stopping.ask()


async def test_asked_during_a_step_the_run_ends_it_saves_it_and_goes_on_from_there_later(tmp_path: Path):
    """Case 68. Asked in the first of three steps, with a checkpoint due after the second."""
    world = Mortals(tmp_path, steps=3)

    def ask(batch: Batch) -> None:
        assert world.stopping.ask()

    world.on_step = ask
    with pytest.raises(Interrupted):
        await world.live(Fuse())
    assert [record.step for record in world.recorder.steps] == [1]
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["v1"]
    assert list((tmp_path / "batches").iterdir()) == []
    assert [group.outcome for group in world.store.groups()] == ["trained", "trained", None, None]
    world.on_step = None
    assert await world.live(Fuse())
    [resume] = world.recorder.resumes
    assert (resume.version, resume.checkpoint, resume.replayed, resume.adopted_groups) == (1, 1, 0, 2)
    assert [record.step for record in world.recorder.steps] == [1, 2, 3]
