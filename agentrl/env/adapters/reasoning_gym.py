"""Data sets of reasoning-gym: one question, one answer, scored by the data set's own scorer."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from itertools import count
from typing import Any

import numpy as np

from agentrl.env.adapters.imports import package
from agentrl.env.base import Env, ResetResult, StepResult
from agentrl.env.space import as_action
from agentrl.errors import ConfigError
from agentrl.messages import Message, system, user
from agentrl.types import Task

_SEEDS = 2**31  # of each half; some data sets refuse seeds of 2**32 and above


class ReasoningGym(Env):
    """`dataset` is a name of reasoning-gym ("leg_counting"), `config` its settings.

    "composite" takes `datasets` in its config, a list of tables {name, weight, config}. The policy answers in
    `<answer>` tags as the system message asks; `system_prompt` is a name of reasoning-gym's own ("default", "simple",
    "direct", …), or a text. With `tagged = false` the whole reply is the answer, and there is no system message
    unless one is given. A reply without an answer scores what the data set gives for none.
    """

    def __init__(
        self,
        dataset: str,
        *,
        config: dict[str, Any] | None = None,
        system_prompt: str | None = None,
        tagged: bool = True,
    ) -> None:
        self._create = package("reasoning_gym", extra="reasoning-gym").create_dataset
        self._utils = package("reasoning_gym.utils", extra="reasoning-gym")
        self._name = dataset
        self._config = _config(dataset, config or {})
        self._tagged = tagged
        prompt = system_prompt or ("direct" if tagged else None)
        self._system = self._utils.SYSTEM_PROMPTS.get(prompt, prompt)
        self._dataset: Any = None
        self._entry: dict[str, Any] = {}

    @classmethod
    def tasks(cls, split: str, seed: int, env_kwargs: Mapping[str, Any] | None = None) -> Iterator[Task]:
        """Endless. Training has the even seeds and every other split the odd ones, so no seed is in both."""
        rng = np.random.default_rng([seed, zlib.crc32(split.encode())])
        odd = int(split != "train")
        for index in count():
            yield Task(id=f"{split}-{seed}-{index}", seed=2 * int(rng.integers(_SEEDS)) + odd, split=split)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> ResetResult:
        super().reset(seed=seed)
        chosen = int(self.np_random.integers(_SEEDS)) if seed is None else seed % 2**32
        try:
            self._dataset = self._create(self._name, seed=chosen, size=1, **self._config)
        except (AssertionError, TypeError, ValueError) as error:
            raise ConfigError(f"reasoning-gym has no {self._name!r} with config {self._config}: {error}") from error
        self._entry = self._dataset[0]
        asked = user(str(self._entry["question"]))
        return [system(self._system), asked] if self._system else [asked], {}

    def step(self, action: Message | str) -> StepResult:
        text = as_action(action).text
        answer = self._utils.extract_answer(text) if self._tagged else text.strip()
        return [], self._score(answer), True, False, {"answer": answer}

    def _score(self, answer: str | None) -> float:
        """0 for an answer that the scorer chokes on, as some do on text that is no number."""
        try:
            return float(self._dataset.score_answer(answer, self._entry))
        except Exception:
            self._dataset.score_answer(self._entry["answer"], self._entry)  # raises where the scorer itself is broken
            return 0.0


def _config(name: str, config: dict[str, Any]) -> dict[str, Any]:
    if name != "composite":
        return config
    composite = package("reasoning_gym.composite", extra="reasoning-gym")
    specs = [composite.DatasetSpec(**{"weight": 1, "config": {}, **table}) for table in config.get("datasets", [])]
    return {**config, "datasets": specs}
