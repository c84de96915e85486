"""A whole run that trains an adapter and sends it through Ray's object store; its audit is clean."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command import ROOT, agentrl

pytestmark = [pytest.mark.stack, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.parametrize(
    ("publish", "transfer", "most_bytes"),
    [("adapter", "object_store", 400_000), ("merged", "shared_memory", 3_300_000)],
)
def test_adapters_train_are_served_and_pass_the_audit(
    tmp_path: Path, publish: str, transfer: str, most_bytes: int
) -> None:
    """Rank 8 of the embedded policy is 0.3 MB, its weights without what is frozen are 3.1 of 3.4 MB."""
    status, output = agentrl(
        *("train", str(ROOT / "examples/01_calculator/run.toml"), "--set", "name=adapted", "--set", "loop.steps=3"),
        *("--set", "trainer.lora.rank=8", "--set", f"trainer.lora.publish={publish}"),
        *("--set", "trainer.learning_rate=5e-3", "--set", f"engine.weight_transfer={transfer}"),
        *("--set", "loop.groups_per_step=4", "--set", "evaluation.tasks=16"),
        cwd=tmp_path,
        timeout=400,
    )
    assert status == 0, output
    run = tmp_path / "runs" / "adapted"
    steps = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    swaps = [step["swap"] for step in steps if step["kind"] == "step"]
    assert len(swaps) == 3
    stages = {"pause", "load", "finish", "resume", "gather", "write", "bytes"}
    assert set(swaps[-1]) == stages | ({"transfer"} if transfer == "object_store" else set())
    assert 0 < swaps[-1]["bytes"] < most_bytes
    status, output = agentrl("audit", "runs/adapted", cwd=tmp_path)
    assert status == 0, output
    assert "clean" in output
