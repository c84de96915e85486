"""Objectives in the words of `[trainer]` and of the plain trainer, and rows on which they all differ."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from plain_trainer import Plain
from trainer_builders import row

from agentrl.types import Batch, TrainRow

STAGES = (0, 1, 2, 3)


@dataclass(frozen=True)
class Case:
    """The same objective in both trainers' words; `config` has what `[trainer]` calls it."""

    config: dict[str, Any]
    plain: Plain
    stages: tuple[int, ...] = STAGES
    updates: dict[str, int] = field(default_factory=dict)  # mini_batches, epochs


def corrected(level: str, mode: str, low: float, high: float, *stages: int) -> Case:
    correction = {"level": level, "mode": mode, "low": low, "high": high}
    loss = {"old_policy": "behaviour" if mode == "mask" else "proximal"}
    plain = Plain(old=loss["old_policy"], correction=(level, mode, low, high))
    return Case({"loss": loss, "correction": correction}, plain, stages)


MEANS = {"aggregation": {"name": "constant", "length": 16}}
TWICE = {"mini_batches": 2, "epochs": 2}
CASES: dict[str, Case] = {
    **{
        name: Case({"loss": {"name": name}}, Plain(name))
        for name in ("ppo_clip", "gspo", "cispo", "decoupled_ppo", "reinforce")
    },
    "dual_clip": Case({"loss": {"name": "dual_clip", "dual_clip": 1.25}}, Plain("dual_clip", dual=1.25)),
    "asymmetric bounds": Case({"loss": {"clip_low": 0.1, "clip_high": 0.4}}, Plain(low=0.1, high=0.4), (0,)),
    "token truncate": corrected("token", "truncate", 0.0, 1.1, 1),
    "token mask": corrected("token", "mask", 0.8, 1.2, 2),
    "call clip": corrected("call", "clip", 0.7, 1.4, 3),
    "sequence weighted mask": corrected("sequence", "weighted_mask", 0.5, 2.0, 0),
    "geometric mask": corrected("geometric", "mask", 0.9, 1.1, 1),
    "kl k2": Case({"kl": {"coefficient": 0.3, "estimator": "k2"}}, Plain(kl=("k2", 0.3)), (2,)),
    "kl k3": Case({"kl": {"coefficient": 0.3}}, Plain(kl=("k3", 0.3)), (3,)),
    "entropy bonus": Case({"entropy_bonus": 0.2}, Plain(entropy=0.2), (0, 3)),
    "gspo with sequence mean": Case(
        {"loss": {"name": "gspo"}, "aggregation": {"name": "sequence_mean"}}, Plain("gspo", mean="sequence_mean"), (1,)
    ),
    "constant": Case(MEANS, Plain(mean="constant", length=16), (2,)),
    "two mini-batches, two epochs": Case({}, Plain(), (0, 3), TWICE),
    "decoupled, two mini-batches, two epochs": Case(
        {"loss": {"name": "decoupled_ppo"}, "entropy_bonus": 0.01, "kl": {"coefficient": 0.1}},
        Plain("decoupled_ppo", entropy=0.01, kl=("k3", 0.1)),
        (1, 2),
        TWICE,
    ),
    "proximal, truncated, constant, two mini-batches": Case(
        {
            "loss": {"old_policy": "proximal"},
            "correction": {"preset": "tis", "high": 1.1},
            **MEANS,
        },
        Plain(old="proximal", correction=("token", "truncate", 0.0, 1.1), mean="constant", length=16),
        (0,),
        {"mini_batches": 2},
    ),
}


def batch_near(logprobs_of: Callable[[TrainRow], list[float]]) -> Batch:
    """Nine rows of one to fourteen trained tokens, one of none; two calls each, two sessions of two rows.

    Behaviour logprobs are near those that `logprobs_of` gives for tokens 1.., so that ratios fall on both sides of the
    bounds.
    """
    rng = random.Random(3)
    rows: list[TrainRow] = []
    for seed, length in enumerate((23, 5, 11, 17, 8, 4, 13, 3, 6)):
        trained = [] if seed == 8 else [at for at in range(1, length) if rng.random() < 0.6] or [length - 1]
        one = row(length, seed=seed, trained=trained, advantage=rng.gauss(0, 1), temperature=(1.0, 0.5)[seed % 2])
        one.session_id = f"s{seed // 2}" if seed < 4 else f"s{seed}"
        one.calls = [int(at > length // 2) if on else 0 for at, on in enumerate(one.loss_mask)]
        known = [0.0, *logprobs_of(one)]
        one.logprobs = [
            value + rng.gauss(0, 0.3) if on else 0.0 for value, on in zip(known, one.loss_mask, strict=True)
        ]
        rows.append(one)
    return Batch(version=0, rows=rows)
