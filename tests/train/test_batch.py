"""From groups to rows: every trajectory's fate is named, every advantage is keyed by its trajectory."""

import pytest

from agentrl.errors import TrainerError
from agentrl.train.batch import ScoredGroup, prepare_batch, rejection
from agentrl.train.config import AlgorithmConfig, StalenessConfig
from agentrl.types import Call, Episode, Group, Row, Sampling, StopReason, Task, Trajectory, VersionSpan
from agentrl_trainers.algorithms.advantages.grpo import group_advantages

TASK = Task(id="t", env_id="e", seed=0)


def trajectory(
    session_id: str,
    reward: float | None,
    *,
    version: int = 0,
    rows: int = 1,
    temperature: float = 1.0,
    dropped: dict[str, int] | None = None,
) -> Trajectory:
    """Two context tokens, then three sampled ones, per row."""
    call = Call(
        call_id="c",
        prompt_token_ids=[1, 2],
        prompt_digest="",
        token_ids=[3, 4, 5],
        logprobs=[-0.1, -0.2, -0.3],
        versions=[VersionSpan(version, 0, 3)],
        finish_reason="stop",
        engine_id="engine-0",
        sampling=Sampling(temperature=temperature),
        message={"role": "assistant", "content": "x"},
    )
    row = Row(
        token_ids=[1, 2, 3, 4, 5],
        loss_mask=[0, 0, 1, 1, 1],
        logprobs=[None, None, -0.1, -0.2, -0.3],
        versions=[VersionSpan(version, 2, 5)],
    )
    return Trajectory(
        session_id=session_id, reward=reward, calls=[call] * rows, rows=[row] * rows, dropped=dropped or {}
    )


def group(name: str, *trajectories: Trajectory) -> ScoredGroup:
    return ScoredGroup(Group(group_id=name, task=TASK), list(trajectories))


def prepare(*groups: ScoredGroup, version: int = 0, max_lag: int = 1, zero_variance: str = "keep"):
    return prepare_batch(
        groups,
        version=version,
        staleness=StalenessConfig(max_lag=max_lag),
        algorithm=AlgorithmConfig(zero_variance=zero_variance),
        estimate=group_advantages,
    )


def outcomes(prepared) -> dict[str, str]:
    return {s.session_id: s.outcome for of_group in prepared.settlements.values() for s in of_group}


def test_a_missing_reward_is_masked_and_the_others_are_normalised_without_it():
    """Case 18: rewards [1, None, 0, 0] give [1.1547, -0.5774, -0.5774] to the three that have one."""
    prepared = prepare(group("g", *(trajectory(f"s{i}", r) for i, r in enumerate([1.0, None, 0.0, 0.0]))))
    advantages = {row.session_id: row.advantages[2] for row in prepared.batch.rows}
    assert advantages == {
        "s0": pytest.approx(1.1547, abs=1e-4),
        "s2": pytest.approx(-0.5774, abs=1e-4),
        "s3": pytest.approx(-0.5774, abs=1e-4),
    }
    assert outcomes(prepared) == {"s0": "trained", "s1": "missing_reward", "s2": "trained", "s3": "trained"}
    assert prepared.dropped_tokens == {"missing_reward": 3}


def test_advantages_follow_the_trajectory_in_whatever_order_groups_arrive():
    """Case 21: A is [1, 0, 0, 0], B is [1, 1, 1, 0]; shuffling changes no trajectory's advantage."""
    a = [trajectory(f"a{i}", r) for i, r in enumerate([1.0, 0.0, 0.0, 0.0])]
    b = [trajectory(f"b{i}", r) for i, r in enumerate([1.0, 1.0, 1.0, 0.0])]
    straight = prepare(group("A", *a), group("B", *b))
    shuffled = prepare(group("B", b[2], b[0], b[3], b[1]), group("A", a[3], a[1], a[0], a[2]))

    def by_session(prepared):
        return {row.session_id: row.advantages for row in prepared.batch.rows}

    assert by_session(straight) == by_session(shuffled)
    assert by_session(straight)["a0"][2] == pytest.approx(1.5)  # (1 - 1/4) / 0.5
    assert by_session(straight)["b3"][2] == pytest.approx(-1.5)


def test_every_row_of_a_branched_trajectory_has_its_advantage_and_the_reward_counts_once():
    prepared = prepare(group("g", trajectory("s0", 1.0, rows=3), trajectory("s1", 0.0)))
    assert [row.session_id for row in prepared.batch.rows] == ["s0", "s0", "s0", "s1"]
    # Mean 0.5 and sample standard deviation 0.7071 of the two trajectories, not of the four rows.
    assert [row.advantages[2] for row in prepared.batch.rows] == pytest.approx(
        [0.7071, 0.7071, 0.7071, -0.7071], abs=1e-4
    )


def test_advantages_and_logprobs_are_zero_where_nothing_is_trained():
    row = prepare(group("g", trajectory("s0", 1.0), trajectory("s1", 0.0))).batch.rows[0]
    assert row.advantages[:2] == [0.0, 0.0]
    assert row.logprobs == [0.0, 0.0, -0.1, -0.2, -0.3]


def test_stale_tokens_get_no_gradient_and_are_counted():
    fresh, old = trajectory("s0", 1.0, version=4), trajectory("s1", 0.0, version=2)
    prepared = prepare(group("g", fresh, old), version=4, max_lag=1)
    assert [row.session_id for row in prepared.batch.rows] == ["s0"]
    assert outcomes(prepared) == {"s0": "trained", "s1": "stale"}
    assert prepared.dropped_tokens["stale"] == 3
    assert prepared.lags == {0: 3}


def test_settlements_carry_the_step_and_the_trained_tokens():
    prepared = prepare(group("g", trajectory("s0", 1.0, version=6), trajectory("s1", 0.0, version=6)), version=7)
    assert [(s.step, s.tokens) for s in prepared.settlements["g"]] == [(8, 3), (8, 3)]


def test_a_trajectory_of_two_temperatures_is_not_trained():
    """The loss models one temperature per row; anything else would compare different distributions."""
    mixed = trajectory("s0", 1.0)
    mixed.calls = [mixed.calls[0], trajectory("x", None, temperature=0.5).calls[0]]
    assert outcomes(prepare(group("g", mixed, trajectory("s1", 0.0))))["s0"] == "mixed_temperature"


def test_a_group_without_signal_is_kept_with_zero_advantages_or_dropped_by_configuration():
    same = [trajectory("s0", 1.0), trajectory("s1", 1.0)]
    kept, dropped = prepare(group("g", *same)), prepare(group("g", *same), zero_variance="drop")
    assert [row.advantages for row in kept.batch.rows] == [[0.0] * 5, [0.0] * 5]
    assert kept.batch.num_tokens == 6
    assert dropped.batch.rows == []
    assert outcomes(dropped) == {"s0": "no_signal", "s1": "no_signal"}


@pytest.mark.parametrize("zero_variance", ["drop", "refill"])
def test_an_attempt_of_a_group_without_signal_keeps_a_reason_of_its_own(zero_variance: str):
    """Rewards [1, 1, 1, None], and one of the three with two temperatures: the signal is wanting in two."""
    mixed = trajectory("s1", 1.0)
    mixed.calls = [*mixed.calls, trajectory("x", None, temperature=0.5).calls[0]]
    flat = group("g", trajectory("s0", 1.0), mixed, trajectory("s2", 1.0), trajectory("s3", None))
    prepared = prepare(flat, zero_variance=zero_variance)
    assert outcomes(prepared) == {
        "s0": "no_signal", "s1": "mixed_temperature", "s2": "no_signal", "s3": "missing_reward",
    }  # fmt: skip
    assert prepared.dropped_tokens == {"no_signal": 6, "mixed_temperature": 3, "missing_reward": 3}
    assert (prepared.no_signal_groups, prepared.batch.rows) == (1, [])


def test_tokens_that_the_gateway_dropped_stay_counted_under_its_reason():
    prepared = prepare(group("g", trajectory("s0", 1.0, dropped={"missing_logprobs": 7}), trajectory("s1", 0.0)))
    assert prepared.dropped_tokens["missing_logprobs"] == 7


@pytest.mark.parametrize(
    ("scored", "policy", "reason"),
    [
        (group("g", trajectory("s0", 1.0), trajectory("s1", 0.0)), "drop", None),
        (group("g", trajectory("s0", 1.0), trajectory("s1", None)), "mask", "too_few_rewards"),
        (group("g", trajectory("s0", 1.0)), "mask", None),
        (group("g", trajectory("s0", None)), "mask", "too_few_rewards"),
        (group("g", trajectory("s0", 1.0, rows=0), trajectory("s1", 0.0, rows=0)), "mask", "no_trainable_tokens"),
        (group("g", trajectory("s0", 1.0, version=-2), trajectory("s1", 0.0)), "mask", None),
        (group("g", trajectory("s0", 1.0, version=-2), trajectory("s1", 0.0)), "drop", "stale"),
        (group("g", trajectory("s0", 1.0, version=-2), trajectory("s1", 0.0)), "requeue", "stale"),
        (group("g", trajectory("s0", 1.0, version=-2), trajectory("s1", 0.0, version=-2)), "mask", "stale"),
    ],
)
def test_a_group_is_rejected_for_a_named_reason(scored: ScoredGroup, policy: str, reason: str | None):
    assert rejection(scored, version=0, staleness=StalenessConfig(max_lag=1, policy=policy)) == reason


def test_an_estimator_that_loses_a_reward_is_refused():
    with pytest.raises(TrainerError, match="1 values for 2 rewards"):
        prepare_batch(
            [group("g", trajectory("s0", 1.0), trajectory("s1", 0.0))],
            version=0,
            staleness=StalenessConfig(),
            algorithm=AlgorithmConfig(),
            estimate=lambda rewards: [0.0],
        )


def test_tokens_of_the_version_being_trained_are_marked_where_engine_and_trainer_must_agree():
    fresh, older = trajectory("s0", 1.0, version=4), trajectory("s1", 0.0, version=3)
    rows = prepare(group("g", fresh, older), version=4).batch.rows
    assert [row.on_policy for row in rows] == [[0, 0, 1, 1, 1], [0, 0, 0, 0, 0]]


# Roles


def of(role: str, session_id: str, reward: float | None) -> Trajectory:
    found = trajectory(session_id, reward)
    found.metadata = {"group_id": "g", "role": role}
    return found


def test_a_baseline_never_mixes_roles():
    """The writers' rewards are 1 and 0, the critics' 10 and 11: each pair by itself gives ±0.7071."""
    mixed = [of("writer", "w0", 1.0), of("critic", "c0", 10.0), of("writer", "w1", 0.0), of("critic", "c1", 11.0)]
    prepared = prepare(group("g", *mixed))
    assert {row.session_id: round(row.advantages[2], 4) for row in prepared.batch.rows} == {
        "w0": 0.7071,
        "c0": -0.7071,
        "w1": -0.7071,
        "c1": 0.7071,
    }
    assert [settlement.session_id for settlement in prepared.settlements["g"]] == ["w0", "c0", "w1", "c1"]


@pytest.mark.parametrize("policy", ["mask", "drop", "requeue"])
def test_a_group_that_became_too_old_while_it_waited_for_its_rewards_is_stale_and_no_failure(policy: str):
    scored = group("g", trajectory("s0", None), trajectory("s1", None))
    staleness = StalenessConfig(max_lag=1, policy=policy)  # type: ignore[arg-type]
    assert rejection(scored, version=1, staleness=staleness) == "too_few_rewards"
    assert rejection(scored, version=2, staleness=staleness) == "stale"


def test_a_role_without_signal_is_left_out_by_itself():
    mixed = [of("writer", "w0", 1.0), of("critic", "c0", 5.0), of("writer", "w1", 0.0), of("critic", "c1", 5.0)]
    kept, dropped = prepare(group("g", *mixed)), prepare(group("g", *mixed), zero_variance="drop")
    assert outcomes(dropped) == {"w0": "trained", "c0": "no_signal", "w1": "trained", "c1": "no_signal"}
    assert (kept.no_signal_groups, dropped.no_signal_groups) == (0, 0)


def test_a_group_is_trained_when_one_of_its_roles_has_rewards_enough():
    writers = [of("writer", "w0", 1.0), of("writer", "w1", 0.0)]
    critics = [of("critic", "c0", 1.0), of("critic", "c1", None)]
    staleness = StalenessConfig(max_lag=1)
    assert rejection(group("g", *writers, *critics), version=0, staleness=staleness) is None
    assert rejection(group("g", *critics), version=0, staleness=staleness) == "too_few_rewards"


def test_roles_that_are_only_sampled_do_not_count_as_missing_trajectories():
    """One attempt of a trained writer and a critic that is not trained: a lone writer is enough for a group of one."""
    episodes = [
        Episode(session_id=name, task=TASK, stop_reason=StopReason.DONE, reward=1.0, role=name, trained=name == "w")
        for name in ("w", "c")
    ]
    scored = ScoredGroup(Group(group_id="g", task=TASK, episodes=episodes), [of("w", "w", 1.0)])
    assert rejection(scored, version=0, staleness=StalenessConfig(max_lag=1)) is None
