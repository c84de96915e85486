"""The configuration of a run: one TOML file, each table validated by the model of whoever owns it."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import BaseModel, Field, SerializeAsAny, ValidationError, field_validator, model_validator

from agentrl import plugins
from agentrl.engine.config import EngineConfig
from agentrl.errors import ConfigError
from agentrl.gateway.config import GatewayConfig
from agentrl.reward.config import RewardConfig
from agentrl.rollout.config import RolloutConfig
from agentrl.section import Section
from agentrl.train.config import (
    AlgorithmConfig,
    CheckpointConfig,
    EnvironmentConfig,
    EvaluationConfig,
    LoopConfig,
    StalenessConfig,
    TensorBoardConfig,
)


class RunConfig(Section):
    """A whole run. `agentrl train FILE --dry-run` prints it resolved."""

    kind: Literal["rl"] = "rl"
    """What `agentrl train` does."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100)
    """Name of the run; its directory is `<runs_dir>/<name>`."""

    runs_dir: Path = Path("runs")
    """Where run directories are made."""

    model: str = "agentrl:tiny"
    """The initial policy: the embedded one, or a local directory in Hugging Face form."""

    seed: int = Field(default=0, ge=0, lt=2**63)
    """Seeds task order, environments and the trainer."""

    store_url: str | None = None
    """SQLAlchemy URL of the trajectory store; `trajectories.db` in the run directory when unset."""

    environment: EnvironmentConfig
    loop: LoopConfig = LoopConfig()
    rollout: RolloutConfig = RolloutConfig()
    reward: RewardConfig = RewardConfig()
    engine: EngineConfig = EngineConfig()
    gateway: GatewayConfig = GatewayConfig()
    algorithm: AlgorithmConfig = AlgorithmConfig()
    staleness: StalenessConfig = StalenessConfig()
    trainer: SerializeAsAny[BaseModel] = Field(default_factory=lambda: _trainer_config({}))
    evaluation: EvaluationConfig = EvaluationConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    tensorboard: TensorBoardConfig = TensorBoardConfig()

    trainer_kind: str = "deepspeed"
    """The trainer: a name of entry-point groups `agentrl.trainers` and `agentrl.trainer_configs`."""

    @model_validator(mode="before")
    @classmethod
    def _trainer_owns_its_table(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        table, kind, seed = data.get("trainer", {}), data.get("trainer_kind", "deepspeed"), data.get("seed", 0)
        if not isinstance(table, dict) or not isinstance(kind, str):
            return data
        inherited = {"seed": seed} if isinstance(seed, int) else {}
        return data | {"trainer": _trainer_config(inherited | table, kind)}

    @field_validator("store_url")
    @classmethod
    def _no_password_in_the_file(cls, url: str | None) -> str | None:
        if url is not None and re.search(r"//[^/@]*:[^/@]*@|[?&]password=", url):
            raise ValueError("store_url holds a password; leave it out and use the database driver's own password file")
        return url

    @property
    def directory(self) -> Path:
        return self.runs_dir / self.name


def load_run_config(path: Path, overrides: Sequence[str] = ()) -> RunConfig:
    """Reads a TOML file and applies `key.path=value` overrides.

    Raises ConfigError with one line per problem: the key, the value, the fix.
    """
    try:
        data = tomllib.loads(path.read_text())
    except FileNotFoundError:
        raise ConfigError(
            f"there is no configuration file {path}; see examples/01_calculator/run.toml for one"
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not a TOML file: {error}") from error
    except OSError as error:
        raise ConfigError(f"the configuration file cannot be read: {error}") from error
    for override in overrides:
        _apply(data, override)
    try:
        return RunConfig.model_validate(_off_is_none(RunConfig, data))
    except ValidationError as error:
        raise ConfigError("\n".join(f"{path}: {line}" for line in describe(error))) from error


def _off_is_none(model: type[BaseModel], data: dict[str, Any]) -> dict[str, Any]:
    """TOML cannot say "no value": `"off"` says it, for every key that may have none and is not a text."""
    read = dict(data)
    for key, value in data.items():
        annotation = model.model_fields[key].annotation if key in model.model_fields else None
        if isinstance(value, dict) and isinstance(annotation, type) and issubclass(annotation, BaseModel):
            read[key] = _off_is_none(annotation, value)
        elif value == "off" and type(None) in get_args(annotation) and str not in get_args(annotation):
            read[key] = None
    return read


def describe(error: ValidationError) -> Iterable[str]:
    """One line per problem of a validation: `key = value: what is wrong`."""
    for problem in error.errors():
        key = ".".join(str(part) for part in problem["loc"])
        if problem["type"] == "extra_forbidden":
            yield f"{key}: unknown key{_suggestion(error.title, problem['loc'])}"
        elif problem["type"] == "missing":
            yield f"{key}: is required"
        else:
            message = problem["msg"].removeprefix("Value error, ")
            yield f"{key} = {_without_password(problem['input'])}: {message}" if key else message


def _without_password(value: object) -> str:
    return re.sub(r"//[^/@\s]*@|(?<=password=)[^&'\"]*", "…", repr(value))


def _suggestion(title: str, location: tuple[int | str, ...]) -> str:
    """The known key that the unknown one was perhaps meant to be."""
    model: type[BaseModel] | None = RunConfig if title == RunConfig.__name__ else _model_called(title)
    for part in location[:-1]:
        field = model.model_fields.get(str(part)) if model else None
        annotation = field.annotation if field else None
        model = annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None
    if model is None:
        return ""
    close = difflib.get_close_matches(str(location[-1]), model.model_fields, n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; known keys: {', '.join(model.model_fields)}"


def _model_called(title: str) -> type[BaseModel] | None:
    pending = list(BaseModel.__subclasses__())
    while pending:
        model = pending.pop()
        if model.__name__ == title:
            return model
        pending.extend(model.__subclasses__())
    return None


def _trainer_config(table: dict[str, Any], kind: str = "deepspeed") -> BaseModel:
    model = plugins.load("agentrl.trainer_configs", kind)
    if not (isinstance(model, type) and issubclass(model, BaseModel)):
        raise ConfigError(
            f"trainer_kind = {kind!r} names {model!r}, which is not a pydantic model of a trainer's table"
        )
    try:
        config: BaseModel = model.model_validate(table)
    except ValidationError as error:
        raise ConfigError("\n".join(f"trainer.{line}" for line in describe(error))) from error
    return config


def _apply(data: dict[str, Any], override: str) -> None:
    """Sets `a.b=value` in nested tables; the value is read as TOML, and as a string where it is none."""
    key, separator, text = override.partition("=")
    if not separator or not key.strip():
        raise ConfigError(f"--set {override!r} is not of the form key.path=value")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text
    *tables, last = key.strip().split(".")
    for name in tables:
        data = data.setdefault(name, {})
        if not isinstance(data, dict):
            raise ConfigError(f"--set {override!r}: {name} is a value, not a table")
    data[last] = value
