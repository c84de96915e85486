"""Calculator episodes sampled in batches with transformers alone: how often a policy solves the task, and how it fails."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3ForCausalLM

from agentrl_envs.calculator.tasks import CalculatorProblem, evaluate, problem, tasks
from policy_tokenizer import TURN_END

MAX_TURNS = 4
MAX_TOKENS = 48  # per turn; a whole call takes about 22

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "calculate",
            "description": "Evaluate an arithmetic expression.",
            "parameters": {
                "type": "object",
                "properties": {"expression": {"type": "string"}},
                "required": ["expression"],
            },
        },
    }
]
_CALL = re.compile(r"<tool_call>\n?(.*?)\n?</tool_call>", re.DOTALL)


@dataclass
class SampledEpisode:
    problem: CalculatorProblem
    token_ids: list[int]  # [T], the whole episode as the policy saw it
    loss_mask: list[int]  # [T], 1 where it was sampled
    outcome: str | None = None  # None while it goes on; "solved" or the kind of failure
    calls: list[str] = field(default_factory=list)  # what the tool was asked

    @property
    def solved(self) -> bool:
        return self.outcome == "solved"


@dataclass(frozen=True)
class Measurement:
    count: int
    solved: float  # share
    outcomes: dict[str, float]  # share by outcome, most frequent first
    sampled_tokens: float  # mean per episode


def measure(
    model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, split: str, count: int, seed: int
) -> Measurement:
    """Success on `count` distinct problems of `split` at temperature 1, whole episodes. Seeds torch's generator."""
    torch.manual_seed(seed)
    problems = [problem(task.seed, split) for task in tasks(split, count, seed)]
    episodes = sample(model, tokenizer, problems)
    outcomes = Counter(str(episode.outcome) for episode in episodes)
    return Measurement(
        count=count,
        solved=outcomes["solved"] / count,
        outcomes={kind: hits / count for kind, hits in outcomes.most_common()},
        sampled_tokens=sum(sum(episode.loss_mask) for episode in episodes) / count,
    )


def sample(
    model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, problems: Sequence[CalculatorProblem]
) -> list[SampledEpisode]:
    """One episode a problem. Sampled ids are extended, never re-tokenised."""
    episodes = []
    for asked in problems:
        prompt = tokenizer.apply_chat_template(
            [{"role": "user", "content": asked.question}], tools=TOOLS, add_generation_prompt=True, tokenize=False
        )
        ids = tokenizer.encode(prompt, add_special_tokens=False)
        episodes.append(SampledEpisode(asked, ids, [0] * len(ids)))
    for turn in range(MAX_TURNS):
        active = [episode for episode in episodes if episode.outcome is None]
        if not active:
            break
        for episode, sampled in zip(active, _generate(model, tokenizer, active), strict=True):
            episode.token_ids += sampled
            episode.loss_mask += [1] * len(sampled)
            _respond(tokenizer, episode, sampled, last=turn == MAX_TURNS - 1)
    return episodes


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


def _respond(tokenizer: PreTrainedTokenizerFast, episode: SampledEpisode, sampled: list[int], *, last: bool) -> None:
    """Answer a call with the tool's result and go on, or end the episode with its outcome."""
    text = tokenizer.decode(sampled).removesuffix(TURN_END)
    found = _CALL.search(text)
    call = _parsed(found.group(1)) if found else None
    if call is None:
        episode.outcome = _outcome(episode, text)
        return
    if last:
        episode.outcome = "too many turns"
        return
    result = _run(episode, call)
    opening = "\n" if sampled[-1] == tokenizer.eos_token_id else f"{TURN_END}\n"
    turn = f"{opening}<|im_start|>tool\n{result}<|im_end|>\n<|im_start|>assistant\n"
    ids = tokenizer.encode(turn, add_special_tokens=False)
    episode.token_ids += ids
    episode.loss_mask += [0] * len(ids)


def _parsed(text: str) -> dict | None:
    try:
        call = json.loads(text)
    except json.JSONDecodeError:
        return None
    return call if isinstance(call, dict) and isinstance(call.get("arguments"), dict) and "name" in call else None


def _run(episode: SampledEpisode, call: dict) -> str:
    if call["name"] != "calculate":
        return f"Error: unknown tool {call['name']!r}"
    if set(call["arguments"]) != {"expression"}:
        return "Error: missing argument 'expression'"
    episode.calls.append(str(call["arguments"]["expression"]))
    try:
        return evaluate(episode.calls[-1])
    except ValueError as error:
        return f"Error: {error}"


def _outcome(episode: SampledEpisode, text: str) -> str:
    if text.strip() == str(episode.problem.answer):
        return "solved"
    if episode.calls:
        return "wrong answer after a good call" if episode.problem.expression in episode.calls else "wrong operands"
    if re.fullmatch(r"-?\d+", text.strip()):
        return "guessed without a result"
    return "malformed call"
