"""The batch and the models that the trainer is measured on."""

from __future__ import annotations

import random
from pathlib import Path

from agentrl.assets import EMBEDDED, resolve_model
from agentrl.types import Batch, TrainRow

TINY = "tiny"
SMALL = "small"


def model_path(name: str, folder: Path) -> Path:
    """The embedded policy (0.8 M parameters), or a random model of the same kind with 12 M, made in `folder`."""
    if name == TINY:
        return resolve_model(EMBEDDED)
    path = folder / name
    if not path.exists():
        import torch
        from transformers import Qwen3Config, Qwen3ForCausalLM

        torch.manual_seed(0)
        config = Qwen3Config(
            vocab_size=4096,
            hidden_size=384,
            intermediate_size=1024,
            num_hidden_layers=6,
            num_attention_heads=6,
            num_key_value_heads=2,
            head_dim=64,
            max_position_embeddings=4096,
            tie_word_embeddings=True,
        )
        Qwen3ForCausalLM(config).save_pretrained(path)
        (path / "tokenizer.json").write_text("{}")
    return path


def long_tailed_batch(rows: int, *, vocab: int, longest: int, seed: int = 0) -> Batch:
    """Log-normal lengths (median 80, sigma 0.9) up to `longest`; the last three quarters of each are sampled."""
    rng = random.Random(seed)
    made = []
    for number in range(rows):
        length = min(longest, max(8, int(rng.lognormvariate(4.4, 0.9))))
        prompt = max(1, length // 4)
        mask = [0] * prompt + [1] * (length - prompt)
        made.append(
            TrainRow(
                session_id=f"s{number}",
                token_ids=[rng.randrange(vocab) for _ in range(length)],
                loss_mask=mask,
                logprobs=[-6.0 * on for on in mask],
                advantages=[rng.gauss(0.0, 1.0) * on for on in mask],
                on_policy=mask,
            )
        )
    return Batch(version=0, rows=made)
