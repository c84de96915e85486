"""Between HTTP and a reward service: each item is scored once, however often it is asked for; not too many at once."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import Sequence

import msgspec
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from agentrl.errors import RewardError
from agentrl.reward.protocol import Item, Score
from agentrl.reward.service import RewardService, failed

STOPPING = "the service is stopping; ask again later"


class Busy(RewardError):
    """More items would be under way than may."""


class Stopping(RewardError):
    """The service is being stopped; whoever asks again later, or elsewhere, gets a score."""


class AmbiguousItems(RewardError):
    """Two different items of one request have the same id."""


class Scoring:
    """An id that is asked for again with the same content gets the same score, also while it is being scored.

    At most `max_waiting` items are under way; `remembered` scores are kept. A score with an error is not remembered,
    so that a retry tries again. Belongs to one event loop.
    """

    def __init__(self, service: RewardService, *, max_waiting: int = 10_000, remembered: int = 100_000) -> None:
        self.registry = CollectorRegistry()
        self._asked = Counter("agentrl_reward_items", "Items by outcome.", ["outcome"], registry=self.registry)
        self._under_way = Gauge("agentrl_reward_items_under_way", "Items being scored.", registry=self.registry)
        self._seconds = Histogram("agentrl_reward_batch_seconds", "Time to score a batch.", registry=self.registry)
        self._service = service
        self._max_waiting = max_waiting
        self._remembered = remembered
        self._scores: OrderedDict[bytes, Score] = OrderedDict()
        self._running: dict[bytes, asyncio.Future[Score]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = False

    async def score(self, items: Sequence[Item]) -> list[Score]:
        """In the items' order. What fails in the service is its items' error. Raises Busy, Stopping, AmbiguousItems."""
        if self._stopping:
            raise Stopping(STOPPING)
        keys = [_key(item) for item in items]
        asked = dict(zip(keys, items, strict=True))
        if len({item.id for item in asked.values()}) < len(asked):
            raise AmbiguousItems("two different items have the same id; an id stands for one episode")
        found = {key: self._scores[key] for key in asked if key in self._scores}
        new = {key: item for key, item in asked.items() if key not in found and key not in self._running}
        if len(self._running) + len(new) > self._max_waiting:
            self._asked.labels("refused").inc(len(items))
            raise Busy(f"{len(self._running)} items are under way, of at most {self._max_waiting}; ask again later")
        self._asked.labels("repeated").inc(len(items) - len(new))
        self._start(new)
        waiting = {key: self._running[key] for key in asked if key not in found}
        if waiting:
            await asyncio.wait(waiting.values())
        found |= {key: future.result() for key, future in waiting.items()}
        return [found[key] for key in keys]

    async def stop(self, grace_s: float = 0.0) -> None:
        """Nothing new is scored. What is under way has so long; then who asked for it is told to ask again."""
        self._stopping = True
        if self._tasks and grace_s:
            await asyncio.wait(self._tasks, timeout=grace_s)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def close(self) -> None:
        await self.stop()
        await self._service.close()

    def _start(self, new: dict[bytes, Item]) -> None:
        if not new:
            return
        loop = asyncio.get_running_loop()
        self._running |= {key: loop.create_future() for key in new}
        # A task of its own: a client that hangs up does not take the score from another that waits for it.
        task = loop.create_task(self._ask(new), name=f"scoring {len(new)} items")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _ask(self, new: dict[bytes, Item]) -> None:
        started = time.perf_counter()
        self._under_way.inc(len(new))
        scores: dict[str, Score] = {}
        problem: Exception = RewardError("the service gave no score for this item")
        try:
            scores = {score.id: score for score in await self._service.score(list(new.values()))}
        except Exception as error:
            problem = error
        except BaseException:
            problem = Stopping(STOPPING)
            raise
        finally:
            self._under_way.dec(len(new))
            self._seconds.observe(time.perf_counter() - started)
            for key, item in new.items():
                if isinstance(problem, Stopping):
                    future = self._running.pop(key)
                    future.set_exception(problem)
                    future.exception()  # looked at, also when whoever asked has gone
                else:
                    self._settle(key, scores.get(item.id) or failed(item, problem))

    def _settle(self, key: bytes, score: Score) -> None:
        self._asked.labels("scored" if score.error is None else "failed").inc()
        if score.error is None:
            self._scores[key] = score
            if len(self._scores) > self._remembered:
                self._scores.popitem(last=False)
        self._running.pop(key).set_result(score)


def _key(item: Item) -> bytes:
    return hashlib.blake2b(msgspec.json.encode(item), digest_size=16).digest()
