"""What one worker is told of the gateway that it belongs to. Passed through a pipe, never in argv."""

from __future__ import annotations

from msgspec import Struct

from agentrl.gateway.workers.placement import Placement

LEADER = 0
"""The worker with the public port. It makes the changes to engines."""


class Seat(Struct, frozen=True):
    """`urls` are where the workers reach one another, by index. `key` shows a worker that another one asks."""

    at: Placement
    urls: tuple[str, ...]
    key: str

    @property
    def others(self) -> list[int]:
        return [index for index in range(self.at.count) if index != self.at.index]
