"""A reward model: a transformers sequence-classification model with one output, over the whole conversation."""

from __future__ import annotations

import asyncio
import math
import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from agentrl.errors import ConfigError
from agentrl.gateway.render import Renderer
from agentrl.messages import assistant, written_out
from agentrl.reward.protocol import Item, Score
from agentrl.reward.service import CannotScore, failed
from agentrl_rewards.model.batches import buckets


class RewardModel:
    """A transformers sequence-classification model, batched and length-bucketed.

    `path` is a local directory with the model, its tokenizer and chat template. The reward is the only output's logit,
    or, with `sigmoid`, the probability that it stands for. What comes within `wait_s` goes through the model together,
    in batches of at most `max_tokens`, padding included. An episode longer than the model's context is unscored.
    """

    def __init__(
        self,
        *,
        path: str,
        sigmoid: bool = False,
        max_tokens: int = 16_384,
        wait_s: float = 0.01,
        device: str | None = None,
        dtype: str = "float32",
    ) -> None:
        """Raises ConfigError for what is no such model."""
        directory = Path(path).expanduser()
        if not (directory / "config.json").is_file():
            raise ConfigError(f"{path} holds no model; give the directory of a local one, nothing is downloaded")
        self._sigmoid = sigmoid
        self._max_tokens = max_tokens
        self._wait_s = wait_s
        self._load(directory, device, dtype)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="agentrl-reward-model")
        self._waiting: deque[tuple[Item, list[int], asyncio.Future[Score]]] = deque()
        self._running: asyncio.Task[None] | None = None

    async def score(self, items: Sequence[Item]) -> Sequence[Score]:
        loop = asyncio.get_running_loop()
        futures: list[asyncio.Future[Score]] = []
        encoded = await loop.run_in_executor(self._thread, self._encode_all, items)
        for item, ids in zip(items, encoded, strict=True):
            future: asyncio.Future[Score] = loop.create_future()
            futures.append(future)
            if isinstance(ids, Exception):
                future.set_result(failed(item, ids))
            else:
                self._waiting.append((item, ids, future))
        if self._running is None or self._running.done():
            self._running = loop.create_task(self._run(), name="reward model")
        return await asyncio.gather(*futures)

    async def close(self) -> None:
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _run(self) -> None:
        """Until nothing waits. What fails is the error of the sequences that were in the batch."""
        loop = asyncio.get_running_loop()
        while self._waiting:
            await asyncio.sleep(self._wait_s)
            taken = list(self._waiting)
            self._waiting.clear()
            for batch in buckets([len(ids) for _, ids, _ in taken], max_tokens=self._max_tokens):
                chosen = [taken[index] for index in batch]
                try:
                    rewards = await loop.run_in_executor(self._thread, self._forward, [ids for _, ids, _ in chosen])
                    scores = [self._score(item, reward) for (item, _, _), reward in zip(chosen, rewards, strict=True)]
                except Exception as error:  # out of memory, for one
                    scores = [failed(item, error) for item, _, _ in chosen]
                for (_, _, future), score in zip(chosen, scores, strict=True):
                    if not future.done():
                        future.set_result(score)

    def _score(self, item: Item, reward: float) -> Score:
        if not math.isfinite(reward):
            return failed(item, CannotScore(f"the model's output is {reward}"))
        return Score(id=item.id, reward=reward)

    def _load(self, directory: Path, device: str | None, dtype: str) -> None:
        import torch  # seconds to import, and only this service needs it
        from transformers import AutoModelForSequenceClassification, AutoTokenizer

        self._torch = torch
        self._device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        try:
            tokenizer = AutoTokenizer.from_pretrained(directory)
            model = AutoModelForSequenceClassification.from_pretrained(directory, dtype=getattr(torch, dtype))
        except (OSError, ValueError, AttributeError) as error:
            raise ConfigError(f"{directory} cannot be loaded as a reward model: {error}") from error
        outputs = model.config.num_labels
        if outputs != 1:
            raise ConfigError(f"{directory} has {outputs} outputs; a reward model has one (num_labels = 1)")
        self._renderer = Renderer.load(directory)
        self._pad = tokenizer.pad_token_id
        if model.config.pad_token_id is None:  # the model finds a sequence's last token by it
            self._pad = model.config.pad_token_id = self._pad if self._pad is not None else 0
        self._limit = int(getattr(model.config, "max_position_embeddings", 0)) or None
        self._model = model.to(self._device).eval()
        self._lock = threading.Lock()

    def _encode_all(self, items: Sequence[Item]) -> list[list[int] | Exception]:
        return [self._encode(item) for item in items]

    def _encode(self, item: Item) -> list[int] | Exception:
        try:
            messages = [written_out(message) for message in item.messages] or [assistant(item.text)]
            ids = self._renderer.written(messages)
        except Exception as error:  # a template's own complaints
            return error
        if self._limit is not None and len(ids) > self._limit:
            return CannotScore(f"the episode has {len(ids)} tokens, the model's context is {self._limit}")
        return list(ids)

    def _forward(self, sequences: Sequence[Sequence[int]]) -> list[float]:
        """Right-padded, so that a sequence's positions, and with them its score, do not depend on its company."""
        torch = self._torch
        longest = max(map(len, sequences))
        pad = self._model.config.pad_token_id
        input_ids = torch.full((len(sequences), longest), pad, dtype=torch.long)  # [batch, longest]
        mask = torch.zeros_like(input_ids)
        for row, ids in enumerate(sequences):
            input_ids[row, : len(ids)] = torch.tensor(ids, dtype=torch.long)
            mask[row, : len(ids)] = 1
        with torch.inference_mode():
            logits = self._pooled(input_ids.to(self._device), mask.to(self._device))  # [batch]
            return [float(value) for value in (torch.sigmoid(logits) if self._sigmoid else logits)]

    def _pooled(self, input_ids: Any, mask: Any) -> Any:
        """The logit at each last real token. transformers looks for that by the pad id, which text may hold."""
        hidden = self._model.base_model(input_ids=input_ids, attention_mask=mask).last_hidden_state
        last = mask.sum(dim=1) - 1  # [batch]
        rows = self._torch.arange(len(last), device=hidden.device)
        return self._model.score(hidden[rows, last]).squeeze(-1).float()
