"""What an evaluation is of: an environment, a policy, and how many episodes."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, model_validator

from agentrl.engine.config import EngineConfig
from agentrl.reward.config import RewardConfig
from agentrl.rollout.config import RolloutConfig
from agentrl.section import Section
from agentrl.train.environment import EnvironmentConfig


class EndpointConfig(Section):
    """A policy that somebody serves: any OpenAI-compatible API."""

    url: str = Field(pattern=r"^https?://")
    """Base URL, as an OpenAI SDK takes it: it usually ends in `/v1`."""

    model: str
    """The name that the endpoint knows it by."""

    api_key_env: str | None = None
    """Environment variable that holds the API key."""


class EvaluationRunConfig(Section):
    """An evaluation; `config.json` of its directory."""

    environment: EnvironmentConfig
    tasks: int = Field(default=64, ge=1)
    """Tasks of `environment.eval_split`."""

    samples: int = Field(default=1, ge=1)
    """Episodes of each task."""

    seed: int = Field(default=0, ge=0)
    """Which order of tasks."""

    success_reward: float = 1.0
    """An episode is a success when its reward is at least this."""

    checkpoint: str | None = None
    """A local model: a directory in Hugging Face form, or an embedded policy."""

    endpoint: EndpointConfig | None = None
    """A policy that is served elsewhere, instead of a local one."""

    reward: RewardConfig = RewardConfig()
    """What scores beside the environment, as in a run file."""

    rollout: RolloutConfig = RolloutConfig()
    engine: EngineConfig = EngineConfig()

    @model_validator(mode="after")
    def _one_policy(self) -> EvaluationRunConfig:
        if self.checkpoint is None and self.endpoint is None:
            raise ValueError(
                "no policy is named; give a checkpoint (a model's directory, or 'agentrl:tiny'), or an endpoint's URL"
            )
        if self.checkpoint is not None and self.endpoint is not None:
            raise ValueError(
                f"one policy is evaluated; leave out the checkpoint {self.checkpoint!r}, "
                f"or the URL {self.endpoint.url!r}"
            )
        if self.endpoint is not None and self.reward.shapes_length:
            raise ValueError(
                "reward.token_cost and reward.overlong count sampled tokens, which an endpoint does not tell; leave "
                "them out, or evaluate a checkpoint"
            )
        return self

    @property
    def policy_name(self) -> str:
        """What the policy is called in the names of directories."""
        if self.endpoint is not None:
            return self.endpoint.model
        assert self.checkpoint is not None
        return Path(self.checkpoint).name.rpartition(":")[2]
