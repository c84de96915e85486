"""The parts of a check, each a series of episodes or readings."""

from __future__ import annotations

import asyncio
import functools
import gc
import itertools
import time
import tracemalloc
import warnings
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import orjson
from gymnasium.utils.env_checker import check_env

from agentrl.env import registry
from agentrl.env.check.child.bench import Bench
from agentrl.env.check.child.instance import Instance
from agentrl.env.check.child.leftovers import leftovers
from agentrl.env.check.child.play import REFERENCE, Player, play, policies
from agentrl.env.check.child.state import SharedState
from agentrl.env.check.plan import BUDGET_S, HUNG_STATUS, LEAK_EPISODES, READ_TASKS, SAME_TASKS, Section
from agentrl.env.check.records import (
    EpisodeRecord,
    Growth,
    GymnasiumRecord,
    Kind,
    Left,
    Place,
    Snapshot,
    TasksRecord,
)
from agentrl.types import Task

_SETTLE_S = 1.0  # that threads and processes have to end after `close`


async def read_tasks(bench: Bench) -> None:
    """Both splits; the training split twice, to see whether it comes in the same order."""
    held_out = [] if bench.plan.task_file else [("eval", 0)]
    for split, reading in ((bench.plan.split, 0), (bench.plan.split, 1), *held_out):
        record = TasksRecord(split=split, process=bench.plan.process, reading=reading)
        tasks = await _read(bench, record, READ_TASKS)
        record.ids = [task.id for task in tasks]
        record.keys = [_key(task) for task in tasks]
        record.finite = len(tasks) < READ_TASKS and not record.error
        if reading == 0 and bench.plan.process == 0 and bench.program is None:
            record.asked = await _asked(bench, tasks)
        bench.emit(record)


async def alone(bench: Bench) -> None:
    """Every task and policy on an instance of its own; the first tasks twice."""
    shared = SharedState(bench.author)
    kinds: tuple[Kind, Kind] = ("alone", "repeat") if bench.plan.process == 0 else ("again", "again_repeat")
    tasks = await _tasks(bench, bench.plan.tasks if bench.plan.process == 0 else SAME_TASKS)
    within = _budget()
    for number, task in enumerate(tasks):
        for policy in policies(bench):
            if number and not within():
                break
            await play(bench, kinds[0], task, policy)
            if number < SAME_TASKS:
                await play(bench, kinds[1], task, policy)
    if bench.plan.process == 0:
        for change in shared.changes():
            bench.emit(change)


async def together(bench: Bench) -> None:
    """Two instances take turns. What each gives is compared with its episode alone."""
    tasks = await _tasks(bench, SAME_TASKS)
    first, last = tasks[0], tasks[-1]
    for policy in ("tools", "text", REFERENCE):
        if policy not in policies(bench):
            continue
        players = [Player(bench, "together", task, policy) for task in (first, last)]
        for player in players:
            await player.begin()
        while any(not player.over for player in players):
            for player in players:
                if not player.over:
                    await player.turn()
        for player in players:
            await player.end()
            bench.emit(player.record)


async def reused(bench: Bench) -> None:
    """One instance, reset again and again: the last episode is compared with the same one on a new instance."""
    tasks = await _tasks(bench, SAME_TASKS)
    policy = REFERENCE if bench.solve is not None else "tools"
    instance = Instance(bench)
    for task in (tasks[0], tasks[-1]):
        player = await play(bench, "leaks", task, policy, instance, close=False)
        if player.record.failed:
            return
    await play(bench, "reused", tasks[0], policy, instance)


async def leaks(bench: Bench) -> None:
    """The same episode again and again, and what is left after each."""
    [task] = await _tasks(bench, 1)
    policy = REFERENCE if bench.solve is not None else "tools"
    tracemalloc.start()
    early: tracemalloc.Snapshot | None = None
    within = _budget()
    known = leftovers(bench.author, bench.seen)
    for index in range(LEAK_EPISODES):
        if index > 4 and not within():
            break
        player = await play(bench, "leaks", task, policy)
        failed = player.record.failed
        del player
        if failed:
            return
        left = await _settled(bench, len(known))
        known = left
        snapshot = Snapshot(index=index, left=left, traced_kib=tracemalloc.get_traced_memory()[0] / 1024)
        if index == 2:
            early = tracemalloc.take_snapshot()
        if index == LEAK_EPISODES - 1 and early is not None:
            snapshot.growth = _growth(bench, early, tracemalloc.take_snapshot())
        bench.emit(snapshot)
    tracemalloc.stop()


async def no_environment(bench: Bench) -> None:
    """Sections that an agent program, which is run once and asked nothing, has no part in."""


async def gymnasium_check(bench: Bench) -> None:
    """gymnasium's own checker, and a second `close`."""
    instance = Instance(bench)
    record = GymnasiumRecord()
    made = await instance.make()
    if made.raised is not None:
        return

    def checked(env: Any) -> None:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                check_env(env.unwrapped, skip_render_check=True)
            finally:
                record.warnings = [
                    str(warning.message)[:500] for warning in caught if issubclass(warning.category, UserWarning)
                ]

    call, _ = await instance.plainly(checked, "gymnasium")
    _unless_hung(bench, call)
    record.raised = call.raised
    record.by_author = call.raised is not None and call.raised.place is not None
    instance.retire()
    closing = Instance(bench)
    if (await closing.make()).raised is None:
        [task] = await _tasks(bench, 1)
        for call in (await closing.reset(task), await closing.close(), await closing.close()):
            _unless_hung(bench, call)
        record.second_close = call.raised
    closing.retire()
    bench.emit(record)


SECTIONS: dict[Section, Callable[[Bench], Awaitable[None]]] = {
    "tasks": read_tasks,
    "alone": alone,
    "again": alone,
    "together": together,
    "reused": reused,
    "leaks": leaks,
    "gymnasium": gymnasium_check,
}


PROGRAM_SECTIONS = SECTIONS | {"together": no_environment, "reused": no_environment, "gymnasium": no_environment}


def _unless_hung(bench: Bench, call: Any) -> None:
    if call.hung:
        bench.emit(EpisodeRecord(kind="leaks", task_id=bench.task_id, policy="", calls=[call]))
        bench.exits.leave(HUNG_STATUS)


async def _tasks(bench: Bench, count: int) -> list[Task]:
    tasks = await _read(bench, TasksRecord(split=bench.plan.split, process=0, reading=0), count)
    return tasks or [Task(id="task-0", env_id=bench.plan.env_id, seed=bench.plan.seed, split=bench.plan.split)]


async def _read(bench: Bench, record: TasksRecord, count: int) -> list[Task]:
    """The first tasks of a split, in a thread with a time limit."""
    plan = bench.plan
    bench.task_id = bench.policy = ""
    file = None if plan.task_file is None else Path(plan.task_file)
    read = functools.partial(
        registry.tasks, plan.env_id, split=record.split, seed=plan.seed, env_kwargs=plan.options, file=file
    )
    instance = Instance(bench)
    call, tasks = await instance.plainly(lambda _: list(itertools.islice(read(), count)), "tasks")
    _unless_hung(bench, call)
    instance.retire()
    if call.raised is None:
        return list(tasks)
    record.error, record.place = call.raised.text, call.raised.place
    return []


async def _asked(bench: Bench, tasks: list[Task]) -> list[str]:
    """The first observations, until one cannot be had."""
    found: list[str] = []
    within = _budget()
    for task in tasks:
        instance = Instance(bench)
        bench.task_id, bench.policy = task.id, ""
        calls = [await instance.make()]
        if calls[0].raised is None:
            calls += [await instance.reset(task), await instance.close()]
        instance.retire()
        for call in calls:
            _unless_hung(bench, call)
        if any(call.raised is not None for call in calls) or not within():
            break
        found.append(orjson.dumps(calls[1].observation).decode())
    return found


async def _settled(bench: Bench, before: int) -> list[Left]:
    """What is left, once it is as few as before or the grace is over."""
    deadline = time.monotonic() + _SETTLE_S
    while True:
        gc.collect()
        left = leftovers(bench.author, bench.seen)
        if len(left) <= before or time.monotonic() > deadline:
            return left
        await asyncio.sleep(0.02)


def _growth(bench: Bench, early: tracemalloc.Snapshot, late: tracemalloc.Snapshot) -> list[Growth]:
    found: list[Growth] = []
    for difference in late.compare_to(early, "lineno"):
        frame = difference.traceback[0]
        if difference.size_diff > 0 and bench.author.owns(frame.filename):
            found.append(Growth(difference.size_diff / 1024, Place(frame.filename, frame.lineno)))
    return sorted(found, key=lambda growth: -growth.kib)[:5]


def _key(task: Task) -> str:
    return orjson.dumps([task.seed, task.options], option=orjson.OPT_SORT_KEYS).decode()


def _budget() -> Callable[[], bool]:
    """Whether there is time left in this section."""
    deadline = time.monotonic() + BUDGET_S
    return lambda: time.monotonic() < deadline
