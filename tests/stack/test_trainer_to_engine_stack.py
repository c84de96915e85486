"""The trainer's own weights in the real engine: after each swap both compute the same logprobs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
from trainer_builders import row
from trainer_process import TrainerProcess
from vllm_session import Sample, VllmEngine

from agentrl.engine.client import HttpEngineClient
from agentrl.engine.control import EngineControl
from agentrl.errors import SwapError
from agentrl.types import Batch, Sampling, SwapMode, WeightGroup

pytestmark = pytest.mark.stack

PROMPT = [1, *range(40, 90)]
SAMPLING = Sampling(temperature=0.7, max_tokens=32)
TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def trainer(vllm_engine: VllmEngine) -> Iterator[TrainerProcess]:
    process = TrainerProcess(vllm_engine.model)
    yield process
    process.stop()


@pytest.fixture
async def client(vllm_engine: VllmEngine) -> AsyncIterator[HttpEngineClient]:
    client = HttpEngineClient(vllm_engine.url)
    yield client
    await client.close()
    await vllm_engine.swap(vllm_engine.initial(), "recompute")


def published(trainer: TrainerProcess, engine: VllmEngine, *, changed_only: bool = False) -> list[WeightGroup]:
    version, directory = engine.version + 1, str(engine.weights_dir)
    groups = range(len(trainer.call("weight_plan", changed_only)))
    return [trainer.call("write_weights", version, index, directory, changed_only) for index in groups]


def train(trainer: TrainerProcess, engine: VllmEngine) -> None:
    trainer.call("step", Batch(version=engine.version, rows=[row(24, seed=1), row(30, seed=2)]))


def gap(sample: Sample, trainer: TrainerProcess) -> float:
    """The largest difference between what the engine recorded and what the trainer finds."""
    found = trainer.logprobs(sample.prompt_ids, sample.token_ids, temperature=0.7)
    return max(abs(a - b) for a, b in zip(sample.logprobs, found, strict=True))


@pytest.mark.parametrize("mode", ["keep", "recompute", "drain"])
async def test_after_a_step_and_a_swap_engine_and_trainer_agree(
    vllm_engine: VllmEngine, trainer: TrainerProcess, client: HttpEngineClient, mode: SwapMode
) -> None:
    """Case 14 with them: at temperature 0.7 both mean the distribution that was sampled from."""
    before = await vllm_engine.sample(client, PROMPT, SAMPLING)
    train(trainer, vllm_engine)
    await vllm_engine.swap({}, mode, published(trainer, vllm_engine))
    assert await client.version() == vllm_engine.version
    assert gap(await vllm_engine.sample(client, PROMPT, SAMPLING), trainer) < TOLERANCE
    assert gap(before, trainer) > 100 * TOLERANCE, "the step changed the policy"


async def test_a_new_trainer_updates_the_engine_that_a_killed_one_left(
    vllm_engine: VllmEngine, client: HttpEngineClient
) -> None:
    """Case 55: killed after an update, and again in the middle of one, which is never served."""
    first = TrainerProcess(vllm_engine.model)
    train(first, vllm_engine)
    await vllm_engine.swap({}, "recompute", published(first, vllm_engine))
    train(first, vllm_engine)
    half = published(first, vllm_engine)[:1]
    first.process.kill()
    control = EngineControl(vllm_engine.url)
    await control.pause(mode="keep", clear_cache=True)
    await control.start_weight_update()
    await control.update_weights(half[0])
    assert await control.version() == vllm_engine.version
    await control.close()  # the driver is gone too: nobody ends the update
    second = TrainerProcess(vllm_engine.model)
    await vllm_engine.swap({}, "recompute", published(second, vllm_engine))
    sample = await vllm_engine.sample(client, PROMPT, SAMPLING)
    assert {span.version for span in sample.versions} == {vllm_engine.version}
    assert gap(sample, second) < TOLERANCE
    second.stop()


async def test_merged_adapters_arrive_and_what_is_frozen_is_sent_once(
    vllm_engine: VllmEngine, client: HttpEngineClient
) -> None:
    """Case 75 with an engine. What stays away must have come from the same trainer, or the version is incomplete."""
    lora = {"rank": 4, "alpha": 16.0, "publish": "merged"}
    trainer = TrainerProcess(vllm_engine.model, lora=lora, learning_rate=3e-2)
    before = await vllm_engine.sample(client, PROMPT, SAMPLING)
    with pytest.raises(SwapError, match=r"leaves out .*embed_tokens.*, which this trainer never sent"):
        await vllm_engine.swap({}, "recompute", published(trainer, vllm_engine, changed_only=True))
    for changed_only in (False, True):
        train(trainer, vllm_engine)
        await vllm_engine.swap({}, "recompute", published(trainer, vllm_engine, changed_only=changed_only))
        sample = await vllm_engine.sample(client, PROMPT, SAMPLING)
        assert gap(sample, trainer) < TOLERANCE
        assert gap(before, trainer) > 100 * TOLERANCE
        before = sample
    trainer.stop()
