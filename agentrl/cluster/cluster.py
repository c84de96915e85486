"""Every process of one run: started side by side, handed to the loop as its ports, and gone afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from agentrl.cluster.actors import EngineActor, GatewayActor, RolloutActor, TrainerActor
from agentrl.cluster.fleet import EngineFleet
from agentrl.cluster.handles import RayRollouts, RayTrainer, cause, remote
from agentrl.cluster.pulse import Pulse
from agentrl.cluster.ray_session import actor_class
from agentrl.config import RunConfig
from agentrl.engine.control import EngineControl
from agentrl.errors import RunError, first_error
from agentrl.rundir import RunDirectory
from agentrl.store.base import TrajectoryStore
from agentrl.types import SwapRecord

logger = logging.getLogger(__name__)

STOP_TIMEOUT_S = 20.0
WATCH_EVERY_S = 2.0
PROBE_TIMEOUT_S = 15.0
ACTOR_START_S = 120.0  # for a Ray actor to come up, its imports included
PROBED = 4  # calls at a time of an actor that is probed while it starts or stops
MANY_CALLS = 10_000  # Ray's cap on concurrent calls of an async actor; our own caps are lower


class RunCluster:
    """Use as an async context manager, with Ray started. Entering raises an AgentRLError; no actor is left then.

    `say` hears one line per thing that happens.
    """

    trainer: RayTrainer
    rollouts: RayRollouts
    fleet: EngineFleet
    gateway_url: str

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
    ) -> None:
        self._config = config
        self._model = model
        self._directory = directory
        self._weights = weights
        self._store = store
        self._store_url = store_url
        self._say = say
        self._admin_key = secrets.token_urlsafe(32)
        self._engines: list[Any] = []
        self._others: list[tuple[str, Any]] = []  # gateway and rollout workers, by the name of their log
        self._ranks: list[Any] = []

    async def __aenter__(self) -> RunCluster:
        try:
            self._say("Ray is up; starting vLLM, the trainer and the gateway side by side")
            async with asyncio.TaskGroup() as starting:
                urls = starting.create_task(self._start_engines())
                starting.create_task(self._start_trainer())
                starting.create_task(self._start_gateway())
            await self._connect(urls.result())
        except BaseExceptionGroup as errors:
            self._kill()
            raise first_error(errors) from errors
        except BaseException:
            self._kill()  # an actor that is still starting would not hear a stop()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stop()

    async def watch(self) -> None:
        """Returns never; raises RunError soon after an engine, the gateway or a rollout worker died."""
        watched = [(Pulse(name), actor) for name, actor in self._watched()]
        while True:
            await asyncio.sleep(WATCH_EVERY_S)
            for pulse, actor in watched:
                self._raise_for(pulse, *await self._probe(actor))

    async def raise_for_the_dead(self) -> None:
        """Raises RunError for a process that is gone: what failed because of it is not the thing to tell."""
        for name, actor in self._watched():
            running, _ = await self._probe(actor)
            self._raise_for(Pulse(name), running, answered=True)

    def _watched(self) -> list[tuple[str, Any]]:
        return [*((f"engine-{index}", engine) for index, engine in enumerate(self._engines)), *self._others]

    def _raise_for(self, pulse: Pulse, running: bool, answered: bool) -> None:
        if wrong := pulse.saw(running=running, answered=answered):
            log = self._directory.logs / f"{pulse.name}.log"
            raise RunError(f"{wrong}; see why in {log}, then start the run again")

    async def _probe(self, actor: Any) -> tuple[bool, bool]:
        """Whether it runs, and whether it answered."""
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_S):
                running, answered = await remote(actor.probe.remote())
        except TimeoutError:
            return True, False
        except Exception as error:  # Ray says in many ways that an actor is gone
            logger.error("a probe failed: %s", cause(error))
            return False, False
        return running, answered

    async def _start_engines(self) -> list[str]:
        replica = actor_class(EngineActor)
        self._engines = [
            replica.remote(
                str(self._model), self._config.engine, logs=self._directory.logs, weights=self._weights, index=index
            )
            for index in range(self._config.engine.replicas)
        ]
        started = time.time()
        async with _limit("vLLM", self._config.engine.timeouts.startup_s + ACTOR_START_S):
            urls: list[str] = await asyncio.gather(*(remote(engine.start.remote()) for engine in self._engines))
        for index in range(len(urls)):
            self._store.record_swap(
                SwapRecord(
                    engine_id=f"engine-{index}", version=0, mode="boot", started_at=started, finished_at=time.time()
                )
            )
        self._say(f"{len(urls)} vLLM engine(s) ready after {time.time() - started:.0f} s")
        return urls

    async def _start_trainer(self) -> None:
        config = self._config
        size = int(getattr(config.trainer, "ranks", 1))
        rank = actor_class(TrainerActor)
        self._ranks = [
            rank.remote(
                config.trainer_kind,
                config.trainer,
                rank=index,
                world_size=size,
                model=str(self._model),
                total_steps=config.loop.steps,
                logs=self._directory.logs,
            )
            for index in range(size)
        ]
        started = time.time()
        self.trainer = RayTrainer(self._ranks, shared_memory=self._weights, timeout_s=config.loop.step_timeout_s)
        await self.trainer.setup()
        self._say(f"trainer ready: {size} rank(s) after {time.time() - started:.0f} s")

    async def _start_gateway(self) -> None:
        settings = self._config.gateway
        if "engine_concurrency" not in settings.model_fields_set:
            settings = settings.model_copy(update={"engine_concurrency": self._config.engine.max_num_seqs})
        gateway = actor_class(GatewayActor, max_concurrency=PROBED).remote(
            settings,
            tokenizer=str(self._model),
            admin_key=self._admin_key,
            store_url=self._store_url,
            timeouts=self._config.engine.timeouts,
            logs=self._directory.logs,
        )
        self._others.append(("gateway", gateway))
        async with _limit("the gateway", ACTOR_START_S):
            self.gateway_url = await remote(gateway.start.remote())

    async def _connect(self, urls: list[str]) -> None:
        """Puts the engines behind the gateway, and the rollout workers before it."""
        self.fleet = EngineFleet(
            [
                EngineControl(url, engine_id=f"engine-{index}", timeouts=self._config.engine.timeouts)
                for index, url in enumerate(urls)
            ],
            mode=self._config.engine.swap_mode,
            gateway_url=self.gateway_url,
            admin_key=self._admin_key,
            record=self._store.record_swap,
        )
        await self.fleet.register()
        worker = actor_class(RolloutActor, max_concurrency=MANY_CALLS)
        workers = [
            worker.remote(
                self._config.rollout,
                gateway_url=self.gateway_url,
                admin_key=self._admin_key,
                env_kwargs=self._config.environment.options,
                logs=self._directory.logs,
            )
            for _ in range(self._config.rollout.workers)
        ]
        self._others[:0] = [("rollout", worker) for worker in workers]
        self.rollouts = RayRollouts(workers)

    async def _stop(self) -> None:
        """Asks everything to stop, in bounds, then ends what is left of it."""
        stopping = [actor.stop.remote() for actor in [*(actor for _, actor in self._others), *self._engines]]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await asyncio.gather(*(remote(call) for call in stopping), return_exceptions=True)
        await self.fleet.close()
        self._kill()

    def _kill(self) -> None:
        """Ends every actor at once. An engine's server dies with its actor."""
        import ray

        for actor in [*self._engines, *(actor for _, actor in self._others), *self._ranks]:
            ray.kill(actor)


@contextlib.asynccontextmanager
async def _limit(what: str, seconds: float) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise RunError(
            f"{what} did not start within {seconds:g} s; the logs are in the run's logs/ directory"
        ) from None
