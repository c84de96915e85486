"""The gateway's configuration: typed, torch-free, checked when it is made."""

from __future__ import annotations

from pydantic import Field

from agentrl.section import Section

MAX_SAVE_S = 120.0
"""The most that `save_timeout_s` may be, so that clients know how long to wait for finish."""


class GatewayConfig(Section):
    """The gateway: where it listens, what waits, and for how long."""

    host: str = "127.0.0.1"
    """Where to listen. Keys travel in clear text: put TLS in front of anything but loopback."""
    port: int = Field(default=0, ge=0, le=65535)
    """0 takes a free one."""
    public_url: str | None = None
    """What agents reach the gateway by, when that is not http://host:port; session base URLs start with it."""
    model_name: str = "policy"
    """The one name in /v1/models and in answers; requests may name any model."""
    engine_urls: tuple[str, ...] = ()
    """Engines to attach at start; more may come by POST /engines."""
    request_timeout_s: float = Field(default=600.0, gt=0)
    """The longest that one model call may take, waiting for an engine included."""
    engine_wait_s: float = Field(default=120.0, gt=0)
    """How long a call waits while no engine is routable, during a restart for instance."""
    max_waiting: int = Field(default=4096, gt=0)
    """Calls that may wait for an engine; the next one gets 429."""
    max_in_flight_per_engine: int = Field(default=1024, gt=0)
    """Calls that one engine is given at a time."""
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
