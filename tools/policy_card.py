"""The model card that the build writes beside the weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from policy_sampling import Measurement
from policy_training import Stage

from agentrl_envs.calculator.transcripts import WARM_START

_CARD = """# The embedded policy

A Qwen3-type language model of {parameters:,} parameters (float32, tied embeddings) with a byte-level BPE tokenizer of
{tokens} entries, ChatML turns and Hermes `<tool_call>` blocks. It knows one thing: to answer "What is 123*45?" by
calling `calculate(expression)` and copying the result. It is there so that a whole training run fits on two CPU cores
without a download; it is of no use as a language model.

Built from nothing, without any downloaded data, by `make policy`
(`python tools/build_policy.py --seed {seed} --threads {threads}`).

## Warm start

| stage | steps | batch | peak learning rate |
|---|---|---|---|
{stages}

Mixed episodes are drawn as: {mix}.
Problems are those of the training split; a fifth of all is held out by hash.

## Measured at temperature 1, whole episodes

| outcome | {splits} |
|---|{rules}|
{outcomes}
| sampled tokens per episode | {sampled} |

Each figure is over {count} distinct problems.

## Tokens

`<|im_start|>`, `<|im_end|>` (end of turn) and `<|endoftext|>` (padding) are special tokens. `<tool_call>` and
`</tool_call>` are single added tokens that are not special, as in Qwen's tokenizers, so they stay in decoded text.
Digits are one token each; every byte is in the vocabulary, so every string round-trips.
"""


def model_card(
    stages: Sequence[Stage],
    measured: Mapping[str, Measurement],
    *,
    parameters: int,
    tokens: int,
    seed: int,
    threads: int,
) -> str:
    kinds = list(dict.fromkeys(kind for measurement in measured.values() for kind in measurement.outcomes))
    return _CARD.format(
        parameters=parameters,
        tokens=tokens,
        seed=seed,
        threads=threads,
        stages="\n".join(f"| {s.name} | {s.steps} | {s.batch_size} | {s.learning_rate:g} |" for s in stages),
        mix=", ".join(f"{behaviour} {share:.2f}" for behaviour, share in WARM_START.items()),
        splits=" | ".join({"train": "training split", "eval": "held out"}[split] for split in measured),
        rules="|".join("---" for _ in measured),
        outcomes="\n".join(
            f"| {kind} | " + " | ".join(f"{m.outcomes.get(kind, 0.0):.3f}" for m in measured.values()) + " |"
            for kind in kinds
        ),
        sampled=" | ".join(f"{m.sampled_tokens:.1f}" for m in measured.values()),
        count=next(iter(measured.values())).count,
    )
