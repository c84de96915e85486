"""What every trajectory store promises, held against SQLite, PostgreSQL and the in-memory twin."""

from __future__ import annotations

import copy
import math
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import msgspec
import pytest
from trajectories import TrajectoryBuilder, boot, branching, task, two_turns

from agentrl.errors import StoreError, StoreUnavailable, TrajectoryNotFound
from agentrl.store import sql
from agentrl.store.base import TRAINED, GroupRecord, Settlement, TrajectoryStore
from agentrl.types import Constraint, Sampling, Segment, SwapRecord


def trained(session_id: str = "s0", *, step: int = 1) -> Settlement:
    return Settlement(session_id=session_id, outcome=TRAINED, step=step, tokens=32)


def test_a_trajectory_comes_back_as_it_was_saved(store: TrajectoryStore) -> None:
    trajectory = branching().build(reward=None)
    trajectory.calls[0].untrainable = "missing_logprobs"
    trajectory.calls[0].logprobs = None
    trajectory.calls[1].reward = 0.25
    trajectory.calls[1].message = {"role": "assistant", "content": "x \ud800 \x00 é", "tool_calls": [{"id": "1"}]}
    trajectory.calls[1].segments = [Segment("engine-0", 0, 1), Segment("engine-1", 1, 4)]
    trajectory.calls[1].messages = [{"role": "user", "content": "\ud800 \x00 é"}]
    trajectory.calls[1].conversation = "ab cd"
    constraint = Constraint(kind="json", value={"type": "object"})
    trajectory.calls[1].sampling = Sampling(
        stop=("\ud800",), stop_token_ids=(7,), top_logprobs=3, constraint=constraint
    )
    trajectory.components = {"right": None, "short": 0.5}
    store.save(trajectory)
    assert store.get("s0") == trajectory


def test_a_bare_trajectory_comes_back(store: TrajectoryStore) -> None:
    """An episode that died before its first call has no task mode to lose, no calls, no rows."""
    trajectory = TrajectoryBuilder(group_id=None).build(reward=None)
    trajectory.task = None
    trajectory.stop_reason = None
    store.save(trajectory)
    assert store.get("s0") == trajectory


def test_an_id_is_saved_once(store: TrajectoryStore) -> None:
    first = two_turns().build()
    store.save(first)
    with pytest.raises(StoreError, match="'s0' is saved already") as refused:
        store.save(branching().build())
    assert not isinstance(refused.value, StoreUnavailable)  # not to be tried again
    assert store.get("s0") == first


def test_what_the_caller_changes_later_is_not_in_the_store(store: TrajectoryStore) -> None:
    trajectory = two_turns().build()
    expected = copy.deepcopy(trajectory)
    store.save(trajectory)
    trajectory.calls[0].token_ids[0] += 1
    trajectory.metadata["index"] = 9
    store.get("s0").rows.clear()
    assert store.get("s0") == expected


@pytest.mark.parametrize(
    ("spoil", "named"),
    [
        (lambda t: setattr(t, "reward", math.nan), "reward is nan"),
        (lambda t: t.components.update(right=math.inf), "component 'right' is inf"),
        (lambda t: t.metadata.update(group_id=3), "group_id"),
        (lambda t: t.metadata.update(note=object()), "not JSON serializable"),
        (lambda t: t.metadata.update(note=math.nan), "JSON compliant"),
        (lambda t: t.calls[0].token_ids.append(2**31), "token|large|range|greater"),
        (lambda t: t.calls[0].token_ids.append(1.5), "integer"),
    ],
)
def test_what_would_be_read_back_differently_is_refused(store: TrajectoryStore, spoil: Callable, named: str) -> None:
    trajectory = two_turns().build()
    spoil(trajectory)
    with pytest.raises(StoreError, match=f"trajectory 's0' cannot be stored: .*({named})"):
        store.save(trajectory)
    assert store.count() == 0


def test_unknown_ids_are_errors(store: TrajectoryStore) -> None:
    with pytest.raises(TrajectoryNotFound, match="no trajectory 'nobody'"):
        store.get("nobody")
    with pytest.raises(TrajectoryNotFound, match="no trajectory 'nobody'"):
        store.set_reward("nobody", 1.0, {})


def test_a_reward_is_replaced_with_its_components(store: TrajectoryStore) -> None:
    trajectory = two_turns().build(reward=None)
    store.save(trajectory)
    store.set_reward("s0", 0.0, {"style": None})
    assert store.get("s0") == msgspec.structs.replace(trajectory, reward=0.0, components={"style": None})
    store.set_reward("s0", None, {})
    assert store.get("s0").reward is None
    with pytest.raises(StoreError, match="reward is nan"):
        store.set_reward("s0", math.nan, {})


def test_iterate_goes_by_finish_time_over_page_boundaries(
    store: TrajectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql, "_PAGE", 2)
    """… and by the code points of the ids among equals, whatever the database's language."""
    finished = {"a": 3.0, "b": 1.0, "D": 2.0, "c": 2.0, "é": 2.0, "f": 0.5}
    for session_id, at in finished.items():
        store.save(two_turns(session_id).build(finished_at=at))
    assert [trajectory.session_id for trajectory in store.iterate()] == ["f", "b", "D", "c", "é", "a"]


def test_iterate_and_count_choose_by_mode_and_group(store: TrajectoryStore) -> None:
    store.save(two_turns("a", group_id="g0").build())
    store.save(two_turns("b", group_id="g1").build())
    store.save(two_turns("c", group_id=None, mode="eval").build())
    assert [trajectory.session_id for trajectory in store.iterate(mode="train")] == ["a", "b"]
    assert [trajectory.session_id for trajectory in store.iterate(group_id="g1")] == ["b"]
    assert list(store.iterate(group_id="g1", mode="eval")) == []
    assert (store.count(), store.count(mode="train"), store.count(mode="eval")) == (3, 2, 1)


def test_saving_while_iterating_neither_blocks_nor_repeats(
    store: TrajectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql, "_PAGE", 2)
    for index in range(5):
        store.save(two_turns(f"s{index}").build(finished_at=index))
    seen = []
    for trajectory in store.iterate():
        seen.append(trajectory.session_id)
        if len(seen) <= 3:
            store.save(two_turns(f"early{len(seen)}").build(finished_at=-1))
    assert seen == ["s0", "s1", "s2", "s3", "s4"]


def test_a_group_is_open_until_it_is_settled(store: TrajectoryStore) -> None:
    store.admit("g0", task("t0"), 4)
    store.admit("g1", task("t1"), 5)
    store.save(two_turns().build())
    store.settle("g0", TRAINED, 6, [trained(step=6)])
    still_open = GroupRecord(group_id="g1", task=task("t1"), admitted_at_version=5)
    closed = GroupRecord(group_id="g0", task=task("t0"), admitted_at_version=4, outcome=TRAINED, step=6)
    assert list(store.groups()) == [closed, still_open]
    assert list(store.groups(open_only=True)) == [still_open]
    assert list(store.settlements()) == [trained(step=6)]


def test_groups_and_settlements_come_in_order_over_page_boundaries(
    store: TrajectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql, "_PAGE", 2)
    for index in range(5):
        store.admit(f"g{index}", task(), 0)
        store.settle(f"g{index}", "stale", 1, [Settlement(session_id=f"s{index}", outcome="stale", step=1)])
    assert [group.group_id for group in store.groups()] == ["g0", "g1", "g2", "g3", "g4"]
    assert [settlement.session_id for settlement in store.settlements()] == ["s0", "s1", "s2", "s3", "s4"]


def test_a_group_is_admitted_once(store: TrajectoryStore) -> None:
    store.admit("g0", task(), 0)
    with pytest.raises(StoreError, match="'g0' is admitted already"):
        store.admit("g0", task(), 1)


def test_the_position_is_the_one_that_came_with_the_last_admission_or_settlement(store: TrajectoryStore) -> None:
    assert store.position() is None
    store.admit("g0", task(), 0, position=b'{"next": 1, "of": "\xc3\xa9"}')
    store.admit("g1", task(), 0)
    assert store.position() == b'{"next": 1, "of": "\xc3\xa9"}'
    store.settle("g0", "stale", 1, position=b'{"next": 2}')
    store.settle("g1", "stale", 1)
    assert store.position() == b'{"next": 2}'


def test_a_position_is_written_with_its_group_or_not_at_all(store: TrajectoryStore) -> None:
    store.admit("g0", task(), 0, position=b"1")
    with pytest.raises(StoreError, match="'g0' is admitted already"):
        store.admit("g0", task(), 0, position=b"2")
    with pytest.raises(StoreError, match="'g9' was never admitted"):
        store.settle("g9", "stale", 1, position=b"3")
    for no_text, named in ((b"\xff", "not UTF-8"), (b"\0", "NUL")):
        with pytest.raises(StoreError, match=named):
            store.admit("g1", task(), 0, position=no_text)
        with pytest.raises(StoreError, match=named):
            store.settle("g0", "stale", 1, position=no_text)
    assert store.position() == b"1"
    assert [(group.group_id, group.outcome) for group in store.groups()] == [("g0", None)]


REFUSED = {
    "a group that was never admitted": (("g9", TRAINED, 1, []), "'g9' was never admitted"),
    "a group that is closed": (("closed", TRAINED, 1, []), "'closed' is closed already: stale at step 1"),
    "training without a step": (("g0", TRAINED, None, []), "without a step"),
    "a trajectory twice in one call": (("g0", TRAINED, 1, [trained(), trained()]), "'s0' .* a settlement already"),
    "a trajectory settled before": (
        ("g0", "stale", 1, [Settlement(session_id="old", outcome="stale", step=1)]),
        "'old' .* a settlement already",
    ),
    "training what was never saved": (("g0", TRAINED, 1, [trained("lost")]), "'lost' .* not in the store"),
    "training an eval session": (("g0", TRAINED, 1, [trained("exam")]), "'exam' .* mode 'eval'"),
    "training another group's": (("g0", TRAINED, 1, [trained("other")]), "'other' .* belongs to group 'g1'"),
    "training in a dropped group": (("g0", "stale", 1, [trained()]), "'s0' .* settled as stale"),
    "training at another step": (("g0", TRAINED, 2, [trained()]), "'s0' .* at step 2"),
}


@pytest.mark.parametrize(("arguments", "named"), REFUSED.values(), ids=REFUSED)
def test_settling_refuses(store: TrajectoryStore, arguments: tuple, named: str) -> None:
    """… and leaves the books as they were: the good settlement that came along is not kept."""
    for session_id, group_id, mode in [("s0", "g0", "train"), ("other", "g1", "train"), ("exam", "g0", "eval")]:
        store.save(two_turns(session_id, group_id=group_id, mode=mode).build())
    store.admit("g0", task(), 0)
    store.admit("closed", task(), 0)
    store.settle("closed", "stale", 1, [Settlement(session_id="old", outcome="stale", step=1)])
    before = (list(store.groups()), list(store.settlements()))
    group_id, outcome, step, settlements = arguments
    along = Settlement(session_id="along", outcome="missing_reward", step=1)
    with pytest.raises(StoreError, match=named):
        store.settle(group_id, outcome, step, [along, *settlements])
    assert (list(store.groups()), list(store.settlements())) == before


def test_the_swap_log_keeps_its_order(store: TrajectoryStore) -> None:
    swaps = [
        boot("engine-1", at=5.0),
        boot("engine-0", at=4.0),
        SwapRecord(engine_id="engine-1", version=1, mode="keep", started_at=8.1, finished_at=8.25, digest="ab"),
    ]
    for swap in swaps:
        store.record_swap(swap)
    assert store.swaps() == swaps
    assert store.swaps(skip=1) == swaps[1:]


def test_many_threads_share_one_store(store: TrajectoryStore) -> None:
    """Eight writers of 12 trajectories each, readers in between: nothing lost, nothing mixed up."""
    expected = {
        f"{writer}-{index}": two_turns(f"{writer}-{index}").build() for writer in range(8) for index in range(12)
    }

    def write(writer: int) -> None:
        for index in range(12):
            store.save(expected[f"{writer}-{index}"])
            assert store.get(f"{writer}-{index}") == expected[f"{writer}-{index}"]

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(8)))
    assert {trajectory.session_id: trajectory for trajectory in store.iterate()} == expected


def test_of_many_threads_that_settle_a_group_one_wins(store: TrajectoryStore) -> None:
    store.admit("g0", task(), 0)
    store.save(two_turns().build())
    barrier = threading.Barrier(4)

    def settle(step: int) -> int | None:
        barrier.wait(timeout=30)
        try:
            store.settle("g0", TRAINED, step, [trained(step=step)])
        except StoreError:
            return None
        return step

    with ThreadPoolExecutor(4) as pool:
        won = [step for step in pool.map(settle, range(1, 5)) if step is not None]
    assert [settlement.step for settlement in store.settlements()] == won
    assert [group.step for group in store.groups()] == won
    assert len(won) == 1


def test_calls_are_scored_in_their_order_and_all_at_once(store: TrajectoryStore) -> None:
    store.save(two_turns().build())
    store.set_call_rewards("s0", [0.5, None])
    assert [call.reward for call in store.get("s0").calls] == [0.5, None]
    with pytest.raises(StoreError, match="1 rewards for the 2 calls of trajectory 's0'"):
        store.set_call_rewards("s0", [1.0])
    with pytest.raises(StoreError, match="the reward of call 1 of trajectory 's0' is inf"):
        store.set_call_rewards("s0", [1.0, math.inf])
    with pytest.raises(TrajectoryNotFound):
        store.set_call_rewards("nobody", [])
    assert [call.reward for call in store.get("s0").calls] == [0.5, None]
