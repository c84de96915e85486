"""How much of what earlier turns computed vLLM's prefix cache gives back to later ones, through the gateway.

Possible are, for every turn but the first, the tokens of the turn before (prompt and sample, without the last sampled
token, whose KV nobody computed) in whole cache blocks. Every episode begins with text of its own, so that nothing else
can be hit. vLLM counts hits in tokens.
"""

from __future__ import annotations

import asyncio
import re
import time
import urllib.request

import orjson

from bench.gateway.http1 import Connection, Request, ask
from bench.gateway.subjects import SUBJECTS
from bench.gateway.workload import Sizes, Workload

EPISODES, AT_ONCE, TURNS = 32, 8, 6
PROMPT_TOKENS, ANSWER_TOKENS = 460, 64
"""So that six turns end below the 1,024 ids of the embedded policy's context."""
METRICS_S = 2.0
"""After which vLLM has counted the last request."""


def possible_hits(calls: list[tuple[int, int]], block_size: int) -> int:
    """`calls` are (prompt ids, sampled ids) of one episode in order."""
    reusable = [prompt + sampled - 1 for prompt, sampled in calls[:-1]]
    return sum(tokens // block_size * block_size for tokens in reusable)


async def episodes(gateway_url: str, *, first_episode: int) -> list[list[tuple[int, int]]]:
    """The calls of each episode as (prompt ids, sampled ids), from the recorded trajectories."""
    workload = Workload(Sizes(PROMPT_TOKENS, ANSWER_TOKENS, TURNS))
    limit = asyncio.Semaphore(AT_ONCE)

    async def one(episode: int) -> list[tuple[int, int]]:
        async with limit:
            return await _episode(gateway_url, workload, episode)

    return list(await asyncio.gather(*(one(first_episode + index) for index in range(EPISODES))))


async def _episode(gateway_url: str, workload: Workload, episode: int) -> list[tuple[int, int]]:
    subject, connection = SUBJECTS["agentrl"], Connection(gateway_url)
    route = subject.route(episode, await ask(connection, subject.open(episode)))
    messages = [
        {"role": "system", "content": f"{episode} {workload.system}"},
        {"role": "user", "content": workload.question(episode)},
    ]
    for turn in range(1, TURNS + 1):
        body = {"model": "policy", "messages": messages, "max_tokens": ANSWER_TOKENS}
        answer = await connection.ask(Request("POST", route.path, orjson.dumps(body), route.headers))
        messages.append(orjson.loads(answer)["choices"][0]["message"])
        messages.append({"role": "user", "content": workload.follow_up(episode, turn)})
    await ask(connection, subject.close(route))
    trajectory = orjson.loads(await ask(connection, subject.read(route)))
    connection.close()
    return [(len(call["prompt_token_ids"]), len(call["token_ids"])) for call in trajectory["calls"]]


def measure_prefix(gateway_url: str, engine_url: str) -> dict[str, int]:
    """hits, possible, queries, block_size, turns."""
    block_size = int(_metric(engine_url, r'vllm:cache_config_info\{.*?[{,]block_size="(\d+)"'))
    before = _hits(engine_url)
    found = asyncio.run(episodes(gateway_url, first_episode=900_000_000))
    time.sleep(METRICS_S)
    after = _hits(engine_url)
    return {
        "turns": TURNS,
        "episodes": EPISODES,
        "block_size": block_size,
        "hits": after[0] - before[0],
        "queries": after[1] - before[1],
        "possible": sum(possible_hits(calls, block_size) for calls in found),
    }


def _hits(engine_url: str) -> tuple[int, int]:
    hits, queries = (
        _metric(engine_url, rf"^vllm:prefix_cache_{name}_total\{{.*?\}} (\S+)") for name in ("hits", "queries")
    )
    return int(float(hits)), int(float(queries))


def _metric(engine_url: str, pattern: str) -> str:
    with urllib.request.urlopen(f"{engine_url}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    found = re.search(pattern, text, re.MULTILINE)
    if found is None:
        raise ValueError(f"{engine_url}/metrics has nothing like {pattern}; is this vLLM 0.32?")
    return found[1]
