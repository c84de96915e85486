"""What the parts of one run share, and the bound on their start."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

from agentrl.cluster.site import Site
from agentrl.config import RunConfig
from agentrl.errors import RunError
from agentrl.observe.faults import FaultRecord
from agentrl.store.base import TrajectoryStore
from agentrl.train.batch_log import BatchLog
from agentrl.train.checkpoints import Checkpoints

ACTOR_START_S = 120.0  # for a Ray actor to come up, its imports included
PROBED = 4  # calls at a time of an actor that is probed while it starts or stops


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A checked run, as its parts are started with it. `say` hears one line per thing that happens."""

    config: RunConfig
    model: Path
    logs: Path
    weights: Path  # the directory that engines read new weights from
    store: TrajectoryStore
    store_url: str
    checkpoints: Checkpoints
    batches: BatchLog  # of the steps since the last of them
    admin_key: str  # the gateway's
    site: Site  # open before the first part starts
    say: Callable[[str], None]
    faulted: Callable[[FaultRecord], None]  # hears of every part that died, once that is over

    @property
    def patience_s(self) -> float:
        """How long others wait for a part that is being started again; the run has given it up by then."""
        supervision = self.config.supervision
        return supervision.longest_recovery_s + (supervision.max_restarts + 1) * ACTOR_START_S


@contextlib.asynccontextmanager
async def start_limit(what: str, seconds: float) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise RunError(
            f"{what} did not start within {seconds:g} s; the logs are in the run's logs/ directory"
        ) from None
