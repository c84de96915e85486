"""The `[rollout]` section of a run: how many episodes, how far each may go, and how long anything may take."""

from __future__ import annotations

from pydantic import Field

from agentrl.section import Section
from agentrl.types import MIN_TRAIN_TEMPERATURE, Limits, Mode, Sampling

MAX_TEMPERATURE = 100.0  # the gateway's


class RolloutConfig(Section):
    """How episodes are run. Unknown keys are refused, and so are numbers that are not finite."""

    group_size: int = Field(default=8, ge=1)
    """Episodes of one task, which share a baseline."""

    workers: int = Field(default=1, ge=1)
    """Rollout workers (Ray actors); more than one helps environments that keep a Python process busy."""

    concurrency: int = Field(default=256, ge=1)
    """Episodes that one worker runs at once; further ones wait."""

    max_turns: int = Field(default=16, ge=1)
    """Assistant messages of an episode."""

    max_tokens: int | None = Field(default=512, ge=1)
    """Sampled tokens of one assistant message; the engine's context bounds them in any case."""

    max_episode_tokens: int | None = Field(default=None, ge=1)
    """Sampled tokens of a whole episode."""

    deadline_s: float = Field(default=600.0, gt=0)
    """Longest that one episode may take, in seconds. Its reward is then missing, for slowness is not a wrong answer."""

    temperature: float = Field(default=1.0, ge=MIN_TRAIN_TEMPERATURE, le=MAX_TEMPERATURE)
    """Sampling temperature in training; the trainer's loss follows it."""

    eval_temperature: float | None = Field(default=None, ge=0, le=MAX_TEMPERATURE)
    """Sampling temperature of evaluations; the same as in training when it is not given."""

    env_timeout_s: float = Field(default=60.0, gt=0)
    """Longest that one `reset`, `step` or `close` of an environment may take, in seconds."""

    max_hung_calls: int = Field(default=64, ge=1)
    """Environment calls that may hang in abandoned threads before a worker starts no more episodes."""

    request_timeout_s: float = Field(default=600.0, gt=0)
    """Longest that one model call may take, in seconds, a weight swap in between included."""

    max_attempts: int = Field(default=6, ge=1)
    """Tries of one request to the gateway when it is busy or cannot be reached."""

    def limits(self) -> Limits:
        return Limits(max_calls=self.max_turns, max_tokens=self.max_episode_tokens, deadline_s=self.deadline_s)

    def sampling(self, mode: Mode) -> Sampling:
        """What a session is pinned to. No seed: each episode of a group has to differ."""
        if mode == "eval" and self.eval_temperature is not None:
            return Sampling(temperature=self.eval_temperature, max_tokens=self.max_tokens)
        return Sampling(temperature=self.temperature, max_tokens=self.max_tokens)
