"""Tasks: named uniquely, in the same order each time, and none of the evaluation's among the training's."""

from __future__ import annotations

from collections.abc import Iterator

from agentrl.env.check.finding import Finding, error
from agentrl.env.check.records import Place, Recording, TasksRecord

_VARIED = 0.5  # share of first observations that differ, from which one that recurs says something


def check(recording: Recording) -> Iterator[Finding]:
    place = recording.place("tasks")
    readings = recording.tasks
    for reading in readings:
        yield from _of_one(reading, place)
    first = next((reading for reading in readings if reading.split != "eval" and not reading.error), None)
    if first is None:
        return
    for other in readings:
        same_split = other.split == first.split and not other.error
        if same_split and other is not first and (other.ids, other.keys) != (first.ids, first.keys):
            where = "in another process" if other.process != first.process else "the second time"
            yield error(
                "tasks-order",
                f"split {first.split!r} with the same seed gave other tasks {where}: {_first_other(first, other)}",
                "draw them from numpy.random.default_rng(seed) and sort what has no order of its own",
                place,
            )
    held_out = next((other for other in readings if other.split == "eval" and not other.error), None)
    if held_out is not None and first.split != "eval":
        yield from _overlap(recording, first, held_out, place)


def _of_one(reading: TasksRecord, place: Place | None) -> Iterator[Finding]:
    if reading.error and reading.split != "eval":  # an environment need not have a split "eval"
        told = f"split {reading.split!r} cannot be read: {reading.error}"
        yield error("tasks-fail", told, "mend tasks(split, seed)", reading.place or place)
    elif not reading.error and not reading.ids:
        told = f"split {reading.split!r} has no task"
        yield error("tasks-empty", told, "yield at least one, or raise ValueError for a split that there is not", place)
    repeated = sorted({task_id for task_id in reading.ids if reading.ids.count(task_id) > 1})
    if repeated:
        told = f"split {reading.split!r} gives {len(repeated)} task ids twice, {repeated[0]!r} first"
        yield error("task-ids", told, "give each task of a split an id of its own", place)


def _overlap(recording: Recording, train: TasksRecord, held_out: TasksRecord, place: Place | None) -> Iterator[Finding]:
    same = set(train.keys) & set(held_out.keys)
    total = len(held_out.keys)
    asked, asked_held_out = set(train.asked), set(held_out.asked)
    varied = len(asked) > _VARIED * len(train.asked) and len(asked_held_out) > _VARIED * len(held_out.asked)
    both = asked & asked_held_out if varied else set()
    if same and (train.finite or varied or not train.asked):
        told = f"{len(same)} of the first {total} tasks of split 'eval' have seed and options of a {train.split!r} task"
    elif both:
        told = f"{len(both)} of the first {total} tasks of split 'eval' ask what a {train.split!r} task asks"
    else:
        return
    yield error(
        "splits-overlap",
        told,
        "hold tasks out by a hash of what is asked, or use options['split'] in reset",
        place or recording.place("reset"),
    )


def _first_other(first: TasksRecord, other: TasksRecord) -> str:
    for index, (mine, its) in enumerate(zip(first.ids, other.ids, strict=False)):
        if mine != its:
            return f"task {index} is {mine!r}, then {its!r}"
    for task_id, mine, its in zip(first.ids, first.keys, other.keys, strict=False):
        if mine != its:
            return f"task {task_id!r} is {mine[:60]}, then {its[:60]}"
    return f"{len(first.ids)} tasks, then {len(other.ids)}"
