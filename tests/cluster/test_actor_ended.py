"""An actor is ended by Ray where it can be, and killed where it cannot."""

from __future__ import annotations

import asyncio

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


class Probed:
    """A handle whose probe answers when it is told to."""

    def __init__(self) -> None:
        self.asked = 0
        self.answer: asyncio.Future[tuple[bool, bool]] = asyncio.get_running_loop().create_future()
        self.probe = self

    def remote(self) -> asyncio.Future[tuple[bool, bool]]:
        self.asked += 1
        return self.answer


async def test_several_may_ask_at_once_and_all_hear_the_one_answer() -> None:
    """The supervisor looks, and so does a loop that failed and wants to know why."""
    handle = Probed()
    actor = Actor("rollout-0", lambda: handle, probe_timeout_s=10.0)
    actor.begin()
    asking = [asyncio.create_task(actor.probe()) for _ in range(3)]
    await asyncio.sleep(0)
    handle.answer.set_result((True, True))
    assert await asyncio.gather(*asking) == [(True, True)] * 3
    assert handle.asked == 1


async def test_who_asks_hears_that_it_was_killed_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ray.kill", lambda handle: None)
    actor = Actor("rollout-0", Probed, probe_timeout_s=10.0)
    actor.begin()
    asking = asyncio.create_task(actor.probe())
    await asyncio.sleep(0)
    actor.kill()
    assert await asking == (False, False)
