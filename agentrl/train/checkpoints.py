"""The checkpoints of a run on disk: `checkpoints/v<k>/`, each whole or not there, the newest never half written.

A checkpoint is written under a hidden name, sealed (`agentrl.manifest`) and renamed. What has a hidden name is nothing
that anybody may read: the rest of a save or of a deletion that was interrupted.
"""

from __future__ import annotations

import logging
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from agentrl import manifest
from agentrl.errors import CheckpointError
from agentrl.manifest import Manifest
from agentrl.train.retention import Retention

logger = logging.getLogger(__name__)

TRAINER = "trainer"  # folder of a checkpoint: what `Trainer.save` writes
AVERAGE = "average"  # folder of a checkpoint: the averaged weights, in Hugging Face form
RUN = "run.json"  # where the run stood: version, data position
OWN = (manifest.NAME, RUN)  # of the files beside the Hugging Face ones, those that are no model's


class Checkpoints:
    """One process writes; anybody may read at any time. Who goes on from one calls `tidy` before `latest`."""

    def __init__(self, directory: Path, retention: Retention | None = None) -> None:
        self.directory, self._retention = directory, retention or Retention()

    def path(self, version: int) -> Path:
        return self.directory / f"v{version}"

    def whole(self) -> dict[int, Manifest]:
        """Version -> manifest of every checkpoint of which all files are there in their size, in order of version.

        One that lacks something is named in the log. Contents are compared when they are loaded, not here.
        """
        found = {}
        for version, path in sorted(_numbered(self.directory, r"v([0-9]+)").items()):
            try:
                found[version] = manifest.check(path, digests=False)
            except CheckpointError as error:
                logger.warning("left out: %s", error)
        return found

    def resumable(self) -> list[int]:
        """The whole versions that have the trainer too, in order."""
        return [version for version, found in self.whole().items() if any(map(_of_trainer, found.files))]

    def latest(self) -> int | None:
        """The highest version that is whole; None when there is none."""
        return max(self.whole(), default=None)

    def best(self) -> int | None:
        """The whole version with the highest score by `checkpoint.best_by`; None when no one has a score."""
        return self._retention.best(_scores(self.whole()))

    def begin(self, version: int) -> Path:
        """The path to write version `version` at; nothing is there. Leftovers of interrupted saves are gone."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self.tidy()
        return self.directory / f".v{version}.partial"

    def commit(self, version: int, *, scores: Mapping[str, float], run: Mapping[str, Any]) -> Manifest:
        """Seal what was written since `begin`, give it its name, then delete what `checkpoint.keep_*` gives up.

        Raises OSError; then the checkpoints that were there still are.
        """
        partial, final = self.directory / f".v{version}.partial", self.path(version)
        partial.mkdir(exist_ok=True)
        (partial / RUN).write_bytes(msgspec.json.format(msgspec.json.encode(dict(run)), indent=1) + b"\n")
        sealed = manifest.seal(partial, version, dict(scores))
        if final.exists():
            final.rename(self.directory / f".v{version}.replaced")
        partial.rename(final)
        manifest.flush(self.directory)
        self._retain(version)
        self.tidy()
        return sealed

    def run(self, version: int) -> dict[str, Any]:
        """What `commit` was given as `run`. Raises CheckpointError."""
        path = self.path(version)
        manifest.check(path, RUN.__eq__)
        return msgspec.json.decode((path / RUN).read_bytes(), type=dict[str, Any])

    def add_scores(self, version: int, scores: Mapping[str, float]) -> None:
        """What became known of a version since it was saved, if it is kept. A disk that refuses is no error."""
        if not self.path(version).exists():
            return
        try:
            manifest.add_scores(self.path(version), dict(scores))
        except (CheckpointError, OSError) as error:
            logger.warning("the scores of v%d are not kept: %s", version, error)

    def tidy(self) -> None:
        """Remove what hidden names are left; a version whose replacement never came is put back first."""
        for version, path in _numbered(self.directory, r"\.v([0-9]+)\.replaced").items():
            if not self.path(version).exists():
                path.rename(self.path(version))
        for path in self.directory.glob(".*"):
            _remove(path)

    def _retain(self, newest_written: int) -> None:
        """Renamed before it is deleted: half a checkpoint never has a checkpoint's name."""
        for version in self._retention.to_delete(_scores(self.whole()), newest_written):
            self.path(version).rename(self.directory / f".v{version}.deleted")


def _of_trainer(file: str) -> bool:
    return file.startswith(f"{TRAINER}/")


def _scores(whole: Mapping[int, Manifest]) -> dict[int, dict[str, float]]:
    return {version: found.scores for version, found in whole.items()}


def _numbered(directory: Path, pattern: str) -> dict[int, Path]:
    if not directory.is_dir():
        return {}
    matches = ((re.fullmatch(pattern, path.name), path) for path in directory.iterdir())
    return {int(match[1]): path for match, path in matches if match}


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
