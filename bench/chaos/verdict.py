"""What must be true of a run that came through."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from agentrl.store.base import TRAINED, TrajectoryStore
from agentrl.store.sql import SqlStore
from bench.chaos.campaign import Campaign
from bench.chaos.place import Place

GONE_S = 30.0


class Verdict(NamedTuple):
    """Whether each promise was kept, and in which numbers."""

    broken: list[str]
    groups: dict[str, int]  # by outcome
    oldest: int  # of a trained token, in versions
    audit: str


def judge(campaign: Campaign, *, steps: int, max_lag: int) -> Verdict:
    broken = []
    if (found := campaign.steps()) != list(range(1, steps + 1)):
        broken.append(f"steps written down: {found}")
    if left := _left_behind(campaign.place, campaign.mark):
        broken.append(f"processes left: {', '.join(left)}")
    store = SqlStore(f"sqlite:///{(campaign.directory / 'trajectories.db').resolve()}", create=False)
    try:
        groups = Counter(str(group.outcome) for group in store.groups())
        if "None" in groups:
            broken.append(f"{groups['None']} of {groups.total()} groups have no outcome")
        oldest = oldest_trained(store)
    finally:
        store.close()
    if oldest > max_lag:
        broken.append(f"a token was trained {oldest} versions after it was sampled, the bound is {max_lag}")
    status, audit = _audit(campaign.directory)
    if status:
        broken.append("the audit has findings")
    return Verdict(broken, dict(groups), oldest, audit)


def oldest_trained(store: TrajectoryStore) -> int:
    """The largest lag of a token that got gradient.

    A settlement says how many tokens of a trajectory did, and a step trains the freshest: these are taken here.
    """
    settled = {one.session_id: one for one in store.settlements() if one.outcome == TRAINED}
    oldest = 0
    for trajectory in store.iterate(mode="train"):
        settlement = settled.get(trajectory.session_id)
        if settlement is None:
            continue
        lags: Counter[int] = Counter()
        for row in trajectory.rows:
            for span in row.versions:
                lags[settlement.step - 1 - span.version] += span.end - span.start
        left = settlement.tokens
        for lag in sorted(lags):
            if left > 0:
                oldest, left = max(oldest, lag), left - lags[lag]
    return oldest


def _left_behind(place: Place, mark: str) -> list[str]:
    """Names of what still lives when what is ending has had its time."""
    deadline = time.monotonic() + GONE_S
    while (left := place.left(mark)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return [f"{process.pid}" for process in left]


def _audit(directory: Path) -> tuple[int, str]:
    command = [sys.executable, "-m", "agentrl.cli.main", "audit", str(directory), "--complete", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        return done.returncode, json.dumps(json.loads(done.stdout))
    except json.JSONDecodeError:
        return done.returncode or 1, done.stdout + done.stderr
