"""The isolation benchmark: `make bench-isolation`, or `python -m bench.isolation` in the project's environment.

One rollout worker, 32 episodes at once, a policy that answers after a fixed time and needs no engine. In half of the
rounds one of the 32 environments spins without yielding in its second step, until its time limit ends it. A step's
latency is what its episode sees: from the policy's answer to the next question to it. Steps count while the spinner
spins; in rounds without one, for as long. Rounds with and without are interleaved.
"""

from __future__ import annotations

import asyncio
import logging
import os
import platform
import time
from collections import defaultdict
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from agentrl.messages import Message
from agentrl.rollout.config import RolloutConfig
from agentrl.rollout.scripted import ScriptedGateway
from agentrl.rollout.worker import RolloutWorker
from agentrl.types import Episode, Task
from bench.gateway.quantile import quantile

ROOT = Path(__file__).parents[2]
KINDS = [("thread", "Counter"), ("thread", "AsyncCounter"), ("process", "Counter"), ("process", "AsyncCounter")]
TABLE_WIDTH = 110
SPINNER = 0  # its number among the episodes


class Round(msgspec.Struct):
    """One worker's episodes, once."""

    latencies_s: list[float]  # of the others' steps
    spinner: Episode | None = None
    spinner_s: float = 0.0  # from its last action to the end of its episode


class Result(msgspec.Struct):
    """All rounds of one kind of environment, with a spinner or without."""

    isolation: str
    environment: str
    spinner: bool
    steps: int
    p50_ms: float
    p99_ms: float
    max_ms: float
    limit_s: float
    ended_after_s: list[float]  # a round each: from the spinning step's beginning to the end of its episode
    stop_reasons: list[str]


class PacedPolicy:
    """Answers after `think_s`, "stop" once it is told to, and notes when it was asked and when it answered.

    Nothing counts until each of `others` has had a step: `warm`.
    """

    def __init__(self, think_s: float, others: int) -> None:
        self.stopping, self.warm = asyncio.Event(), asyncio.Event()
        self._others = others
        self.answered: dict[str, float] = {}
        self.latencies: dict[str, list[float]] = defaultdict(list)
        self._think_s = think_s

    async def __call__(self, messages: list[Message]) -> str:
        number = messages[0].text
        if number in self.answered and not self.stopping.is_set():
            self.latencies[number].append(time.perf_counter() - self.answered[number])
            if not self.warm.is_set() and len(self.latencies) == self._others:
                self.latencies.clear()
                self.warm.set()
        await asyncio.sleep(self._think_s)
        self.answered[number] = time.perf_counter()
        return "stop" if self.stopping.is_set() else "go on"


async def a_round(
    isolation: str, environment: str, *, spins: bool, others: int, limit_s: float, think_s: float
) -> Round:
    policy = PacedPolicy(think_s, others)
    config = RolloutConfig.model_validate(
        {"isolation": isolation, "env_timeout_s": limit_s, "episode_retries": 0, "max_turns": 10**6}
    )
    worker = RolloutWorker(config, "", "", gateway=ScriptedGateway(policy))

    async def one(number: int, spins: bool) -> Episode:
        options = {"number": number, "spins": spins}
        task = Task(id=str(number), env_id=f"bench.isolation.environments:{environment}", options=options)
        (episode,) = await worker.run_episodes([task])
        return episode

    async def spin() -> Round:
        episode = await one(SPINNER, spins=True)
        return Round([], episode, time.perf_counter() - policy.answered[str(SPINNER)])

    try:
        running = [asyncio.create_task(one(number, spins=False)) for number in range(1, others + 1)]
        await policy.warm.wait()
        found = Round([])
        if spins:
            found = await spin()
        else:
            await asyncio.sleep(limit_s)
        policy.stopping.set()
        await asyncio.gather(*running)
    finally:
        await worker.close()
    found.latencies_s = [latency for of_one in policy.latencies.values() for latency in of_one]
    return found


def summarise(isolation: str, environment: str, spins: bool, limit_s: float, rounds: list[Round]) -> Result:
    latencies = [latency * 1e3 for one in rounds for latency in one.latencies_s]
    return Result(
        isolation=isolation,
        environment="async" if environment == "AsyncCounter" else "plain",
        spinner=spins,
        steps=len(latencies),
        p50_ms=round(quantile(latencies, 0.5), 2),
        p99_ms=round(quantile(latencies, 0.99), 2),
        max_ms=round(max(latencies), 2),
        limit_s=limit_s,
        ended_after_s=[round(one.spinner_s, 3) for one in rounds if one.spinner is not None],
        stop_reasons=[str(one.spinner.stop_reason) for one in rounds if one.spinner is not None],
    )


def main(
    rounds: Annotated[int, typer.Option(min=1, help="With a spinner, and as many without.")] = 5,
    others: Annotated[int, typer.Option(min=1, help="Episodes beside the one that spins.")] = 31,
    limit_s: Annotated[float, typer.Option(help="rollout.env_timeout_s.")] = 2.0,
    think_s: Annotated[float, typer.Option(help="What the policy takes for an answer.")] = 0.05,
    out: Annotated[Path, typer.Option(help="Where the results go.")] = ROOT / "bench/results/isolation.json",
) -> None:
    """Measure what one environment that spins costs its siblings, and write bench/results/isolation.json."""
    logging.disable(logging.ERROR)  # every spinner is logged with its traceback
    results = []
    for isolation, environment in KINDS:
        played: dict[bool, list[Round]] = {False: [], True: []}
        for _ in range(rounds):
            for spins in played:
                played[spins].append(
                    asyncio.run(
                        a_round(isolation, environment, spins=spins, others=others, limit_s=limit_s, think_s=think_s)
                    )
                )
        results += [summarise(isolation, environment, spins, limit_s, played[spins]) for spins in played]
    out.parent.mkdir(parents=True, exist_ok=True)
    machine = {"cpus": os.cpu_count(), "python": platform.python_version(), "load": os.getloadavg()}
    plan = {"rounds": rounds, "others": others, "limit_s": limit_s, "think_s": think_s}
    out.write_bytes(msgspec.json.format(msgspec.json.encode({"machine": machine, "plan": plan, "results": results})))
    console = Console()
    console.width = max(console.width, TABLE_WIDTH)
    console.print(table(results))


def table(results: list[Result]) -> Table:
    shown = Table(title="step latency of the other environments on the worker")
    for name in ("isolation", "environment", "one spins", "steps", "p50 ms", "p99 ms", "max ms", "it ended after"):
        shown.add_column(name, justify="left" if name in ("isolation", "environment") else "right")
    for result in results:
        ended = f"{max(result.ended_after_s):.2f} s of {result.limit_s:g}" if result.ended_after_s else ""
        shown.add_row(
            result.isolation, result.environment, "yes" if result.spinner else "no", f"{result.steps:,}",
            f"{result.p50_ms:.2f}", f"{result.p99_ms:.2f}", f"{result.max_ms:.2f}", ended,
        )  # fmt: skip
    return shown


if __name__ == "__main__":
    typer.run(main)
