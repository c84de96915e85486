"""A trainer in plain PyTorch with nothing of ours in it: loops over rows and tokens, formulas as they are published.

One process, one row at a time, no packing, no chunks, transformers' own attention. `Plain` names the objective.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import exp

from agentrl.types import TrainRow


@dataclass(frozen=True)
class Plain:
    """An objective, in the words of `[trainer]`."""

    loss: str = "ppo_clip"
    old: str = "behaviour"
    low: float = 0.2
    high: float = 0.2
    dual: float = 3.0
    correction: tuple[str, str, float, float] | None = None  # level, mode, low, high
    kl: tuple[str, float] | None = None  # estimator, coefficient
    entropy: float = 0.0
    mean: str = "token_mean"
    length: int = 1


def plain_step(
    model: Any, optimizer: Any, rows: Sequence[TrainRow], parts: Sequence[Sequence[int]], plain: Plain, reference: Any
) -> list[tuple[float, float]]:
    """Update `model` once on each of `parts` (indices of rows): its loss, its gradient's norm before clipping to 1."""
    with torch.no_grad():
        began = [forward(model, row)[0] for row in rows]
        target = [forward(reference, row)[0] for row in rows]
    done = []
    for part in parts:
        loss = sum(
            row_loss(model, rows[at], began[at], target[at], plain) / shares(rows, part, at, plain) for at in part
        )
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        done.append((loss.item(), norm.item()))
    return done


def shares(rows: Sequence[TrainRow], part: Sequence[int], at: int, plain: Plain) -> float:
    """What the sum over a row's tokens is divided by."""
    tokens = [sum(rows[index].loss_mask) for index in part]
    count = sum(n > 0 for n in tokens)
    by = {"token_mean": sum(tokens), "sequence_mean": count * sum(rows[at].loss_mask), "constant": count * plain.length}
    return by[plain.mean] or 1.0


def forward(model: Any, row: TrainRow) -> tuple[torch.Tensor, torch.Tensor]:
    """Logprob and entropy of every token but the first."""
    ids = torch.tensor([row.token_ids])
    all_logprobs = torch.log_softmax(model(input_ids=ids).logits[0, :-1].float() / row.temperature, -1)
    return all_logprobs.gather(-1, ids[0, 1:, None])[:, 0], -(all_logprobs.exp() * all_logprobs).sum(-1)


def row_loss(model: Any, row: TrainRow, began: torch.Tensor, target: torch.Tensor, plain: Plain) -> Any:
    """The sum over the row's trained tokens. began, target: logprobs where the step began, and of the reference."""
    logprobs, entropy = forward(model, row)
    trained = [at for at, on in enumerate(row.loss_mask) if on]
    behaviour = torch.tensor(row.logprobs[1:])
    old = behaviour if plain.old == "behaviour" else began
    whole = exp(sum((logprobs[t - 1] - old[t - 1] for t in trained), torch.zeros(())) / max(1, len(trained)))
    total: Any = logprobs.sum() * 0
    for t in trained:
        at, calls = t - 1, row.calls or [0] * len(row.token_ids)
        peers = [p for p in trained if calls[p] == calls[t]]
        term = token_loss(plain, logprobs[at], old[at], began[at], behaviour[at], row.advantages[t], whole)
        if plain.correction:
            units = {"token": [t], "call": peers, "sequence": trained, "geometric": trained}
            level, mode, low, high = plain.correction
            gap = sum(float(began[p - 1] - behaviour[p - 1]) for p in units[level])
            ratio = 2.718281828459045 ** (gap / len(trained) if level == "geometric" else gap)
            inside = low <= ratio <= high
            by = {"mask": inside, "weighted_mask": ratio * inside, "truncate": min(ratio, high)}
            term = term * by.get(mode, max(low, min(ratio, high)))
        if plain.kl:
            gap = logprobs[at] - target[at]
            term = term + plain.kl[1] * {"k1": gap, "k2": gap**2 / 2, "k3": exp(-gap) - 1 + gap}[plain.kl[0]]
        total = total + term - plain.entropy * entropy[at]
    return total


def token_loss(plain: Plain, now: Any, old: Any, began: Any, behaviour: Any, advantage: float, whole: Any) -> Any:
    """One token's policy loss; `whole` is the row's geometric mean ratio."""

    def clipped(ratio: Any) -> Any:
        return min(max(ratio, 1 - plain.low), 1 + plain.high)

    def surrogate(ratio: Any) -> Any:
        return -min(ratio * advantage, clipped(ratio) * advantage)

    if plain.loss == "ppo_clip":
        return surrogate(exp(now - old))
    if plain.loss == "dual_clip":
        return surrogate(exp(now - old)) if advantage >= 0 else min(surrogate(exp(now - old)), -plain.dual * advantage)
    if plain.loss == "gspo":  # the sequence's own surrogate, an equal part of it at each of its tokens
        return surrogate(whole)
    if plain.loss == "cispo":
        return -float(clipped(exp(now.detach() - old))) * advantage * now
    if plain.loss == "decoupled_ppo":
        return float(exp(began - behaviour)) * surrogate(exp(now - began))
    assert plain.loss == "reinforce"
    return -advantage * now
