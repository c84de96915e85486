"""Episodes sampled in batches with transformers alone: how often a policy solves the task, and how it fails.

The environment and the parser are the ones that training uses; only the engine and the gateway are left out.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from policy_skills import Skill
from policy_tokenizer import TURN_END, TURN_START
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3ForCausalLM

from agentrl.env.base import StepResult
from agentrl.env.tool_env import ToolEnv
from agentrl.gateway.parsers import FAMILIES, read
from agentrl.messages import Message
from agentrl.types import Task

MAX_TURNS = 4
STEPS_AT_ONCE = 16
MAX_TOKENS = 48  # per turn; a whole call takes about 22

SOLVED = "solved"


@dataclass
class SampledEpisode:
    env: ToolEnv
    token_ids: list[int]  # [T], the whole episode as the policy saw it
    loss_mask: list[int]  # [T], 1 where it was sampled
    outcome: str | None = None  # None while it goes on; SOLVED or the kind of failure
    calls: list[str] = field(default_factory=list)  # the arguments of its tool calls, as JSON


@dataclass(frozen=True)
class Measurement:
    count: int
    solved: float  # share
    outcomes: dict[str, float]  # share by outcome, most frequent first
    sampled_tokens: float  # mean per episode


def measure(
    model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, skill: Skill, split: str, count: int, seed: int
) -> Measurement:
    """Success on `count` distinct problems of `split` at temperature 1, whole episodes. Seeds torch's generator."""
    torch.manual_seed(seed)
    tasks = list(itertools.islice(type(skill.make()).tasks(split, seed), count))
    episodes = sample(model, tokenizer, skill, tasks)
    outcomes = Counter(str(episode.outcome) for episode in episodes)
    return Measurement(
        count=count,
        solved=outcomes[SOLVED] / count,
        outcomes={kind: hits / count for kind, hits in outcomes.most_common()},
        sampled_tokens=sum(sum(episode.loss_mask) for episode in episodes) / count,
    )


def sample(
    model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, skill: Skill, chosen: Sequence[Task]
) -> list[SampledEpisode]:
    """One episode a task. Sampled ids are extended, never re-tokenised."""
    episodes = [_started(tokenizer, skill, task) for task in chosen]
    for turn in range(MAX_TURNS):
        active = [episode for episode in episodes if episode.outcome is None]
        if not active:
            break
        messages = []
        for episode, sampled in zip(active, _generate(model, tokenizer, active), strict=True):
            episode.token_ids += sampled
            episode.loss_mask += [1] * len(sampled)
            messages.append(_message(tokenizer, episode, sampled))
        results = asyncio.run(_step_all(active, messages))
        for episode, message, result in zip(active, messages, results, strict=True):
            _continue(tokenizer, skill, episode, message, result, last=turn == MAX_TURNS - 1)
    for episode in episodes:
        episode.env.close()
    return episodes


def _started(tokenizer: PreTrainedTokenizerFast, skill: Skill, task: Task) -> SampledEpisode:
    env = skill.make()
    messages, _ = env.reset(seed=task.seed, options={**task.options, "split": task.split})
    prompt = tokenizer.apply_chat_template(
        messages, tools=env.tools or None, add_generation_prompt=True, tokenize=False
    )
    ids = tokenizer.encode(prompt, add_special_tokens=False)
    return SampledEpisode(env, ids, [0] * len(ids))


def _generate(
    model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, episodes: Sequence[SampledEpisode]
) -> list[list[int]]:
    width = max(len(episode.token_ids) for episode in episodes)
    pads = [width - len(episode.token_ids) for episode in episodes]
    token_ids = torch.tensor(
        [[tokenizer.pad_token_id] * pad + e.token_ids for pad, e in zip(pads, episodes, strict=True)]
    )
    attention = torch.tensor([[0] * pad + [1] * (width - pad) for pad in pads])
    config = GenerationConfig(
        do_sample=True,
        temperature=1.0,
        top_k=0,
        top_p=1.0,
        max_new_tokens=MAX_TOKENS,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.inference_mode():
        out = model.generate(token_ids, attention_mask=attention, generation_config=config)[:, width:].tolist()
    eos = tokenizer.eos_token_id
    return [row[: row.index(eos) + 1] if eos in row else row for row in out]


def _message(tokenizer: PreTrainedTokenizerFast, episode: SampledEpisode, sampled: list[int]) -> Message:
    message = Message(read(FAMILIES["hermes"], tokenizer.decode(sampled).removesuffix(TURN_END), episode.env.tools))
    episode.calls += [call["function"]["arguments"] for call in message.tool_calls]
    return message


async def _step_all(episodes: Sequence[SampledEpisode], messages: Sequence[Message]) -> list[StepResult]:
    """The environments' answers; those of async ones come several at a time."""
    turns = asyncio.Semaphore(STEPS_AT_ONCE)

    async def step(env: ToolEnv, message: Message) -> StepResult:
        async with turns:
            result: Any = env.step(message)
            return await result if inspect.isawaitable(result) else result

    return await asyncio.gather(*(step(e.env, message) for e, message in zip(episodes, messages, strict=True)))


def _continue(
    tokenizer: PreTrainedTokenizerFast,
    skill: Skill,
    episode: SampledEpisode,
    message: Message,
    result: StepResult,
    *,
    last: bool,
) -> None:
    """The episode goes on with the environment's messages, or ends with an outcome."""
    observed, reward, terminated, truncated, _ = result
    if terminated or truncated:
        episode.outcome = SOLVED if reward else skill.failure(episode.env, episode.calls, message)
        return
    if last:
        episode.outcome = "too many turns"
        return
    text = "\n" if episode.token_ids[-1] == tokenizer.eos_token_id else f"{TURN_END}\n"
    for answer in observed:
        text += f"{TURN_START}tool\n{answer.text}{TURN_END}\n"
    ids = tokenizer.encode(f"{text}{TURN_START}assistant\n", add_special_tokens=False)
    episode.token_ids += ids
    episode.loss_mask += [0] * len(ids)
