"""The values that cross boundaries. Plain data, no I/O; each says who makes it and who takes it.

Axes: T tokens of a sequence, P tokens of a prompt, S tokens of one call's sample. A span is half open, `[start, end)`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Literal

from msgspec import Struct, field

MIN_TRAIN_TEMPERATURE = 0.01
"""0 is greedy, which has no gradient, and vLLM silently samples at 0.01 what asks for less (invariant 3)."""

Mode = Literal["train", "eval"]
SwapMode = Literal["keep", "recompute", "drain"]
WeightTransfer = Literal["shared_memory", "object_store", "nccl", "ipc"]
FinishReason = Literal["stop", "length", "abort"]
BreakerState = Literal["closed", "open", "half_open"]


class StopReason(StrEnum):
    """Why an episode ended. Written by the rollout, read by filters, metrics and people."""

    DONE = "done"  # the environment terminated it
    TRUNCATED = "truncated"  # the environment truncated it (gymnasium's sense)
    MAX_TURNS = "max_turns"
    MAX_TOKENS = "max_tokens"
    MAX_TOOL_CALLS = "max_tool_calls"
    CONTEXT = "context_overflow"  # the next prompt does not fit the engine's context
    DEADLINE = "deadline"
    ENV_ERROR = "env_error"
    ENV_TIMEOUT = "env_timeout"
    ENV_CRASH = "env_crash"  # its process ended: os._exit, a segmentation fault, a kill
    ENV_MEMORY = "env_memory"  # it took more memory than it may
    ENV_PROCESSES = "env_processes"  # it started more processes than it may
    POLICY_ERROR = "policy_error"  # the gateway or every engine failed: infrastructure, never a wrong answer
    CANCELLED = "cancelled"

    @property
    def by_policy(self) -> bool:
        """Whether the policy's own doing ended it. Only then can there be a reward; all other ends are failures."""
        return self in ("done", "truncated", "max_turns", "max_tokens", "max_tool_calls", "context_overflow")


class Task(Struct, frozen=True, kw_only=True):
    """One row of work for an environment. Made by a task source, taken by an episode."""

    id: str
    env_id: str = ""  # "" only inside an environment's own `tasks`; `agentrl.env.registry.tasks` fills it in
    seed: int = 0
    options: dict[str, Any] = {}
    split: str = "train"
    limits: Limits | None = None  # of its episodes; the run's and the environment's hold as well, the tighter of each
    source: str = ""  # of a mix, by its name in `environment.mix`, whose options its environment is made with


class Constraint(Struct, frozen=True, kw_only=True):
    """A grammar that the engine keeps a sample to. It masks the distribution, so such a sample is never trained."""

    kind: Literal["json", "json_object", "regex", "choice", "grammar", "structural_tag"]  # vLLM's names
    value: Any


class Sampling(Struct, frozen=True, kw_only=True):
    """The distribution that an engine is asked to sample from. Neutral unless told otherwise.

    Only `temperature` is modelled by the trainer, so training sessions refuse any other reshaping (invariant 3).
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0  # 0 is off
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()  # beside the tokenizer's EOS
    seed: int | None = None
    top_logprobs: int = 0  # alternatives reported beside each sampled token; does not change what is sampled
    constraint: Constraint | None = None
    stream_interval: int | None = None  # tokens that may come in one piece; None leaves it to the engine

    @property
    def reshaping(self) -> tuple[str, ...]:
        """The fields by which this reshapes the distribution in a way that the trainer does not model."""
        return tuple(name for name in _RESHAPING if getattr(self, name) != getattr(_NEUTRAL, name))


_RESHAPING = ("top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
_NEUTRAL = Sampling()


class VersionSpan(Struct, frozen=True):
    """Tokens `[start, end)` were sampled by weights `version`; what the indices count is said where it is kept."""

    version: int
    start: int
    end: int


class TokenChunk(Struct, frozen=True, kw_only=True):
    """A piece of one generation, as an engine streams it. Made by an engine client, taken by the gateway."""

    token_ids: list[int]  # [n]
    logprobs: list[float] | None  # [n], of token_ids; None when the engine sent none or a wrong count
    finish_reason: FinishReason | None = None  # set on the last chunk only
    stop_reason: str | int | None = None
    versions: list[VersionSpan] | None = None  # last chunk only, over all S tokens; [] when the engine's were wrong
    top_logprobs: list[list[tuple[int, float]]] | None = None  # [n][k] (token id, logprob), when they were asked for


class Segment(Struct, frozen=True):
    """Tokens `[start, end)` of a sample came from this engine."""

    engine_id: str
    start: int
    end: int


class Call(Struct, kw_only=True):
    """One model call of a session, exactly as the engine saw it. Made by the gateway, kept by the store."""

    call_id: str
    prompt_token_ids: list[int]  # [P], what the engine was given
    prompt_digest: str  # digest_of(prompt_token_ids), taken where the request leaves for the engine
    token_ids: list[int]  # [S], what it sampled, end-of-turn token included
    logprobs: list[float] | None  # [S]
    versions: list[VersionSpan]  # over token_ids
    finish_reason: FinishReason
    engine_id: str  # the one that ended it
    sampling: Sampling  # effective, after the session's pins
    message: dict[str, Any]  # the assistant message that the client was given
    parent: int | None = None  # index of the call whose prompt + sample this prompt extends
    reward: float | None = None
    untrainable: str | None = None  # the named reason, when its sample must not be trained
    segments: list[Segment] = []  # over token_ids, when engines were lost on the way; [] is all from engine_id
    messages: list[dict[str, Any]] = []  # of the request, what came after the parent's answer; [] for raw prompts
    conversation: str = ""  # key of its messages with its answer, by which later requests find it; "" for none
    started_at: float = 0.0  # unix seconds
    ended_at: float = 0.0
    moments: list[int] = []  # microseconds after started_at, in threes: got an engine, its first token, lost it


class Row(Struct, kw_only=True):
    """One training sequence, one per branch of the token graph. Made by the gateway, taken by the batcher."""

    token_ids: list[int]  # [T]
    loss_mask: list[int]  # [T], 1 where the token was sampled and is trained in this row
    logprobs: list[float | None]  # [T], None where loss_mask is 0
    versions: list[VersionSpan]  # by row index, cover exactly the tokens with loss_mask 1


class Trajectory(Struct, kw_only=True):
    """What one session left behind. Made by the gateway at finish, kept by the store before it is scored."""

    session_id: str
    task: Task | None = None
    mode: Mode = "train"
    stop_reason: str | None = None
    reward: float | None = None  # None is missing, never 0
    components: dict[str, float | None] = {}
    calls: list[Call] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    dropped: dict[str, int] = {}  # reason -> sampled tokens that are in no row
    metadata: dict[str, Any] = {}  # the rollout puts group_id and index here
    created_at: float = 0.0
    finished_at: float = 0.0


class JournalEntry(Struct, frozen=True):
    """One event of an unfinished session. Made by the gateway, kept by the store until its trajectory is saved."""

    session_id: str
    owner: str  # the name of the gateway that holds the session, and will ask for it when it comes back
    data: bytes  # `agentrl.gateway.journal`


class Limits(Struct, frozen=True, kw_only=True):
    """What one session may use before it is ended cleanly. None is no limit; zero and negatives are refused."""

    max_calls: int | None = None
    max_tokens: int | None = None  # sampled tokens over all calls
    deadline_s: float | None = None  # seconds from creation
    max_tool_calls: int | None = None  # over all calls; a message that goes past it is the last one

    def tighter(self, other: Limits | None) -> Limits:
        """Of each limit the smaller one."""
        if other is None:
            return self
        pairs = ((name, getattr(self, name), getattr(other, name)) for name in _STOP_REASON_OF_LIMIT)
        return Limits(**{name: b if a is None else a if b is None else min(a, b) for name, a, b in pairs})

    @staticmethod
    def stop_reason(limit: str) -> StopReason:
        """Why an episode ended that used up this limit, by the limit's name."""
        return _STOP_REASON_OF_LIMIT[limit]

    def __post_init__(self) -> None:
        for name in _STOP_REASON_OF_LIMIT:
            value = getattr(self, name)
            if value is not None and not value > 0:  # NaN too
                raise ValueError(f"limits.{name} is {value}; leave it out for no limit, or give a positive number")


_STOP_REASON_OF_LIMIT = {
    "max_calls": StopReason.MAX_TURNS,
    "max_tokens": StopReason.MAX_TOKENS,
    "deadline_s": StopReason.DEADLINE,
    "max_tool_calls": StopReason.MAX_TOOL_CALLS,
}


class EngineStatus(Struct, kw_only=True):
    """One line of the routing table: what the gateway knows of an engine."""

    id: str
    url: str
    healthy: bool
    version: int | None  # None until the engine said it
    routable: bool = False  # healthy, not held back, and not behind the current version
    in_flight: int = 0
    breaker: BreakerState = "closed"  # open: its generations failed, and it gets no call for a while
    last_error: str | None = None


class SwapRecord(Struct, frozen=True, kw_only=True):
    """One engine took one version. The swap log of a run is these, in order; `boot` is its first version."""

    engine_id: str
    version: int
    mode: Literal["boot", "keep", "recompute", "drain"]
    started_at: float  # unix seconds: before the engine was paused
    finished_at: float  # after it acknowledged and resumed
    digest: str = ""  # of the tensors sent


class Episode(Struct, kw_only=True):
    """What the rollout says of one finished episode. The tokens are in the store, under `session_id`."""

    session_id: str  # "" when no session could be opened
    task: Task
    stop_reason: StopReason
    reward: float | None  # the environment's: the sum over its steps; None is missing
    turns: int = 0
    error: str | None = None
    messages: list[dict[str, Any]] = []  # the whole conversation in OpenAI form, for reward services and people
    role: str = ""  # whose session this is, where several roles share the episode
    trained: bool = True  # False: a role that is only sampled
    others: list[Episode] = []  # of the episode's other roles, until they take their places in a group


class Group(Struct, kw_only=True):
    """The n episodes of one task that share a baseline. Made by the rollout, taken by the control loop."""

    group_id: str
    task: Task
    episodes: list[Episode] = field(default_factory=list)
    admitted_at_version: int = 0
    retried: list[Episode] = []  # attempts that a failure ended and that were played again; without their messages
    cut: list[int] = []  # indices of attempts that were not waited for; their sessions are in the store as cancelled
    concurrency: dict[str, float] = {}  # where it was played, at its end: episodes under way, their limit, the load
    scored_together: bool = False  # `score_group` put its rewards in place of what the episodes' steps earned
    admitted_at: float | None = None  # unix seconds; the control loop fills in these three
    played_at: float | None = None
    scored_at: float | None = None

    @property
    def attempts(self) -> list[Episode]:
        """One episode an attempt: those of the first role, where there are several."""
        return [episode for episode in self.episodes if episode.role == self.episodes[0].role]


class TrainRow(Struct, kw_only=True):
    """A row with its advantage, ready for the trainer. Made by the batcher, taken by every trainer rank.

    `loss_mask` may be narrower than the stored row's: tokens past the staleness bound are masked here.
    """

    session_id: str
    token_ids: list[int]  # [T]
    loss_mask: list[int]  # [T]
    logprobs: list[float]  # [T] behaviour policy; 0.0 where loss_mask is 0, never read there
    advantages: list[float]  # [T]; 0.0 where loss_mask is 0
    on_policy: list[int] = []  # [T], 1 where the version being trained from sampled a trained token; [] is nowhere
    rewards: list[float] = []  # [T], earned at the token, which is the last of a call or of the row; [] is 0
    calls: list[int] = []  # [T], number in the row of the call that sampled the token, 0 where masked; [] is one call
    temperature: float = 1.0


class Batch(Struct, kw_only=True):
    """All rows of one optimizer step, over every rank. `num_tokens` is the global loss denominator."""

    version: int  # the version being trained from; the step produces version + 1
    rows: list[TrainRow]

    @property
    def num_tokens(self) -> int:
        return sum(sum(row.loss_mask) for row in self.rows)


ADAPTER_CONFIG = "adapter_config"
"""Under this name an adapter's safetensors file has peft's `adapter_config.json` in its metadata."""


class WeightGroup(Struct, frozen=True, kw_only=True):
    """A few tensors of one version in a shared-memory file. Made by the trainer, taken by every engine.

    `kind`: tensors of the model, or those of a low-rank adapter beside it. A version that leaves out what is frozen
    says so: its first group names the tensors that engines have `kept` from an earlier version of the same `source`.
    """

    version: int
    index: int
    count: int  # groups in this version
    path: str  # a safetensors file in shared memory; the publisher deletes it after the last engine read it
    digest: str  # `digest_of_weights` of the file
    names: tuple[str, ...]  # checkpoint names, as the Hugging Face export spells them
    num_bytes: int
    kind: Literal["tensors", "adapter"] = "tensors"
    source: str = ""  # random, of the trainer process that wrote it
    kept: tuple[str, ...] = ()
    seconds: dict[str, float] = {}  # that the trainer took: gather, write
