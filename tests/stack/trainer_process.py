"""A trainer of one rank in a process of its own, as in a run, that does what it is told."""

from __future__ import annotations

import multiprocessing
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from agentrl.types import TrainRow
from agentrl_trainers.config import TrainerConfig


def serve(connection: Connection, model: str, values: dict[str, Any]) -> None:
    from agentrl_trainers.deepspeed.rank import TrainerRank

    rank = TrainerRank(0, 1, "127.0.0.1", 0, model, TrainerConfig.model_validate(values), 100)
    rank.setup()
    while (order := connection.recv()) is not None:
        method, arguments = order
        connection.send(getattr(rank, method)(*arguments))
    rank.shutdown()


class TrainerProcess:
    """`config` is the `[trainer]` table; where it says nothing: ZeRO 3, everything split, a high rate."""

    def __init__(self, model: Path, **config: Any) -> None:
        values = {"zero_stage": 3, "zero3_keep_below": 0, "learning_rate": 3e-3, "warmup_steps": 0, "decay": "constant"}
        context = multiprocessing.get_context("spawn")
        self._connection, other = context.Pipe()
        self.process = context.Process(target=serve, args=(other, str(model), values | config), daemon=True)
        self.process.start()

    def call(self, method: str, *arguments: object) -> Any:
        self._connection.send((method, arguments))
        assert self._connection.poll(120), f"the trainer gave no answer to {method}"
        return self._connection.recv()

    def logprobs(self, prompt_ids: list[int], token_ids: list[int], temperature: float) -> list[float]:
        """[S], of the sampled tokens."""
        ids = prompt_ids + token_ids
        zeros = [0.0] * len(ids)
        one = TrainRow(
            session_id="s",
            token_ids=ids,
            loss_mask=[0] * len(ids),
            logprobs=zeros,
            advantages=zeros,
            temperature=temperature,
        )
        [found] = self.call("logprobs", [one])
        return found[len(prompt_ids) - 1 :]

    def stop(self) -> None:
        self._connection.send(None)
        self.process.join(10)
        self.process.kill()
