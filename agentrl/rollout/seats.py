"""Who speaks in an episode: each role with its session, its conversation and its rewards; one seat without roles."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Coroutine, Iterable, Iterator, Mapping
from typing import Any, TypeVar

import msgspec

from agentrl.env.roles import Role
from agentrl.messages import Message, system
from agentrl.rollout.ports import Ending, Gateway, Session, SessionRequest
from agentrl.types import Episode, StopReason

log = logging.getLogger(__name__)

T = TypeVar("T")


class Seat:
    """One speaker, with an open session."""

    def __init__(self, name: str, role: Role, session: Session) -> None:
        self.name = name
        self.role = role
        self.session = session
        self.messages: list[Message] = [] if role.system is None else [system(role.system)]
        self.tools: list[dict[str, Any]] | None = None  # read when it first speaks
        self.rewards: list[float | None] = []
        self.call_rewards: dict[str, float | None] = {}  # of single calls, by their ids
        self.turns = 0

    def earned(self) -> float | None:
        """The sum of its rewards. Missing when one is, or when there was none."""
        known = [reward for reward in self.rewards if reward is not None]
        if not known or len(known) < len(self.rewards):
            return None
        try:
            return math.fsum(known)
        except OverflowError:
            log.warning("session %s: the sum of its rewards is past the floats, so it is missing", self.session.id)
            return None


class Seats:
    """The seats of one episode, in the order of its roles."""

    def __init__(self, request: SessionRequest, roles: Mapping[str, Role]) -> None:
        self.request = request
        self._roles = dict(roles) or {"": Role()}
        self._seats: dict[str, Seat] = {}

    def __iter__(self) -> Iterator[Seat]:
        return iter(self._seats.values())

    @property
    def first(self) -> Seat:
        return next(iter(self._seats.values()))

    def get(self, name: str) -> Seat | None:
        return self._seats.get(name)

    @property
    def names(self) -> str:
        return ", ".join(self._roles)

    @property
    def turns(self) -> int:
        return sum(seat.turns for seat in self._seats.values())

    async def open(self, gateway: Gateway) -> None:
        """Opens a session for each. Raises GatewayError; those that were opened are here all the same."""
        for name, role in self._roles.items():
            session = await gateway.open_session(self._request_of(name, role))
            self._seats[name] = Seat(name, role, session)

    def _request_of(self, name: str, role: Role) -> SessionRequest:
        """A role that is only sampled has an evaluation's session, which new weights in training do not end."""
        if not name:
            return self.request
        only_sampled = not role.train and self.request.mode == "train"
        return msgspec.structs.replace(
            self.request,
            metadata={**self.request.metadata, "role": name},
            mode="eval" if only_sampled else self.request.mode,
            across_swaps=only_sampled,
        )

    async def reward(
        self, rewards: Mapping[str, float | None], parts: Mapping[str, Mapping[str, float | None]]
    ) -> None:
        """Posts the reward of each. Raises GatewayError."""
        await _all(
            seat.session.reward(rewards[seat.name], parts[seat.name], seat.call_rewards)
            for seat in self._seats.values()
        )

    async def finish(self, stop_reason: StopReason, **options: bool) -> list[Ending]:
        """Seals all of them, each whatever becomes of the others. Raises the first GatewayError."""
        return await _all(seat.session.finish(stop_reason, **options) for seat in self._seats.values())

    def episode(self, stop_reason: StopReason, error: str | None, rewards: Mapping[str, float | None]) -> Episode:
        """The first seat's, with those of the others in it."""
        episodes = [
            Episode(
                session_id=seat.session.id,
                task=self.request.task,
                stop_reason=stop_reason,
                reward=rewards.get(seat.name),
                turns=seat.turns,
                error=error,
                messages=[dict(message) for message in seat.messages],
                role=seat.name,
                trained=seat.role.train,
            )
            for seat in self._seats.values()
        ]
        if not episodes:
            return Episode(session_id="", task=self.request.task, stop_reason=stop_reason, reward=None, error=error)
        episodes[0].others = episodes[1:]
        return episodes[0]


async def _all(calls: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    results = await asyncio.gather(*calls, return_exceptions=True)
    done = []
    for result in results:
        if isinstance(result, BaseException):
            raise result
        done.append(result)
    return done
