"""Saves a run as one checkpoint, trainer and driver together, and puts it back."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentrl import manifest
from agentrl.errors import CheckpointError, TrainerError
from agentrl.observe.timing import PhaseTimer
from agentrl.patience import NO_ROOM
from agentrl.train.batch_log import BatchLog, NoBatchLog
from agentrl.train.checkpoints import TRAINER, Checkpoints
from agentrl.train.config import SavesConfig
from agentrl.train.ports import Saveable

logger = logging.getLogger(__name__)

NO_ROOM_WORDS = tuple(map(os.strerror, NO_ROOM))
"""In the words of whoever met it: a rank's error has come a long way, and is text."""
AGAIN_S = 1.0


class CheckpointSaver:
    """One checkpoint at a time; the trainer makes no step meanwhile. `log` forgets what a checkpoint has.

    A disk without room is waited for, `waits_s` at most.
    """

    def __init__(
        self,
        directory: Path,
        config: SavesConfig,
        trainer: Saveable,
        log: BatchLog | None = None,
        *,
        waits_s: float = 60.0,
    ) -> None:
        self._waits_s = waits_s
        self.checkpoints = Checkpoints(directory, config.retention)
        self._config, self._trainer, self._log = config, trainer, log or NoBatchLog()

    def due(self, version: int) -> bool:
        return bool(self._config.every) and version % (self._config.every or 1) == 0

    def overdue(self, since: int, version: int) -> bool:
        """Whether more steps than a checkpoint may be behind lie between."""
        return version - since >= (self._config.every or version + 1)

    async def save(self, version: int, *, scores: Mapping[str, float], run: Mapping[str, Any]) -> dict[str, float]:
        """Version `version` whole on the disk: `bytes`, and the seconds of each part (`export`, `trainer`, `seal`).

        `run` is what the driver wants back from `restore`. Raises CheckpointError when the disk or the trainer refuses
        it, with what either said; the checkpoints that were there before still are.
        """
        deadline = time.monotonic() + self._waits_s
        while True:
            try:
                return await self._save(version, scores, run)
            except CheckpointError as error:
                if time.monotonic() >= deadline or not any(words in str(error) for words in NO_ROOM_WORDS):
                    raise
                logger.warning("%s; it is written again for %g s", error, self._waits_s)
                await asyncio.sleep(AGAIN_S)

    async def _save(self, version: int, scores: Mapping[str, float], run: Mapping[str, Any]) -> dict[str, float]:
        timer = PhaseTimer()
        try:
            partial = await asyncio.to_thread(self.checkpoints.begin, version)
            with timer.phase("export"):
                await self._trainer.export(partial, version)
            if self._config.trainer_state:
                with timer.phase("trainer"):
                    await self._trainer.save(partial / TRAINER, version)
            with timer.phase("seal"):
                sealed = await asyncio.to_thread(self.checkpoints.commit, version, scores=scores, run=run)
                if self._config.trainer_state:
                    await asyncio.to_thread(self._log.forget, version)
        except (OSError, TrainerError) as error:  # a rank's full disk arrives as the latter
            raise CheckpointError(
                f"checkpoint v{version} cannot be written ({error}); earlier ones are whole. If the disk is full, free "
                "space, or set checkpoint.keep_last or checkpoint.trainer_state = false"
            ) from error
        logger.info("saved v%d: %d bytes, %s", version, sealed.num_bytes, timer.seconds)
        return {"bytes": float(sealed.num_bytes), **{f"{part}_s": spent for part, spent in timer.seconds.items()}}

    async def restore(self, version: int) -> dict[str, Any]:
        """The trainer as it was at `version`, and what the driver gave to `save`.

        Raises CheckpointError naming the file that is missing or damaged, or when the trainer's is of another version.
        """
        await load_trainer(self._trainer, self.checkpoints, version)
        return self.checkpoints.run(version)


async def load_trainer(trainer: Saveable, checkpoints: Checkpoints, version: int) -> None:
    """Raises CheckpointError as `CheckpointSaver.restore`."""
    path = checkpoints.path(version)
    await asyncio.to_thread(manifest.check, path)
    if (found := await trainer.load(path / TRAINER)) != version:
        raise CheckpointError(f"{path} holds the trainer's version {found}; take another checkpoint")
