"""The trainer's adapter as an adapter of a real engine: both compute the same logprobs, whatever the swap mode."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from trainer_builders import row
from trainer_process import TrainerProcess
from vllm_session import Sample, VllmEngine

from agentrl.assets import EMBEDDED, resolve_model
from agentrl.digest import digest_of_weights
from agentrl.engine.client import HttpEngineClient
from agentrl.engine.config import EngineConfig
from agentrl.engine.launch import ADAPTER
from agentrl.engine.replica import EngineReplica
from agentrl.errors import EngineError, SwapError
from agentrl.types import Batch, Sampling, SwapMode, VersionSpan, WeightGroup

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]

PROMPT = [20 + i * 7 % 300 for i in range(300)]  # more than two KV blocks of 128, so that it can be cached
SAMPLING = Sampling(temperature=0.7, max_tokens=16)
TOLERANCE = 1e-4


FIRST: list[Sample] = []  # of the engine, before anything was swapped


async def sampled(engine: VllmEngine) -> Sample:
    client = HttpEngineClient(engine.url, model=ADAPTER)
    sample = await engine.sample(client, PROMPT, SAMPLING)
    await client.close()
    return sample


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmEngine]:
    """A server of its own: one that serves adapters takes no weights."""
    logs, model = tmp_path_factory.mktemp("vllm"), resolve_model(EMBEDDED)
    weights = Path(tempfile.mkdtemp(prefix="agentrl-test-", dir="/dev/shm"))
    replica = EngineReplica(model, EngineConfig(max_num_seqs=8), logs_dir=logs, weights_dir=weights, adapter_rank=4)
    try:
        started = VllmEngine(replica.start(), model, weights)
        FIRST.append(asyncio.run(sampled(started)))
        yield started
    finally:
        replica.stop()
        shutil.rmtree(weights, ignore_errors=True)


@pytest.fixture(scope="module")
def trainer(engine: VllmEngine) -> Iterator[TrainerProcess]:
    process = TrainerProcess(engine.model, lora={"rank": 4, "alpha": 16.0}, learning_rate=3e-2)
    yield process
    process.stop()


@pytest.fixture
async def client(engine: VllmEngine) -> AsyncIterator[HttpEngineClient]:
    client = HttpEngineClient(engine.url, model=ADAPTER)
    yield client
    await client.close()


def train(trainer: TrainerProcess, engine: VllmEngine) -> WeightGroup:
    trainer.call("step", Batch(version=engine.version, rows=[row(24, seed=1), row(30, seed=2)]))
    return published(trainer, engine)


def published(trainer: TrainerProcess, engine: VllmEngine) -> WeightGroup:
    assert len(trainer.call("weight_plan", True)) == 1
    return trainer.call("write_weights", engine.version + 1, 0, str(engine.weights_dir), True)


def gap(sample: Sample, trainer: TrainerProcess) -> float:
    found = trainer.logprobs(sample.prompt_ids, sample.token_ids, temperature=0.7)
    return max(abs(a - b) for a, b in zip(sample.logprobs, found, strict=True))


def test_before_the_first_swap_the_engine_serves_the_model_as_it_is(engine: VllmEngine) -> None:
    [sample] = FIRST
    assert sample.versions == [VersionSpan(0, 0, 16)]
    expected = engine.expected_logprobs(engine.initial(), sample, 0.7)
    assert max(abs(a - b) for a, b in zip(sample.logprobs, expected, strict=True)) < TOLERANCE


@pytest.mark.parametrize("mode", ["keep", "recompute", "drain"])
async def test_each_version_is_served_and_nothing_of_the_one_before(
    engine: VllmEngine, trainer: TrainerProcess, client: HttpEngineClient, mode: SwapMode
) -> None:
    """Cases 56 and 75: the prompt was cached under the version before, and the adapter's name stays the same."""
    before = await engine.sample(client, PROMPT, SAMPLING)
    await engine.swap({}, mode, [train(trainer, engine)])
    assert await client.version() == engine.version
    after = await engine.sample(client, PROMPT, SAMPLING)
    assert after.versions == [VersionSpan(engine.version, 0, 16)]
    assert gap(after, trainer) < TOLERANCE
    assert gap(before, trainer) > 100 * TOLERANCE, "the step changed the policy"


async def test_an_adapter_that_is_not_there_is_an_error_and_not_the_base(engine: VllmEngine) -> None:
    """Case 75."""
    client = HttpEngineClient(engine.url, model="another")
    with pytest.raises(EngineError, match="`another` does not exist"):
        await engine.sample(client, PROMPT, SAMPLING)
    await client.close()


def renamed(group: WeightGroup, engine: VllmEngine, old: str, new: str) -> WeightGroup:
    """The same group with other names for some of its tensors, and a digest that fits."""
    with safe_open(group.path, "pt") as file:
        metadata = file.metadata()
        tensors = {name.replace(old, new): file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    path = engine.weights_dir / "renamed.safetensors"
    save_file(tensors, path, metadata)
    return WeightGroup(
        version=group.version,
        index=0,
        count=1,
        path=str(path),
        digest=digest_of_weights(path),
        names=tuple(tensors),
        num_bytes=path.stat().st_size,
        kind="adapter",
    )


async def test_what_the_engine_has_no_place_for_fails_the_swap_and_a_right_one_heals_it(
    engine: VllmEngine, trainer: TrainerProcess, client: HttpEngineClient
) -> None:
    """Case 52 for adapters: the version is not raised."""
    version = engine.version
    wrong = renamed(train(trainer, engine), engine, "up_proj", "sideways_proj")
    with pytest.raises(SwapError, match=r"no place for an adapter on .*sideways_proj"):
        await engine.swap({}, "recompute", [wrong])
    assert await client.version() == version
    await engine.swap({}, "recompute", [published(trainer, engine)])
    assert gap(await engine.sample(client, PROMPT, SAMPLING), trainer) < TOLERANCE


async def test_weights_are_refused_and_so_is_a_version_without_an_adapter(
    engine: VllmEngine, trainer: TrainerProcess, client: HttpEngineClient
) -> None:
    weights = engine.groups({"model.norm.weight": torch.ones(128)}, engine.version + 1, count=1)
    with pytest.raises(SwapError, match=r"started for weights of kind .{1,3}adapter"):
        await engine.swap({}, "recompute", weights)
    with pytest.raises(SwapError, match="incomplete: no adapter"):
        await engine.swap({}, "recompute", [])
    await engine.swap({}, "recompute", [train(trainer, engine)])
    assert gap(await engine.sample(client, PROMPT, SAMPLING), trainer) < TOLERANCE
