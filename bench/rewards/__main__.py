"""How busy the reward client keeps several servers of a service, and how much memory it needs for it.

python -m bench.rewards [--items 10000] [--servers 3] [--milliseconds 5] [--rounds 3]
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import psutil
from rich.console import Console
from rich.table import Table

from agentrl.reward.client import RewardClient
from agentrl.reward.config import ServiceConfig
from agentrl.reward.protocol import Item

RESULTS = Path(__file__).parents[1] / "results" / "rewards.json"
TARGET = 0.85
"""Of the time, each server should be busy."""

SAMPLE_S = 0.05


@contextmanager
def server(milliseconds: float) -> Iterator[str]:
    """The URL of one service process."""
    command = [sys.executable, "-m", "bench.rewards.service", str(milliseconds / 1000)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])
    try:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
    finally:
        process.terminate()
        process.wait(10)


def items(count: int) -> Iterator[Item]:
    """Each an episode of about 4 kB."""
    for number in range(count):
        talk = [{"role": "user", "content": "q" * 2000}, {"role": "assistant", "content": "a" * 2000}]
        yield Item(id=f"e{number}", messages=talk, text="a" * 2000)


async def one_round(urls: list[str], count: int, milliseconds: float) -> dict[str, float]:
    """Groups of eight, 64 under way, as a run would ask."""
    service = ServiceConfig(name="steady", urls=tuple(urls), batch_size=8, concurrency=3 * len(urls), timeout_s=60)
    client = RewardClient(service, policy="retry")
    before = [busy(url) for url in urls]
    memory, done = psutil.Process(), asyncio.Event()
    start_mib = memory.memory_info().rss / 2**20
    peak = start_mib

    async def watch() -> None:
        nonlocal peak
        while not done.is_set():
            peak = max(peak, memory.memory_info().rss / 2**20)
            await asyncio.sleep(SAMPLE_S)

    left = items(count)
    scored = 0

    async def group_after_group() -> None:
        nonlocal scored
        while group := list(itertools.islice(left, 8)):
            scores = await client.score(group)
            scored += sum(score.reward == 1.0 for score in scores.values())

    watching = asyncio.create_task(watch())
    started = time.perf_counter()
    await asyncio.gather(*(group_after_group() for _ in range(64)))
    seconds = time.perf_counter() - started
    done.set()
    await watching
    await client.close()
    busy_shares = [(busy(url) - was) / seconds for url, was in zip(urls, before, strict=True)]
    possible = len(urls) * 1000 / milliseconds
    return {
        "seconds": seconds,
        "items_per_s": scored / seconds,
        "share_of_possible": scored / seconds / possible,
        "least_busy": min(busy_shares),
        "rss_start_mib": start_mib,
        "rss_peak_mib": peak,
        "missing": count - scored,
    }


def busy(url: str) -> float:
    return float(httpx.get(f"{url}/health", trust_env=False).json()["busy_s"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=10_000)
    parser.add_argument("--servers", type=int, default=3)
    parser.add_argument("--milliseconds", type=float, default=5.0, help="that a server takes for one item")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    console = Console(emoji=False)
    with ExitStack() as stack:
        urls = [stack.enter_context(server(options.milliseconds)) for _ in range(options.servers)]
        rounds = []
        for number in range(options.rounds):
            rounds.append(asyncio.run(one_round(urls, options.items, options.milliseconds)))
            console.print(f"round {number + 1}: {rounds[-1]['items_per_s']:.0f} items/s", highlight=False)
    found: dict[str, Any] = {name: median(one[name] for one in rounds) for name in rounds[0]}
    found |= {"items": options.items, "servers": options.servers, "milliseconds": options.milliseconds}
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(found, indent=2) + "\n")
    table = Table("", "median", title=f"{options.items:,} items, {options.servers} servers", box=None)
    for name in ("items_per_s", "share_of_possible", "least_busy", "rss_start_mib", "rss_peak_mib", "missing"):
        table.add_row(name, f"{found[name]:,.3f}")
    console.print(table)
    met = found["least_busy"] >= TARGET and found["missing"] == 0
    console.print(
        f"target: each server busy {TARGET:.0%} of the time: {'met' if met else 'missed'}; {RESULTS.name} written"
    )
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
