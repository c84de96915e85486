"""`agentrl export`: the weights of a checkpoint and nothing else, checked, or one sentence on what is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from agentrl.cli.main import app
from agentrl.errors import CheckpointError, ConfigError
from agentrl.train.checkpoints import Checkpoints
from agentrl.train.export import export


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Versions 9 (best by reward), 10 (best by success, with an average) and 125; the run says that reward counts."""
    root = tmp_path / "runs" / "demo"
    held = Checkpoints(root / "checkpoints")
    for version, scores in ((9, (0.1, 0.9)), (10, (0.8, 0.5)), (125, (0.3, 0.4))):
        partial = held.begin(version)
        for folder in ("trainer", "adapter", *(["average"] if version == 10 else [])):
            (partial / folder).mkdir(parents=True)
            (partial / folder / "model.safetensors").write_text(f"{folder} {version}")
        (partial / "model.safetensors").write_text(f"weights {version}")
        (partial / "config.json").write_text("{}")
        held.commit(version, scores=dict(zip(("success", "reward"), scores, strict=True)), run={})
    (root / "config.json").write_text(json.dumps({"checkpoint": {"best_by": "reward"}}))
    return root


def written(path: Path) -> dict[str, str]:
    return {file.relative_to(path).as_posix(): file.read_text() for file in path.rglob("*") if file.is_file()}


def test_the_latest_is_written_without_what_only_training_needs(run: Path, tmp_path: Path):
    found = export(run, tmp_path / "out")
    assert (found.version, found.num_bytes) == (125, len("weights 125") + len("adapter 125") + len("{}"))
    assert written(tmp_path / "out") == {
        "model.safetensors": "weights 125",
        "config.json": "{}",
        "adapter/model.safetensors": "adapter 125",
    }


@pytest.mark.parametrize(("version", "expected"), [("9", 9), ("10", 10), ("latest", 125), ("best", 9)])
def test_a_version_is_a_number_the_latest_or_the_best_by_what_the_run_says(
    run: Path, tmp_path: Path, version: str, expected: int
):
    assert export(run, tmp_path / "out", version=version).version == expected


def test_one_checkpoint_may_be_given_and_an_empty_directory_may_be_there(run: Path, tmp_path: Path):
    (tmp_path / "out").mkdir()
    assert export(run / "checkpoints" / "v9", tmp_path / "out").version == 9


def test_the_average_is_written_in_place_of_the_weights(run: Path, tmp_path: Path):
    export(run, tmp_path / "out", version="10", ema=True)
    assert written(tmp_path / "out") == {"model.safetensors": "average 10"}


def test_a_run_without_an_average_says_so(run: Path, tmp_path: Path):
    with pytest.raises(ConfigError, match=r"v9 holds no averaged weights: the run had no trainer.ema; leave --ema out"):
        export(run, tmp_path / "out", version="9", ema=True)


def test_a_damaged_file_is_named_and_nothing_is_written(run: Path, tmp_path: Path):
    (run / "checkpoints/v125/model.safetensors").write_text("Weights 125")
    with pytest.raises(CheckpointError, match=r"v125/model.safetensors is damaged"):
        export(run, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_damage_to_what_is_left_out_is_no_matter(run: Path, tmp_path: Path):
    (run / "checkpoints/v125/trainer/model.safetensors").write_text("Trainer 125")
    assert export(run, tmp_path / "out").version == 125


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["runs/demo", "out", "--version", "11"], ConfigError, "has no checkpoint of version 11; it has 9, 10, 125"),
        (["runs/demo", "out", "--version", "newest"], ConfigError, "give a number, latest or best"),
        (["runs/demo", "runs"], ConfigError, "runs is there already; give a directory that is empty"),
        (["runs", "out"], ConfigError, "runs is neither a run nor a whole checkpoint"),
        (["runs/demo/checkpoints/v9", "out", "--version", "9"], ConfigError, "is one checkpoint, so --version 9 says"),
    ],
)
def test_what_is_wrong_is_one_sentence(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], status: type, message: str
):
    monkeypatch.chdir(tmp_path)
    error = CliRunner().invoke(app, ["export", *arguments]).exception
    assert isinstance(error, status)
    assert message in str(error)


def test_a_run_with_nothing_saved_says_so(tmp_path: Path):
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(CheckpointError, match="has no whole checkpoint; train it further"):
        export(tmp_path, tmp_path / "out")


def test_the_command_says_what_it_wrote(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    shown = CliRunner().invoke(app, ["export", "runs/demo", "out", "--version", "best"])
    assert shown.exit_code == 0
    assert "version 9 of runs/demo is in out (0.0 MB)" in shown.output
