"""Kills the driver of real runs at random moments, has each go on, and checks the books of all of it.

`python tools/driver_kills.py examples/01_calculator/run.toml --kills 20 --set loop.steps=12` prints a line for each
kill and ends with status 1 when anything was lost, done twice or left behind. The seed fixes the moments, not what is
going on then.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec

from agentrl.observe.history import read_history
from agentrl.rundir import RunDirectory
from agentrl.store.base import TRAINED
from agentrl.store.sql import SqlStore

READY = re.compile(r"engine\(s\) ready|goes on at version")
STEP = re.compile(r"^step +(\d+)/")
LIFE_S = 900.0  # that a life may take to end by itself


class Kill(msgspec.Struct):
    """One death and what the next life made of it. Seconds of wall clock."""

    run: str
    after_ready_s: float
    after_step: int  # the last one that was told
    ready_s: float = 0.0  # from the next start until its engines were ready
    resumed_s: float = 0.0  # from there until it went on
    checkpoint: int | None = None
    version: int = 0
    replayed: int = 0
    adopted: int = 0
    sealed: int = 0


class Life:
    """One driver process; a thread reads what it says."""

    def __init__(self, arguments: list[str], cwd: Path) -> None:
        self.started = time.monotonic()
        self.lines: list[tuple[float, str]] = []
        self._process = subprocess.Popen(
            [sys.executable, "-m", "agentrl.cli.main", "train", *arguments],
            cwd=cwd,
            env={**os.environ, "PYTHONUNBUFFERED": "1", "COLUMNS": "200"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.lines.append((time.monotonic(), line.rstrip()))

    def when(self, pattern: re.Pattern[str]) -> float | None:
        """When the first such line came, since the start."""
        return next((at - self.started for at, line in list(self.lines) if pattern.search(line)), None)

    def last_step(self) -> int:
        return max((int(found[1]) for _, line in list(self.lines) if (found := STEP.match(line))), default=0)

    def killed_after(self, seconds: float) -> bool:
        """So long after its engines were ready. False when it had ended by itself."""
        while (ready := self.when(READY)) is None or time.monotonic() < self.started + ready + seconds:
            if self._process.poll() is not None or time.monotonic() > self.started + LIFE_S:
                return False
            time.sleep(0.01)
        self._process.send_signal(signal.SIGKILL)
        self._end()
        return True

    def wait(self) -> int:
        self._end()
        return self._process.returncode

    def _end(self) -> None:
        self._process.wait(LIFE_S)
        self._reader.join()

    def text(self) -> str:
        return "\n".join(line for _, line in self.lines)


def campaign(options: argparse.Namespace) -> Iterator[tuple[Path, list[Kill]]]:
    """Runs one after the other, each with its kills, until there were enough."""
    chance, left, number = random.Random(options.seed), options.kills, 0
    while left > 0:
        name = f"kills-{options.seed}-{number}"
        root = options.directory / "runs" / name
        begin = [str(options.file.resolve()), "--name", name, "--overwrite"]
        begin += [part for override in options.overrides for part in ("--set", override)]
        kills: list[Kill] = []
        arguments = begin
        while True:
            life = Life(arguments, options.directory)
            moment = chance.uniform(0.0, options.spread_s)
            died = left > 0 and life.killed_after(moment)
            status = None if died else life.wait()
            if kills:
                tell(kills[-1], life, root)
            if not died:
                if status != 0:
                    raise SystemExit(f"{name} ended with status {status}:\n{life.text()}")
                break
            left -= 1
            kills.append(Kill(run=name, after_ready_s=moment, after_step=life.last_step()))
            arguments = ["--resume", str(root)]
        yield root, kills
        number += 1


def tell(kill: Kill, life: Life, root: Path) -> None:
    """What the life after a kill made of it, if it lived so long."""
    kill.ready_s = life.when(re.compile(r"engine\(s\) ready")) or 0.0
    on_at = life.when(re.compile(r"goes on at version"))
    if on_at is not None:
        resume = read_history(RunDirectory(root).metrics).resumes[-1]
        kill.resumed_s = on_at - kill.ready_s
        kill.checkpoint, kill.version, kill.replayed = resume.checkpoint, resume.version, resume.replayed
        kill.adopted, kill.sealed = resume.adopted_groups, resume.sealed_sessions
    print(
        f"{kill.run}: killed {kill.after_ready_s:.1f} s after its start, after step {kill.after_step}; "
        + (
            f"went on at version {kill.version} ({kill.replayed} trained again, {kill.adopted} groups taken up, "
            f"{kill.sealed} sessions ended) {kill.resumed_s:.1f} s after its engines were ready"
            if on_at is not None
            else "the next one was killed before it went on"
        ),
        flush=True,
    )


def wrong_in(root: Path, cwd: Path) -> list[str]:
    """What the books of a run that is done say that they may not. Beside `agentrl audit`, which is asked too."""
    directory = RunDirectory(root)
    config = json.loads(directory.config.read_text())
    steps, per_step = config["loop"]["steps"], config["loop"]["groups_per_step"]
    store = SqlStore.at(directory.store, create=False)
    groups, settlements, swaps = list(store.groups()), list(store.settlements()), store.swaps()
    sampled = {one.session_id for one in store.iterate(mode="train")}
    owner = config["gateway"]["name"]
    found = [f"session {session_id} is still open" for session_id, _ in store.journal(owner)]
    store.close()
    found += [f"group {group.group_id} is open" for group in groups if group.outcome is None]
    numbers = [int(group.group_id.partition("-")[0]) for group in groups]
    if numbers != list(range(len(groups))):
        found.append(f"groups were numbered {numbers}")
    per_number = Counter(group.step for group in groups if group.step is not None and group.outcome == TRAINED)
    if any(count > per_step for count in per_number.values()) or max(per_number, default=0) > steps:
        found.append(f"groups trained by step: {dict(per_number)}")
    times = Counter(settlement.session_id for settlement in settlements)
    found += [f"session {name} is settled {count} times" for name, count in times.items() if count > 1]
    found += [f"session {name} is not settled" for name in sampled - times.keys()]
    told = [record.step for record in read_history(directory.metrics).steps]
    if told != list(range(1, steps + 1)):
        found.append(f"metrics.jsonl tells of steps {told}")
    digests: dict[int, set[str]] = {}
    for swap in swaps:
        if swap.digest:
            digests.setdefault(swap.version, set()).add(swap.digest)
    different = sorted(version for version, of_version in digests.items() if len(of_version) > 1)
    twice = Counter(swap.version for swap in swaps if swap.digest)
    again = sum(count > 1 for count in twice.values())
    print(f"{root.name}: {again} versions were made again, {len(different)} of them with other bits {different or ''}")
    audit = subprocess.run(
        [sys.executable, "-m", "agentrl.cli.main", "audit", str(root)], cwd=cwd, capture_output=True, text=True
    )
    print(audit.stdout)
    return found + ([f"agentrl audit: {audit.stdout}{audit.stderr}"] if audit.returncode else [])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="the run's TOML file")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--spread-s", type=float, default=15.0, help="latest moment, from when the engines are ready")
    parser.add_argument("--directory", type=Path, default=Path(), help="where runs/ is made")
    parser.add_argument("--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE")
    options = parser.parse_args()
    options.directory.mkdir(parents=True, exist_ok=True)
    options.directory = options.directory.resolve()
    kills: list[Kill] = []
    wrong: list[str] = []
    for root, of_run in campaign(options):
        kills += of_run
        wrong += [f"{root.name}: {what}" for what in wrong_in(root, options.directory)]
    waits = sorted(kill.resumed_s for kill in kills if kill.resumed_s)
    print(
        f"{len(kills)} kills in {len({kill.run for kill in kills})} runs: {sum(kill.replayed for kill in kills)} steps "
        f"trained again, {sum(kill.adopted for kill in kills)} groups taken up, {sum(kill.sealed for kill in kills)} "
        f"sessions ended; from engines ready to going on {waits[len(waits) // 2] if waits else 0.0:.1f} s (median); "
        f"{len(wrong)} findings"
    )
    result = {"kills": msgspec.to_builtins(kills), "wrong": wrong}
    (options.directory / "driver_kills.json").write_text(json.dumps(result, indent=1) + "\n")
    sys.exit("\n".join(wrong) if wrong else 0)


if __name__ == "__main__":
    main()
