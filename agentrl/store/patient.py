"""The store of a driver: what the database does not take for now is written again, so that the run goes on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from agentrl.errors import StoreUnavailable
from agentrl.patience import patiently
from agentrl.store.base import Settlement
from agentrl.store.sql import SqlStore
from agentrl.types import SwapRecord, Task

WAITS_S = 20.0
"""How long a write may hold up its caller, a driver's event loop mostly: then a full disk ends the run in words."""


class PatientStore(SqlStore):
    def __init__(self, url: str, *, create: bool = True, waits_s: float = WAITS_S) -> None:
        super().__init__(url, create=create)
        self._waits_s = waits_s

    def admit(self, group_id: str, task: Task, version: int, position: bytes | None = None) -> None:
        admit = super().admit
        self._patiently(lambda: admit(group_id, task, version, position))

    def settle(
        self,
        group_id: str,
        outcome: str,
        step: int | None,
        settlements: Sequence[Settlement] = (),
        position: bytes | None = None,
    ) -> None:
        settle = super().settle
        self._patiently(lambda: settle(group_id, outcome, step, settlements, position))

    def record_swap(self, swap: SwapRecord) -> None:
        record_swap = super().record_swap
        self._patiently(lambda: record_swap(swap))

    def set_reward(self, session_id: str, reward: float | None, components: Mapping[str, float | None]) -> None:
        set_reward = super().set_reward
        self._patiently(lambda: set_reward(session_id, reward, components))

    def set_call_rewards(self, session_id: str, rewards: Sequence[float | None]) -> None:
        set_call_rewards = super().set_call_rewards
        self._patiently(lambda: set_call_rewards(session_id, rewards))

    def _patiently(self, write: Callable[[], None]) -> None:
        patiently(write, passes=lambda error: isinstance(error, StoreUnavailable), limit_s=self._waits_s)
