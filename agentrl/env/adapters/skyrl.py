"""SkyRL-gym's text environments: `init` and `step` as gymnasium's `reset` and `step`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentrl.env.adapters.imports import named, package, placed_names
from agentrl.env.base import Env, Observation, ResetResult, StepResult
from agentrl.env.space import as_action, message_fault
from agentrl.errors import ConfigError, EnvironmentFault
from agentrl.messages import Message, system, user


class SkyRL(Env):
    """`environment` is an id of skyrl_gym ("gsm8k"), or `module:Class`; `config` is its `env_config`.

    A task's options are a row of the data set: `prompt`, messages or text, and what the environment takes as its
    `extras` (`reward_spec` with the `ground_truth`, …). `max_turns` is among the extras of every task, unless a row
    has its own. The reward of a step is the environment's. A `postprocessed_action` is told in `info` only: what the
    policy said stays as it was sampled.
    """

    def __init__(
        self,
        environment: str,
        *,
        config: dict[str, Any] | None = None,
        instructions: str | None = None,
        max_turns: int | None = None,
    ) -> None:
        self._skyrl = package("skyrl_gym", extra="skyrl")
        if ":" not in environment and environment not in self._skyrl.registry:
            known = ", ".join(sorted(self._skyrl.registry))
            raise ConfigError(f"skyrl_gym has no {environment!r}; it has {known}; your own is named 'module:Class'")
        self._name = environment
        self._config = package("omegaconf", extra="skyrl").OmegaConf.create(config or {})
        self._instructions = instructions
        self._max_turns = max_turns
        self._environment: Any = None

    @classmethod
    def placed(cls, options: Mapping[str, Any]) -> dict[str, Any]:
        return placed_names(options, "environment")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> ResetResult:
        super().reset(seed=seed)
        self.close()
        row = dict(options or {})
        prompt = row.pop("prompt", None)
        messages = [user(prompt)] if isinstance(prompt, str) else prompt
        if not isinstance(messages, list) or not messages or any(map(message_fault, messages)):
            raise ConfigError(
                f"the prompt of a SkyRL task is text or a list of messages, got {prompt!r:.100}; "
                "the data set's rows come from environment.train_tasks and eval_tasks"
            )
        extras = {"max_turns": self._max_turns, **row} if self._max_turns is not None else row
        try:
            self._environment = self._made(extras)
        except (AssertionError, KeyError, TypeError) as error:
            raise ConfigError(
                f"{self._name} cannot be made with the task's options {sorted(extras)}: {type(error).__name__}: {error}"
            ) from error
        opening, info = self._environment.init([dict(message) for message in messages])
        told = self._messages("init", opening)
        return [system(self._instructions), *told] if self._instructions else told, dict(info or {})

    def step(self, action: Message | str) -> StepResult:
        output = self._environment.step(as_action(action).text)
        reward, done = output["reward"], bool(output["done"])
        told = self._messages("step", output["observations"])
        if not told and not done:
            told = [user("There is nothing to see.")]
        info = {"metadata": output.get("metadata") or {}}
        if output.get("postprocessed_action") is not None:
            info["postprocessed_action"] = output["postprocessed_action"]
        if done:
            info["metrics"] = self._environment.get_metrics()
        return told, None if reward is None else float(reward), done, False, info

    def close(self) -> None:
        environment, self._environment = self._environment, None
        if environment is not None:
            environment.close()

    def _made(self, extras: dict[str, Any]) -> Any:
        if ":" in self._name:
            return named(self._name)(env_config=self._config, extras=extras)
        return self._skyrl.make(self._name, env_config=self._config, extras=extras)

    def _messages(self, method: str, observations: Any) -> Observation:
        found = [observations] if isinstance(observations, dict) else list(observations or [])
        wrong = next((fault for message in found if (fault := message_fault(message)) is not None), None)
        if wrong is not None:
            raise EnvironmentFault(f"{self._name}.{method} gave no messages: {wrong}")
        return [Message(message) for message in found]
