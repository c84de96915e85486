"""What every run has around it: its processes end with it, a signal ends it in order, its end is written down."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

from agentrl.cluster.cleanup import no_process_left
from agentrl.cluster.ray_session import start_ray, stop_ray
from agentrl.cluster.shared_memory import shared_memory
from agentrl.cluster.signals import Interrupts, interruptible
from agentrl.errors import Interrupted

logger = logging.getLogger(__name__)

Work = Callable[[Path, Interrupts], Coroutine[Any, Any, None]]
"""Given a directory in shared memory, and what hears signals."""


SummaryT = TypeVar("SummaryT")


def run_framed(
    work: Work,
    *,
    lock: int,
    ended: Callable[[str, str | None], SummaryT],
    start: Callable[[], None] = start_ray,
) -> SummaryT:
    """Runs `work` with Ray to its end and leaves no process behind. Belongs in the main thread.

    `start`: starts Ray, or joins it. `lock`: the descriptor of the run directory's, which is not free before all of the
    run's processes have ended.

    `ended` is told, whatever the end is, "done", "interrupted" or "failed", and what failed; what it returns is
    returned. Raises what `work` raised, and KeyboardInterrupt when it was interrupted.
    """
    how, error = "failed", None
    with (
        no_process_left(stop_ray, (lock,)) as end_now,
        interruptible(end_now) as interrupts,
        shared_memory() as weights,
    ):
        try:
            start()  # in this thread: Ray's processes die with the thread that started them
            asyncio.run(work(weights, interrupts))
            how = "done"
        except (KeyboardInterrupt, asyncio.CancelledError, Interrupted):
            how = "interrupted"
            raise KeyboardInterrupt from None
        except Exception as failure:
            logger.exception("the run failed")
            error = f"{type(failure).__name__}: {failure}"
            raise
        finally:
            summary = ended(how, error)
    return summary
