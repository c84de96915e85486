"""The directory of an evaluation, and how one that was stopped goes on."""

from __future__ import annotations

import os
import shutil
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import msgspec

from agentrl.errors import ConfigError
from agentrl.evaluate.config import EvaluationRunConfig
from agentrl.evaluate.records import EpisodeResult
from agentrl.types import Task

_HOW_FAST = {"concurrency", "max_attempts", "request_timeout_s", "workers"}
"""Keys of `[rollout]` that a later try may change: what is measured stays the same."""


class EvaluationDirectory:
    """Everything of one evaluation, and nothing secret: configuration, episodes, trajectories, summary, logs."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.config = root / "config.json"
        self.episodes = root / "episodes.jsonl"  # one EpisodeResult a line, in the order in which they ended
        self.summary = root / "summary.json"
        self.store = root / "trajectories.db"
        self.logs = root / "logs"

    @property
    def store_url(self) -> str:
        return f"sqlite:///{self.store.resolve()}"

    def open(self, config: EvaluationRunConfig, *, overwrite: bool) -> list[EpisodeResult]:
        """What an earlier try left; episodes without a reward are left out, for they are to be played again.

        Raises ConfigError when what is there is another evaluation, or none.
        """
        if self.root.exists() and any(self.root.iterdir()):
            others = sorted(entry.name for entry in self.root.iterdir() if not self._is_ours(entry))
            if others or not self.config.exists():
                what = f" ({', '.join(others[:3])} is not of one)" if others else ""
                raise ConfigError(f"{self.root} is not empty and holds no evaluation{what}; give another --out")
            if overwrite:
                shutil.rmtree(self.root)
            elif self.read():  # one that has nothing yet, for its endpoint had a wrong address, may become another
                self._check_same(config)
        self.logs.mkdir(parents=True, exist_ok=True)
        self.config.write_text(config.model_dump_json(indent=2) + "\n")
        return [episode for episode in self.read() if episode.reward is not None]

    def read(self) -> list[EpisodeResult]:
        """The last result of each episode. A line that a kill cut off is left out."""
        if not self.episodes.exists():
            return []
        found: dict[tuple[str, int], EpisodeResult] = {}
        for line in self.episodes.read_bytes().split(b"\n"):
            try:
                episode = msgspec.json.decode(line, type=EpisodeResult)
            except msgspec.DecodeError:
                continue
            found[episode.task_id, episode.sample] = episode
        return list(found.values())

    def append(self, episodes: Sequence[EpisodeResult]) -> None:
        """Durable on return."""
        with self.episodes.open("ab") as file:
            if file.tell() and not self._ends_whole():
                file.write(b"\n")
            file.write(b"".join(msgspec.json.encode(episode) + b"\n" for episode in episodes))
            file.flush()
            os.fsync(file.fileno())

    def _is_ours(self, entry: Path) -> bool:
        """A training run and a checkpoint have a `config.json` too, and are not to be overwritten."""
        ours = (self.config, self.episodes, self.summary, self.logs)
        return entry in ours or entry.name.startswith(self.store.name)  # with its -wal, -shm and -lock

    def _ends_whole(self) -> bool:
        with self.episodes.open("rb") as file:
            file.seek(-1, os.SEEK_END)
            return file.read(1) == b"\n"

    def _check_same(self, config: EvaluationRunConfig) -> None:
        try:
            earlier = EvaluationRunConfig.model_validate_json(self.config.read_text())
        except ValueError as error:
            raise ConfigError(f"{self.config} cannot be read; give another --out, or --overwrite") from error
        was, now = _what_is_measured(earlier), _what_is_measured(config)
        differing = sorted(key for key in was.keys() | now.keys() if was.get(key) != now.get(key))
        if differing:
            changes = ", ".join(f"{key} was {was.get(key)}, is {now.get(key)}" for key in differing)
            raise ConfigError(
                f"{self.root} holds another evaluation ({changes}); give another --out, or --overwrite to replace it"
            )


def missing_samples(
    tasks: Sequence[Task], samples: int, done: Sequence[EpisodeResult], *, together: bool = False
) -> list[tuple[Task, list[int]]]:
    """What is left to play: each task with the numbers of its missing samples, in the tasks' order.

    `together`: all samples of a task that misses one, for environments that score them against each other.
    """
    there: dict[str, set[int]] = defaultdict(set)
    for episode in done:
        there[episode.task_id].add(episode.sample)
    left = ((task, [sample for sample in range(samples) if sample not in there[task.id]]) for task in tasks)
    return [(task, list(range(samples)) if together else numbers) for task, numbers in left if numbers]


def _what_is_measured(config: EvaluationRunConfig) -> dict[str, object]:
    """Flat, `rollout.max_turns` for one; without what only decides how fast it goes."""
    data = config.model_dump(mode="json")
    for name in ("engine", "tasks", "samples"):  # more tasks or samples add to what is there
        data.pop(name)
    for name in _HOW_FAST:
        data["rollout"].pop(name, None)
    flat: dict[str, object] = {}
    for key, value in data.items():
        if isinstance(value, dict):
            flat |= {f"{key}.{name}": part for name, part in value.items()}
        else:
            flat[key] = value
    return flat
