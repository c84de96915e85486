"""The trainer's own weights in the real engine: after each swap both compute the same logprobs."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
from trainer_builders import row
from vllm_session import VllmEngine

from agentrl.engine.client import HttpEngineClient
from agentrl.types import Batch, Sampling, SwapMode, TrainRow, WeightGroup
from agentrl_trainers.config import TrainerConfig

pytestmark = pytest.mark.stack

PROMPT = [1, *range(40, 90)]
TOLERANCE = 1e-4


def serve(connection: Connection, model: str) -> None:
    """A lone ZeRO-3 rank, in a process of its own as in a run, that does what it is told."""
    from agentrl_trainers.deepspeed.rank import TrainerRank

    config = TrainerConfig(zero_stage=3, zero3_keep_below=0, learning_rate=3e-3, warmup_steps=0, decay="constant")
    rank = TrainerRank(0, 1, "127.0.0.1", 0, model, config, 100)
    rank.setup()
    while (order := connection.recv()) is not None:
        method, arguments = order
        connection.send(getattr(rank, method)(*arguments))
    rank.shutdown()


class TrainerProcess:
    def __init__(self, model: Path) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, other = context.Pipe()
        self.process = context.Process(target=serve, args=(other, str(model)), daemon=True)
        self.process.start()

    def call(self, method: str, *arguments: object) -> Any:
        self._connection.send((method, arguments))
        assert self._connection.poll(120), f"the trainer gave no answer to {method}"
        return self._connection.recv()

    def stop(self) -> None:
        self._connection.send(None)
        self.process.join(10)
        self.process.kill()


@pytest.fixture(scope="module")
def trainer(vllm_engine: VllmEngine) -> Iterator[TrainerProcess]:
    process = TrainerProcess(vllm_engine.model)
    yield process
    process.stop()


@pytest.fixture
async def client(vllm_engine: VllmEngine) -> Any:
    client = HttpEngineClient(vllm_engine.url)
    yield client
    await client.close()
    await vllm_engine.swap(vllm_engine.initial(), "recompute")


def published(trainer: TrainerProcess, engine: VllmEngine) -> list[WeightGroup]:
    groups = range(len(trainer.call("weight_plan")))
    return [trainer.call("write_weights", engine.version + 1, index, str(engine.weights_dir)) for index in groups]


@pytest.mark.parametrize("mode", ["keep", "recompute", "drain"])
async def test_after_a_step_and_a_swap_engine_and_trainer_agree(
    vllm_engine: VllmEngine, trainer: TrainerProcess, client: HttpEngineClient, mode: SwapMode
) -> None:
    """Case 14 with them: at temperature 0.7 both mean the distribution that was sampled from."""
    sampling = Sampling(temperature=0.7, max_tokens=32)
    before = await vllm_engine.sample(client, PROMPT, sampling)
    trainer.call("step", Batch(version=vllm_engine.version, rows=[row(24, seed=1), row(30, seed=2)]))
    await vllm_engine.swap({}, mode, published(trainer, vllm_engine))
    assert await client.version() == vllm_engine.version
    sample = await vllm_engine.sample(client, PROMPT, sampling)
    after, old = logprobs(trainer, sample.prompt_ids, sample.token_ids), before.logprobs
    assert max(abs(a - b) for a, b in zip(sample.logprobs, after, strict=True)) < TOLERANCE
    moved = logprobs(trainer, before.prompt_ids, before.token_ids)
    assert max(abs(a - b) for a, b in zip(old, moved, strict=True)) > 100 * TOLERANCE, "the step changed the policy"


def logprobs(trainer: TrainerProcess, prompt_ids: list[int], token_ids: list[int]) -> list[float]:
    """[S], the trainer's, of the sampled tokens."""
    ids = prompt_ids + token_ids
    zeros = [0.0] * len(ids)
    one = TrainRow(
        session_id="s", token_ids=ids, loss_mask=[0] * len(ids), logprobs=zeros, advantages=zeros, temperature=0.7
    )
    [found] = trainer.call("logprobs", [one])
    return found[len(prompt_ids) - 1 :]
