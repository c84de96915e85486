"""Every process of one run: started side by side, handed to the loop as its ports, and gone afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agentrl.cluster.fleet import EngineFleet
from agentrl.cluster.gateway_engines import GatewayEngines
from agentrl.cluster.handles import remote
from agentrl.cluster.parts.engines import Engines, one_a_machine
from agentrl.cluster.parts.evaluation import EvaluationEngines
from agentrl.cluster.parts.gateway import GatewayProcess
from agentrl.cluster.parts.rollouts import RolloutWorkers
from agentrl.cluster.parts.setting import Setting
from agentrl.cluster.parts.trainer import TrainerRanks
from agentrl.cluster.ranks import ranks_of
from agentrl.cluster.rollouts import RayRollouts
from agentrl.cluster.site import Site
from agentrl.cluster.supervisor import Part, Supervisor
from agentrl.cluster.transfer import publisher, stepper
from agentrl.config import RunConfig
from agentrl.engine.launch import cpu_only
from agentrl.engine.parallel import workers_of_engine
from agentrl.errors import first_error
from agentrl.observe.faults import FaultRecord
from agentrl.rundir import RunDirectory
from agentrl.store.base import TrajectoryStore
from agentrl.train.batch_log import DiskBatchLog
from agentrl.train.checkpoints import Checkpoints
from agentrl.train.ports import Stepper, Trainer
from agentrl.train.publish import EnginePublisher, TrainerWeights

STOP_TIMEOUT_S = 20.0


class RunCluster:
    """Use as an async context manager, with Ray started. Entering raises an AgentRLError; no actor is left then.

    `say` hears one line per thing that happens, `faulted` of every part that died, once that is over.
    """

    fleet: EngineFleet
    stepper: Stepper
    publisher: EnginePublisher

    def __init__(
        self,
        config: RunConfig,
        *,
        model: Path,
        directory: RunDirectory,
        weights: Path,
        store: TrajectoryStore,
        store_url: str,
        say: Callable[[str], None],
        faulted: Callable[[FaultRecord], None],
        resumed: bool = False,
    ) -> None:
        """resumed: the trainer is given other weights than the engines start with, before anything is published."""
        self._root, self._resumed = directory.root, resumed
        self._say = say
        self._setting = setting = Setting(
            config=config,
            model=model,
            logs=directory.logs.resolve(),
            weights=weights,
            store=store,
            store_url=store_url,
            checkpoints=Checkpoints(directory.checkpoints),
            batches=DiskBatchLog(directory.batches),
            admin_key=secrets.token_urlsafe(32),
            site=Site(config.cluster),
            say=say,
            faulted=faulted,
        )
        self._engines = Engines(setting, first=0, count=config.engine.replicas)
        self._gateway = GatewayProcess(setting)
        self._workers = RolloutWorkers(setting, key=setting.admin_key, count=config.rollout.workers)
        self.evaluation = EvaluationEngines(setting) if config.evaluation.replicas else None
        self._ranks = TrainerRanks(setting)

    async def __aenter__(self) -> RunCluster:
        try:
            await self._take_places()
            self._say("Ray is up; starting vLLM, the trainer and the gateway side by side")
            async with asyncio.TaskGroup() as starting:
                for part in self._parts():
                    starting.create_task(part.start())
            await self._connect()
        except BaseExceptionGroup as errors:
            self._kill()
            raise first_error(errors) from errors
        except BaseException:
            self._kill()  # an actor that is still starting would not hear a stop()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stop()

    @property
    def gateway_url(self) -> str:
        return self._gateway.url

    @property
    def gateway_key(self) -> str:
        """Opens sessions at the gateway."""
        return self._setting.admin_key

    @property
    def trainer(self) -> Trainer:
        return self._ranks.port

    @property
    def rollouts(self) -> RayRollouts:
        return self._workers.port

    async def watch(self) -> None:
        """Returns never: starts again what died or hangs. Raises RunError when a part was given up."""
        await self._supervisor.run()

    async def watch_trainer(self) -> None:
        """Returns never; raises TrainerError when its ranks died too often."""
        await self._ranks.watch()

    async def raise_for_the_dead(self) -> None:
        """Raises RunError for a part that is gone: what failed because of it is not the thing to tell."""
        await self._supervisor.raise_for_the_dead()

    def _parts(self) -> list[Any]:
        """Those that are started side by side."""
        evaluation = [] if self.evaluation is None else [self.evaluation]
        return [self._engines, *evaluation, self._ranks, self._gateway]

    async def _take_places(self) -> None:
        """Nothing is started before every place is reserved, and its node has what it needs."""
        config, site = self._setting.config, self._setting.site
        engine = config.engine
        await site.open(
            engines=engine.replicas + config.evaluation.replicas,
            gpus_each=workers_of_engine(engine.extra_args),
            ranks=ranks_of(config.trainer),
            cpus_only=cpu_only(),
        )
        await site.check(model=self._setting.model, run=self._root.resolve())

    async def _connect(self) -> None:
        """Puts the engines behind the gateway and the trainer, and the rollout workers before it."""
        setting = self._setting
        await self._ranks.connect(self._engines.urls, self._shelves)
        self._routing = GatewayEngines(self.gateway_url, setting.admin_key, patience_s=setting.patience_s)
        self.fleet = self._engines.fleet(self._routing)
        await self.fleet.register()
        self._workers.start(self.gateway_url, self._gateway.end_group)
        if self.evaluation is not None:
            await self.evaluation.connect(self.gateway_url, self.trainer, self._gateway.end_group)
        weights = TrainerWeights(published=not self._resumed)
        self.stepper = stepper(setting.config, self.trainer, self.fleet, weights)
        self.publisher = publisher(
            setting.config,
            self.trainer,
            self.fleet,
            weights,
            connected=self._engines.urls,
            connect=lambda urls: self._ranks.connect(urls, self._shelves),
        )
        self._supervise()

    def _supervise(self) -> None:
        """Who meets a fault says so, and who counts on a part hears when it is back."""
        setting, evaluation = self._setting, self.evaluation
        parts: list[Part] = [*self._engines.parts, *self._workers.parts, self._gateway]
        fleets, ports = [self.fleet], [self.rollouts]
        if evaluation is not None:
            parts += evaluation.parts
            fleets.append(evaluation.fleet)
            ports.append(evaluation.rollouts)
        self._supervisor = Supervisor(setting.config.supervision, parts, faulted=setting.faulted, say=setting.say)
        for fleet in fleets:
            fleet.report = self._supervisor.report
        for port in ports:
            port.report = self._supervisor.report
        for part in self._engines.parts:
            part.bring = self.publisher.bring
        self._gateway.came_back = [fleet.register_again for fleet in fleets]

    async def _shelves(self) -> list[Any]:
        of_evaluation = [] if self.evaluation is None else self.evaluation.engines
        return await one_a_machine([*self._engines.parts, *of_evaluation])

    async def _stop(self) -> None:
        """Asks everything to stop, in bounds, then ends what is left of it."""
        of_evaluation = [] if self.evaluation is None else self.evaluation.actors
        actors = [*self._workers.actors, *of_evaluation, *self._gateway.actors, *self._engines.actors]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await asyncio.gather(*(remote(actor.stop.remote()) for actor in actors), return_exceptions=True)
        if self.evaluation is not None:
            await self.evaluation.close()
        await self.fleet.close()
        await self._routing.close()
        await self._gateway.close()
        self._kill()
        await self._setting.site.close(self._setting.weights)

    def _kill(self) -> None:
        """Ends every actor at once. An engine's server dies with its actor."""
        for part in (*self._parts(), self._workers):
            part.kill()
