"""The kinds of run: `kind` is read first, and then the file by the model of that kind."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field, SerializeAsAny, model_validator

from agentrl import plugins
from agentrl.config import RunConfig, read, trainer_config, validated
from agentrl.errors import ConfigError
from agentrl.section import Section
from agentrl.train.cluster_config import ClusterConfig
from agentrl.train.config import SavesConfig, TensorBoardConfig
from agentrl.train.supervised.config import AnswersConfig, EpochsConfig, PairsConfig, TranscriptsConfig


class SupervisedConfig(Section):
    """A run that learns from data: no environment, no engine, no gateway."""

    kind: str
    """What `agentrl train` does."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100)
    """Name of the run; its directory is `<runs_dir>/<name>`."""

    runs_dir: Path = Path("runs")
    """Where run directories are made."""

    model: str = "agentrl:tiny"
    """The model to begin with: `agentrl:tiny` or `agentrl:tiny-coder`, or a local directory in Hugging Face form."""

    seed: int = Field(default=0, ge=0, lt=2**63)
    """Seeds the order of the data, what is held out, and the trainer."""

    cluster: ClusterConfig = ClusterConfig()
    data: Section
    loop: EpochsConfig = EpochsConfig()
    trainer: SerializeAsAny[BaseModel]
    checkpoint: SavesConfig = SavesConfig()
    tensorboard: TensorBoardConfig = TensorBoardConfig()

    @model_validator(mode="before")
    @classmethod
    def _trainer_owns_its_table(cls, data: Any) -> Any:
        if not isinstance(data, dict) or not isinstance(data.get("trainer", {}), dict):
            return data
        seed = data.get("seed", 0)
        inherited = {"seed": seed} if isinstance(seed, int) else {}
        return data | {"trainer": trainer_config(inherited | data.get("trainer", {}), str(data.get("kind")))}

    @property
    def directory(self) -> Path:
        return self.runs_dir / self.name


class SftConfig(SupervisedConfig):
    """`kind = "sft"`: say what is in the data."""

    kind: Literal["sft"] = "sft"
    """What `agentrl train` does."""

    data: TranscriptsConfig


class RewardModelConfig(SupervisedConfig):
    """`kind = "reward_model"`: score the better of two answers higher."""

    kind: Literal["reward_model"] = "reward_model"
    """What `agentrl train` does."""

    data: PairsConfig


class DpoConfig(SupervisedConfig):
    """`kind = "dpo"`: prefer the better of two answers, without a reward model."""

    kind: Literal["dpo"] = "dpo"
    """What `agentrl train` does."""

    data: AnswersConfig


SUPERVISED: dict[str, type[SupervisedConfig]] = {
    "sft": SftConfig,
    "reward_model": RewardModelConfig,
    "dpo": DpoConfig,
}
KINDS: dict[str, type[RunConfig | SupervisedConfig]] = {"rl": RunConfig, **SUPERVISED}


def load_config(path: Path, overrides: Sequence[str] = ()) -> RunConfig | SupervisedConfig:
    """Reads a run file of any kind, with `key.path=value` overrides.

    Raises ConfigError with one line per problem: the key, the value, the fix.
    """
    data = read(path, overrides)
    kind = data.get("kind", "rl")
    if kind not in KINDS:
        raise ConfigError(f"{path}: kind = {kind!r} is none of {', '.join(KINDS)}")
    if foreign := list(_foreign(data, kind, KINDS)):
        raise ConfigError(
            "\n".join(f"{path}: {line}, and this run is of kind {kind!r}; leave it out" for line in foreign)
        )
    return validated(KINDS[kind], data, path)


def _foreign(
    data: Mapping[str, Any], kind: str, models: Mapping[str, type[BaseModel]], prefix: str = ""
) -> Iterator[str]:
    """One line for each key that this kind's model does not know and another kind's model, at the same place, does."""
    for key, value in data.items():
        owners = [owner for owner, model in models.items() if key in model.model_fields]
        if owners and kind not in owners:
            yield f"{prefix}{key} is a key of kind = {' and '.join(repr(owner) for owner in owners)}"
        elif isinstance(value, dict) and kind in owners:
            tables = {owner: table for owner in owners if (table := _table(owner, models[owner], key))}
            if kind in tables:
                yield from _foreign(value, kind, tables, f"{prefix}{key}.")


def _table(kind: str, model: type[BaseModel], key: str) -> type[BaseModel] | None:
    """The model of a table. That of `[trainer]` plugs in."""
    if key == "trainer":
        found: type[BaseModel] = plugins.load("agentrl.trainer_configs", "deepspeed" if kind == "rl" else kind)
        return found
    annotation = model.model_fields[key].annotation
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None
