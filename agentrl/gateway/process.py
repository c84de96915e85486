"""What a process that is there to serve the gateway sets for itself."""

from __future__ import annotations

import gc

CYCLES = 1_000_000
"""Objects more than there were at the last garbage collection, which make the next one."""


def favour_the_event_loop() -> None:
    """Keeps what is not the event loop from holding it up. Call it when the gateway has started.

    A garbage collection walks every list of token ids that came since the last one, tens of milliseconds for the calls
    of a second or two. Requests leave no cycles behind (2,000 calls of 500 sessions left four objects in one), so what
    they made is freed without it; it stays on for what faults may leave, and does not walk what start-up made.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(CYCLES, 20, 50)
