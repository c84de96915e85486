"""Models that a trainer's table names are found before anything starts, and from wherever a rank does."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentrl.assets import DIRECTORIES, EMBEDDED
from agentrl.cluster.model_paths import for_ranks
from agentrl.errors import ConfigError
from agentrl_trainers.config import TrainerConfig


def test_a_relative_teacher_is_sent_to_the_ranks_as_an_absolute_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "teacher").symlink_to(DIRECTORIES[EMBEDDED], target_is_directory=True)
    monkeypatch.chdir(tmp_path)
    found = for_ranks(TrainerConfig.model_validate({"teacher": {"model": "teacher"}}))
    assert isinstance(found, TrainerConfig)
    assert found.teacher.model == str(DIRECTORIES[EMBEDDED].resolve())


def test_what_names_the_runs_own_model_is_left_alone() -> None:
    plain = TrainerConfig()
    assert for_ranks(plain) is plain


@pytest.mark.parametrize(
    ("key", "beside"),
    [("kl.reference", {"coefficient": 0.1}), ("teacher.model", {}), ("critic.model", {"enabled": True})],
)
def test_a_model_that_is_not_there_is_named_with_its_key(key: str, beside: dict[str, object]) -> None:
    table, name = key.split(".")
    with pytest.raises(ConfigError, match=rf"trainer.{key}: model 'nowhere' is not a directory"):
        for_ranks(TrainerConfig.model_validate({table: {name: "nowhere", **beside}}))
