"""Which source of a mix the next task is drawn from. Pure: it follows from seed, draws so far and what was observed."""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from agentrl.errors import ConfigError
from agentrl.train.environment import CurriculumConfig


class Curriculum:
    """Draws sources by weight, the n-th draw by chance that follows from seed and n.

    With `prefer = "learnable"` a weight is multiplied by the share of the source's recent groups whose attempts were
    neither all successes nor all failures, `floor` at the least, so that no source is given up for good. A source is
    taken for learnable until its groups show otherwise.
    """

    def __init__(self, weights: Mapping[str, float], config: CurriculumConfig, *, seed: int) -> None:
        self._weights = dict(weights)
        self._config = config
        self._seed = seed
        self._draws = 0
        self._learnable = dict.fromkeys(weights, 1.0)  # moving averages

    def choose(self, among: Collection[str]) -> str:
        """One of these, for the next draw."""
        names = [name for name in self._weights if name in among]
        chance = random.Random(f"{self._seed} {self._draws}")
        self._draws += 1
        [name] = chance.choices(names, [self.weight(name) for name in names])
        return name

    def observe(self, name: str, successes: Sequence[bool]) -> None:
        """Of a group of that source, whether each attempt that has a reward was a success. One alone says nothing."""
        if len(successes) > 1 and name in self._learnable:
            mixed = float(any(successes) and not all(successes))
            self._learnable[name] += (mixed - self._learnable[name]) / self._config.window

    def weight(self, name: str) -> float:
        if self._config.prefer == "weights":
            return self._weights[name]
        return self._weights[name] * max(self._config.floor, self._learnable[name])

    def learnable(self, name: str) -> float:
        return self._learnable[name]

    def state(self) -> dict[str, Any]:
        return {"draws": self._draws, "learnable": dict(self._learnable)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Raises ConfigError when the state is of other sources."""
        if set(state["learnable"]) != set(self._weights):
            raise ConfigError(
                f"the run drew its tasks from {_named(state['learnable'])}, and environment.mix names "
                f"{_named(self._weights)}; resume it with the sources that it had"
            )
        self._draws = int(state["draws"])
        self._learnable = {name: float(state["learnable"][name]) for name in self._weights}


def _named(sources: Collection[str]) -> str:
    return ", ".join(name or "no mix" for name in sorted(sources))
