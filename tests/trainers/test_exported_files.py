"""What is copied beside exported weights."""

from __future__ import annotations

from pathlib import Path

from agentrl_trainers.deepspeed.export import copy_all_but_weights


def test_a_model_that_is_a_checkpoint_leaves_its_weights_state_and_manifest_behind(tmp_path: Path) -> None:
    source = tmp_path / "runs/first/checkpoints/v40"
    for name in (
        "model.safetensors",
        "config.json",
        "tokenizer.json",
        "run.json",
        "manifest.json",
        "trainer/state.json",
    ):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text("{}")
    copy_all_but_weights(source, tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["config.json", "tokenizer.json"]
