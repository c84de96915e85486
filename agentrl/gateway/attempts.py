"""Which requests of a session are the same request sent again. No I/O.

An SDK that saw its connection break or a 5xx sends the request again and says so (a retry count, or an idempotency
key). It is given the answer that it missed, so that no turn is sampled and recorded twice. Equal bodies alone say
nothing: an agent may well ask the same thing twice and mean it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence

from msgspec import Struct

from agentrl.gateway.deltas import Answer
from agentrl.gateway.refusal import Refusal
from agentrl.types import Call

KEPT = 64
"""Requests of a session that are remembered; a retry comes within seconds of what it repeats."""


class Asked(Struct, frozen=True, array_like=True):
    """Of a recorded call, the request with an idempotency key that it answers; what its retry needs is in it."""

    key: str
    body: str  # digest of path and body, in hexadecimal
    response_id: str
    created: int  # unix seconds
    choice: int  # of `choices`, which one the call is
    choices: int


class Attempt:
    """One request. `answers` is done when it has ended, with None when it got no answer."""

    def __init__(self, body: bytes, count: int, key: str | None) -> None:
        self.body = body  # digest of path and body
        self.count = count  # how often it had been sent before
        self.key = key  # idempotency key
        self.answers: asyncio.Future[list[Answer] | None] = asyncio.get_running_loop().create_future()
        self.response_id = ""
        self.created = 0
        self.delivered = False
        self.repeated = False  # somebody sent it again

    def end(self, answers: list[Answer] | None) -> None:
        if not self.answers.done():
            self.answers.set_result(answers)


class Attempts:
    """The latest requests of one session."""

    def __init__(self) -> None:
        self._known: deque[Attempt] = deque(maxlen=KEPT)

    def begin(self, body: bytes, *, count: int = 0, key: str | None = None) -> tuple[Attempt, Attempt | None]:
        """A new attempt, and the earlier one that it repeats, if any. An empty key is none.

        Raises Refusal (409) when an idempotency key comes back with another body.
        """
        key = key or None
        earlier = self._by_key(body, key) if key is not None else self._by_count(body, count)
        if earlier is not None:
            earlier.repeated = True
        attempt = Attempt(body, count, key)
        self._known.append(attempt)
        return attempt, earlier

    def restore(self, asked: Mapping[int, Asked], calls: Sequence[Call]) -> list[str]:
        """Remembers what a gateway that died since had answered; `asked` by the index of the call.

        Whether a client had the answers nobody knows, but of a request whose calls are not all there none had: the ids
        of those calls.
        """
        requests: dict[str, dict[int, int]] = {}
        for index, one in asked.items():
            requests.setdefault(one.key, {})[one.choice] = index
        lost: list[str] = []
        for by_choice in requests.values():
            found = [calls[index] for _, index in sorted(by_choice.items())]
            request = asked[min(by_choice.values())]
            if len(found) < request.choices:
                lost += [call.call_id for call in found]
                continue
            attempt = Attempt(bytes.fromhex(request.body), 0, request.key)
            attempt.response_id, attempt.created = request.response_id, request.created
            attempt.end([Answer(call=call, logprobs=call.logprobs) for call in found])
            self._known.append(attempt)
        return lost

    def _by_key(self, body: bytes, key: str) -> Attempt | None:
        found = next((attempt for attempt in reversed(self._known) if attempt.key == key), None)
        if found is not None and found.body != body:
            message = "this Idempotency-Key came with another body before; use a new key for a new request"
            raise Refusal(409, "idempotency_key_reused", message, param="Idempotency-Key")
        return found

    def _by_count(self, body: bytes, count: int) -> Attempt | None:
        """Of equal bodies that were sent less often (some never came): one whose answer was surely missed, else the
        latest."""
        if count == 0:
            return None
        found = [a for a in self._known if a.body == body and a.count < count and not a.repeated and a.key is None]
        missed = [a for a in found if not a.delivered]
        return next(reversed(missed or found), None)
