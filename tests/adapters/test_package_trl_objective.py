"""TRL as an oracle: its trainers' own advantages, losses and gradients, on what they sampled themselves, are ours."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from datasets import Dataset
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from trainer_builders import VOCAB, save_tiny_model
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from agentrl.plugins import load
from agentrl.types import TrainRow
from agentrl_trainers.algorithms.aggregation.denominators import denominators
from agentrl_trainers.algorithms.correction import correct
from agentrl_trainers.collate import collate
from agentrl_trainers.config import TrainerConfig
from agentrl_trainers.model import load_policy
from agentrl_trainers.objective import Objective
from agentrl_trainers.policy_loss import policy_loss, sampled_tokens
from agentrl_trainers.step_tokens import batch_tokens

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of its vLLM support, which is not used
    from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer

PROMPTS, GROUP, LENGTH, TEMPERATURE = ["w1 w2 w3", "w4 w5"], 4, 7, 0.7
REWARDS = [1.0, 0.0, 0.25, 0.0, 1.0, 1.0, 0.0, None]


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("out")


def trainer(kind: Any, config: Any, model_dir: Path, out: Path, **options: Any) -> Any:
    """One of TRL's, whose rewards are `REWARDS` in order."""
    words = {f"w{index}": index for index in range(VOCAB - 2)} | {"<pad>": VOCAB - 2, "<eos>": VOCAB - 1}
    tokenizer = Tokenizer(WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = Whitespace()
    made = kind(
        model=AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32, attn_implementation="eager"),
        reward_funcs=lambda completions, **_: REWARDS[: len(completions)],
        args=config(
            output_dir=str(out),
            per_device_train_batch_size=len(REWARDS),
            num_generations=GROUP,
            max_completion_length=LENGTH,
            temperature=TEMPERATURE,
            top_k=0,
            use_cpu=True,
            bf16=False,
            report_to="none",
            **options,
        ),
        train_dataset=Dataset.from_list([{"prompt": prompt} for prompt in PROMPTS]),
        processing_class=PreTrainedTokenizerFast(
            tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", model_input_names=["input_ids"]
        ),
    )
    made.model.train()
    return made


def sampled_by(made: Any) -> dict[str, Any]:
    torch.manual_seed(0)
    return made._generate_and_score_completions([{"prompt": prompt} for prompt in PROMPTS for _ in range(GROUP)])


def groups() -> list[list[float | None]]:
    return [REWARDS[start : start + GROUP] for start in range(0, len(REWARDS), GROUP)]


def ours(name: str) -> list[float]:
    """A missing reward has no advantage here, and one of 0 there."""
    estimate = load("agentrl.advantages", name)
    return [advantage or 0.0 for rewards in groups() for advantage in estimate(rewards)]


class TestAdvantages:
    def test_dr_grpo(self, model_dir: Path, out: Path) -> None:
        found = sampled_by(trainer(GRPOTrainer, GRPOConfig, model_dir, out, scale_rewards="none"))
        assert found["advantages"].tolist() == pytest.approx(ours("dr_grpo"), abs=1e-6)

    def test_grpo_but_for_what_it_adds_to_the_spread(self, model_dir: Path, out: Path) -> None:
        """TRL divides by std + 1e-4, the paper and we by std."""
        found = sampled_by(trainer(GRPOTrainer, GRPOConfig, model_dir, out, scale_rewards="group"))
        spread = [torch.tensor([value for value in rewards if value is not None]).std().item() for rewards in groups()]
        widened = [std / (std + 1e-4) for std in spread for _ in range(GROUP)]
        expected = [advantage * factor for advantage, factor in zip(ours("grpo"), widened, strict=True)]
        assert found["advantages"].tolist() == pytest.approx(expected, abs=1e-6)

    def test_rloo(self, model_dir: Path, out: Path) -> None:
        found = sampled_by(trainer(RLOOTrainer, RLOOConfig, model_dir, out, normalize_advantages=False, beta=0.0))
        assert found["advantages"].tolist() == pytest.approx(ours("rloo"), abs=1e-6)


class Case(NamedTuple):
    config: dict[str, Any]  # of `[trainer]`
    trl: dict[str, Any]  # attributes of its trainer; those of its arguments as "args.NAME"


PLAIN_KL = {"args.use_bias_correction_kl": False}  # else its estimator is weighted by the importance ratio as well
SEQUENCE, CONSTANT = {"name": "sequence_mean"}, {"name": "constant", "length": LENGTH}
BOUNDS = {"clip_low": 0.1, "clip_high": 0.3}
CASES = {
    "token mean": Case({}, {"loss_type": "dapo"}),
    "sequence mean": Case({"aggregation": SEQUENCE}, {"loss_type": "grpo"}),
    "constant": Case({"aggregation": CONSTANT}, {"loss_type": "dr_grpo"}),
    "asymmetric bounds": Case({"loss": BOUNDS}, {"loss_type": "bnpo", "epsilon_low": 0.1, "epsilon_high": 0.3}),
    "dual clip": Case({"loss": {"name": "dual_clip", "dual_clip": 1.25}}, {"loss_type": "dapo", "args.delta": 1.25}),
    "gspo": Case(
        {"loss": {"name": "gspo", "clip_low": 0.05, "clip_high": 0.05}, "aggregation": SEQUENCE},
        {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon_low": 0.05, "epsilon_high": 0.05},
    ),
    "cispo": Case(
        {"loss": {"name": "cispo", "clip_low": 1.0, "clip_high": 0.2}}, {"loss_type": "cispo", "epsilon_high": 1.2}
    ),
    "kl": Case({"kl": {"coefficient": 0.3}}, {"loss_type": "dapo", "beta": 0.3, **PLAIN_KL}),
    "kl and sequence mean": Case(
        {"kl": {"coefficient": 0.3}, "aggregation": SEQUENCE}, {"loss_type": "grpo", "beta": 0.3, **PLAIN_KL}
    ),
    "entropy bonus": Case(
        {"entropy_bonus": 0.2}, {"loss_type": "dapo", "_entropy_bonus_enabled": True, "entropy_coef": 0.2}
    ),
    "truncated weights beside kl": Case(
        {
            "loss": {"old_policy": "proximal"},
            "correction": {"preset": "tis", "high": 1.1},
            "kl": {"coefficient": 0.3},
        },
        {"loss_type": "dapo", "beta": 0.3, **PLAIN_KL, "use_vllm": True, "vllm_importance_sampling_correction": True},
    ),
    "masked weights of sequences": Case(
        {"loss": {"old_policy": "proximal"}, "correction": {"preset": "mis", "high": 1.5}},
        {"loss_type": "dapo", "use_vllm": True, "vllm_importance_sampling_correction": True},
    ),
}


class Known(NamedTuple):
    """`[B, LENGTH]` logprobs of what TRL sampled, near the model's: of three other policies."""

    behaviour: torch.Tensor
    proximal: torch.Tensor
    reference: torch.Tensor


@pytest.fixture(scope="module")
def grpo(model_dir: Path, out: Path) -> Any:
    made = trainer(GRPOTrainer, GRPOConfig, model_dir, out)
    made.current_gradient_accumulation_steps = 1
    return made


@pytest.fixture(scope="module")
def found(grpo: Any) -> dict[str, Any]:
    return sampled_by(grpo)


@pytest.fixture(scope="module")
def known(grpo: Any, found: dict[str, Any]) -> Known:
    ids = torch.cat([found["prompt_ids"], found["completion_ids"]], 1)
    mask = torch.cat([found["prompt_mask"], found["completion_mask"]], 1)
    with torch.no_grad():
        now, *_ = grpo._get_per_token_logps_and_entropies(grpo.model, ids, mask, LENGTH)
    noise = torch.Generator().manual_seed(1)
    return Known(*(now + 0.25 * torch.randn(now.shape, generator=noise) for _ in range(3)))


def rows_of(found: dict[str, Any], behaviour: torch.Tensor) -> list[TrainRow]:
    """TRL's padded batch as rows."""
    rows = []
    for at in range(len(REWARDS)):
        prompt = found["prompt_ids"][at][found["prompt_mask"][at].bool()].tolist()
        on = found["completion_mask"][at].bool()
        answer = found["completion_ids"][at][on].tolist()
        rows.append(
            TrainRow(
                session_id=f"s{at}",
                token_ids=prompt + answer,
                loss_mask=[0] * len(prompt) + [1] * len(answer),
                logprobs=[0.0] * len(prompt) + behaviour[at][on].tolist(),
                advantages=[0.0] * len(prompt) + [found["advantages"][at].item()] * len(answer),
                temperature=TEMPERATURE,
            )
        )
    return rows


def of_ours(
    case: Case, model_dir: Path, found: dict[str, Any], known: Known
) -> tuple[float, dict[str, torch.Tensor], torch.Tensor]:
    """Loss, gradient, and the corrections' weights `[N]`, packed into one micro-batch."""
    config = TrainerConfig.model_validate(case.config)
    model = load_policy(model_dir, logit_chunk=16)
    rows, on = rows_of(found, known.behaviour), found["completion_mask"].bool()
    tokens = batch_tokens(rows)
    tokens.vectors["proximal"] = known.proximal[on]
    if config.kl.coefficient:
        tokens.vectors["reference"] = known.reference[on]
    batch = collate(rows, packed=True, known=tokens.of_rows(range(len(rows))))
    objective = Objective.of(config)
    share = policy_loss(model, batch, denominators(rows), objective, kl_coefficient=config.kl.coefficient)
    share.loss.backward()
    gradient = {name: parameter.grad for name, parameter in model.lm.named_parameters()}
    return share.loss.item(), gradient, correct(sampled_tokens(model, batch, objective), config.correction).weight_N


def of_trl(case: Case, made: Any, found: dict[str, Any], known: Known, weight_N: torch.Tensor) -> Any:
    proximal = case.config.get("loss", {}).get("old_policy") == "proximal"
    weights = torch.ones(known.behaviour.shape).masked_scatter(found["completion_mask"].bool(), weight_N)
    inputs = {
        **found,
        "old_per_token_logps": known.proximal if proximal else known.behaviour,
        "ref_per_token_logps": known.reference,
        "importance_sampling_ratio": weights,
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"beta": 0.0, "epsilon_low": 0.2, "epsilon_high": 0.2, **case.trl}.items():
            of, attribute = (made.args, name[5:]) if name.startswith("args.") else (made, name)
            patch.setattr(of, attribute, value)
        made.model.zero_grad()
        loss = made._compute_loss(made.model, inputs)
    loss.backward()
    return loss.item(), {name: parameter.grad for name, parameter in made.model.named_parameters()}


@pytest.mark.parametrize("name", CASES)
def test_loss_and_gradient(name: str, grpo: Any, model_dir: Path, found: dict[str, Any], known: Known) -> None:
    loss, gradient, weight_N = of_ours(CASES[name], model_dir, found, known)
    expected_loss, expected = of_trl(CASES[name], grpo, found, known, weight_N)
    assert loss == pytest.approx(expected_loss, abs=1e-6)
    assert gradient.keys() == expected.keys()
    assert farthest(gradient, expected) < 1e-6
    assert max(value.abs().max().item() for value in expected.values()) > 1e-2


def farthest(gradient: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> float:
    return max((gradient[name] - expected[name]).abs().max().item() for name in expected)


def test_every_case_has_a_gradient_of_its_own(model_dir: Path, found: dict[str, Any], known: Known) -> None:
    gradients: Sequence[dict[str, torch.Tensor]] = [
        of_ours(case, model_dir, found, known)[1] for case in CASES.values()
    ]
    apart = [farthest(one, other) for at, one in enumerate(gradients) for other in gradients[:at]]
    assert min(apart) > 1e-5
