"""No process of a run outlives it, however the run ends."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence

from agentrl.cluster.processes import descendants, end, new_tag, processes_of, tag_this_process
from agentrl.cluster.reaper import reaper
from agentrl.cluster.signals import signals_ignored

logger = logging.getLogger(__name__)


@contextlib.contextmanager
def no_process_left(stop: Callable[[], None], held: Sequence[int] = ()) -> Iterator[Callable[[], list[str]]]:
    """Ends every process that the block started, however the block ended; `stop` asks them first.

    `held`: descriptors of locks that are not free before they have ended, though this process be killed.
    Yields a function that ends them at once, for whoever cannot wait.
    """
    tag = new_tag()
    with reaper(tag, held):
        earlier = descendants()
        tag_this_process(tag)
        try:
            yield lambda: end(processes_of(tag, earlier=earlier), grace_s=0.0)
        finally:
            with signals_ignored():
                processes = processes_of(tag, earlier=earlier)  # before `stop`, which orphans some
                stop()
                if left := end([*processes, *processes_of(tag, earlier=earlier)]):
                    logger.info("ended what was left: %s", ", ".join(left))
