"""The engines of a gateway, the same at all its workers: one of them writes the board, the others follow it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

import msgspec

from agentrl.gateway.control_bodies import Engines
from agentrl.gateway.engines import EnginePool
from agentrl.gateway.pools import Pools
from agentrl.gateway.refusal import Refusal
from agentrl.gateway.workers.board import Add, Board, Change, Member, Remove, changes
from agentrl.gateway.workers.peers import Peers
from agentrl.gateway.workers.seat import LEADER, Seat

logger = logging.getLogger(__name__)

BOARD = "/internal/engines"
ASK_S = 2.0
PUSH_S = 15.0
"""A worker that is given an engine asks that for its health before it answers."""
FOLLOW_EVERY_S = 1.0
"""How long a worker that was not told of a change may go without it."""
AT_START_S = 0.1

Told = tuple[str, str]
"""(run, engine id)."""
Known = dict[str, Engines]
"""What one worker knows of the engines, by run."""


class SharedEngines:
    """Worker 0 holds `changing` while it changes its own engines, then publishes them."""

    def __init__(self, pools: Pools, peers: Peers, seat: Seat, *, clock: Callable[[], int] = time.time_ns) -> None:
        self.changing = asyncio.Lock()
        self.epoch = 0
        self._pools = pools
        self._peers = peers
        self._seat = seat
        self._clock = clock
        self._told: dict[Told, int] = {}  # when the admin last told an engine's version, as an epoch
        self._applying = asyncio.Lock()

    def board(self) -> Board:
        pools = dict(self._pools.by_run())
        return Board(
            self.epoch,
            {name: self._members(name, pool) for name, pool in pools.items()},
            {name: pool.table.current_version for name, pool in pools.items()},
        )

    def known(self) -> Known:
        return {
            name: Engines(pool.table.current_version, [pool.status(engine) for engine in pool.table])
            for name, pool in self._pools.by_run()
        }

    async def attach(self, urls: Sequence[str]) -> None:
        """At the start of a worker: the engines that the others have; the configured ones when there is none to ask."""
        if self._seat.at.index == LEADER:
            boards = await asyncio.gather(*(self._ask(worker) for worker in self._peers.up))
            latest = max((board for board in boards if board is not None), key=lambda b: b.epoch, default=Board())
            if latest.epoch:
                await self.apply(latest)
            else:
                await asyncio.gather(*(self._pools.add(None, url, None, None) for url in urls))
                self.epoch = self._clock()
            return
        while not self.epoch:
            for worker in self._peers.up:
                if (board := await self._ask(worker)) is not None:
                    await self.apply(board)
            if not self.epoch:
                await asyncio.sleep(AT_START_S)

    async def publish(self, told: Told | None = None) -> tuple[list[Known], list[int]]:
        """After a change here: what every worker that is up knows now, this one first, and who did not answer."""
        self.epoch = max(self.epoch + 1, self._clock())
        if told is not None:
            self._told[told] = self.epoch
        body, asked = msgspec.json.encode(self.board()), self._peers.up
        answers = await asyncio.gather(*(self._push(worker, body) for worker in asked))
        silent = [worker for worker, known in zip(asked, answers, strict=True) if known is None]
        return [self.known(), *(known for known in answers if known is not None)], silent

    async def apply(self, board: Board) -> None:
        async with self._applying:
            if board.epoch <= self.epoch:
                return
            here = self.board()
            todo = changes(here, board)
            while todo:
                adds = []
                while todo and isinstance(todo[0], Add):
                    adds.append(todo.pop(0))
                await asyncio.gather(*(self._do(change) for change in adds))
                if todo:
                    await self._do(todo.pop(0))
            if not here.epoch:
                for run_id, pool in self._pools.by_run():
                    pool.table.raise_to(board.current.get(run_id, 0))
            self._told = {
                (run_id, engine.id): engine.told
                for run_id, members in board.pools.items()
                for engine in members
                if engine.told
            }
            self.epoch = board.epoch

    async def follow_forever(self) -> None:
        """For what was published while this worker did not hear it."""
        while True:
            await asyncio.sleep(FOLLOW_EVERY_S)
            if LEADER in self._peers.up and (board := await self._ask(LEADER)) is not None:
                await self.apply(board)

    def _members(self, run_id: str, pool: EnginePool) -> list[Member]:
        return [
            Member(engine.id, engine.url, engine.version, engine.held_back, self._told.get((run_id, engine.id), 0))
            for engine in pool.table
        ]

    async def _do(self, change: Change) -> None:
        run_id = change.run_id or None
        try:
            if isinstance(change, Add):
                await self._pools.add(run_id, change.engine.url, change.engine.id, change.engine.version)
            elif isinstance(change, Remove):
                await self._pools.remove(run_id, change.engine_id)
            else:
                pool = self._pools.own(run_id)
                pool.tell(change.engine_id, version=change.version, routable=change.routable)
        except Refusal as refusal:
            logger.error("a change of the engines is not made at this worker: %s", refusal)

    async def _ask(self, worker: int) -> Board | None:
        """The board of a worker, where it is later than ours."""
        with suppress(Refusal, msgspec.DecodeError):
            status, body = await self._peers.ask(worker, "GET", f"{BOARD}?epoch={self.epoch}", limit_s=ASK_S)
            if status == 200:
                return msgspec.json.decode(body, type=Board)
        return None

    async def _push(self, worker: int, body: bytes) -> Known | None:
        try:
            status, answer = await self._peers.ask(worker, "PUT", BOARD, body=body, limit_s=PUSH_S)
        except Refusal as refusal:
            logger.warning("worker %d was not told of a change of the engines: %s", worker, refusal.__cause__)
            return None
        return msgspec.json.decode(answer, type=Known) if status == 200 else None
