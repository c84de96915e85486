"""Which engines a gateway has, as one document that all its workers come to agree on. Pure.

Worker 0 makes the changes. Each gives the board a higher epoch; a worker that gets a board of a later epoch than its
own does what `changes` says. Applying a board twice, or one that came late, does nothing.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

SHARED = ""
"""The name, among runs, of the engines that serve all of them."""


class Member(Struct, frozen=True):
    """An engine. `version` is what was known of it when it was written down; a worker that has the engine believes its
    own health checks, unless the admin told the version since (`told`, an epoch; 0 for never).
    """

    id: str
    url: str
    version: int | None = None
    held_back: bool = False
    told: int = 0


class Board(Struct, frozen=True):
    """Engines by run. The epoch is 0 before the engines of the gateway are known.

    `current` are the current versions by run, below which a worker that begins routes nothing.
    """

    epoch: int = 0
    pools: dict[str, list[Member]] = {}
    current: dict[str, int] = {}


class Add(Struct, frozen=True):
    run_id: str
    engine: Member


class Remove(Struct, frozen=True):
    run_id: str
    engine_id: str


class Tell(Struct, frozen=True):
    run_id: str
    engine_id: str
    version: int | None  # None leaves it
    routable: bool | None  # None leaves it


Change = Add | Remove | Tell


def changes(here: Board, there: Board) -> list[Change]:
    """What a worker does that has `here` to have `there`, in order.

    A run's engines are added before others of it are removed, for without any it would fall back on the shared ones;
    what stands in the way of an addition, by its id or URL, goes first.
    """
    first: list[Change] = []
    adds: list[Change] = []
    last: list[Change] = []
    tells: list[Change] = []
    for run_id in {**there.pools, **here.pools}:
        old, new = _by_id(here.pools, run_id), _by_id(there.pools, run_id)
        added = [engine for engine in new.values() if engine.id not in old or old[engine.id].url != engine.url]
        taken = {engine.id for engine in added} | {engine.url for engine in added}
        for engine in old.values():
            if engine.id not in new or new[engine.id].url != engine.url:
                clashes = engine.id in taken or engine.url in taken
                (first if clashes else last).append(Remove(run_id, engine.id))
        adds += [Add(run_id, engine) for engine in added]
        tells += [Tell(run_id, engine.id, None, False) for engine in added if engine.held_back]
        for engine in new.values():
            if engine not in added:
                version = engine.version if engine.told > here.epoch else None
                moved = engine.held_back != old[engine.id].held_back
                if version is not None or moved:
                    tells.append(Tell(run_id, engine.id, version, not engine.held_back if moved else None))
    return [*first, *adds, *tells, *last]


def _by_id(pools: Mapping[str, list[Member]], run_id: str) -> dict[str, Member]:
    return {engine.id: engine for engine in pools.get(run_id, ())}
