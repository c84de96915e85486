"""The store of a driver: what the database does not take for now is written again, so that the run goes on."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec

from agentrl.errors import StoreUnavailable
from agentrl.patience import patiently
from agentrl.store.sql import SqlStore

P = ParamSpec("P")

WAITS_S = 20.0
"""How long a write may hold up its caller, a driver's event loop mostly: then a full disk ends the run in words."""


def _may_pass(error: BaseException) -> bool:
    return isinstance(error, StoreUnavailable)


def _patient(write: Callable[Concatenate[SqlStore, P], None]) -> Callable[Concatenate[PatientStore, P], None]:
    @wraps(write)
    def again(store: PatientStore, *args: P.args, **kwargs: P.kwargs) -> None:
        patiently(lambda: write(store, *args, **kwargs), passes=_may_pass, limit_s=store.waits_s)

    return again


class PatientStore(SqlStore):
    def __init__(self, url: str, *, create: bool = True, waits_s: float = WAITS_S) -> None:
        super().__init__(url, create=create)
        self.waits_s = waits_s

    admit = _patient(SqlStore.admit)
    settle = _patient(SqlStore.settle)
    record_swap = _patient(SqlStore.record_swap)
    set_reward = _patient(SqlStore.set_reward)
    set_call_rewards = _patient(SqlStore.set_call_rewards)
