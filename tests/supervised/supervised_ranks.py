"""What the stack tests of runs that learn from data do on real ranks, all in one life of a process group."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from supervised_builders import BETA, PLAIN, answers, scored
from trainer_ranks import LAYOUTS, SPLIT_EVERYTHING, meet, reveal, whole_weights

from agentrl.types import Batch
from agentrl_trainers.supervised.config import DpoTrainerConfig, RewardModelTrainerConfig, SftTrainerConfig
from agentrl_trainers.supervised.rank import DpoRank, RewardModelRank, SftRank, SupervisedRank

LAYOUTS_OF = {0: ("one row", "four rows", "packed", "packed, logits in chunks"), 3: ("packed",)}
"""By ZeRO stage; starting stage 3 takes seconds each time."""
KINDS: dict[str, tuple[type[SupervisedRank], Any]] = {
    "sft": (SftRank, SftTrainerConfig),
    "dpo": (DpoRank, DpoTrainerConfig),
    "reward_model": (RewardModelRank, RewardModelTrainerConfig),
}


def learn(rank: int, world_size: int, ports: Any, models: dict[str, Path], out: Path) -> dict[str, Any]:
    """Each kind, stage and layout once; the process group is that of the first rank.

    models: a directory for each kind; "other" is another policy of the same vocabulary.
    """
    first = _rank("sft", models["sft"], rank, world_size, 0, "packed")
    first.setup(meet(first, rank, world_size, ports))

    def made(kind: str, stage: int, layout: str, *, model: str = "", **given: Any) -> Any:
        """A rank in the process group that is there."""
        one = _rank(kind, models[model or kind], rank, world_size, stage, layout, **given)
        one._trainer, one._weights = one._models()
        return one

    found: dict[str, Any] = {"gradients": {}, "steps": {}}
    for kind in KINDS:
        batch = PLAIN[kind][2]()
        for stage, layouts in LAYOUTS_OF.items():
            for layout in layouts:
                found["gradients"][kind, stage, layout] = _gradient(made, kind, stage, layout, batch)
            found["steps"][kind, stage] = _two_steps(made, kind, stage, batch)
        shared = _gradient(made, kind, 0, "packed", batch, sequence_parallel=world_size)
        found["gradients"][kind, 0, "tokens shared by the ranks"] = shared
    found["reference"] = made("dpo", 0, "four rows").reference(answers().rows)
    other = {"beta": BETA, "reference": str(models["other"])}
    found["other reference"] = made("dpo", 0, "packed", dpo=other).reference(answers().rows)
    trained = made("reward_model", 3, "packed", model="sft", learning_rate=1e-2)
    for _ in range(2):
        trained.step(scored())
    trained.export(str(out / "reward_model"), 2)
    found["scores"] = trained.scores(scored().rows)
    adapted = made("sft", 0, "packed", learning_rate=1e-2, lora={"rank": 2})
    losses = [adapted.step(PLAIN["sft"][2]())["loss"] for _ in range(3)]
    adapted.export(str(out / "adapted"), 3)
    found["adapted"] = losses, adapted.evaluate(PLAIN["sft"][2]())["loss"]
    first.shutdown()
    return found


def _rank(
    kind: str, model: Path, rank: int, world_size: int, stage: int, layout: str, optimizer: Any = None, **given: Any
) -> SupervisedRank:
    make, config = KINDS[kind]
    own = {"dpo": {"beta": BETA}} if kind == "dpo" else {}
    values = {"zero_stage": stage, "ranks": world_size, **SPLIT_EVERYTHING, **LAYOUTS[layout], **own, **given}
    options = {} if optimizer is None else {"optimizer": optimizer}
    return make(rank, world_size, "127.0.0.1", 0, str(model), config.model_validate(values), 3, **options)


def _gradient(
    made: Callable[..., Any], kind: str, stage: int, layout: str, batch: Batch, **given: Any
) -> dict[str, Any]:
    one = made(kind, stage, layout, optimizer=reveal, gradient_clip="off", **given)
    before = one.evaluate(batch)
    metrics = one.step(batch)
    return {"evaluated": before, "metrics": metrics, "gradient": whole_weights(one._weights)}


def _two_steps(made: Callable[..., Any], kind: str, stage: int, batch: Batch) -> dict[str, Any]:
    one = made(kind, stage, "packed", learning_rate=1e-2)
    for _ in range(2):
        one.step(batch)
    return whole_weights(one._weights)
