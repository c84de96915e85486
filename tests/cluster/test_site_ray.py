"""Places and GPUs as Ray gives them, on one machine whose GPUs are only counted: nothing computes on one."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentrl.cluster.ray_session import actor_class
from agentrl.cluster.site import Site
from agentrl.errors import RunError
from agentrl.train.cluster_config import ClusterConfig

pytestmark = [pytest.mark.slow, pytest.mark.stack, pytest.mark.timeout(180)]


class Probe:
    def gpus(self) -> str:
        return os.environ.get("CUDA_VISIBLE_DEVICES", "")


async def seen(site: Site, *, engines: int, ranks: int) -> dict[str, list[str]]:
    """What each engine and rank may use: what Ray lets it see, or the device that it is told."""
    options = [site.engine(index) for index in range(engines)] + [site.rank(index) for index in range(ranks)]
    actors = [actor_class(Probe, **option).remote() for option in options]
    visible = await asyncio.gather(*(actor.gpus.remote() for actor in actors))
    told = [site.device(index) for index in range(ranks)]
    own = [visible[engines + index] if device is None else device for index, device in enumerate(told)]
    return {"engines": list(visible[:engines]), "ranks": own}


async def place(cluster: ClusterConfig, *, engines: int, gpus_each: int, ranks: int) -> Any:
    site = Site(cluster)
    try:
        await site.open(engines=engines, gpus_each=gpus_each, ranks=ranks, cpus_only=False)
    except RunError as error:
        return str(error)
    found = await seen(site, engines=engines, ranks=ranks)
    site.release()
    return found


def child(answers: Any, cluster: ClusterConfig, asked: dict[str, int]) -> None:
    import ray

    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
    os.environ["PYTHONPATH"] = str(Path(__file__).parent)  # workers load `Probe` from here
    ray.init(address="local", num_cpus=8, num_gpus=8, include_dashboard=False, log_to_driver=False)
    try:
        answers.put(asyncio.run(place(cluster, **asked)))
    finally:
        ray.shutdown()


@pytest.fixture
def on_ray() -> Callable[..., Any]:
    """In a process of its own, with a Ray of its own that counts 8 GPUs."""

    def run(cluster: ClusterConfig, **asked: int) -> Any:
        context = multiprocessing.get_context("spawn")
        answers = context.Queue()
        process = context.Process(target=child, args=(answers, cluster, asked))
        process.start()
        found = answers.get(timeout=120)
        process.join(30)
        return found

    return run


def test_engines_get_the_gpus_of_their_parallel_sizes_and_ranks_one_each_none_twice(on_ray: Callable[..., Any]):
    found = on_ray(ClusterConfig(), engines=2, gpus_each=2, ranks=3)
    given = [gpu for devices in (*found["engines"], *found["ranks"]) for gpu in devices.split(",")]
    assert [len(devices.split(",")) for devices in found["engines"]] == [2, 2]
    assert len(set(given)) == len(given) == 7


def test_colocated_ranks_use_the_gpus_of_their_engines(on_ray: Callable[..., Any]):
    found = on_ray(ClusterConfig(colocated=True), engines=2, gpus_each=2, ranks=4)
    assert found["ranks"] == [gpu for devices in found["engines"] for gpu in devices.split(",")]
    assert len(set(found["ranks"])) == 4


def test_what_does_not_fit_is_named_at_once_with_what_is_free(on_ray: Callable[..., Any]):
    """Case 80."""
    said = on_ray(ClusterConfig(engines="strict_pack"), engines=3, gpus_each=4, ranks=1)
    assert "no node has 12 GPU free, which engines need on one node (strict_pack)" in said
    assert "8 CPU, 8 GPU" in said
