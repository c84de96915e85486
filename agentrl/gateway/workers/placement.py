"""Which worker of a gateway has a session: by a hash of its id, so that every worker can tell without asking. Pure.

A session's place is 32 bits of that hash. Its key carries the place, and the worker is the place modulo the number of
workers, so ids and keys stay good when a gateway comes back with another number of them.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable

from msgspec import Struct

from agentrl.gateway.keys import place_of_key


def place(session_id: str) -> int:
    """0 … 2**32 - 1, the same in every process and release."""
    digest = hashlib.blake2b(session_id.encode("utf-8", "surrogatepass"), digest_size=4, person=b"agentrl-place")
    return int.from_bytes(digest.digest(), "big")


class Placement(Struct, frozen=True):
    """The place of one worker among `count`; worker 0 has the public port."""

    index: int = 0
    count: int = 1

    def owner(self, session_id: str) -> int:
        return place(session_id) % self.count

    def owner_of_key(self, key: str) -> int | None:
        """None for a key that is no session's."""
        found = place_of_key(key)
        return None if found is None else found % self.count

    def owns(self, session_id: str) -> bool:
        return self.count == 1 or self.owner(session_id) == self.index

    def new_session_id(self, draw: Callable[[], str] = lambda: uuid.uuid4().hex) -> str:
        """A random id that this worker owns; it takes `count` draws on average."""
        while not self.owns(session_id := draw()):
            pass
        return session_id


ALONE = Placement()
"""Of a gateway that is one process."""
