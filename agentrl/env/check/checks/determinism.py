"""The same task and actions give the same episode: again, in another process, beside another one, after a reset."""

from __future__ import annotations

from collections.abc import Iterator

from agentrl.env.check.differences import Difference, first_difference
from agentrl.env.check.finding import Finding, error
from agentrl.env.check.records import EpisodeRecord, Kind, Place, Recording

_SAME_PROCESS = ("random", "unseeded", "unique", "clock")
_OTHER_PROCESS = ("hash", "set order", "unique", "directory order", "random", "unseeded", "clock")


def check(recording: Recording) -> Iterator[Finding]:
    alone = _keyed(recording, "alone")
    repeated = _differences(alone, _keyed(recording, "repeat"))
    across = _differences(alone, _keyed(recording, "again"))
    if repeated and across == _differences(_keyed(recording, "repeat"), _keyed(recording, "again_repeat")) == []:
        # Two processes with the same history agree: it depends on earlier episodes, not on chance.
        yield from _interference(recording, repeated[:1], "depends on the episodes before it in the same process")
        return
    if repeated:
        yield _undetermined(recording, repeated[0])
        return
    if across:
        yield _across(recording, across[0])
    again = _keyed(recording, "again")
    beside = _differences(again, _keyed(recording, "together"))
    yield from _interference(recording, beside[:1], "changes when another instance plays beside it")
    for difference in _differences(again, _keyed(recording, "reused"))[:1]:
        yield error(
            "reset-incomplete",
            f"an instance that has played before gives another episode than a new one: {difference}",
            "set everything that an episode changes in reset",
            recording.place("reset"),
        )


Key = tuple[str, str]


def _keyed(recording: Recording, kind: Kind) -> dict[Key, EpisodeRecord]:
    """By task and policy, the first of each."""
    found: dict[Key, EpisodeRecord] = {}
    for episode in recording.of(kind):
        found.setdefault((episode.task_id, episode.policy), episode)
    return found


def _differences(left: dict[Key, EpisodeRecord], right: dict[Key, EpisodeRecord]) -> list[Difference]:
    compared = (first_difference(left[key], right[key]) for key in left if key in right)
    return [difference for difference in compared if difference is not None]


def _undetermined(recording: Recording, difference: Difference) -> Finding:
    cause, place = _cause(recording, difference, _SAME_PROCESS)
    return error(
        "not-deterministic",
        f"the same task and actions gave another episode the second time: {difference}{cause}",
        "draw from self.np_random, which reset(seed=...) seeds, and keep clocks and unique ids out of what is returned",
        place,
    )


def _across(recording: Recording, difference: Difference) -> Finding:
    cause, place = _cause(recording, difference, _OTHER_PROCESS)
    return error(
        "not-deterministic-across-processes",
        f"the same task and actions gave another episode in another process: {difference}{cause}",
        "sort sets and directories before they are walked, and use hashlib in place of hash()",
        place,
    )


def _interference(recording: Recording, differences: list[Difference], what: str) -> Iterator[Finding]:
    for difference in differences:
        changed = recording.state[0] if recording.state else None
        shared = f"; {changed.name} is shared and changed" if changed is not None else ""
        place = changed.place if changed is not None else None
        yield error(
            "instances-interfere",
            f"an episode {what}: {difference}{shared}",
            "keep the state of an episode on self and set it in reset, not on the class or the module",
            place or recording.place(difference.method),
        )


def _cause(recording: Recording, difference: Difference, kinds: tuple[str, ...]) -> tuple[str, Place | None]:
    """The likeliest line: a suspect in the method that differed or one that it may call, the likeliest kind first."""
    suspects = recording.subject.suspects if recording.subject is not None else []
    own = (difference.method, "score", *difference.tools)
    ordered = sorted(
        (suspect for suspect in suspects if suspect.kind in kinds),
        key=lambda suspect: (suspect.place.name.rpartition(".")[2] not in own, kinds.index(suspect.kind)),
    )
    if not ordered:
        return "", recording.place(difference.method)
    return f"; {ordered[0].text} is not seeded", ordered[0].place
