"""The audit against the real things that it judges: the gateway's rows, and a forward pass of the embedded policy."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import typer
from hypothesis import given, settings
from hypothesis import strategies as st
from runs import a_run
from trajectories import TrajectoryBuilder
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

import agentrl.assets
from agentrl.audit.finding import Subject
from agentrl.audit.identity import IDENTITY
from agentrl.audit.logprobs import LOGPROBS
from agentrl.audit.once import ONCE
from agentrl.audit.stored_run import StoredRun
from agentrl.audit.versions import VERSIONS
from agentrl.cli.audit import audit
from agentrl.gateway.graph import build_rows, count_dropped
from agentrl.types import Trajectory

POLICY = Path(agentrl.assets.__file__).parent / "tiny_policy"


@st.composite
def call_trees(draw: st.DrawFn) -> Trajectory:
    builder = TrajectoryBuilder(seed=draw(st.integers(0, 10**6)))
    for index in range(draw(st.integers(1, 7))):
        after = draw(st.none() | st.integers(0, index - 1)) if index else None
        reason = draw(st.sampled_from([None, None, "logprobs_missing"]))
        builder.call(
            draw(st.lists(st.integers(3, 9), max_size=3)), draw(st.integers(1, 4)), after=after, untrainable=reason
        )
    return builder.build()


@given(call_trees())
@settings(max_examples=200)
def test_the_rows_of_the_gateway_pass(trajectory: Trajectory) -> None:
    trajectory.rows, trajectory.dropped = build_rows(trajectory.calls), count_dropped(trajectory.calls)
    for check in (IDENTITY, ONCE, LOGPROBS, VERSIONS):
        assert check.examine(Subject(trajectory)).findings == []


def transformers_logprobs(ids: list[int], start: int, temperature: float) -> list[float]:
    """Of ids[start:] given what is before each, under logits / temperature."""
    model = AutoModelForCausalLM.from_pretrained(POLICY, dtype=torch.float32)
    with torch.inference_mode():
        logits = model(torch.tensor([ids])).logits[0] / temperature
    values = torch.log_softmax(logits[start - 1 : -1], dim=-1)
    return values.gather(1, torch.tensor(ids[start:]).unsqueeze(1)).squeeze(1).tolist()


def one_call(temperature: float) -> Trajectory:
    """Ten prompt ids and eight sampled ones, with the logprobs of the embedded policy."""
    builder = TrajectoryBuilder("s0").call(range(40, 50), range(60, 68), temperature=temperature)
    builder._calls[0].logprobs = transformers_logprobs([*range(40, 50), *range(60, 68)], 10, temperature)
    return builder.build()


@pytest.fixture
def audit_with_weights(tmp_path: Path) -> Callable:
    def execute(trajectory: Trajectory, *options: str) -> object:
        path = a_run(tmp_path / "run", trained=[trajectory])
        (path / "checkpoints").mkdir()
        (path / "checkpoints/v0").symlink_to(POLICY)
        app = typer.Typer()
        app.command()(audit)
        return CliRunner().invoke(app, [str(path), *options])

    return execute


def test_logprobs_of_the_exported_weights_pass(audit_with_weights: Callable) -> None:
    result = audit_with_weights(one_call(0.7), "--json")
    weights = json.loads(result.stdout)["results"][-1]
    assert (result.exit_code, weights["name"], weights["items"], weights["findings"]) == (0, "weights", 8, 0)
    (note,) = weights["notes"]
    assert float(note.removeprefix("largest difference ")) < 1e-5


def test_one_logprob_of_other_weights_is_caught(audit_with_weights: Callable) -> None:
    """Row and call agree with each other, so only the forward pass can tell."""
    trajectory = one_call(1.0)
    assert trajectory.calls[0].logprobs is not None
    trajectory.calls[0].logprobs[3] -= 0.01
    trajectory.rows[0].logprobs[13] = trajectory.calls[0].logprobs[3]
    result = audit_with_weights(trajectory)
    assert result.exit_code == 1
    assert (
        "first offender (weights): s0: row 0: recorded logprobs differ from v0's forward pass by 0.01" in result.output
    )


def test_logprobs_before_temperature_are_caught(audit_with_weights: Callable) -> None:
    """The engine's `raw_logprobs` mode at T = 0.5: right ids, right shape, wrong distribution."""
    trajectory = one_call(1.0)
    trajectory.calls[0].sampling = TrajectoryBuilder().call([1], 1, temperature=0.5).build().calls[0].sampling
    assert "first offender (weights): s0" in audit_with_weights(trajectory).output


def test_version_0_is_the_model_that_the_run_names(tmp_path: Path) -> None:
    path = a_run(tmp_path / "run")
    (path / "config.json").write_text('{"model": "agentrl:tiny"}')
    assert StoredRun.open(path).weights == {0: POLICY.resolve()}
    (path / "config.json").write_text('{"model": "not/on/this/machine"}')
    assert StoredRun.open(path).weights == {}


@pytest.mark.parametrize("damage", ["none", "half", "empty"])
def test_a_half_written_checkpoint_is_one_finding_that_names_it(damage: str, tmp_path: Path) -> None:
    path = a_run(tmp_path / "run", trained=[one_call(1.0)])
    checkpoint = path / "checkpoints/v0"
    checkpoint.mkdir(parents=True)
    for file in POLICY.iterdir():
        if file.suffix != ".safetensors":
            shutil.copy(file, checkpoint)
        elif damage != "none":
            (checkpoint / file.name).write_bytes(
                file.read_bytes()[: file.stat().st_size // 2 if damage == "half" else 0]
            )
    app = typer.Typer()
    app.command()(audit)
    done = CliRunner().invoke(app, [str(path), "--json"])
    assert done.exit_code == 1
    report = json.loads(done.stdout)
    assert report["results"][-1]["findings"] == 1
    assert f"v0 at {checkpoint} gives no logprobs" in report["first"]["detail"]
