"""Which checkpoints are kept: a pure function of what is there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

Score = Literal["success", "reward"]
EVALUATED = "evaluated_"
"""Before the name of a score that an evaluation gave."""
Held = Mapping[int, Mapping[str, float]]  # version of a whole checkpoint -> its scores, by name


class Retention(NamedTuple):
    """keep_last: so many of the highest versions, None all. keep_best: so many of those with the highest `best_by`."""

    keep_last: int | None = None
    keep_best: int = 0
    best_by: Score = "success"

    def to_delete(self, held: Held, newest_written: int) -> list[int]:
        """Versions that go, in order. `newest_written` stays: after a return to an older one it is not the highest."""
        if self.keep_last is None:
            return []
        kept = {*sorted(held)[-self.keep_last :], *self._ranked(held)[: self.keep_best], newest_written}
        return sorted(held.keys() - kept)

    def best(self, held: Held) -> int | None:
        """None when no version has a score."""
        return next(iter(self._ranked(held)), None)

    def _ranked(self, held: Held) -> list[int]:
        """The best first, of equal ones the later; one without a score is not among them.

        Those that were evaluated come before all others, by the evaluation: training's own tasks are easier or harder
        from step to step.
        """
        rank = {}
        for version, scores in held.items():
            evaluated = f"{EVALUATED}{self.best_by}"
            score = scores.get(evaluated, scores.get(self.best_by))
            if score is not None:
                rank[version] = (evaluated in scores, score, version)
        return sorted(rank, key=rank.__getitem__, reverse=True)
