"""Our losses of SFT, reward models and DPO against TRL's own trainers, loss and gradient, on one batch of the example.

Needs `trl` and `datasets` beside the lock: `pip install --target FOLDER trl datasets`, then
`PYTHONPATH=FOLDER python tools/trl_losses.py`. Exit status 1 when something differs by more than 2e-6, relative.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer, PreTrainedModel
from trl import DPOConfig, DPOTrainer, RewardConfig, RewardTrainer, SFTConfig, SFTTrainer

from agentrl.assets import EMBEDDED, resolve_model
from agentrl.types import TrainRow
from agentrl_trainers.algorithms.aggregation.denominators import denominators
from agentrl_trainers.collate import collate
from agentrl_trainers.model import load_policy
from agentrl_trainers.policy_loss import forward
from agentrl_trainers.settings.objective import AggregationConfig
from agentrl_trainers.supervised.config import DpoConfig
from agentrl_trainers.supervised.objectives import DirectPreference, Imitation, Preference, SupervisedObjective
from agentrl_trainers.value_model import load_value_model

ROOT = Path(__file__).parent.parent
MODEL = resolve_model(EMBEDDED)
TOLERANCE = 2e-6
BETA = 0.3


def main() -> int:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        differences = [compare(Path(folder)) for compare in (sft, reward_model, dpo)]
    return int(max(differences) > TOLERANCE)


def pairs() -> list[dict[str, Any]]:
    lines = (ROOT / "examples" / "08_supervised" / "pairs.jsonl").read_text().splitlines()[:4]
    return [
        {
            "prompt": json.loads(line)["messages"],
            "chosen": [{"role": "assistant", "content": f"answer {number}"}],
            "rejected": [{"role": "assistant", "content": f"no {number * 7} what"}],
        }
        for number, line in enumerate(lines)
    ]


def sft(folder: Path) -> float:
    model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    data = [{"prompt": pair["prompt"], "completion": pair["chosen"]} for pair in pairs()]
    batch, loss = of_trl(SFTTrainer, SFTConfig, model, data, folder)
    rows = rows_of(batch, (batch["labels"] != -100).int())
    return report("sft", model, loss, load_policy(MODEL, logit_chunk=1024), Imitation(AggregationConfig()), rows)


def reward_model(folder: Path) -> float:
    """The head that TRL's trainer starts from is kept in a directory, for ours to begin with."""
    model = AutoModelForSequenceClassification.from_pretrained(MODEL, num_labels=1, dtype=torch.float32)
    model.save_pretrained(folder / "reward_model")
    batch, loss = of_trl(RewardTrainer, RewardConfig, model, pairs(), folder)
    last = torch.zeros_like(batch["attention_mask"])
    last[torch.arange(len(last)), batch["attention_mask"].sum(1) - 1] = 1
    rows = side_by_side(rows_of(batch, last))
    return report("reward_model", model, loss, load_value_model(folder / "reward_model"), Preference(), rows)


def dpo(folder: Path) -> float:
    """The reference is the policy with noise on its weights, so that rewards are not 0."""
    model, reference = (AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32) for _ in range(2))
    with torch.no_grad():
        for parameter in reference.parameters():
            parameter.add_(0.02 * torch.randn(parameter.shape))
    shutil.copytree(MODEL, folder / "reference")
    reference.save_pretrained(folder / "reference")
    batch, loss = of_trl(DPOTrainer, DPOConfig, model, pairs(), folder, {"ref_model": reference}, beta=BETA)
    rows = side_by_side(rows_of(batch, batch["completion_mask"]))
    with torch.no_grad():
        known = iter(forward(load_policy(folder / "reference", logit_chunk=1024), collate(rows, packed=True))[0])
    for row in rows:
        row.logprobs = [float(next(known)) if on else 0.0 for on in row.loss_mask]
    return report(
        "dpo", model, loss, load_policy(MODEL, logit_chunk=1024), DirectPreference(DpoConfig(beta=BETA)), rows
    )


def of_trl(
    trainer: Any,
    settings: Any,
    model: PreTrainedModel,
    data: list[dict[str, Any]],
    folder: Path,
    more: dict[str, Any] | None = None,
    **options: Any,
) -> tuple[dict[str, torch.Tensor], float]:
    """TRL's first batch and its loss; the gradient is in the model's parameters."""
    args = settings(
        output_dir=str(folder / "out"),
        per_device_train_batch_size=4,
        report_to=[],
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        **options,
    )
    made = trainer(
        model=model,
        args=args,
        train_dataset=Dataset.from_list(data),
        processing_class=AutoTokenizer.from_pretrained(MODEL),
        **(more or {}),
    )
    batch = next(iter(made.get_train_dataloader()))
    model.eval()
    loss = made.compute_loss(model, dict(batch))
    loss.backward()
    return batch, float(loss.detach())


def rows_of(batch: dict[str, torch.Tensor], mask: torch.Tensor) -> list[TrainRow]:
    """Rows of what TRL padded on the right."""
    found = []
    for ids, trained, there in zip(batch["input_ids"], mask, batch["attention_mask"], strict=True):
        length = int(there.sum())
        zeros = [0.0] * length
        loss_mask = [int(on) for on in trained[:length]]
        found.append(
            TrainRow(
                session_id="", token_ids=ids[:length].tolist(), loss_mask=loss_mask, logprobs=zeros, advantages=zeros
            )
        )
    return found


def side_by_side(rows: list[TrainRow]) -> list[TrainRow]:
    """TRL has all chosen rows before all rejected ones."""
    half = len(rows) // 2
    return [row for pair in zip(rows[:half], rows[half:], strict=True) for row in pair]


def report(
    kind: str, theirs: PreTrainedModel, loss: float, ours: Any, objective: SupervisedObjective, rows: list[TrainRow]
) -> float:
    """The larger of the relative differences of loss and gradient."""
    share = objective.share(ours, collate(rows, packed=True), denominators(rows))
    share.loss.backward()
    expected, found = gradient_of(theirs), gradient_of(ours.lm)
    gradient = max(float((expected[name] - found[name]).norm() / expected[name].norm()) for name in expected)
    mine = float(share.loss.detach())
    print(f"{kind}: loss {loss:.7f} by TRL, {mine:.7f} by us; gradients differ by {gradient:.1e}, relative")
    return max(abs(mine - loss) / abs(loss), gradient)


def gradient_of(lm: PreTrainedModel) -> dict[str, torch.Tensor]:
    return {name: parameter.grad for name, parameter in lm.named_parameters()}


if __name__ == "__main__":
    sys.exit(main())
