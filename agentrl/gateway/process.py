"""What a process that is there to serve the gateway sets for itself."""

from __future__ import annotations

import gc


def spare_the_collector() -> None:
    """Leaves what start-up made out of every later garbage collection, and collects seldom.

    A full collection walks hundreds of thousands of objects of imported modules and holds up every request meanwhile.
    What requests leave behind is freed by reference counts.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
