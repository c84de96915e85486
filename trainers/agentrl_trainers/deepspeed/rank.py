"""One trainer process. Plain: whoever starts the ranks (Ray, a test) calls these methods on all of them together."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from agentrl.errors import TrainerError
from agentrl.types import Batch, TrainRow, WeightGroup
from agentrl_trainers.config import TrainerConfig
from agentrl_trainers.deepspeed import process_group
from agentrl_trainers.deepspeed.policy import DeepSpeedPolicy, OptimizerFactory, adamw
from agentrl_trainers.deepspeed.weights import WeightSource
from agentrl_trainers.metrics import StepMetrics
from agentrl_trainers.model import load_policy
from agentrl_trainers.weight_groups import TensorGroup


class TrainerRank:
    """Rank `rank` of `world_size`. Every method but `bind` is collective: all ranks call it, in the same order.

    Rank 0 of several: `port = bind()`, then `setup(port)` on all. A lone rank: `setup()`; it opens no port.
    """

    def __init__(
        self,
        rank: int,
        world_size: int,
        master_addr: str,
        master_port: int,
        model_path: str,
        config: TrainerConfig,
        total_steps: int,
        *,
        optimizer: OptimizerFactory = adamw,
    ) -> None:
        self.rank, self.world_size = rank, world_size
        self._address, self._port = master_addr, master_port
        self._store: dist.Store | None = None
        self._model_path, self._config, self._total_steps = model_path, config, total_steps
        self._optimizer = optimizer
        self._policy: DeepSpeedPolicy | None = None
        self._weights: WeightSource | None = None

    def bind(self) -> int:
        """Rank 0: open the port where the ranks meet (`master_port`, or any free one when that is 0) and return it."""
        if self._store is None:
            self._store = self._open_store()
        return int(getattr(self._store, "port", 0))

    def setup(self, master_port: int | None = None) -> None:
        """Join the others, load the model, make the optimizer. Raises TrainerError."""
        torch.set_num_threads(self._config.threads)
        torch.manual_seed(self._config.seed)
        if master_port is not None:
            self._port = master_port
        if self._store is None:
            self._store = self._open_store()
        process_group.join(self._store, self.rank, self.world_size, self._address, self._config.collective_timeout_s)
        model = load_policy(
            self._model_path,
            dtype=self._config.dtype,
            attention=self._config.attention,
            logit_chunk=self._config.logit_chunk_tokens,
        )
        self._policy = DeepSpeedPolicy(model, self._config, self._total_steps, optimizer=self._optimizer)
        self._weights = WeightSource(
            self._policy.zero, model.lm, self._model_path, min_bytes=self._config.weight_group_min_bytes
        )

    def step(self, batch: Batch) -> StepMetrics:
        """One update; see DeepSpeedPolicy.step. Every rank is given the whole batch and takes its share."""
        return self._ready(self._policy).step(batch)

    def logprobs(self, rows: Sequence[TrainRow]) -> list[list[float]]:
        """Logprobs `[rows][T - 1]` of every token but the first of each row, under the row's temperature."""
        return self._ready(self._policy).logprobs(rows)

    def weight_plan(self) -> list[TensorGroup]:
        """The groups that `write_weights` writes, by index."""
        return self._ready(self._weights).groups

    def write_weights(self, version: int, index: int, directory: str) -> WeightGroup | None:
        """Write group `index` of the current weights, as `version`, into `directory`. None on ranks other than 0."""
        return self._ready(self._weights).write_group(version, index, directory)

    def export(self, directory: str, version: int) -> None:
        """The current weights as a Hugging Face directory, atomically; an older one there is replaced."""
        self._ready(self._weights).export(Path(directory), version)

    def shutdown(self) -> None:
        """Free the engine and leave the process group. Safe to call twice, and after a failed `setup`."""
        if self._policy is not None:
            self._policy.zero.close()
        self._policy = self._weights = self._store = None
        process_group.leave()

    def _open_store(self) -> dist.Store:
        return process_group.open_store(
            self.rank, self.world_size, self._address, self._port, self._config.collective_timeout_s
        )

    def _ready(self, part: Any) -> Any:
        if part is None:
            raise TrainerError(f"trainer rank {self.rank} was used before setup() or after shutdown()")
        return part
