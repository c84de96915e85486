"""One subject of the benchmark in a process of its own: `python -m bench.trainer.subject SUBJECT …` prints its figures.

packed, padded: `agentrl_trainers` as a run uses it, from the batch to the metrics. bare: a plain PyTorch loop over the
same packed micro-batches, collated before the clock starts: forward, loss, backward, clip, AdamW, nothing else.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from agentrl.types import Batch
from agentrl_trainers import packing
from agentrl_trainers.collate import MicroBatch, collate
from agentrl_trainers.config import TrainerConfig
from agentrl_trainers.model import PolicyModel, load_policy
from bench.trainer.workload import long_tailed_batch

Step = Callable[[], object]


def bare(model: PolicyModel, batch: Batch, config: TrainerConfig) -> Step:
    lengths = [len(row.token_ids) for row in batch.rows]
    plan = packing.pack(range(len(lengths)), lengths, config.micro_batch_tokens)
    micro_batches = [collate([batch.rows[index] for index in indices], packed=True) for indices in plan]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, betas=(0.9, 0.95), weight_decay=0.0)

    def step() -> None:
        for micro_batch in micro_batches:
            logprobs_N = _logprobs(model, micro_batch)
            ratio_N = torch.exp(logprobs_N - micro_batch.behaviour_N)
            bounded_N = ratio_N.clamp(0.8, 1.2) * micro_batch.advantages_N
            (-torch.minimum(ratio_N * micro_batch.advantages_N, bounded_N).sum() / batch.num_tokens).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


def _logprobs(model: PolicyModel, batch: MicroBatch) -> torch.Tensor:
    body = model.lm.base_model(
        input_ids=batch.input_ids,
        position_ids=batch.position_ids,
        use_cache=False,
        segment_lengths=batch.segment_lengths,
    )
    logits_NV = model.lm.get_output_embeddings()(body.last_hidden_state[0, batch.predictors_N])
    return torch.log_softmax(logits_NV.float(), -1).gather(-1, batch.targets_N[:, None])[:, 0]


def ours(path: Path, batch: Batch, config: TrainerConfig) -> Step:
    from agentrl_trainers.deepspeed.rank import TrainerRank

    rank = TrainerRank(0, 1, "127.0.0.1", 0, str(path), config, 1_000_000)
    rank.setup()
    return lambda: rank.step(batch)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("subject", choices=("bare", "packed", "padded"))
    parser.add_argument("model", type=Path)
    for name in ("rows", "longest", "budget", "steps", "threads"):
        parser.add_argument(f"--{name}", type=int, required=True)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    vocab = json.loads((options.model / "config.json").read_text())["vocab_size"]
    batch = long_tailed_batch(options.rows, vocab=vocab, longest=options.longest)
    config = TrainerConfig.model_validate(
        {
            "learning_rate": 1e-6,
            "packing": options.subject != "padded",
            "micro_batch_tokens": options.budget,
            "micro_batch_rows": max(1, options.budget // options.longest),
            "threads": options.threads,
            "logit_chunk_tokens": options.budget,
        }
    )
    if options.subject == "bare":
        step = bare(load_policy(options.model, logit_chunk=options.budget), batch, config)
    else:
        step = ours(options.model, batch, config)
    print(json.dumps(_measure(step, batch, options.steps)))
    return 0


def _measure(step: Step, batch: Batch, steps: int) -> dict[str, Any]:
    step()  # the first one builds what later ones have
    seconds = []
    for _ in range(steps):
        started = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - started)
    best = sorted(seconds)[math.ceil(len(seconds) / 2) - 1]
    return {
        "tokens_per_s": batch.num_tokens / best,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


if __name__ == "__main__":
    sys.exit(main())
