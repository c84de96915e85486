"""What a node of a cluster must see before a run uses it."""

from __future__ import annotations

from pathlib import Path

from agentrl.cluster.nodes import View, look, marker, unusable

HERE = View("3.11.7", "0.1.0", frozenset())


def judged(**views: View) -> list[str]:
    return unusable(views, HERE, model="/models/a", run="/runs/r/.seen-1", writers={"trainer"})


def test_a_node_with_the_same_environment_and_files_is_usable():
    assert judged(engine=HERE, trainer=HERE) == []


def test_a_node_of_another_environment_is_refused():
    (said,) = judged(engine=View("3.12.1", "0.1.0", frozenset()))
    assert "node engine has Python 3.12.1 and agentrl 0.1.0, the driver's has 3.11.7 and 0.1.0" in said


def test_a_node_without_the_model_is_refused():
    (said,) = judged(engine=View("3.11.7", "0.1.0", frozenset({"/models/a"})))
    assert "node engine has no model at /models/a" in said


def test_only_a_node_that_writes_checkpoints_has_to_see_the_run_directory():
    blind = View("3.11.7", "0.1.0", frozenset({"/runs/r/.seen-1"}))
    (said,) = judged(engine=blind, trainer=blind)
    assert "node trainer is to write checkpoints, and does not see the run directory /runs/r" in said


def test_a_look_finds_what_is_missing_and_a_marker_is_new(tmp_path: Path):
    first, second = marker(tmp_path), marker(tmp_path)
    assert first != second
    assert look([str(first), str(tmp_path / "no")]).missing == {str(tmp_path / "no")}
