"""The gateway's configuration: typed, torch-free, checked when it is made."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from agentrl.section import Section

MAX_SAVE_S = 120.0
"""The most that `save_timeout_s` may be, so that clients know how long to wait for finish."""


class GatewayConfig(Section):
    """The gateway: where it listens, what waits, and for how long."""

    name: str = Field(default="gateway", min_length=1, max_length=200)
    """Whose open sessions a store keeps: a gateway that comes back under its name goes on with them. Gateways that
    share a store need names of their own."""
    host: str = "127.0.0.1"
    """Where to listen. Keys travel in clear text: put TLS in front of anything but loopback."""
    port: int = Field(default=0, ge=0, le=65535)
    """0 takes a free one."""
    workers: int = Field(default=1, ge=1, le=64)
    """Processes that share the gateway's sessions: the first listens on `port`, the others on free ones. The gateway of
    a training run has one."""
    public_url: str | None = None
    """What agents reach the gateway by, when that is not http://host:port; session base URLs start with it."""
    model_name: str = "policy"
    """The one name in /v1/models and in answers; requests may name any model."""
    parser: str = "auto"
    """How the policy writes tool calls and reasoning: hermes, qwen3_coder, llama3, mistral, deepseek, glm, gpt_oss or
    plain. `auto` goes by what its chat template spells."""
    measure_drift: bool = True
    """Whether a finished session is compared with a fresh rendering of its conversation, to count drift."""
    engine_urls: tuple[str, ...] = ()
    """Engines to attach at start; more may come by POST /engines."""
    engine_key_env: str | None = None
    """Environment variable with the key of the engines at `engine_urls`, where those were started with --api-key."""
    request_timeout_s: float = Field(default=600.0, gt=0)
    """The longest that one model call may take, waiting for an engine included."""
    engine_wait_s: float = Field(default=120.0, gt=0)
    """How long a call waits while no engine is routable, during a restart for instance."""
    max_waiting: int = Field(default=4096, gt=0)
    """Calls that may wait for an engine; the next one gets 429."""
    max_in_flight_per_engine: int = Field(default=1024, gt=0)
    """Calls that one engine is given at a time; what it does not run at once waits inside it."""
    engine_concurrency: int = Field(default=64, gt=0)
    """Calls that one engine runs at once (`engine.max_num_seqs`). With so many, it loses sessions to an idle engine."""
    max_skew: int | None = Field(default=None, gt=0)
    """Calls or sessions that an engine may be ahead for prompts it has seen; none is an eighth of its concurrency."""
    breaker_failures: int = Field(default=3, gt=0)
    """Calls in a row that an engine must fail to get none for a while; when it died under one, that is enough."""
    breaker_backoff_s: float = Field(default=1.0, gt=0)
    """How long that while is at first. It doubles each time that the one call that then tries the engine fails too."""
    breaker_max_backoff_s: float = Field(default=30.0, gt=0)
    """The longest that it gets; keep it below `engine_wait_s`."""
    health_every_s: float = Field(default=1.0, gt=0)
    """Seconds between two health checks of an engine."""
    max_sessions: int = Field(default=20_000, gt=0)
    """Sessions held in memory. At the cap the longest saved one makes room; with none saved, opening one gets 429."""
    session_idle_s: float = Field(default=3600.0, gt=0)
    """A session that nobody used for so long is forgotten, its key with it. What it sampled is saved first."""
    saved_idle_s: float = Field(default=60.0, gt=0)
    """A finished session's tokens leave memory after so long without use; from then on the store answers for it."""
    save_timeout_s: float = Field(default=60.0, gt=0, le=MAX_SAVE_S)
    """How long finishing a session may wait for the store; at most 120."""
    max_body_bytes: int = Field(default=64 * 2**20, gt=0)
    """The largest request body; a larger one gets 413."""

    @model_validator(mode="after")
    def _backoff_can_grow(self) -> Self:
        if self.breaker_max_backoff_s < self.breaker_backoff_s:
            raise ValueError(
                f"breaker_max_backoff_s is {self.breaker_max_backoff_s:g} and breaker_backoff_s is "
                f"{self.breaker_backoff_s:g}; the first must not be the smaller one"
            )
        return self
