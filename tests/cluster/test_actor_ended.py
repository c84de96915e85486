"""An actor is ended by Ray where it can be, and killed where it cannot."""

from __future__ import annotations

import psutil
import pytest

from agentrl.cluster.parts.actor import Actor


class Process:
    """What is known of the actor's process. `obeys`: Ray ends it in time."""

    def __init__(self, said: list[str], *, obeys: bool) -> None:
        self._said, self._obeys = said, obeys

    def wait(self, timeout: float) -> None:
        self._said.append("waited")
        if not self._obeys:
            raise psutil.TimeoutExpired(timeout)

    def kill(self) -> None:
        self._said.append("killed")
        if self._obeys:
            raise psutil.NoSuchProcess(1)


@pytest.mark.parametrize("obeys", [True, False])
def test_ray_is_asked_first_and_given_time(obeys: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr("ray.kill", lambda handle: said.append(f"asked Ray for {handle}"))
    actor = Actor("rollout-0", lambda: "the actor", probe_timeout_s=1.0)
    actor.begin()
    monkeypatch.setattr(actor, "_process", Process(said, obeys=obeys))
    actor.kill()
    assert said == ["asked Ray for the actor", "waited", "killed"]
    actor.kill()
    assert said[3:] == ["asked Ray for the actor"], "its process is forgotten"
