"""Fixtures of the real stack. A test that takes one must be marked `stack`."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from trainer_builders import save_tiny_model
from vllm_session import VllmEngine, copy_with_hostile_generation_config

from agentrl.assets import EMBEDDED, resolve_model
from agentrl.engine.config import EngineConfig
from agentrl.engine.replica import EngineReplica


@pytest.fixture(scope="session")
def vllm_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VllmEngine]:
    """The one real engine of the session: the embedded policy, with a generation_config.json that nobody may read.

    Whoever swaps its weights puts the first ones back (`VllmEngine.initial`). It never outlives this process.
    """
    here = tmp_path_factory.mktemp("vllm")
    model = copy_with_hostile_generation_config(resolve_model(EMBEDDED), here / "model")
    weights = Path(tempfile.mkdtemp(prefix="agentrl-test-", dir="/dev/shm"))
    replica = EngineReplica(model, EngineConfig(max_num_seqs=64), logs_dir=here, weights_dir=weights)
    try:
        yield VllmEngine(replica.start(), model, weights)
    finally:
        replica.stop()
        shutil.rmtree(weights, ignore_errors=True)


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model of two layers, for a file of tests on trainer ranks."""
    return save_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """World size -> where its ranks may write."""
    return {ranks: tmp_path_factory.mktemp(f"out{ranks}") for ranks in (1, 2)}
