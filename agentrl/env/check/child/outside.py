"""What a call may change outside its environment, compared before and after."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass

import numpy as np

from agentrl.env.check.child.seen import Seen
from agentrl.env.check.records import Effect


@dataclass(frozen=True)
class Outside:
    cwd: str
    environ: dict[str, str]
    random_state: object
    numpy_state: bytes

    @classmethod
    def now(cls) -> Outside:
        state = np.random.get_state(legacy=False)
        assert isinstance(state, dict)
        numbers = state["state"]
        described = numbers["key"].tobytes() + repr((numbers["pos"], state["has_gauss"], state["gauss"])).encode()
        return cls(_cwd(), dict(os.environ), random.getstate(), described)

    def changes(self, seen: Seen) -> list[Effect]:
        now = Outside.now()
        found: list[Effect] = []
        if now.cwd != self.cwd:
            found.append(Effect("cwd", f"{self.cwd} became {now.cwd}", seen.place("cwd")))
        for name in sorted(set(now.environ) | set(self.environ)):
            if now.environ.get(name) != self.environ.get(name):  # the value may be a secret
                done = "set" if name in now.environ else "removed"
                found.append(Effect("environ", f"{name} was {done}", seen.place("environ", name)))
        if now.random_state != self.random_state:
            found.append(Effect("random", "Python's global generator was drawn from or seeded"))
        if now.numpy_state != self.numpy_state:
            found.append(Effect("numpy.random", "numpy's global generator was drawn from or seeded"))
        return found

    def restore(self) -> None:
        """So that one call's change is not found again at the next."""
        if os.path.isdir(self.cwd) and _cwd() != self.cwd:
            os.chdir(self.cwd)


def _cwd() -> str:
    try:
        return os.getcwd()
    except OSError:
        return "a directory that is gone"
