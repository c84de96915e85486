"""`async def` code that keeps the event loop, and with it every other episode of the worker, waiting."""

from __future__ import annotations

from collections.abc import Iterator

from agentrl.env.check.finding import Finding, error
from agentrl.env.check.records import Recording, Stall


def check(recording: Recording) -> Iterator[Finding]:
    worst: dict[str, tuple[int, Stall]] = {}
    for episode in recording.episodes:
        for call in episode.calls:
            for stall in call.stalls:
                times, most = worst.get(call.method, (0, stall))
                named = stall if stall.place is not None and (most.place is None or stall.ms > most.ms) else most
                worst[call.method] = (times + 1, named)
    for method, (times, stall) in worst.items():
        if times < 2:  # an import, a first connection: once in the life of a worker
            continue
        yield error(
            "blocks-event-loop",
            f"async {method} kept the event loop for {stall.ms:.0f} ms, and {times} times for 100 ms or more",
            "await an async library, use `await asyncio.to_thread(...)`, or make the method a plain `def`, which runs "
            "in a thread",
            stall.place or recording.place(method),
        )
