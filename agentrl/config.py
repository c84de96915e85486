"""The configuration of a run: one TOML file, each table validated by the model of whoever owns it."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import (
    BaseModel,
    Field,
    SerializeAsAny,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from agentrl import plugins
from agentrl.engine.config import EngineConfig
from agentrl.errors import ConfigError
from agentrl.gateway.config import GatewayConfig
from agentrl.observe.config import TracesConfig
from agentrl.reward.config import RewardConfig
from agentrl.rollout.config import RolloutConfig
from agentrl.section import Section
from agentrl.supervision import SupervisionConfig
from agentrl.train import modes, presets
from agentrl.train.cluster_config import ClusterConfig, joined
from agentrl.train.config import (
    AlgorithmConfig,
    CheckpointConfig,
    EvaluationConfig,
    LoopConfig,
    StalenessConfig,
    TensorBoardConfig,
)
from agentrl.train.environment import EnvironmentConfig
from agentrl.train.modes import LoopMode

ConfigT = TypeVar("ConfigT", bound=BaseModel)


class RunConfig(Section):
    """A whole run. `agentrl train FILE --dry-run` prints it resolved."""

    kind: Literal["rl"] = "rl"
    """What `agentrl train` does."""

    preset: str | None = None
    """A published recipe, whose keys hold wherever this file does not say otherwise: `grpo`, `dr_grpo`, `rloo`,
    `reinforce`, `reinforce_plus_plus`, `reinforce_plus_plus_baseline`, `dapo`, `gspo`, `cispo`, `ppo`, `decoupled_ppo`,
    `turn_level` or `tis` (docs/algorithms.md)."""

    mode: LoopMode | None = None
    """A name for the keys that make the loop synchronous or not: `sync` (K = 0), `one_step_off` (K = 1), `async`
    (K = 4, or more than 1), `colocated` (K = 0, engines sleep while the trainer steps); docs/modes.md. Without it, they
    are as they are given."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100)
    """Name of the run; its directory is `<runs_dir>/<name>`."""

    runs_dir: Path = Path("runs")
    """Where run directories are made."""

    model: str = "agentrl:tiny"
    """The initial policy: `agentrl:tiny` or `agentrl:tiny-coder`, or a local directory in Hugging Face form."""

    seed: int = Field(default=0, ge=0, lt=2**63)
    """Seeds task order, environments and the trainer."""

    store_url: str | None = None
    """SQLAlchemy URL of the trajectory store; `trajectories.db` in the run directory when unset."""

    environment: EnvironmentConfig
    loop: LoopConfig = LoopConfig()
    rollout: RolloutConfig = RolloutConfig()
    reward: RewardConfig = RewardConfig()
    cluster: ClusterConfig = ClusterConfig()
    engine: EngineConfig = EngineConfig()
    gateway: GatewayConfig = Field(default=GatewayConfig(), validate_default=True)
    algorithm: AlgorithmConfig = AlgorithmConfig()
    staleness: StalenessConfig = StalenessConfig()
    trainer: SerializeAsAny[BaseModel] = Field(default_factory=lambda: trainer_config({}))
    evaluation: EvaluationConfig = EvaluationConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    supervision: SupervisionConfig = SupervisionConfig()
    tensorboard: TensorBoardConfig = TensorBoardConfig()
    traces: TracesConfig = TracesConfig()

    trainer_kind: str = "deepspeed"
    """The trainer: a name of entry-point groups `agentrl.trainers` and `agentrl.trainer_configs`."""

    @model_validator(mode="before")
    @classmethod
    def _preset_then_trainer_owns_its_table(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        if isinstance(preset := data.get("preset"), str):
            data = presets.beneath(data, presets.table(preset))
        if isinstance(mode := data.get("mode"), str):
            data = presets.beneath(data, modes.table(mode))
        data = presets.beneath(data, joined(data))
        table, kind, seed = data.get("trainer", {}), data.get("trainer_kind", "deepspeed"), data.get("seed", 0)
        if not isinstance(table, dict) or not isinstance(kind, str):
            return data
        inherited = {"seed": seed} if isinstance(seed, int) else {}
        return data | {"trainer": trainer_config(inherited | table, kind)}

    @field_validator("gateway")
    @classmethod
    def _gateway_of_one_process(cls, gateway: GatewayConfig, info: ValidationInfo) -> GatewayConfig:
        if gateway.workers > 1:
            raise ValueError(f"workers is {gateway.workers}, and a run's gateway is one process; leave it at 1")
        engine = info.data.get("engine")
        if "engine_concurrency" in gateway.model_fields_set or engine is None:
            return gateway
        return gateway.model_copy(update={"engine_concurrency": engine.max_num_seqs})

    @field_validator("store_url")
    @classmethod
    def _no_password_in_the_file(cls, url: str | None) -> str | None:
        if url is not None and re.search(r"//[^/@]*:[^/@]*@|[?&]password=", url):
            raise ValueError("store_url holds a password; leave it out and use the database driver's own password file")
        return url

    @model_validator(mode="after")
    def _mode_is_what_the_keys_say(self) -> RunConfig:
        wrong = modes.conflict(self.mode, max_lag=self.staleness.max_lag, sleep_level=self.engine.sleep_level)
        if wrong is not None:
            raise ValueError(wrong)
        return self

    @model_validator(mode="after")
    def _only_a_synchronous_run_waits_for_a_tail(self) -> RunConfig:
        if self.loop.cut_tail < 1 and self.engine.sleep_level is not None:
            raise ValueError(
                f"loop.cut_tail = {self.loop.cut_tail:g} leaves episodes under way while the trainer steps, and with "
                f"engine.sleep_level = {self.engine.sleep_level} the engines sleep then; leave one of the two out"
            )
        if self.loop.cut_tail < 1 and self.staleness.max_lag > 0:
            raise ValueError(
                f"loop.cut_tail = {self.loop.cut_tail:g} is for synchronous runs, and staleness.max_lag is "
                f"{self.staleness.max_lag}, with which no step waits for slow groups anyway; leave cut_tail out, or "
                "set max_lag = 0"
            )
        return self

    @model_validator(mode="after")
    def _trainer_fits_the_run(self) -> RunConfig:
        """A trainer's table may have `check_run(advantage, steps)`, which raises ValueError for what cannot work."""
        check = getattr(self.trainer, "check_run", None)
        if check is not None:
            check(advantage=self.algorithm.advantage, steps=self.loop.steps)
        return self

    @property
    def directory(self) -> Path:
        return self.runs_dir / self.name


def load_run_config(path: Path, overrides: Sequence[str] = ()) -> RunConfig:
    """Reads a TOML file and applies `key.path=value` overrides.

    Raises ConfigError with one line per problem: the key, the value, the fix.
    """
    return validated(RunConfig, read(path, overrides), path)


def read(path: Path, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """What the file says, with the overrides. Raises ConfigError when it is no TOML file."""
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
    return overridden(data, overrides)


def overridden(data: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """With the `key.path=value` overrides applied, in place. Raises ConfigError."""
    for override in overrides:
        _apply(data, override)
    return data


def validated(model: type[ConfigT], data: dict[str, Any], path: Path) -> ConfigT:
    """Raises ConfigError with one line per problem."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise ConfigError("\n".join(f"{path}: {line}" for line in describe(error))) from error


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
    model = _model_called(title)
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


def trainer_config(table: dict[str, Any], kind: str = "deepspeed") -> BaseModel:
    """The `[trainer]` table by the model of its trainer. Raises ConfigError."""
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
