"""The `[reward]` section of a run: who scores episodes, and how the parts become one reward."""

from __future__ import annotations

import re
from typing import Literal

from pydantic import Field, field_validator, model_validator

from agentrl.section import Section

_URL = re.compile(r"^https?://[^/@]+(/.*)?$")

Scope = Literal["episode", "group"]


class PartConfig(Section):
    """One part of the reward, whoever gives it."""

    name: str = Field(pattern=r"^[a-z][a-z0-9_]*$")
    """Its component's name in trajectories and metrics."""

    weight: float = Field(default=1.0, allow_inf_nan=False)
    """Its share of the reward. 0 records its scores without training on them; they may then be missing, unless a gate
    looks at them."""

    scope: Scope = "episode"
    """`episode` scores each by itself; `group` is given all episodes of a task at once, to rank or compare them."""

    bounds: tuple[float, float] | None = None
    """The least and the greatest reward it declares. One outside of them is an error, never clipped."""

    timeout_s: float = Field(default=30.0, gt=0)
    """Longest that one request or call may take, in seconds, from when it is sent."""

    @field_validator("bounds")
    @classmethod
    def _in_order(cls, bounds: tuple[float, float] | None) -> tuple[float, float] | None:
        if bounds is not None and not bounds[0] <= bounds[1]:
            raise ValueError(f"bounds are {list(bounds)}; give the least first")
        return bounds


class ServiceConfig(PartConfig):
    """A running HTTP server, in any language, at one URL or several."""

    url: str | None = None
    """Where `/score` and `/health` are, for example `http://127.0.0.1:9000`. No user or password: see `auth_env`."""

    urls: tuple[str, ...] = ()
    """Several servers of the same service, instead of `url`: requests go to the one with the fewest under way."""

    start: str | None = None
    """A service that the run starts itself, instead of `url`: a name of `agentrl reward list`, or `module:Class`."""

    options: dict[str, object] = Field(default_factory=dict)
    """Keyword arguments of the service that is started."""

    protocol: Literal["agentrl", "openrlhf", "nemo_gym"] = "agentrl"
    """What it speaks: agentrl's `/score`, OpenRLHF's remote reward model at the URL itself, or NeMo Gym's `/verify`."""

    batch_size: int = Field(default=32, ge=1)
    """Episodes in one request, at most. NeMo Gym is asked for one at a time."""

    batch_wait_s: float = Field(default=0.02, ge=0)
    """How long an episode waits for company, in seconds."""

    concurrency: int = Field(default=8, ge=1)
    """Requests at once, over all URLs."""

    max_attempts: int = Field(default=4, ge=1)
    """Tries of one item that fails alone, and, with `drop` and `fail`, of one request in an outage."""

    auth_env: str | None = None
    """Name of the environment variable that holds the bearer token. The token itself is never stored."""

    ca_file: str | None = None
    """Certificates to trust for https, instead of the system's: a PEM file."""

    @field_validator("url", "urls")
    @classmethod
    def _are_urls(cls, given: str | tuple[str, ...] | None) -> str | tuple[str, ...] | None:
        for url in (given,) if isinstance(given, str) else given or ():
            if not _URL.match(url):
                # Not repeated: what is wrong with it may be the password in it.
                raise ValueError("a URL of a service looks like http://127.0.0.1:9000, without a user or password")
        return given

    @model_validator(mode="after")
    def _has_a_place(self) -> ServiceConfig:
        if sum((self.url is not None, bool(self.urls), self.start is not None)) != 1:
            raise ValueError(
                f"service {self.name!r}: give its url, or the urls of its servers, or what to start; one of them"
            )
        if self.options and self.start is None:
            raise ValueError(f"service {self.name!r}: options are for a service that the run starts (start = …)")
        return self

    @property
    def addresses(self) -> tuple[str, ...]:
        return self.urls or (self.url or "",)


class FunctionConfig(PartConfig):
    """A Python function of yours, run in worker processes."""

    function: str
    """`module:function` or `path/to/file.py:function`. It is given an item (its group's items with scope `group`)."""

    workers: int = Field(default=2, ge=1)
    """Calls at once."""


class GateConfig(Section):
    """A condition without which the rest does not count."""

    part: str
    """A component, such as `env`, `format` or `judge.style`."""

    at_least: float
    """What it has to reach."""

    otherwise: float = Field(default=0.0, allow_inf_nan=False)
    """The reward when it does not."""


class OverlongConfig(Section):
    """DAPO's soft punishment of long episodes (Yu et al. 2025, equation 13). Counts sampled tokens only."""

    limit: int = Field(ge=1)
    """Sampled tokens at which the whole penalty is taken."""

    buffer: int = Field(ge=1)
    """It grows over so many tokens before the limit."""

    penalty: float = Field(default=1.0, gt=0)
    """What is taken from the reward at the limit and beyond."""

    @model_validator(mode="after")
    def _buffer_fits(self) -> OverlongConfig:
        if self.buffer > self.limit:
            raise ValueError(f"overlong.buffer = {self.buffer} is more than overlong.limit = {self.limit}")
        return self


class RewardConfig(Section):
    """`reward = env_weight * environment's + sum(weight * part's)`, then length, gates and clipping, in this order.

    A part with a weight that is missing makes the reward missing, never 0, unless a gate decides without it.
    """

    services: tuple[ServiceConfig, ...] = ()
    """Asked for every episode that the policy ended itself."""

    functions: tuple[FunctionConfig, ...] = ()
    """Called for every episode that the policy ended itself."""

    env_weight: float = Field(default=1.0, allow_inf_nan=False)
    """The environment's share; 0 when services alone decide."""

    token_cost: float = Field(default=0.0, ge=0)
    """What each sampled token costs."""

    overlong: OverlongConfig | None = None
    """What episodes near the length limit cost."""

    gates: tuple[GateConfig, ...] = ()
    """The first condition that fails decides the reward."""

    clip: tuple[float, float] | None = None
    """The least and the greatest reward; others become these."""

    on_error: Literal["retry", "defer", "drop", "fail"] = "retry"
    """What an outage of a service costs. `retry` waits for it up to `give_up_s`, `defer` without such a limit, both
    only as long as the episode is fresh enough to be trained; `drop` leaves the episode without a reward after
    `max_attempts`, `fail` ends the run."""

    give_up_s: float = Field(default=600.0, gt=0)
    """With `retry`: how long an episode waits for a service that is out, in seconds."""

    max_failure_share: float = Field(default=0.5, ge=0, le=1)
    """The share of failures among the last 256 scores of a service above which the run ends, whatever `on_error`.
    One whose weight is 0, and at which no gate looks, may fail for ever."""

    @property
    def parts(self) -> tuple[PartConfig, ...]:
        """Everybody who scores, beside the environment."""
        return (*self.services, *self.functions)

    @property
    def weights(self) -> dict[str, float]:
        return {"env": self.env_weight} | {part.name: part.weight for part in self.parts}

    def needs(self, part: PartConfig) -> bool:
        """Whether the reward is missing where this part is: it has a weight, or a gate looks at it."""
        return part.weight != 0 or any(gate.part.partition(".")[0] == part.name for gate in self.gates)

    @property
    def is_the_environments(self) -> bool:
        """Whether the reward is the environment's as it stands."""
        changed = self.parts or self.gates or self.clip is not None or self.shapes_length
        return self.env_weight == 1.0 and not changed

    @property
    def shapes_length(self) -> bool:
        return bool(self.token_cost) or self.overlong is not None

    @property
    def outside_of_training(self) -> RewardConfig:
        """The same where no episode becomes too old to be of use, so that `defer` would wait for ever."""
        return self.model_copy(update={"on_error": "retry"}) if self.on_error == "defer" else self

    @model_validator(mode="after")
    def _names_differ(self) -> RewardConfig:
        names = ["env", *(part.name for part in self.parts)]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"two rewards are called {name!r}; give each part a name of its own (not 'env')")
        for gate in self.gates:
            if gate.part.partition(".")[0] not in names:
                raise ValueError(f"a gate needs {gate.part!r}, and the parts are {', '.join(names)}")
        return self

    @model_validator(mode="after")
    def _something_counts(self) -> RewardConfig:
        if not any(self.weights.values()):
            raise ValueError(
                "every reward has weight 0, so nothing can be learned; give env_weight or another part a weight"
            )
        if self.clip is not None and not self.clip[0] < self.clip[1]:
            raise ValueError(f"clip is {list(self.clip)}; give the least first")
        return self
