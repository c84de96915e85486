"""A real training run whose judge has every fault, and what it cost: `python -m bench.rewards.faults`.

The embedded policy on the calculator; the reward is the environment's, the judge's and a steady service's. Afterwards
the run is audited, and each trained trajectory's reward is compared with what both services said of it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from aiohttp import web
from rich.console import Console
from rich.table import Table

from agentrl.store.base import TRAINED
from agentrl.store.sql import SqlStore
from agentrl.types import Trajectory
from bench.rewards.faulty import Faulty, Plan

RESULTS = Path(__file__).parents[1] / "results" / "reward_faults.json"
JUDGE_WEIGHT, STEADY_WEIGHT = 1.0, 0.5
STEADY_REWARD = 1.0

RUN = """
name = "faults"
model = "agentrl:tiny"
[environment]
id = "agentrl/Calculator-v0"
[loop]
steps = {steps}
groups_per_step = 4
[rollout]
group_size = 4
[evaluation]
tasks = 0
[reward]
on_error = "retry"
[[reward.services]]
name = "judge"
url = "{judge}"
weight = {judge_weight}
timeout_s = 10.0
max_attempts = 3
[[reward.services]]
name = "steady"
url = "{steady}"
weight = {steady_weight}
"""


async def steady_service() -> tuple[str, web.AppRunner]:
    async def score(request: web.Request) -> web.Response:
        items = (await request.json())["items"]
        return web.json_response({"results": [{"id": item["id"], "reward": STEADY_REWARD} for item in items]})

    async def health(request: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    app = web.Application(client_max_size=2**26)
    app.router.add_post("/score", score)
    app.router.add_get("/health", health)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    return f"http://127.0.0.1:{runner.addresses[0][1]}", runner


async def train(directory: Path, steps: int, judge: Faulty) -> int:
    """The run's exit status."""
    steady, runner = await steady_service()
    await judge.start()
    dying = asyncio.create_task(judge.die_once())
    (directory / "run.toml").write_text(
        RUN.format(steps=steps, judge=judge.url, steady=steady, judge_weight=JUDGE_WEIGHT, steady_weight=STEADY_WEIGHT)
    )
    command = [sys.executable, "-m", "agentrl.cli.main", "train", "run.toml"]
    process = await asyncio.create_subprocess_exec(*command, cwd=directory)
    try:
        return await process.wait()
    finally:
        dying.cancel()
        await asyncio.gather(dying, return_exceptions=True)
        await judge.stop()
        await runner.cleanup()


def wrong_reward(found: Trajectory, judge: Faulty) -> str | None:
    """Why a trained trajectory should not have the reward that it has."""
    env, said = found.components.get("env"), judge.said.get(found.session_id, set())
    if found.session_id in judge.chosen:
        return f"the judge had the fault {judge.chosen[found.session_id]} with it"
    if env is None or len(said) != 1:
        return f"the environment said {env}, the judge {sorted(said)}"
    right = env + JUDGE_WEIGHT * min(said) + STEADY_WEIGHT * STEADY_REWARD
    if found.reward is None or abs(found.reward - right) > 1e-9:
        return f"its reward is {found.reward}, and {right} would be right"
    return None


def checked(run: Path, judge: Faulty) -> dict[str, Any]:
    """The figures of the run."""
    store = SqlStore(f"sqlite:///{run / 'trajectories.db'}")
    trajectories = {found.session_id: found for found in store.iterate(mode="train")}
    settled = {settlement.session_id: settlement for settlement in store.settlements()}
    store.close()
    trained = [one for one, settlement in settled.items() if settlement.outcome == TRAINED and settlement.tokens]
    wrong = {one: why for one in trained if (why := wrong_reward(trajectories[one], judge)) is not None}
    summary = json.loads((run / "summary.json").read_text())
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    longest = max((line for line in lines if line["kind"] == "step"), key=lambda line: line["step_s"], default={})
    unrewarded = sorted(
        one for one, found in trajectories.items() if found.reward is None and settled[one].outcome != "run_ended"
    )
    stale = {one for one, settlement in settled.items() if settlement.outcome == "stale"}
    log = "".join(path.read_text(errors="replace") for path in sorted((run / "logs").glob("*.log")))
    return {
        "ended": summary["ended"],
        "steps": summary["steps"],
        "wall_s": summary["wall_s"],
        "sampled": len(trajectories),
        "trained": len(trained),
        "not_settled": len(trajectories.keys() - settled.keys()),
        "outcomes": summary["dropped"],
        "trained_with_a_wrong_reward": wrong,
        "without_a_reward": unrewarded,
        "of_these_stale": sorted(stale.intersection(unrewarded)),
        "faulty_items": judge.chosen,
        "named_in_the_log": sorted(one for one in judge.chosen if one in log),
        "faults": dict(judge.faults),
        "longest_step": {name: longest.get(name) for name in ("step", "step_s", "phases")},
        "reward_parts": summary["reward_parts"],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--dead-s", type=float, default=60.0, help="for how long the judge is gone")
    options = parser.parse_args()
    console = Console(emoji=False)
    with tempfile.TemporaryDirectory(prefix="agentrl-faults-") as name:
        directory = Path(name)

        async def run() -> tuple[int, Faulty]:
            judge = Faulty(Plan(dead_s=options.dead_s))
            return await train(directory, options.steps, judge), judge

        status, judge = asyncio.run(run())
        found = checked(directory / "runs" / "faults", judge)
        audit = [sys.executable, "-m", "agentrl.cli.main", "audit", "runs/faults"]
        found |= {"status": status, "audit": subprocess.run(audit, cwd=directory, check=False).returncode}
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(found, indent=2) + "\n")
    table = Table("", "", title="a run with a faulty judge", box=None)
    for key, value in found.items():
        table.add_row(key, json.dumps(value))
    console.print(table)
    right = found["status"] == 0 and found["audit"] == 0 and found["not_settled"] == 0
    right = right and not found["trained_with_a_wrong_reward"]
    # What became too old to be trained while it waited is no loss of the judge's faults alone: it is told apart.
    missing = set(found["without_a_reward"]) - set(found["of_these_stale"])
    right = right and missing <= set(found["faulty_items"]) == set(found["named_in_the_log"])
    right = right and set(found["faulty_items"]) <= set(found["without_a_reward"])
    console.print(f"nothing lost, no wrong reward, each faulty item masked and named: {'yes' if right else 'no'}")
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
