"""The run's trainer ranks, and how their weights get to the engines."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from agentrl.cluster.carriers import ObjectStoreCarrier, SharedMemoryCarrier
from agentrl.cluster.handles import RayTrainer, remote
from agentrl.cluster.parts.setting import Setting
from agentrl.cluster.ranks import start_ranks
from agentrl.cluster.transfer import DIRECT
from agentrl.observe.faults import FaultRecord
from agentrl.supervision import Restarts, SupervisionConfig
from agentrl.train.recovery import RecoveringTrainer

NEVER = SupervisionConfig(max_restarts=0)


class TrainerRanks:
    """`start`, then `connect`, then `port`, which is the loop's, and `watch` beside it."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._connect: Callable[[RayTrainer], Awaitable[None]] | None = None
        self.actors: list[Any] = []
        config = setting.config
        self.port = RecoveringTrainer(
            self._start,
            Restarts(config.supervision if config.checkpoint.trainer_state else NEVER),
            checkpoints=setting.checkpoints,
            log=setting.batches,
            fault=self._tell,
        )

    async def start(self) -> None:
        """Raises TrainerError when a rank does not come up."""
        started = time.time()
        await self.port.start()
        self._setting.say(f"trainer ready: {len(self.actors)} rank(s) after {time.time() - started:.0f} s")

    async def connect(self, urls: Sequence[str], shelves: Callable[[], Awaitable[Sequence[Any]]]) -> None:
        """Ready to send to these engines, whose machines have these shelves; so are all ranks that come later."""
        transfer = self._setting.config.engine.weight_transfer

        async def connect(ranks: RayTrainer) -> None:
            if transfer in DIRECT:
                await ranks.connect(transfer, urls, self._setting.site.engine_key)
            elif transfer == "object_store":
                ranks.carrier = ObjectStoreCarrier(self._setting.weights, shelves, remote=remote)

        self._connect = connect
        await self.port.ask(connect)

    async def watch(self) -> None:
        """Returns never; raises TrainerError when the ranks are given up."""
        await self.port.watch(self._setting.config.supervision.probe_every_s)

    async def _start(self) -> RayTrainer:
        """Those that there were end first: their memory, and their GPUs, are for the new ones."""
        self.kill()
        setting = self._setting
        self.actors = start_ranks(
            setting.config.trainer_kind,
            setting.config.trainer,
            model=setting.model,
            total_steps=setting.config.loop.steps,
            logs=setting.logs,
            site=setting.site,
        )
        carrier = SharedMemoryCarrier(setting.weights)
        ranks = RayTrainer(self.actors, carrier=carrier, timeout_s=setting.config.loop.step_timeout_s)
        await ranks.setup()
        if self._connect is not None:
            await self._connect(ranks)
        return ranks

    def kill(self) -> None:
        import ray

        for actor in self.actors:
            ray.kill(actor)

    def _tell(self, fault: FaultRecord) -> None:
        self._setting.faulted(fault)
        after = "given up" if fault.recovered_s is None else f"trained again up to here after {fault.recovered_s:.1f} s"
        self._setting.say(f"{fault.what}; {after}")
