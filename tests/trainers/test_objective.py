"""The objective of one update against the plain trainer's loops, over every case and layout; and losses of one's own.

The model is a table of bigram logits: the next token depends on the last one alone. That costs nothing, so that every
case can be tried, and what is asked of a model is the same.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from objective_cases import CASES, batch_near
from plain_trainer import Plain, row_loss, shares
from plain_trainer import forward as plain_forward
from token_builders import sampled
from trainer_builders import VOCAB, row

from agentrl.errors import ConfigError, TrainerError
from agentrl.types import TrainRow
from agentrl_trainers.algorithms.aggregation.denominators import denominators
from agentrl_trainers.algorithms.losses.ppo_clip import ppo_clip
from agentrl_trainers.algorithms.sampled import SampledTokens, TokenLoss
from agentrl_trainers.collate import collate
from agentrl_trainers.config import TrainerConfig
from agentrl_trainers.logprobs import token_logprobs
from agentrl_trainers.objective import Objective
from agentrl_trainers.policy_loss import Share, policy_loss
from agentrl_trainers.settings.objective import BUILT_IN_LOSSES, LossConfig
from agentrl_trainers.step_tokens import StepTokens, batch_tokens


class Bigrams:
    """`table` `[vocab, vocab]` of logits, as the plain trainer and as ours call a model."""

    def __init__(self, seed: int) -> None:
        self.table = torch.randn(VOCAB, VOCAB, generator=torch.Generator().manual_seed(seed))

    def __call__(self, ids: Any = None, *rest: Any, input_ids: Any = None) -> Any:
        if input_ids is not None:
            return SimpleNamespace(logits=self.table[input_ids])
        _, predictors_N, targets_N, temperature_N, _, entropy_gradient = rest
        logits_NV = self.table[ids.flatten()[predictors_N]]
        return token_logprobs(logits_NV, targets_N, temperature_N, entropy_gradient=entropy_gradient)

    def logprobs(self, one: TrainRow) -> torch.Tensor:
        return plain_forward(self, one)[0].detach()


BEGAN, REFERENCE = Bigrams(0), Bigrams(1)
NOW = Bigrams(0)  # some way on from where the step began
NOW.table = NOW.table + 0.3 * Bigrams(2).table
ROWS = batch_near(lambda one: BEGAN.logprobs(one).tolist()).rows


def of_plain(plain: Plain, rows: Sequence[TrainRow]) -> tuple[float, torch.Tensor]:
    """The objective and its gradient by `[vocab, vocab]`, by loops over rows and tokens."""
    everything = range(len(rows))
    NOW.table = NOW.table.detach().requires_grad_()
    loss = sum(
        row_loss(NOW, one, BEGAN.logprobs(one), REFERENCE.logprobs(one), plain) / shares(rows, everything, at, plain)
        for at, one in enumerate(rows)
    )
    [gradient] = torch.autograd.grad(loss, NOW.table)
    return loss.item(), gradient


def known(rows: Sequence[TrainRow]) -> StepTokens:
    """With what the models say at trained tokens."""
    tokens = batch_tokens(rows)
    for name, model in (("proximal", BEGAN), ("reference", REFERENCE)):
        found = [model.logprobs(one)[[bool(on) for on in one.loss_mask[1:]]] for one in rows]
        tokens.vectors[name] = torch.cat(found)
    return tokens


def of_ours(
    config: Mapping[str, Any], rows: Sequence[TrainRow], plan: Sequence[Sequence[int]], *, packed: bool = True
) -> tuple[float, torch.Tensor, list[Share]]:
    """The same by the trainer's own path, micro-batch by micro-batch."""
    settings = TrainerConfig.model_validate(config)
    objective, tokens = Objective.of(settings), known(rows)
    if not settings.kl.coefficient:
        del tokens.vectors["reference"]
    NOW.table = NOW.table.detach().requires_grad_()
    found = [
        policy_loss(
            NOW,
            collate([rows[at] for at in indices], packed=packed, known=tokens.of_rows(indices)),
            denominators(rows),
            objective,
            kl_coefficient=settings.kl.coefficient,
        )
        for indices in plan
    ]
    [gradient] = torch.autograd.grad(sum(share.loss for share in found), NOW.table)
    return sum(float(share.value) for share in found), gradient, found


def same(one: tuple[float, torch.Tensor, Any], other: tuple[float, torch.Tensor, Any]) -> bool:
    """To 1e-5, as float32 sums in any order."""
    return bool(
        abs(one[0] - other[0]) <= 1e-5 * max(0.1, abs(other[0]))
        and (one[1] - other[1]).norm() <= 1e-5 * float(other[1].norm())
    )


EVERYTHING = [list(range(len(ROWS)))]


@pytest.mark.parametrize("name", CASES)
def test_value_and_gradient_are_those_of_the_loops(name: str) -> None:
    expected, gradient = of_plain(CASES[name].plain, ROWS)
    assert float(gradient.norm()) > 0.01
    ours = of_ours(CASES[name].config, ROWS, EVERYTHING)
    assert ours[0] == pytest.approx(expected, rel=1e-6, abs=1e-6)
    torch.testing.assert_close(ours[1], gradient, rtol=1e-5, atol=1e-6)


@st.composite
def combinations(draw: st.DrawFn) -> tuple[dict[str, Any], Plain]:
    """Any loss, old policy, bounds, correction, divergence, bonus and mean that go together, in both words."""
    loss, old = draw(st.sampled_from(BUILT_IN_LOSSES)), draw(st.sampled_from(["behaviour", "proximal"]))
    low, high = draw(st.floats(0.02, 0.5)), draw(st.floats(0.02, 0.5))
    # A weight of single tokens takes GSPO's sequence apart, and then there is no surrogate of it to compare with.
    levels = ["sequence", "geometric"] if loss == "gspo" else ["token", "call", "sequence", "geometric"]
    weighs = loss == "reinforce" or (old == "proximal" and loss != "decoupled_ppo")
    modes = ["mask", "weighted_mask", "clip", "truncate"] if weighs else ["mask"]
    bounds = st.tuples(st.floats(0.3, 0.95), st.floats(1.05, 3.0))
    correction = draw(st.none() | st.tuples(st.sampled_from(levels), st.sampled_from(modes), bounds))
    kl = draw(st.none() | st.tuples(st.sampled_from(["k2", "k3"]), st.floats(0.01, 0.5)))
    entropy = draw(st.sampled_from([0.0, 0.1]))
    mean = draw(st.sampled_from(["token_mean", "sequence_mean", "constant"]))
    config: dict[str, Any] = {
        "loss": {"name": loss, "old_policy": old, "clip_low": low, "clip_high": high, "dual_clip": 1.2},
        "entropy_bonus": entropy,
        "aggregation": {"name": mean, "length": 9},
    }
    plain = Plain(loss, old, low, high, 1.2, kl=kl, entropy=entropy, mean=mean, length=9)
    if correction:
        level, mode, (least, most) = correction
        config["correction"] = {"level": level, "mode": mode, "low": least, "high": most}
        plain = replace(plain, correction=(level, mode, least, most))
    if kl:
        config["kl"] = {"estimator": kl[0], "coefficient": kl[1]}
    return config, plain


@settings(max_examples=60, derandomize=True)  # a ratio that is a bound to the last bit is either side's
@given(combinations())
def test_whatever_goes_together_composes_as_in_the_loops(combination: tuple[dict[str, Any], Plain]) -> None:
    config, plain = combination
    expected, gradient = of_plain(plain, ROWS)
    ours = of_ours(config, ROWS, EVERYTHING)
    assert ours[0] == pytest.approx(expected, rel=1e-5, abs=1e-6)
    torch.testing.assert_close(ours[1], gradient, rtol=1e-4, atol=1e-6)


@st.composite
def plans(draw: st.DrawFn) -> list[list[int]]:
    """All rows in any order, cut anywhere, an empty micro-batch among them."""
    order = draw(st.permutations(range(len(ROWS))))
    cuts = sorted(draw(st.lists(st.integers(0, len(ROWS)), max_size=4)))
    ends = [0, *cuts, len(ROWS)]
    return [list(order[start:end]) for start, end in itertools.pairwise(ends)] + [[]]


@pytest.mark.parametrize("name", CASES)
@settings(max_examples=8, derandomize=True)
@given(plan=plans(), packed=st.booleans())
def test_neither_order_nor_packing_nor_cut_changes_it(name: str, plan: list[list[int]], packed: bool) -> None:
    """Invariant 10. Rows stay whole, which is what ratios over a row or a call rest on."""
    config = CASES[name].config
    assert same(of_ours(config, ROWS, plan, packed=packed), of_ours(config, ROWS, EVERYTHING))


@pytest.mark.parametrize("poison", [1e6, float("nan")])
@pytest.mark.parametrize("name", CASES)
def test_poison_at_masked_slots_changes_nothing(name: str, poison: float) -> None:
    """Case 9: behaviour logprobs, advantages, rewards and calls where the mask is 0; bit for bit, metrics too."""
    poisoned = [poisoned_row(one, poison) for one in ROWS]
    for packed in (True, False):
        clean = of_ours(CASES[name].config, ROWS, EVERYTHING, packed=packed)
        ours = of_ours(CASES[name].config, poisoned, EVERYTHING, packed=packed)
        assert torch.equal(ours[1], clean[1])
        for mine, expected in zip(ours[2], clean[2], strict=True):
            assert torch.equal(mine.value, expected.value)
            assert torch.equal(mine.sums, expected.sums)
            assert torch.equal(mine.largest, expected.largest)


def poisoned_row(one: TrainRow, poison: float) -> TrainRow:
    def at_masked(values: Sequence[float], value: float) -> list[Any]:
        return [known if on else value for known, on in zip(values, one.loss_mask, strict=True)]

    return TrainRow(
        session_id=one.session_id,
        token_ids=one.token_ids,
        loss_mask=one.loss_mask,
        logprobs=at_masked(one.logprobs, poison),
        advantages=at_masked(one.advantages, poison),
        rewards=at_masked([0.0] * len(one.token_ids), poison),
        calls=at_masked(one.calls, 7),
        temperature=one.temperature,
    )


@pytest.mark.parametrize("name", CASES)
def test_rows_of_one_trained_token_are_trained(name: str) -> None:
    """Case 48: an answer that is the end token alone."""
    rows = [
        row(4, seed=seed, trained=[3], advantage=advantage, logprobs=[-3.0] * 4)
        for seed, advantage in ((1, 1.0), (2, -0.5))
    ]
    expected, gradient = of_plain(CASES[name].plain, rows)
    ours = of_ours(CASES[name].config, rows, [[0], [1]])
    assert ours[0] == pytest.approx(expected, rel=1e-6, abs=1e-6)
    torch.testing.assert_close(ours[1], gradient, rtol=1e-5, atol=1e-6)


def test_a_row_of_nothing_trained_adds_nothing() -> None:
    """Case 48: neither to the loss nor to what it is divided by."""
    with_it = [*ROWS, row(5, seed=77, trained=[])]
    for name in ("ppo_clip", "gspo with sequence mean", "constant"):
        config = CASES[name].config
        assert same(of_ours(config, with_it, [list(range(len(with_it)))]), of_ours(config, ROWS, EVERYTHING))


def test_right_padding_is_no_token() -> None:
    """Case 11: three tokens cut by length, without an end token, beside eight: 3 and 8 count, as each alone."""
    rows = [row(5, seed=1, trained=[2, 3, 4]), row(10, seed=2, trained=list(range(2, 10)))]
    batch = collate(rows, packed=False)
    assert (batch.input_ids.shape, batch.row_N.bincount().tolist()) == ((2, 10), [3, 8])
    together = of_ours({}, rows, [[0, 1]], packed=False)
    assert same(together, of_ours({}, rows, [[0], [1]], packed=True))


def test_without_a_pass_before_the_update_the_proximal_policy_is_the_updates_own() -> None:
    """One update a step: all ratios to it are 1, so PPO is the score function, weighted by who sampled."""
    config = TrainerConfig.model_validate({"loss": {"name": "decoupled_ppo"}})
    tokens = batch_tokens(ROWS)
    NOW.table = NOW.table.detach().requires_grad_()
    batch = collate(ROWS, packed=True, known=tokens.of_rows(EVERYTHING[0]))
    share = policy_loss(NOW, batch, denominators(ROWS), Objective.of(config))
    [gradient] = torch.autograd.grad(share.loss, NOW.table)
    score = replace(CASES["reinforce"].plain)
    weighted = 0.0
    for one in ROWS:
        now = NOW.logprobs(one)
        scaled = [
            advantage * float(torch.exp(now[at - 1] - one.logprobs[at])) if on else 0.0
            for at, (advantage, on) in enumerate(zip(one.advantages, one.loss_mask, strict=True))
        ]
        weighted_row = replace_advantages(one, scaled)
        weighted = weighted + row_loss(NOW, weighted_row, now, now, score) / denominators(ROWS).tokens
    [expected] = torch.autograd.grad(weighted, NOW.table)
    torch.testing.assert_close(gradient, expected, rtol=1e-5, atol=1e-6)


def replace_advantages(one: TrainRow, advantages: list[float]) -> TrainRow:
    return TrainRow(
        session_id=one.session_id,
        token_ids=one.token_ids,
        loss_mask=one.loss_mask,
        logprobs=one.logprobs,
        advantages=advantages,
        calls=one.calls,
        temperature=one.temperature,
    )


def own(tokens: SampledTokens, config: LossConfig) -> TokenLoss:
    """A loss of one's own: PPO's, scaled by an option."""
    loss_N, clipped_N = ppo_clip(tokens, config)
    return TokenLoss(loss_N * config.options.get("scale", 1.0), clipped_N)


def averaged(tokens: SampledTokens, config: LossConfig) -> TokenLoss:
    loss_N, clipped_N = ppo_clip(tokens, config)
    return TokenLoss(loss_N.mean(), clipped_N)


def bare(tokens: SampledTokens, config: LossConfig) -> torch.Tensor:
    return -tokens.logprobs_N


def without_gradient(tokens: SampledTokens, config: LossConfig) -> TokenLoss:
    loss_N, clipped_N = ppo_clip(tokens, config)
    return TokenLoss(loss_N.detach(), clipped_N)


def not_finite(tokens: SampledTokens, config: LossConfig) -> TokenLoss:
    loss_N, clipped_N = ppo_clip(tokens, config)
    return TokenLoss(loss_N / tokens.advantages_N.clamp(min=0.0), clipped_N)


def clipped_as_number(tokens: SampledTokens, config: LossConfig) -> TokenLoss:
    loss_N, clipped_N = ppo_clip(tokens, config)
    return TokenLoss(loss_N, clipped_N.float())


HERE = str(Path(__file__).resolve())


class TestALossOfOnesOwn:
    def test_is_named_by_its_file_and_reads_its_options(self) -> None:
        config = {"loss": {"name": f"{HERE}:own", "options": {"scale": 2.0}}}
        twice, once = of_ours(config, ROWS, EVERYTHING), of_ours({}, ROWS, EVERYTHING)
        assert twice[0] == pytest.approx(2 * once[0])
        torch.testing.assert_close(twice[1], 2 * once[1])

    def test_is_found_by_ranks_that_run_elsewhere(self) -> None:
        assert LossConfig(name="losses.py:soft_clip").name == f"{Path.cwd() / 'losses.py'}:soft_clip"
        assert LossConfig(name="my_package.losses:soft_clip").name == "my_package.losses:soft_clip"

    def test_is_not_asked_about_no_tokens(self) -> None:
        """Ranks that have nothing left to train pass a filler; a mean over nothing is NaN."""
        share = of_ours({"loss": {"name": f"{HERE}:averaged"}}, ROWS, [[]])
        assert (share[0], share[1].abs().sum().item()) == (0.0, 0.0)

    @pytest.mark.parametrize(
        ("loss", "message"),
        [
            ("averaged", r"loss_N as \[\] for 47 tokens; it must be \[47\]"),
            ("bare", r"returned a Tensor; return a TokenLoss\(loss_N, clipped_N\)"),
            ("without_gradient", "loss_N without a gradient"),
            ("not_finite", r"is -?inf at \d+ of 47 tokens, the first with logprob .*, old .*, advantage -"),
            ("clipped_as_number", r"clipped_N as torch.float32; it must be torch.bool"),
        ],
    )
    def test_that_gives_what_cannot_be_trained_on_is_named(self, loss: str, message: str) -> None:
        with pytest.raises(TrainerError, match=message):
            of_ours({"loss": {"name": f"{HERE}:{loss}"}}, ROWS, EVERYTHING)

    def test_that_is_not_there_fails_when_the_file_is_read(self) -> None:
        with pytest.raises(ValueError, match=r"no agentrl.policy_losses is called 'ppo_clop'; known: cispo"):
            LossConfig(name="ppo_clop")
        with pytest.raises(ConfigError, match="there is no 'missing' in it"):
            Objective.of(TrainerConfig.model_validate({"loss": {"name": f"{HERE}:missing"}}))

    def test_only_it_has_options(self) -> None:
        with pytest.raises(ValueError, match="is read by losses of your own only, not by 'gspo'"):
            LossConfig(name="gspo", options={"scale": 2.0})


def test_a_correction_scales_the_policy_loss_alone() -> None:
    """Ratio 3 masked: neither the pull to the reference nor the entropy bonus is."""
    config = {
        "loss": {"name": "reinforce"},
        "correction": {"mode": "mask", "high": 2.0},
        "kl": {"coefficient": 0.5, "estimator": "k2"},
        "entropy_bonus": 0.1,
    }
    one = sampled([-1.0], advantages=[1.0], behaviour=[-3.0], proximal=[-1.0], reference=[-2.0], dtype=torch.float32)
    one = replace(one, entropy_N=torch.tensor([0.7]))
    parts = Objective.of(TrainerConfig.model_validate(config))(one, denominators([row(3, trained=[2])]), 0.5)
    assert parts.share.item() == pytest.approx(0.5 * 0.5 - 0.1 * 0.7)  # k2 of a gap of 1, and the bonus
    assert parts.correction.outside_N.tolist() == [True]
