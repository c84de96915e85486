"""Weights as Ray objects, with real Ray and a real engine: the bytes of shared memory, and the same swap."""

from __future__ import annotations

import asyncio
import multiprocessing
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from trainer_builders import row
from vllm_session import VllmEngine

from agentrl.cluster.actors import TrainerActor
from agentrl.cluster.carriers import ObjectStoreCarrier, SharedMemoryCarrier, Shelf
from agentrl.cluster.handles import RayTrainer, remote
from agentrl.cluster.ray_session import actor_class, start_ray, stop_ray
from agentrl.engine.client import HttpEngineClient
from agentrl.types import Batch, Sampling
from agentrl_trainers.config import TrainerConfig

pytestmark = [pytest.mark.slow, pytest.mark.stack, pytest.mark.timeout(300)]


async def publish(model: str, shelf_dir: Path, memory_dir: Path, export: Path, version: int) -> dict[str, Any]:
    """Two ranks at ZeRO 3 make a step; the version is brought both ways, and exported."""
    config = TrainerConfig(ranks=2, zero_stage=3, learning_rate=3e-3, warmup_steps=0, weight_group_min_bytes=1 << 19)
    ranks = [
        actor_class(TrainerActor).remote(
            "deepspeed", config, rank=rank, world_size=2, model=model, total_steps=9, logs=export.parent
        )
        for rank in range(2)
    ]
    trainer = RayTrainer(ranks, carrier=SharedMemoryCarrier(memory_dir), timeout_s=120)
    await trainer.setup()
    await trainer.step(Batch(version=version - 1, rows=[row(24, seed=1), row(30, seed=2)]))
    groups = range(await trainer.num_weight_groups(changed_only=False))
    written = [await trainer.write_weight_group(version, index, changed_only=False) for index in groups]
    shelf = actor_class(Shelf).remote()

    async def shelves() -> list[Any]:
        return [shelf]

    trainer.carrier = ObjectStoreCarrier(shelf_dir, shelves, remote=remote)
    brought = [await trainer.write_weight_group(version, index, changed_only=False) for index in groups]
    extra = await trainer.write_weight_group(version + 1, 0, changed_only=False)
    there = Path(extra.path).is_file()
    await trainer.discard_weight_group(extra)
    await trainer.export(export, version)
    return {"written": written, "brought": brought, "was there": there, "is there": Path(extra.path).is_file()}


def child(answers: Any, *args: Any) -> None:
    start_ray()
    try:
        answers.put(asyncio.run(publish(*args)))
    finally:
        stop_ray()


async def test_weights_through_the_object_store_are_those_of_shared_memory(
    vllm_engine: VllmEngine, tmp_path: Path
) -> None:
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    export, version = tmp_path / "export", vllm_engine.version + 1
    arguments = (answers, str(vllm_engine.model), vllm_engine.weights_dir, tmp_path / "memory", export, version)
    process = context.Process(target=child, args=arguments)
    process.start()
    found = await asyncio.to_thread(answers.get, timeout=240)
    process.join(30)
    assert [group.digest for group in found["brought"]] == [group.digest for group in found["written"]]
    assert len(found["brought"]) > 2
    assert all({"gather", "write", "transfer"} == group.seconds.keys() for group in found["brought"])
    assert (found["was there"], found["is there"]) == (True, False)
    swap = await vllm_engine.swap({}, "recompute", found["brought"])
    assert [record.version for record in swap.records] == [version]
    client = HttpEngineClient(vllm_engine.url)
    sample = await vllm_engine.sample(client, [1, *range(40, 90)], Sampling(max_tokens=16))
    await client.close()
    expected = vllm_engine.expected_logprobs(load_file(export / "model.safetensors"), sample, 1.0)
    assert max(abs(a - b) for a, b in zip(sample.logprobs, expected, strict=True)) < 1e-4
    await vllm_engine.swap(vllm_engine.initial(), "recompute")
