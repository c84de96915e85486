"""The `[reward]` table of a file, for commands that score what no run is in the middle of."""

from __future__ import annotations

import tomllib
from pathlib import Path

from pydantic import ValidationError

from agentrl.config import describe
from agentrl.errors import ConfigError
from agentrl.reward.config import RewardConfig


def read_rewards(path: Path) -> RewardConfig:
    """Raises ConfigError, also for a service that only a run can start."""
    try:
        data = tomllib.loads(path.read_text())
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    if "reward" not in data:
        raise ConfigError(f"{path} has no [reward] table; write one, with services or functions")
    try:
        config = RewardConfig.model_validate(data["reward"])
    except ValidationError as error:
        raise ConfigError("; ".join(describe(error))) from error
    for service in config.services:
        if service.start is not None:
            raise ConfigError(
                f"service {service.name!r} of {path} is one that a run starts; here start it yourself (agentrl reward "
                f"serve {service.start}) and give its url in place of start and options"
            )
    return config
