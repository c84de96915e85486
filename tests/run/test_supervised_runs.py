"""examples/08_supervised for real, shortened: each run file trains, its export is used, a Ctrl-C leaves nothing."""

from __future__ import annotations

import json
import math
import re
import signal
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from command import ROOT, Command, agentrl

from agentrl.gateway.render import Renderer
from agentrl.reward.protocol import Item
from agentrl.train.supervised.items import scored_pairs
from agentrl_rewards.model.service import RewardModel
from agentrl_trainers.collate import collate
from agentrl_trainers.value_model import load_value_model

pytestmark = [pytest.mark.stack, pytest.mark.timeout(600)]

DATA = ROOT / "examples" / "08_supervised"


def example(kind: str, cwd: Path, data: str, *settings: str) -> dict[str, Any]:
    """The summary of a run of the example."""
    sets = [part for setting in (f"data.train={DATA / data}", *settings) for part in ("--set", setting)]
    status, output = agentrl("train", str(DATA / f"{kind}.toml"), *sets, cwd=cwd, timeout=300)
    assert status == 0, output
    found: dict[str, Any] = json.loads((cwd / "runs" / kind / "summary.json").read_text())
    assert (found["kind"], found["ended"], found["skipped_steps"]) == (kind, "done", 0)
    return found


def test_transcripts_are_learned_on_two_ranks(tmp_path: Path) -> None:
    found = example("sft", tmp_path, "transcripts.jsonl", "loop.epochs=2", "trainer.ranks=2", "trainer.zero_stage=1")
    assert (found["items"], found["held_out_items"], found["steps"]) == (128, 32, 8)
    assert found["held_out_end"]["loss"] < 0.6 * found["held_out_start"]["loss"]
    config = json.loads((tmp_path / "runs/sft/checkpoints/v8/config.json").read_text())
    assert config["architectures"] == ["Qwen3ForCausalLM"]
    lines = [json.loads(line) for line in (tmp_path / "runs/sft/metrics.jsonl").read_text().splitlines()]
    assert [line["kind"] for line in lines] == ["evaluation", *["step"] * 8, "evaluation"]


async def test_a_reward_model_ranks_held_out_pairs_and_serves_the_scores_it_was_trained_to_give(tmp_path: Path) -> None:
    found = example("reward_model", tmp_path, "pairs.jsonl", "loop.epochs=3", "data.eval_fraction=0.3")
    assert found["held_out_start"]["accuracy"] == 0.0  # a new head scores all alike
    assert found["held_out_end"]["accuracy"] > 0.9
    directory = tmp_path / "runs/reward_model/checkpoints" / f"v{found['steps']}"
    lines = [json.loads(line) for line in (DATA / "pairs.jsonl").read_text().splitlines()[:6]]
    sides = [(line, side) for line in lines for side in ("chosen", "rejected")]
    items = [Item(id=f"{at}", messages=[*line["messages"], *line[side]]) for at, (line, side) in enumerate(sides)]
    service = RewardModel(path=str(directory))
    served = [score.reward for score in await service.score(items)]
    await service.close()
    assert served == pytest.approx(trainers_scores(directory, len(items)), abs=1e-4)
    assert sum(served[at] > served[at + 1] for at in range(0, len(served), 2)) >= 5


def trainers_scores(directory: Path, count: int) -> list[float]:
    """Of the first rows of the pairs, as a trainer rank encodes and passes them, all in one pack."""
    items = scored_pairs(DATA / "pairs.jsonl", Renderer.load(directory))
    batch = collate([row for item in islice(items, count // 2) for row in item.rows], packed=True)
    model = load_value_model(directory).eval()
    with torch.no_grad():
        scores = model(batch.input_ids, batch.position_ids, batch.predictors_N + 1, batch.segment_lengths)
    return [float(score) for score in scores]


@pytest.mark.slow
def test_direct_preferences_are_learned_from_where_the_policy_began(tmp_path: Path) -> None:
    found = example("dpo", tmp_path, "pairs.jsonl", "loop.epochs=2")
    assert found["held_out_start"]["loss"] == pytest.approx(math.log(2), abs=1e-5)
    assert found["held_out_end"]["accuracy"] > 0.9
    assert found["held_out_end"]["margin"] > 0.5


def test_an_interrupted_run_leaves_its_summary_and_no_process(tmp_path: Path) -> None:
    settings = ["--set", f"data.train={DATA / 'transcripts.jsonl'}", "--set", "loop.epochs=500"]
    run = Command("train", str(DATA / "sft.toml"), *settings, cwd=tmp_path)
    run.read_until("step   2/")
    run.signal(signal.SIGINT)
    assert run.wait(timeout=60) == 130
    assert re.search(r"interrupted after step \d+ of 2000", run.output)
    assert run.left_behind() == []
    assert json.loads((tmp_path / "runs/sft/summary.json").read_text())["ended"] == "interrupted"
