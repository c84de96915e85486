"""The plan of a campaign is a function of its seed; its verdict sees a token that was trained too late."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.store.base import TRAINED, Settlement
from agentrl.store.memory import MemoryStore
from agentrl.types import Row, Task, Trajectory, VersionSpan
from bench.chaos.plan import KINDS, ON_NODES, Kind, plan
from bench.chaos.verdict import oldest_trained


@given(seed=st.integers(0, 2**32), count=st.integers(1, 80), steps=st.integers(5, 200))
def test_a_plan_is_its_seeds_and_keeps_to_the_run(seed: int, count: int, steps: int):
    faults = plan(seed, count, steps=steps)
    assert faults == plan(seed, count, steps=steps)
    assert len(faults) == count
    after = [fault.after_step for fault in faults]
    assert after == sorted(after)
    assert all(2 <= step <= steps - 3 for step in after)


@pytest.mark.parametrize("kinds", [KINDS, ON_NODES])
@pytest.mark.parametrize("seed", range(5))
def test_every_kind_comes(seed: int, kinds: tuple[Kind, ...]):
    seen = Counter(fault.kind for fault in plan(seed, 50, steps=60, kinds=kinds))
    assert set(seen) == set(kinds)


def test_plans_of_other_seeds_are_others():
    assert plan(0, 50, steps=60) != plan(1, 50, steps=60)


def test_a_run_that_is_too_short_is_refused():
    with pytest.raises(ValueError, match="3 faults of 19 kinds in 4 steps"):
        plan(0, 3, steps=4)


def stored(tokens: int) -> MemoryStore:
    """Two tokens of version 3 and three of version 5; `tokens` of them trained by step 6, which trains version 5."""
    store = MemoryStore()
    row = Row(
        token_ids=[7] * 6,
        loss_mask=[0, 1, 1, 1, 1, 1],
        logprobs=[None, *[-0.5] * 5],
        versions=[VersionSpan(3, 1, 3), VersionSpan(5, 3, 6)],
    )
    task = Task(id="t")
    store.admit("g", task, 3)
    store.save(Trajectory(session_id="s", task=task, rows=[row], metadata={"group_id": "g"}))
    store.settle("g", TRAINED, 6, [Settlement(session_id="s", outcome=TRAINED, step=6, tokens=tokens)])
    return store


@pytest.mark.parametrize(("tokens", "oldest"), [(3, 0), (4, 2), (5, 2)])
def test_the_oldest_trained_token_is_found_from_the_books(tokens: int, oldest: int):
    assert oldest_trained(stored(tokens)) == oldest
