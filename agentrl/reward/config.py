"""The `[reward]` section of a run: who scores episodes, and how their rewards and the environment's combine."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator, model_validator

from agentrl.section import Section


class ServiceConfig(Section):
    """One reward service: a running HTTP server, in any language."""

    name: str = Field(pattern=r"^[a-z][a-z0-9_]*$")
    """Its component's name in trajectories and metrics."""

    url: str = Field(pattern=r"^https?://[^/@]+(/.*)?$")
    """Where `/score` and `/health` are, for example `http://127.0.0.1:9000`. No user or password: see `auth_env`."""

    weight: float = Field(default=1.0, allow_inf_nan=False)
    """Its share of the reward. 0 records its scores without training on them; they may then be missing."""

    protocol: Literal["agentrl", "openrlhf"] = "agentrl"
    """What it speaks: agentrl's `/score`, or OpenRLHF's remote reward model at `url` itself."""

    timeout_s: float = Field(default=30.0, gt=0)
    """Longest that one request may take, in seconds."""

    batch_size: int = Field(default=32, ge=1)
    """Episodes in one request."""

    concurrency: int = Field(default=8, ge=1)
    """Requests at once."""

    max_attempts: int = Field(default=4, ge=1)
    """Tries of one request; only outages are tried again (5xx, 429, no connection, a timeout)."""

    auth_env: str | None = None
    """Name of the environment variable that holds the bearer token. The token itself is never stored."""


class RewardConfig(Section):
    """`reward = env_weight * environment's + sum(weight * service's)`; a missing part makes it missing."""

    services: tuple[ServiceConfig, ...] = ()
    """Asked for every episode that the policy ended itself."""

    env_weight: float = Field(default=1.0, allow_inf_nan=False)
    """The environment's share; 0 when services alone decide."""

    on_error: Literal["drop", "fail"] = "drop"
    """What a failed service costs: `drop` leaves the episode without a reward, out of training; `fail` ends the run."""

    max_failure_share: float = Field(default=0.5, ge=0, le=1)
    """With `drop`: the share of failures among the last 256 scores of a service above which the run ends anyway."""

    @field_validator("services")
    @classmethod
    def _names_differ(cls, services: tuple[ServiceConfig, ...]) -> tuple[ServiceConfig, ...]:
        names = ["env", *(service.name for service in services)]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"two rewards are called {name!r}; give each service a name of its own (not 'env')")
        return services

    @model_validator(mode="after")
    def _something_counts(self) -> RewardConfig:
        if self.env_weight == 0 and not any(service.weight for service in self.services):
            raise ValueError(
                "every reward has weight 0, so nothing can be learned; give env_weight or a service a weight"
            )
        return self
