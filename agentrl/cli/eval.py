"""`agentrl eval ENV`: how well a policy does in an environment."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import typer
from pydantic import ValidationError
from rich.console import Console

from agentrl.cli import eval_options as options
from agentrl.cli.env_options import EnvId, json_or_text, option_values
from agentrl.cli.rewards_file import read_rewards
from agentrl.config import describe
from agentrl.errors import ConfigError
from agentrl.evaluate.config import EvaluationRunConfig
from agentrl.evaluate.run import run_evaluation


def evaluate(
    env_id: EnvId,
    checkpoint: options.Checkpoint = None,
    url: options.Url = None,
    model: options.Model = None,
    api_key_env: options.ApiKeyEnv = None,
    tasks: options.Tasks = 64,
    samples: options.Samples = 1,
    split: options.Split = "eval",
    task_file: options.TaskFile = None,
    seed: options.Seed = 0,
    option: options.EnvironmentOption = None,
    temperature: options.Temperature = 1.0,
    max_tokens: options.MaxTokens = 512,
    max_turns: options.MaxTurns = 16,
    concurrency: options.Concurrency = 32,
    overrides: options.Overrides = None,
    rewards: options.Rewards = None,
    success_reward: options.SuccessReward = 1.0,
    pass_at: options.PassAt = "",
    rows: options.Rows = 20,
    out: options.Out = None,
    overwrite: options.Overwrite = False,
) -> None:
    """Evaluate a policy in an environment: success, mean reward with its 95 % interval, pass@k, a table of the tasks.

    An episode that fails for the environment or the policy's server is missing, never a wrong answer; the exit status
    is 1 then. A stopped evaluation goes on when the command is repeated, also with more tasks or samples.

    Example: `agentrl eval agentrl/Calculator-v0 --checkpoint agentrl:tiny --tasks 100 --samples 4`
    """  # fmt: skip
    rollout = {
        "eval_temperature": temperature, "max_tokens": max_tokens, "max_turns": max_turns, "concurrency": concurrency,
    }  # fmt: skip
    data: dict[str, Any] = {
        "environment": _environment(env_id, split, task_file, option_values(option or [])),
        "tasks": tasks,
        "samples": samples,
        "seed": seed,
        "success_reward": success_reward,
        "checkpoint": checkpoint,
        "endpoint": _endpoint(url, model, api_key_env),
        **_settings(overrides or [], rollout),
    }
    if rewards is not None:
        data["reward"] = read_rewards(rewards)
    try:
        config = EvaluationRunConfig.model_validate(data)
    except ValidationError as error:
        raise ConfigError("; ".join(describe(error))) from error
    root = out or Path("evals") / re.sub(r"[^A-Za-z0-9._-]+", "-", f"{env_id}-{config.policy_name}").strip("-")
    console = Console(emoji=False)
    summary = run_evaluation(config, root, console, ks=_ks(pass_at, samples), rows=rows, overwrite=overwrite)
    if summary.missing:
        raise typer.Exit(1)


def _environment(env_id: str, split: str, task_file: Path | None, values: dict[str, Any]) -> dict[str, Any]:
    found = {"id": env_id, "eval_split": split, "eval_tasks": task_file, "options": values}
    # A run's two splits differ; here nothing is drawn from the other one.
    return found | {"train_split": "train, evaluated"} if split == "train" else found


def _endpoint(url: str | None, model: str | None, api_key_env: str | None) -> dict[str, Any] | None:
    if url is None:
        if model is not None or api_key_env is not None:
            raise ConfigError("--model and --api-key-env belong to an endpoint; give its --url, or only --checkpoint")
        return None
    if model is None:
        raise ConfigError("--url needs --model, the name by which the endpoint knows the model")
    return {"url": url, "model": model, "api_key_env": api_key_env}


def _settings(given: list[str], rollout: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """`section.key=value` by section, over what other options say of rollouts."""
    found: dict[str, dict[str, Any]] = {"rollout": dict(rollout), "engine": {}}
    for setting in given:
        path, equals, value = setting.partition("=")
        section, _, name = path.partition(".")
        if section not in found or not name or not equals:
            raise ConfigError(
                f"--set {setting}: only keys of rollout and engine can be set here, like rollout.deadline_s=60"
            )
        found[section][name] = json_or_text(value)
    return found


def _ks(given: str, samples: int) -> list[int]:
    if not given:
        return sorted({1, samples})
    try:
        ks = sorted({int(part) for part in given.split(",")})
    except ValueError:
        raise ConfigError(f"--pass-at {given!r}: give whole numbers, like 1,4,16") from None
    if ks[0] < 1 or ks[-1] > samples:
        raise ConfigError(f"--pass-at {given!r}: each k is at least 1 and at most --samples, which is {samples}")
    return ks
