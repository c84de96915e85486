"""One trainer process. Plain: whoever starts the ranks (Ray, a test) calls these methods on all of them together."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from agentrl.errors import TrainerError
from agentrl.types import Batch, TrainRow, WeightGroup
from agentrl_trainers.adapter import Adapter, quantization
from agentrl_trainers.config import TrainerConfig
from agentrl_trainers.deepspeed import checkpoint, process_group
from agentrl_trainers.deepspeed.publish import GroupWriter, Packed
from agentrl_trainers.deepspeed.trainer import DeepSpeedTrainer
from agentrl_trainers.deepspeed.weights import WeightSource
from agentrl_trainers.metrics import StepMetrics
from agentrl_trainers.model import DTYPES, PolicyModel, load_policy
from agentrl_trainers.optimizers import OptimizerFactory, by_config
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
        optimizer: OptimizerFactory = by_config,
    ) -> None:
        self.rank, self.world_size = rank, world_size
        self._address, self._port = master_addr, master_port
        self._store: dist.Store | None = None
        self._model_path, self._config, self._total_steps = model_path, config, total_steps
        self._optimizer = optimizer
        self._trainer: Any = None  # a DeepSpeedTrainer, or what `_models` makes instead
        self._weights: WeightSource | None = None
        self._writer: GroupWriter | None = None
        self._sender: Any = None

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
        self._trainer, self._weights = self._models()

    def _models(self) -> tuple[Any, WeightSource]:
        """What is trained, and where its weights come out. The process group is there."""
        model = load_policy(
            self._model_path,
            dtype=self._config.dtype,
            attention=self._config.attention,
            logit_chunk=self._config.logit_chunk_tokens,
            quantization=quantization(self._config.lora, DTYPES[self._config.dtype]),
        )
        lora = self._config.lora
        adapter = Adapter(model.lm, lora, seed=self._config.seed) if lora.rank else None
        trainer = self._trainer_of(model)
        min_bytes = self._config.weight_group_min_bytes
        weights = WeightSource(trainer.policy.zero, model.lm, self._model_path, min_bytes=min_bytes, adapter=adapter)
        self._writer = GroupWriter(weights, as_adapter=lora.as_adapter)
        return trainer, weights

    def _trainer_of(self, model: PolicyModel) -> Any:
        return DeepSpeedTrainer(
            model, self._config, self._total_steps, model_path=self._model_path, optimizer=self._optimizer
        )

    def step(self, batch: Batch) -> StepMetrics:
        """One step; see DeepSpeedTrainer.step. Every rank is given the whole batch and takes its share."""
        return self._ready(self._trainer).step(batch)

    def logprobs(self, rows: Sequence[TrainRow]) -> list[list[float]]:
        """Logprobs `[rows][T - 1]` of every token but the first of each row, under the row's temperature."""
        return self._ready(self._trainer).policy.logprobs(rows)

    def weight_plan(self, changed_only: bool = False) -> list[TensorGroup]:
        """The groups that `write_weights` writes, by index; see GroupWriter."""
        return self._ready(self._writer).plan(changed_only=changed_only)

    def write_weights(self, version: int, index: int, directory: str, changed_only: bool = False) -> WeightGroup | None:
        """Write group `index` of the current weights, as `version`, into `directory`. None on ranks other than 0."""
        return self._ready(self._writer).write(version, index, directory, changed_only=changed_only)

    def pack_weights(self, version: int, index: int, directory: str, changed_only: bool = False) -> Packed | None:
        """The same as the bytes of that file, for whoever puts them there."""
        return self._ready(self._writer).pack(version, index, directory, changed_only=changed_only)

    def connect_engines(self, transfer: str, urls: Sequence[str], key: str | None = None) -> None:
        """Ready to send to these engines by `nccl` or `ipc`; `key` opens them. Raises TrainerError without a GPU."""
        from agentrl_trainers.deepspeed.direct import DirectSender  # vLLM's imports take seconds

        zero = self._ready(self._trainer).policy.zero
        limit_s = self._config.collective_timeout_s
        weights = self._ready(self._weights)
        self._sender = DirectSender(weights, zero.device, transfer, urls, timeout_s=limit_s, key=key)

    def send_weights(self, changed_only: bool = False) -> dict[str, float]:
        """The current weights into the engines, which are in an update; seconds and bytes."""
        spent: dict[str, float] = self._ready(self._sender).send(changed_only=changed_only)
        return spent

    def export(self, directory: str, version: int) -> None:
        """The current weights as a Hugging Face directory, atomically; an older one there is replaced."""
        self._ready(self._weights).export(Path(directory), version)

    def save(self, directory: str, version: int) -> None:
        """Into `directory`, all that training needs to go on from `version`; see `checkpoint.save`."""
        checkpoint.save(self._ready(self._trainer), Path(directory), version)

    def load(self, directory: str) -> int:
        """Go on where `directory` was saved, on these ranks; the version. Raises CheckpointError."""
        return checkpoint.load(self._ready(self._trainer), Path(directory))

    def shutdown(self) -> None:
        """Free the engine and leave the process group. Safe to call twice, and after a failed `setup`."""
        if self._sender is not None:
            self._sender.close()
            self._sender = None
        if self._trainer is not None:
            self._trainer.close()
        self._trainer = self._weights = self._writer = self._store = None
        process_group.leave()

    def _open_store(self) -> dist.Store:
        return process_group.open_store(
            self.rank, self.world_size, self._address, self._port, self._config.collective_timeout_s
        )

    def _ready(self, part: Any) -> Any:
        if part is None:
            raise TrainerError(f"trainer rank {self.rank} was used before setup() or after shutdown()")
        return part
