"""The `[rollout]` section of a run: how many episodes, how far each may go, and how long anything may take."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from agentrl.section import Section
from agentrl.types import MIN_TRAIN_TEMPERATURE, Limits, Mode, Sampling

MAX_TEMPERATURE = 100.0  # the gateway's

Failure = Literal["env_error", "env_timeout", "env_crash", "env_memory", "env_processes", "policy_error", "deadline"]
"""Stop reasons that are no doing of the policy's: playing on until a reward suits would be no sample of it."""


class AdaptiveConfig(Section):
    """How many episodes are under way, by what the engines bear."""

    enabled: bool = False
    """Follow the engines' load. Otherwise as many episodes as `rollout.concurrency` says are under way."""

    minimum: int = Field(default=8, ge=1)
    """Episodes that one worker may always have under way; where it starts. `rollout.concurrency` is the most."""

    target_kv_use: float = Field(default=0.85, gt=0, le=1)
    """The share of an engine's KV cache above which fewer episodes are started. So are they when an engine preempts, or
    when more requests wait than run."""

    every_s: float = Field(default=2.0, gt=0)
    """Seconds between two looks at the engines."""


class RolloutConfig(Section):
    """How episodes are run. Unknown keys are refused, and so are numbers that are not finite."""

    group_size: int = Field(default=8, ge=1)
    """Episodes of one task, which share a baseline."""

    incomplete: Literal["wait", "minimum", "refill"] = "wait"
    """A group some of whose episodes fail or take long in training: `wait` for all of them and take what they came to;
    go on with a `minimum` of them when the others are late; or `refill` the places of failed ones with fresh attempts,
    also of a failure that `retry_on` does not name."""

    minimum_group_size: int = Field(default=2, ge=1)
    """With `incomplete = "minimum"`: episodes that have to end without a failure before the others can be late."""

    patience_s: float = Field(default=60.0, ge=0)
    """With `incomplete = "minimum"`: seconds that the others are still waited for then, before they are cut."""

    max_replacements: int = Field(default=2, ge=1)
    """With `incomplete = "refill"`: fresh attempts of one group at most, after those of `episode_retries`."""

    workers: int = Field(default=1, ge=1)
    """Rollout workers (Ray actors); more than one helps environments that keep a Python process busy."""

    concurrency: int = Field(default=256, ge=1)
    """Episodes that one worker runs at once at most; further ones wait."""

    adaptive: AdaptiveConfig = AdaptiveConfig()

    max_turns: int = Field(default=16, ge=1)
    """Assistant messages of an episode."""

    max_tokens: int | None = Field(default=512, ge=1)
    """Sampled tokens of one assistant message; the engine's context bounds them in any case."""

    max_episode_tokens: int | None = Field(default=None, ge=1)
    """Sampled tokens of a whole episode."""

    max_tool_calls: int | None = Field(default=None, ge=1)
    """Tool calls of a whole episode; the message that goes past it is not answered, and ends the episode."""

    deadline_s: float = Field(default=600.0, gt=0)
    """Longest that one episode may take, in seconds. Its reward is then missing, for slowness is not a wrong answer."""

    temperature: float = Field(default=1.0, ge=MIN_TRAIN_TEMPERATURE, le=MAX_TEMPERATURE)
    """Sampling temperature in training; the trainer's loss follows it."""

    eval_temperature: float | None = Field(default=None, ge=0, le=MAX_TEMPERATURE)
    """Sampling temperature of evaluations; the same as in training when it is not given."""

    env_timeout_s: float = Field(default=60.0, gt=0)
    """Longest that one `reset`, `step` or `close` of an environment may take, in seconds."""

    isolation: Literal["auto", "thread", "process"] = "auto"
    """Where environments run: in threads of the worker, in processes of their own, or as their class wishes."""

    env_memory_mb: int = Field(default=4096, ge=64)
    """Memory that one environment in a process may hold, with all the processes that it starts, in MiB."""

    env_processes: int = Field(default=256, ge=1)
    """Processes that one environment in a process may have at once, its own and those of its sandboxes included."""

    episode_retries: int = Field(default=1, ge=0)
    """How often an episode that a failure ended is played again, in a new session. The failed one is never trained."""

    retry_on: tuple[Failure, ...] = (
        "env_error",
        "env_timeout",
        "env_crash",
        "env_memory",
        "env_processes",
        "policy_error",
    )
    """The failures after which an episode is played again."""

    max_hung_calls: int = Field(default=64, ge=1)
    """Environment calls that may hang in abandoned threads before a worker starts no more episodes."""

    request_timeout_s: float = Field(default=600.0, gt=0)
    """Longest that one model call may take, in seconds, a weight swap in between included."""

    max_attempts: int = Field(default=6, ge=1)
    """Tries of one request to the gateway when it is busy or cannot be reached."""

    gateway_wait_s: float = Field(default=120.0, ge=0)
    """How long requests are sent again while the gateway cannot be reached, as when it is being started again."""

    @model_validator(mode="after")
    def _the_minimum_can_be_reached(self) -> RolloutConfig:
        if self.incomplete == "minimum" and self.minimum_group_size > self.group_size:
            raise ValueError(
                f"minimum_group_size = {self.minimum_group_size} is more than group_size = {self.group_size}, so no "
                "group would go on without waiting; lower it"
            )
        return self

    def limits(self) -> Limits:
        return Limits(
            max_calls=self.max_turns,
            max_tokens=self.max_episode_tokens,
            deadline_s=self.deadline_s,
            max_tool_calls=self.max_tool_calls,
        )

    def sampling(self, mode: Mode) -> Sampling:
        """What a session is pinned to. No seed: each episode of a group has to differ."""
        if mode == "eval" and self.eval_temperature is not None:
            return Sampling(temperature=self.eval_temperature, max_tokens=self.max_tokens)
        return Sampling(temperature=self.temperature, max_tokens=self.max_tokens)
