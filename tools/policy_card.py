"""The model card that the build writes beside the weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from policy_recipes import Recipe
from policy_sampling import Measurement
from policy_training import Stage

from agentrl.assets import EMBEDDED

_CARD = """# {title}

A Qwen3-type language model of {parameters:,} parameters (float32, tied embeddings) with a byte-level BPE tokenizer of
{tokens} entries, ChatML turns and Hermes `<tool_call>` blocks. {knows} It is there so that a
whole training run fits on two CPU cores without a download; it is of no use as a language model.

Built from nothing, without any downloaded data, by `{command}`
(`python tools/build_policy.py {chosen}--seed {seed} --threads {threads}`).

## Warm start

| stage | steps | batch | peak learning rate |
|---|---|---|---|
{stages}

{mixes}
Problems are those of the training split; a fifth of all is held out by hash.

## Measured at temperature 1, whole episodes

{tables}

Each figure is over {count} distinct problems.

## Tokens

`<|im_start|>`, `<|im_end|>` (end of turn) and `<|endoftext|>` (padding) are special tokens. `<tool_call>` and
`</tool_call>` are single added tokens that are not special, as in Qwen's tokenizers, so they stay in decoded text.
Digits are one token each; every byte is in the vocabulary, so every string round-trips.
"""


_OUTCOMES = """| outcome | {splits} |
|---|{rules}|
{outcomes}
| sampled tokens per episode | {sampled} |"""


def model_card(
    recipe: Recipe,
    stages: Sequence[Stage],
    measured: Mapping[str, Mapping[str, Measurement]],
    *,
    parameters: int,
    tokens: int,
    seed: int,
    threads: int,
) -> str:
    several = len(recipe.skills) > 1
    return _CARD.format(
        title=recipe.title,
        knows=recipe.knows,
        command=recipe.command,
        chosen="" if recipe.model == EMBEDDED else f"--model {recipe.model} ",
        parameters=parameters,
        tokens=tokens,
        seed=seed,
        threads=threads,
        stages="\n".join(f"| {s.name} | {s.steps} | {s.batch_size} | {s.learning_rate:g} |" for s in stages),
        mixes="\n".join(
            f"Mixed episodes{f' of {skill.name}' if several else ''} are drawn as: {_mix(skill.warm_start)}."
            for skill in recipe.skills
        ),
        tables="\n\n".join(
            (f"### {name}\n\n" if several else "") + _outcomes(splits) for name, splits in measured.items()
        ),
        count=next(iter(next(iter(measured.values())).values())).count,
    )


def _mix(mix: Mapping[str, float]) -> str:
    return ", ".join(f"{behaviour} {share:.2f}" for behaviour, share in mix.items())


def _outcomes(measured: Mapping[str, Measurement]) -> str:
    kinds = list(dict.fromkeys(kind for measurement in measured.values() for kind in measurement.outcomes))
    return _OUTCOMES.format(
        splits=" | ".join({"train": "training split", "eval": "held out"}[split] for split in measured),
        rules="|".join("---" for _ in measured),
        outcomes="\n".join(
            f"| {kind} | " + " | ".join(f"{m.outcomes.get(kind, 0.0):.3f}" for m in measured.values()) + " |"
            for kind in kinds
        ),
        sampled=" | ".join(f"{m.sampled_tokens:.1f}" for m in measured.values()),
    )
