"""Publishers: which tensors go out, what it took, and what an engine that missed a version costs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from twins import TwinEngines, TwinSwap, TwinTrainer

from agentrl.errors import SwapError
from agentrl.store.memory import MemoryStore
from agentrl.train.publish import DirectPublisher, GroupPublisher, Publisher, ToldTrainer, TrainerWeights
from agentrl.types import Batch


def parts(tmp_path: Path) -> tuple[TwinTrainer, TwinEngines]:
    return TwinTrainer(tmp_path, groups=3), TwinEngines(MemoryStore())


@pytest.fixture(params=[GroupPublisher, DirectPublisher])
def kind(request: pytest.FixtureRequest) -> type[GroupPublisher | DirectPublisher]:
    return request.param


async def test_the_first_version_is_whole_and_later_ones_what_changed(tmp_path: Path, kind: type[Publisher]) -> None:
    trainer, engines = parts(tmp_path)
    publisher = kind(trainer=trainer, engines=engines)
    for version in (1, 2, 3):
        await publisher.publish(version)
    assert trainer.changed_only == [False, True, True]
    assert engines.version == 3


async def test_an_engine_that_missed_a_version_is_sent_all_of_the_next(tmp_path: Path, kind: type[Publisher]) -> None:
    trainer, engines = parts(tmp_path)
    publisher = kind(trainer=trainer, engines=engines)
    await publisher.publish(1)
    engines.missing = {"engine-1": SwapError("engine-1 did not get version 2")}
    await publisher.publish(2)
    engines.missing = {}
    await publisher.publish(3)
    await publisher.publish(4)
    assert trainer.changed_only == [False, True, False, True]


async def test_after_a_swap_that_failed_all_is_sent_again(
    tmp_path: Path, kind: type[Publisher], monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer, engines = parts(tmp_path)
    publisher = kind(trainer=trainer, engines=engines)
    await publisher.publish(1)

    async def refused(*_: object, **__: object) -> None:
        raise SwapError("no engine took version 2")

    with monkeypatch.context() as patch:
        patch.setattr(trainer, "write_weight_group", refused)
        patch.setattr(trainer, "send_weights", refused)
        with pytest.raises(SwapError):
            await publisher.publish(2)
    await publisher.publish(3)
    assert trainer.changed_only[-1] is False


async def test_stages_are_summed_over_the_groups_beside_the_engines_own(tmp_path: Path) -> None:
    """Three groups of 7 bytes, gathered in 0.5 s and written in 0.25 s each."""
    trainer, engines = parts(tmp_path)
    spent = await GroupPublisher(trainer=trainer, engines=engines).publish(1)
    assert spent == {"pause": 0.0, "gather": 1.5, "write": 0.75, "bytes": 21}


async def test_direct_sending_reports_its_own_stage(tmp_path: Path) -> None:
    trainer, engines = parts(tmp_path)
    assert await DirectPublisher(trainer=trainer, engines=engines).publish(1) == {
        "pause": 0.0,
        "send": 2.0,
        "bytes": 14.0,
    }
    assert engines.swaps[0].loaded == []


async def test_no_file_outlives_its_loading_whatever_happens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer, engines = parts(tmp_path)

    async def refuse(self: TwinSwap, group: object) -> None:
        raise SwapError("no engine took version 2")

    await GroupPublisher(trainer=trainer, engines=engines).publish(1)
    monkeypatch.setattr(TwinSwap, "load", refuse)
    with pytest.raises(SwapError):
        await GroupPublisher(trainer=trainer, engines=engines).publish(2)
    assert list(tmp_path.iterdir()) == []


async def test_a_version_that_all_engines_failed_is_sent_again_whole(tmp_path: Path, kind: type[Publisher]) -> None:
    trainer, engines = parts(tmp_path)
    publisher = kind(trainer=trainer, engines=engines)
    await publisher.publish(1)
    engines.failing = 2
    await publisher.publish(2)
    assert (engines.version, trainer.changed_only) == (2, [False, True, False, False])


async def test_a_version_that_no_engine_can_take_ends_the_run(tmp_path: Path, kind: type[Publisher]) -> None:
    trainer, engines = parts(tmp_path)
    engines.failing = 3
    with pytest.raises(SwapError, match="no engine took version 1"):
        await kind(trainer=trainer, engines=engines).publish(1)


async def test_an_engine_that_came_back_is_brought_to_the_newest_version(tmp_path: Path, kind: type[Any]) -> None:
    trainer, engines = parts(tmp_path)
    publisher = kind(trainer=trainer, engines=engines)
    await publisher.publish(1)
    await publisher.bring()
    assert len(engines.swaps) == 1, "nobody was behind"
    engines.behind = 1
    await publisher.bring()
    assert (engines.swaps[-1].version, trainer.changed_only) == (1, [False, False])


async def test_while_the_trainer_makes_a_version_nobody_is_brought_to_the_one_before(tmp_path: Path) -> None:
    """They take the new one, with the others."""
    trainer, engines = parts(tmp_path)
    weights = TrainerWeights()
    publisher = GroupPublisher(trainer=trainer, engines=engines, weights=weights)
    await ToldTrainer(trainer, weights).step(Batch(version=0, rows=[]))
    engines.behind = 1
    await publisher.bring()
    assert engines.swaps == []
    await publisher.publish(1)
    await publisher.bring()
    assert [swap.version for swap in engines.swaps] == [1, 1]


async def test_a_trainer_that_sends_itself_connects_anew_to_an_engine_that_came_back(tmp_path: Path) -> None:
    trainer, engines = parts(tmp_path)
    connected: list[list[str]] = []

    async def connect(urls: Sequence[str]) -> None:
        connected.append(list(urls))

    publisher = DirectPublisher(trainer=trainer, engines=engines, connect=connect, connected=["http://engine-old"])
    await publisher.publish(1)
    await publisher.publish(2)
    assert connected == [["http://engine-0"]]
    assert trainer.changed_only == [False, True]
