"""What the control API is sent and what it answers (design §7). Requests are checked here, field by field."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, FiniteFloat, field_validator

from agentrl.gateway.drifts import SessionDrift
from agentrl.types import EngineStatus

MAX_WHOLE = 2**63 - 1
"""Stores and metrics hold no larger number."""


class Body(BaseModel):
    model_config = ConfigDict(extra="forbid")


def _strict(value: Any) -> Any:
    """Python's parser lets NaN, half characters and numbers beyond 64 bits through, which no store takes."""
    try:
        json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
        msgspec.msgpack.encode(value)
    except (ValueError, OverflowError, RecursionError) as error:
        raise ValueError(f"it is not strict JSON: {error}") from error
    return value


Document = Annotated[dict[str, Any], AfterValidator(_strict)]
Text = Annotated[str, AfterValidator(_strict)]
Version = Annotated[int, Field(ge=0, le=MAX_WHOLE)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}$")]
"""It stands in URLs and in keys."""


def _address(url: str) -> str:
    parts = urlsplit(url)
    if not parts.hostname or parts.port == 0:  # raises ValueError itself for most of what is wrong
        raise ValueError("it names no host, or port 0")
    return url


Address = Annotated[str, Field(pattern=r"^https?://[!-~]+$"), AfterValidator(_address)]


class OpenSession(Body):
    session_id: str | None = None
    """Random unless given. 1 to 200 letters, digits, '-', '_' and '.'."""
    task: Document | None = None
    metadata: Document | None = None
    sampling: Document | None = None
    """What every call of the session is sampled with, whatever it asks for."""
    limits: Document | None = None
    mode: Literal["train", "eval"] = "train"
    reward_by: Literal["session", "admin"] = "session"
    """Whether the session's own key may send its reward."""
    history: Literal["append", "rerender"] = "append"
    """How a next turn's prompt is made: the recorded ids go on, or the template writes all of it anew."""
    across_swaps: bool = False
    """Whether an evaluation may be answered by more than one version of the weights."""

    @field_validator("metadata")
    @classmethod
    def _place_in_a_group(cls, metadata: dict[str, Any] | None) -> dict[str, Any] | None:
        group_id, index = (metadata or {}).get("group_id"), (metadata or {}).get("index")
        if group_id is not None and not isinstance(group_id, str):
            raise ValueError(f"its group_id is {group_id!r}, a string is needed")
        if index is not None and not (type(index) is int and abs(index) <= MAX_WHOLE):
            raise ValueError(f"its index is {index!r}, a whole number of 64 bits is needed")
        return metadata


class SetReward(Body):
    reward: FiniteFloat | None
    call_id: str | None = None
    components: dict[Text, FiniteFloat | None] | None = None
    call_rewards: dict[Text, FiniteFloat | None] | None = None
    """Rewards of single calls, by the ids of their answers."""


class FinishSession(Body):
    stop_reason: Text | None = None
    limit_first: bool = False
    """Where a call was refused for a limit, that limit is the stop reason rather than `stop_reason`."""
    conversation: bool = False
    """Whether to answer with the messages of the session."""


class AddEngine(Body):
    url: Address
    id: Name | None = None
    version: Version | None = None


class TellEngine(Body):
    version: Version | None = None
    routable: bool | None = None


class OpenRun(Body):
    run_id: Name


class SessionOpened(Struct):
    session_id: str
    base_url: str  # ends in /v1, ready for an OpenAI SDK
    api_key: str


class Finished(Struct):
    session_id: str
    stop_reason: str | None
    reward: float | None
    calls: int
    rows: int
    trained_tokens: int
    dropped: dict[str, int]  # reason -> sampled tokens that are in no row
    drift: SessionDrift | None  # None where it was not measured
    unanswered: int = 0  # requests that failed through no fault of their sender, and were not answered since
    messages: list[dict[str, Any]] | None = None  # up to the last answer; only when asked for


class Rewarded(Struct):
    session_id: str
    reward: float | None
    call_id: str | None


class Engines(Struct):
    current_version: int
    engines: list[EngineStatus]


class RunOpened(Struct):
    run_id: str
    run_key: str


class Health(Struct):
    status: Literal["ok"] = "ok"
