"""When more is ready than one round of the event loop may do, work is done in turn and everything else goes on."""

from __future__ import annotations

import asyncio
from itertools import pairwise

from agentrl.gateway.pacing import Pacer


async def test_work_within_the_budget_begins_at_once() -> None:
    pacer, done = Pacer(budget_s=60), list[int]()

    async def work(number: int) -> None:
        await pacer.turn()
        done.append(number)

    await asyncio.gather(*(work(number) for number in range(5)))
    assert done == [0, 1, 2, 3, 4]


async def test_work_beyond_the_budget_is_done_in_order_one_piece_a_round() -> None:
    """Something that comes round once a round, as the loop's other duties do, sees one more piece done each time."""
    pacer, done, seen = Pacer(budget_s=0), list[int](), list[int]()

    async def work(number: int) -> None:
        await pacer.turn()
        done.append(number)

    tasks = [asyncio.create_task(work(number)) for number in range(100)]
    while len(done) < 100:
        await asyncio.sleep(0)
        seen.append(len(done))
    assert done == list(range(100))
    assert max(after - before for before, after in pairwise(seen)) <= 2
    await asyncio.gather(*tasks)


async def test_who_gives_up_waiting_holds_nobody_up() -> None:
    pacer, done = Pacer(budget_s=0), list[int]()

    async def work(number: int) -> None:
        await pacer.turn()
        done.append(number)

    tasks = [asyncio.create_task(work(number)) for number in range(4)]
    await asyncio.sleep(0)
    for task in tasks[1:3]:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert done == [0, 3]
    await pacer.turn()
