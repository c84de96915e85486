"""Mathematical equality of the policy's answer and the task's, by math-verify (LaTeX, fractions, sets, intervals …)."""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import threading
from collections.abc import Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool

from agentrl.errors import RewardError
from agentrl.reward.protocol import Item, Score
from agentrl.reward.service import CannotScore, failed
from agentrl_rewards.labels import label_of


class MathVerify:
    """Mathematical equality of the last message and the task's label.

    Reward 1 when the message's last expression equals the task's option named by `label`, else 0. Expressions are
    worked out in `workers` processes: simplifying may take for ever, and only a process's main thread can be
    interrupted. An answer that cannot be worked out within `timeout_s` seconds is a wrong one if its label can.
    """

    def __init__(self, *, label: str = "answer", workers: int = 0, timeout_s: int = 5) -> None:
        self._label = label
        self._timeout_s = timeout_s
        self._workers = workers or min(8, os.cpu_count() or 1)
        self._pool = self._new_pool(self._workers)
        self._apart = asyncio.Semaphore(1)

    async def score(self, items: Sequence[Item]) -> Sequence[Score]:
        return await asyncio.gather(*map(self._one, items))

    async def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def _one(self, item: Item) -> Score:
        try:
            label = str(label_of(item, self._label))
            pool = self._pool
            try:
                reward = await self._worked_out(pool, label, item.text)
            except BrokenProcessPool:  # this item's doing, or that of one beside it
                self._replace(pool)
                reward = await self._worked_out_apart(label, item.text)
            return Score(id=item.id, reward=reward)
        except Exception as error:  # one item's, never its batch's
            return failed(item, error)

    async def _worked_out(self, pool: Executor, label: str, text: str) -> float:
        return await asyncio.get_running_loop().run_in_executor(pool, _judge, label, text, self._timeout_s)

    async def _worked_out_apart(self, label: str, text: str) -> float:
        """In a process of its own, so that an item that ends processes costs no other."""
        async with self._apart:
            pool = self._new_pool(1)
            try:
                return await self._worked_out(pool, label, text)
            except BrokenProcessPool:
                raise CannotScore("the process that worked it out died of it") from None
            finally:
                pool.shutdown(wait=False, cancel_futures=True)

    def _replace(self, broken: Executor) -> None:
        if self._pool is broken:
            self._pool = self._new_pool(self._workers)
            broken.shutdown(wait=False)

    def _new_pool(self, workers: int) -> Executor:
        context = multiprocessing.get_context("spawn")  # a fork of a process with threads may hang
        return ProcessPoolExecutor(workers, mp_context=context, initializer=_begin)


def _begin() -> None:
    """In each worker."""
    logging.getLogger("math_verify").setLevel(logging.CRITICAL)
    threading.Thread(target=_end_with_the_service, daemon=True).start()


def _end_with_the_service() -> None:
    """A worker whose service was killed outright would wait for work for ever."""
    service = multiprocessing.parent_process()
    if service is not None:
        service.join()
        os._exit(1)


def _judge(label: str, text: str, timeout_s: int) -> float:
    """In a worker's main thread, where math-verify's own time limits work."""
    from math_verify import parse, verify  # two seconds to import, in the workers only

    # Between dollars it is LaTeX; bare numbers and fractions are found without.
    gold = parse(label, parsing_timeout=timeout_s) or parse(f"${label}$", parsing_timeout=timeout_s)
    if all(isinstance(value, str) for value in gold):  # what was found, as text: nothing was understood
        raise RewardError(
            f"the task's answer {label!r:.200} cannot be read as mathematics; write it as LaTeX or a number"
        )
    return float(verify(gold, parse(text, parsing_timeout=timeout_s), timeout_seconds=timeout_s))
