"""One run under fire: its command, what it says of its progress, and what is done to it when."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from bench.chaos.injury import Injuries
from bench.chaos.place import MARK, Place
from bench.chaos.plan import Fault

LOOK_EVERY_S = 0.05


@dataclass
class Struck:
    """A fault that was done. Times are seconds since the campaign began."""

    fault: Fault
    what: str
    at_s: float
    step: int  # the last one that was there
    recovered_s: float | None = None  # until the next step was there; None when the run ended before


@dataclass
class Campaign:
    """`agentrl train`, taken up again with `--resume` whenever its driver ended before the last step."""

    run_file: Path
    directory: Path  # of the run
    settings: Sequence[str]
    place: Place
    injuries: Injuries
    say: Callable[[str], None]
    log_path: Path  # of what the drivers print
    max_drivers: int = 40  # command lines until the campaign gives up
    quiet_s: float = 300.0  # without a step, after which it does
    struck: list[Struck] = field(default_factory=list)
    without_target: list[Fault] = field(default_factory=list)
    drivers: int = 0
    mark: str = field(default_factory=lambda: f"{os.getpid()}-{time.monotonic_ns()}")
    _started: float = field(default_factory=time.monotonic)

    def fight(self, faults: Sequence[Fault]) -> None:
        """Returns when the run is done. Raises RuntimeError when it does not get there."""
        pending = list(faults)
        with self.log_path.open("ab") as log:
            while not self._is_done():
                if self.drivers == self.max_drivers:
                    raise RuntimeError(f"{self.drivers} drivers ended before the last step; see {self.log_path}")
                self._follow(self._start(log), pending)

    def steps(self) -> list[int]:
        """Steps that the run has written down, in the file's order."""
        with contextlib.suppress(FileNotFoundError):
            lines = (self.directory / "metrics.jsonl").read_text().splitlines(keepends=True)
            records = [json.loads(line) for line in lines if line.endswith("\n")]
            return [record["step"] for record in records if record["kind"] == "step"]
        return []

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self._started

    def _follow(self, driver: subprocess.Popen[bytes], pending: list[Fault]) -> None:
        """Until this driver ends. Raises RuntimeError, and ends it, when nothing moves any more."""
        moved, due = time.monotonic(), None
        step = max(self.steps(), default=0)
        while driver.poll() is None:
            time.sleep(LOOK_EVERY_S)
            if (now_at := max(self.steps(), default=0)) > step:
                step, moved = now_at, time.monotonic()
                self._recovered()
            if time.monotonic() - moved > self.quiet_s:
                os.kill(self.place.driver(driver.pid), signal.SIGKILL)
                raise RuntimeError(f"no step within {self.quiet_s:g} s after step {step}; see {self.directory}/logs")
            if not pending or step < pending[0].after_step:
                continue
            due = due or time.monotonic() + pending[0].wait_s
            if time.monotonic() >= due:
                due = None
                self._strike(pending.pop(0), driver, step)
        self.injuries.heal()

    def _strike(self, fault: Fault, driver: subprocess.Popen[bytes], step: int) -> None:
        what = self.injuries.inflict(fault, self.place.driver(driver.pid))
        if what is None:
            self.without_target.append(fault)
            return
        self.struck.append(Struck(fault, what, self.elapsed_s, step))
        self.say(f"{self.elapsed_s:6.1f} s, step {step}: {fault.kind.name} ({what})")

    def _recovered(self) -> None:
        for one in self.struck:
            if one.recovered_s is None:
                one.recovered_s = self.elapsed_s - one.at_s

    def _start(self, log: IO[bytes]) -> subprocess.Popen[bytes]:
        self.drivers += 1
        if (self.directory / "config.json").exists():
            arguments = ["train", "--resume", str(self.directory)]
        else:
            chosen = [part for setting in (*self.place.settings, *self.settings) for part in ("--set", setting)]
            arguments = ["train", str(self.run_file), *chosen]
        return subprocess.Popen(
            self.place.command([sys.executable, "-m", "agentrl.cli.main", *arguments]),
            env={**os.environ, **self.place.environment, MARK: self.mark, "COLUMNS": "200"},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )

    def _is_done(self) -> bool:
        with contextlib.suppress(FileNotFoundError, json.JSONDecodeError):
            return bool(json.loads((self.directory / "summary.json").read_text())["ended"] == "done")
        return False
