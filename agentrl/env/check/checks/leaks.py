"""What an episode leaves behind when it is closed. Only what grows with every episode is a leak."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator

from agentrl.env.check.finding import Finding, error, warning
from agentrl.env.check.records import Left, Recording, Snapshot

_WARM_UP = 2  # episodes in which caches and pools may fill
_KIB = 64.0  # of memory an episode

_FIXES = {
    "thread": "end and join it in close",
    "process": "terminate it in close and wait for it",
    "file": "close it in close, or open it in a `with` block",
    "socket": "close it in close, or open it in a `with` block",
    "task": "cancel it in close and await it",
    "temporary": "delete it in close; tempfile.TemporaryDirectory does",
}
_NAMES = {
    "thread": "thread", "process": "process", "file": "open file", "socket": "open socket", "task": "asyncio task",
    "temporary": "temporary file",
}  # fmt: skip


def check(recording: Recording) -> Iterator[Finding]:
    snapshots = recording.snapshots
    if len(snapshots) <= _WARM_UP + 1:
        return
    for what in _FIXES:
        yield from _left(recording, snapshots[_WARM_UP - 1 :], what)
    yield from _memory(recording, snapshots[_WARM_UP:])


def _left(recording: Recording, snapshots: list[Snapshot], what: str) -> Iterator[Finding]:
    counts = [sum(left.what == what for left in snapshot.left) for snapshot in snapshots]
    if any(later <= earlier for earlier, later in itertools.pairwise(counts)):
        return
    more = Counter(left for left in snapshots[-1].left if left.what == what)
    more.subtract(left for left in snapshots[0].left if left.what == what)
    grown = [left for left, count in more.most_common() if count > 0] or [Left(what, "")]  # type: ignore[arg-type]
    left = next((left for left in grown if left.place is not None), grown[0])
    each = (counts[-1] - counts[0]) / (len(counts) - 1)
    named = f" ({left.name})" if left.name else ""
    yield error(
        f"leak-{what}",
        f"each episode leaves {each:g} {_NAMES[what]}{'s' if each > 1 else ''} behind{named}: {counts[0]} after "
        f"{_WARM_UP} episodes, {counts[-1]} after {_WARM_UP - 1 + len(counts)}",
        _FIXES[what],
        left.place or recording.place("close"),
    )


def _memory(recording: Recording, snapshots: list[Snapshot]) -> Iterator[Finding]:
    """In both halves, so that a cache that fills once is none."""
    kib = [snapshot.traced_kib for snapshot in snapshots]
    middle = len(kib) // 2
    halves = [(kib[middle] - kib[0]) / middle, (kib[-1] - kib[middle]) / (len(kib) - 1 - middle)]
    if min(halves) < _KIB:
        return
    growth = snapshots[-1].growth
    yield warning(
        "memory-growth",
        f"each episode keeps {min(halves):,.0f} KiB of memory",
        "let go of what an episode made: clear lists and caches of the class or module, or give them a cap",
        growth[0].place if growth else recording.place("close"),
    )
