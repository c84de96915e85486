"""Records as a run writes them."""

from agentrl.observe.records import EvalRecord, StepRecord


def step(number: int, success: float = 0.5, **changes: object) -> StepRecord:
    fields: dict[str, object] = {
        "step": number,
        "reward": success,
        "success": success,
        "trajectories": 64,
        "missing_rewards": 0,
        "multi_version_trajectories": 3,
        "no_signal_groups": 1,
        "rows": 64,
        "trained_tokens": 2000,
        "sampled_tokens": 2100,
        "staleness": {0: 1500, 1: 500},
        "dropped_tokens": {"stale": 100},
        "dropped_groups": {"stale": number},
        "groups_under_way": 9,
        "phases": {"wait": 1.5, "train": 2.0},
        "swap": {"pause": 0.01},
        "trainer": {"loss": 0.25, "engine_gap_max": 1e-6},
    }
    return StepRecord(**(fields | changes))  # type: ignore[arg-type]


def evaluation(version: int, success: float) -> EvalRecord:
    return EvalRecord(version=version, tasks=256, missing=0, success=success, reward=success)
