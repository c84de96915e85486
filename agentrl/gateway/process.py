"""What a process that is there to serve the gateway sets for itself."""

from __future__ import annotations

import gc


def favour_the_event_loop() -> None:
    """Keeps what is not the event loop from holding it up. Call it when the gateway has started.

    A full garbage collection walks hundreds of thousands of objects of imported modules: what start-up made is left out
    of every later one, and what requests leave behind is freed by reference counts.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
