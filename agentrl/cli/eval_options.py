"""The options of `agentrl eval`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from agentrl.assets import EMBEDDED

POLICY, TASKS, EPISODES, REWARDS = "The policy", "The tasks", "The episodes", "Rewards and figures"

Checkpoint = Annotated[
    str | None,
    typer.Option(
        help=f"A local model, served by vLLM for the occasion: a directory, or {EMBEDDED}.", rich_help_panel=POLICY
    ),
]
Url = Annotated[
    str | None,
    typer.Option(help="Or an OpenAI-compatible endpoint, like http://127.0.0.1:8000/v1.", rich_help_panel=POLICY),
]
Model = Annotated[str | None, typer.Option(help="The model's name at the endpoint.", rich_help_panel=POLICY)]
ApiKeyEnv = Annotated[
    str | None, typer.Option(help="Environment variable with the endpoint's key.", rich_help_panel=POLICY)
]
Tasks = Annotated[int, typer.Option(min=1, help="How many tasks.", rich_help_panel=TASKS)]
Samples = Annotated[int, typer.Option(min=1, help="Episodes of each task.", rich_help_panel=TASKS)]
Split = Annotated[str, typer.Option(help="The split of the tasks.", rich_help_panel=TASKS)]
TaskFile = Annotated[
    Path | None,
    typer.Option(
        help="JSONL or Parquet with a row for each task, instead of the environment's own.", rich_help_panel=TASKS
    ),
]
Seed = Annotated[int, typer.Option(min=0, help="Which order of tasks.", rich_help_panel=TASKS)]
EnvironmentOption = Annotated[
    list[str] | None,
    typer.Option("--option", metavar="KEY=VALUE", help="A keyword argument of the environment.", rich_help_panel=TASKS),
]
Temperature = Annotated[float, typer.Option(min=0, help="Of sampling.", rich_help_panel=EPISODES)]
MaxTokens = Annotated[int, typer.Option(min=1, help="Of one message.", rich_help_panel=EPISODES)]
MaxTurns = Annotated[int, typer.Option(min=1, help="Messages of an episode.", rich_help_panel=EPISODES)]
Concurrency = Annotated[int, typer.Option(min=1, help="Episodes at once.", rich_help_panel=EPISODES)]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Any other key of [rollout] or [engine], e.g. `--set engine.max_model_len=4096`.",
        rich_help_panel=EPISODES,
    ),
]
Rewards = Annotated[
    Path | None,
    typer.Option(
        help="A TOML file with a [reward] table, a run's file for one: its services and functions score as well.",
        rich_help_panel=REWARDS,
    ),
]
PassAt = Annotated[
    str,
    typer.Option(
        "--pass-at", help="The k of pass@k, e.g. 1,4,16; by default 1 and --samples.", rich_help_panel=REWARDS
    ),
]
SuccessReward = Annotated[
    float, typer.Option(help="An episode with at least this reward is a success.", rich_help_panel=REWARDS)
]
Rows = Annotated[int, typer.Option(min=0, help="Tasks in the table, the lowest first.", rich_help_panel=REWARDS)]
Out = Annotated[Path | None, typer.Option(help="Directory of the evaluation; evals/ENVIRONMENT-POLICY by default.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace an earlier evaluation in that directory.")]
