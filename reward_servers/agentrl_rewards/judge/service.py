"""A language model judges: by a rubric, with several votes, each episode alone or the attempts at a task compared."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any, Literal

from agentrl.errors import ConfigError
from agentrl.reward.protocol import Item, Score
from agentrl.reward.service import failed
from agentrl_rewards.judge.model import JudgeModel, make_model
from agentrl_rewards.judge.prompt import (
    RUBRIC,
    group_prompt,
    read_score,
    read_scores,
    single_prompt,
    verdict_schema,
)


class Judge:
    """A language model judges by a rubric; several votes; alone or by comparison.

    `url` and `model` name any OpenAI-compatible endpoint, `key_env` the variable with its key; without `url` it is the
    run's own policy through its gateway, in sessions that are never trained on. `rubric` is a text file. `compare =
    "group"` shows the model all attempts at a task that come in one request. The reward is the mean of `votes` verdicts
    on the scale `low` to `high`, as a share of it. `structured` asks for JSON by schema, where the endpoint can. A
    verdict begins with a reason of up to `reason_chars`; 0 asks for the score alone.
    """

    def __init__(
        self,
        *,
        url: str | None = None,
        model: str | None = None,
        key_env: str | None = None,
        rubric: str | None = None,
        compare: Literal["none", "group"] = "none",
        votes: int = 1,
        low: float = 0.0,
        high: float = 10.0,
        temperature: float = 1.0,
        max_tokens: int = 512,
        structured: bool = True,
        reason_chars: int = 500,
        timeout_s: float = 120.0,
        concurrency: int = 16,
        seed: int = 0,
        judge: JudgeModel | None = None,
    ) -> None:
        """`judge` replaces the model (a twin). Raises ConfigError for what cannot work."""
        if compare not in ("none", "group") or votes < 1 or not low < high:
            raise ConfigError(f"compare = {compare!r}, votes = {votes}, low = {low:g}, high = {high:g} cannot work")
        if reason_chars < 0:
            raise ConfigError(f"reason_chars = {reason_chars} is no length; 0 asks for the score alone")
        self._rubric = RUBRIC if rubric is None else _read(Path(rubric))
        self._compare = compare == "group"
        self._votes, self._low, self._high = votes, low, high
        self._options: dict[str, Any] = {"temperature": temperature, "max_tokens": max_tokens}
        self._structured, self._reason_chars = structured, reason_chars
        self._rng = random.Random(seed)
        self._slots = asyncio.Semaphore(concurrency)
        self._judge = judge or make_model(
            url=url, model=model, key_env=key_env, timeout_s=timeout_s, concurrency=concurrency
        )

    async def score(self, items: Sequence[Item]) -> Sequence[Score]:
        if not self._compare:
            return await asyncio.gather(*map(self._alone, items))
        groups: dict[str, list[Item]] = {}
        for item in items:
            groups.setdefault(str(item.metadata.get("group_id") or item.task.get("id") or item.id), []).append(item)
        scored = await asyncio.gather(*map(self._together, groups.values()))
        return [score for scores in scored for score in scores]

    async def close(self) -> None:
        await self._judge.close()

    async def _alone(self, item: Item) -> Score:
        async def vote() -> float:
            asked = single_prompt(self._rubric, item, self._low, self._high, self._reason_chars > 0)
            return read_score(await self._ask(asked, None), self._low, self._high)

        votes = await asyncio.gather(*(vote() for _ in range(self._votes)), return_exceptions=True)
        return self._verdict(item, list(votes))

    async def _together(self, items: Sequence[Item]) -> list[Score]:
        async def vote() -> dict[str, float]:
            order = list(items)
            self._rng.shuffle(order)  # models prefer what comes first
            asked = group_prompt(self._rubric, order, self._low, self._high, self._reason_chars > 0)
            scores = read_scores(await self._ask(asked, len(order)), len(order), self._low, self._high)
            return {item.id: score for item, score in zip(order, scores, strict=True)}

        votes = await asyncio.gather(*(vote() for _ in range(self._votes)), return_exceptions=True)
        return [
            self._verdict(item, [one if isinstance(one, BaseException) else one[item.id] for one in votes])
            for item in items
        ]

    async def _ask(self, messages: Sequence[Any], count: int | None) -> str:
        options = dict(self._options)
        if self._structured:
            schema = verdict_schema(count, self._low, self._high, self._reason_chars)
            named = {"name": "verdict", "strict": True, "schema": schema}
            options["response_format"] = {"type": "json_schema", "json_schema": named}
        async with self._slots:
            return await self._judge.ask(messages, **options)

    def _verdict(self, item: Item, votes: list[float | BaseException]) -> Score:
        """The mean of the votes; missing when more than half of them are no verdict."""
        valid = [vote for vote in votes if not isinstance(vote, BaseException)]
        if 2 * len(valid) < len(votes) or not valid:
            first = next(vote for vote in votes if isinstance(vote, BaseException))
            if not isinstance(first, Exception):
                raise first
            return failed(item, first)
        components: dict[str, float | None] = {"votes": float(len(valid)), "spread": pstdev(valid)}
        return Score(id=item.id, reward=fmean(valid), components=components)


def _read(path: Path) -> str:
    try:
        text = path.read_text()
    except OSError as error:
        raise ConfigError(f"the rubric cannot be read: {error}") from error
    if not text.strip():
        raise ConfigError(f"the rubric {path} is empty; say what is to be judged")
    return text
