"""What one publication costs beside a plain copy of the same bytes into shared memory.

`python -m bench.trainer.publish MODEL` prints the figures of one model: every group gathered, written, and removed
again, as in a run, where the engines read it in between.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from agentrl.assets import EMBEDDED, resolve_model
from bench.trainer.child import figures_of

ROUNDS = 7
GROUP_BYTES = 64 << 20
LARGE = {"hidden_size": 768, "intermediate_size": 2304, "num_hidden_layers": 12, "vocab_size": 16_000}
"""104 M parameters, 0.4 GiB in float32."""


def publish_ratio(folder: Path) -> dict[str, Any]:
    """`publish_ratio`: of the 104 M model, a copy's seconds over a publication's; medians, and those of both models."""
    found = {
        "tiny": figures_of("bench.trainer.publish", str(resolve_model(EMBEDDED))),
        "104M": figures_of("bench.trainer.publish", str(_random_model(folder / "large"))),
    }
    return {**found["104M"], "models": found}


def _random_model(path: Path) -> Path:
    torch.manual_seed(0)
    config = Qwen3Config(**LARGE, num_attention_heads=12, num_key_value_heads=12, head_dim=64, tie_word_embeddings=True)
    Qwen3ForCausalLM(config).save_pretrained(path)
    return path


def measure(model: Path) -> dict[str, Any]:
    from agentrl_trainers.config import TrainerConfig
    from agentrl_trainers.deepspeed.rank import TrainerRank

    config = TrainerConfig.model_validate({"weight_group_min_bytes": GROUP_BYTES})
    rank = TrainerRank(0, 1, "127.0.0.1", 0, str(model), config, 1)
    rank.setup()
    with tempfile.TemporaryDirectory(prefix="agentrl-bench-", dir="/dev/shm") as folder:
        published = [_publish(rank, version, folder) for version in range(ROUNDS + 1)][1:]  # the first one warms up
        sizes = [group.num_bytes for group in rank.weight_plan()]
        copied = [_copy(sizes, Path(folder) / "copy") for _ in range(ROUNDS + 1)][1:]
    rank.shutdown()
    seconds = {stage: median(one[stage] for one in published) for stage in published[0]}
    copy_s = median(copied)
    return {
        "publish_ratio": copy_s / seconds["total"],
        "seconds": seconds["total"],
        "stages": seconds,
        "copy_seconds": copy_s,
        "bytes": sum(sizes),
        "groups": len(sizes),
    }


def _publish(rank: Any, version: int, folder: str) -> dict[str, float]:
    stages = {"gather": 0.0, "write": 0.0}
    started = time.perf_counter()
    for index in range(len(rank.weight_plan())):
        group = rank.write_weights(version, index, folder)
        Path(group.path).unlink()
        stages = {stage: seconds + group.seconds[stage] for stage, seconds in stages.items()}
    return {"total": time.perf_counter() - started, **stages}


def _copy(sizes: list[int], path: Path) -> float:
    """Seconds to write as many bytes, in as many files."""
    held = [bytearray(b"\x01") * size for size in sizes]
    started = time.perf_counter()
    for data in held:
        with path.open("wb") as file:
            file.write(data)
        path.unlink()
    return time.perf_counter() - started


if __name__ == "__main__":
    print(json.dumps(measure(Path(sys.argv[1]))))
