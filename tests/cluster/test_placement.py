"""What a run reserves of a cluster, who sits where in it, and what a cluster lacks for it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from agentrl.cluster.placement import Bundle, BundleGroup, Node, Plan, Seat, plan, shortage
from agentrl.engine.parallel import workers_of_engine
from agentrl.errors import ConfigError
from agentrl.train.cluster_config import ClusterConfig, Strategy


def joined(**keys: object) -> ClusterConfig:
    return ClusterConfig.model_validate({"ray_address": "auto", **keys})


def nodes(*free: dict[str, float]) -> list[Node]:
    return [Node(f"10.0.0.{index + 1}", resources) for index, resources in enumerate(free)]


def test_on_one_machine_without_gpus_nothing_is_reserved():
    made = plan(ClusterConfig(), engines=2, gpus_each=1, ranks=2, gpus=False)
    assert made == Plan((), (None, None), (None, None))


def test_an_engine_is_one_bundle_with_the_gpus_of_its_tensor_parallel_size_and_a_rank_is_one_with_one():
    made = plan(joined(engines="spread"), engines=2, gpus_each=4, ranks=2, gpus=True)
    engines = BundleGroup(
        "engines", "spread", (Bundle({"CPU": 1, "GPU": 4}, engine=0), Bundle({"CPU": 1, "GPU": 4}, engine=1))
    )
    ranks = BundleGroup(
        "trainer ranks", "pack", (Bundle({"CPU": 1, "GPU": 1}, ranks=(0,)), Bundle({"CPU": 1, "GPU": 1}, ranks=(1,)))
    )
    assert made.groups == (engines, ranks)
    assert made.engines == (Seat(0, 0, gpus=4), Seat(0, 1, gpus=4))
    assert made.ranks == (Seat(1, 0, gpus=1), Seat(1, 1, gpus=1))


def test_colocated_ranks_take_the_gpus_of_engines_one_each_and_those_beyond_get_their_own():
    made = plan(joined(colocated=True), engines=2, gpus_each=2, ranks=5, gpus=True)
    assert [bundle.ranks for bundle in made.groups[0].bundles] == [(0, 1), (2, 3)]
    assert made.groups[0].bundles[0].resources == {"CPU": 3, "GPU": 2}
    assert made.groups[1].bundles == (Bundle({"CPU": 1, "GPU": 1}, ranks=(4,)),)
    assert made.engines == (Seat(0, 0, gpus=2), Seat(0, 1, gpus=2))
    assert made.ranks[:3] == (Seat(0, 0, 0, device=0), Seat(0, 0, 0, device=1), Seat(0, 1, 0, device=0))
    assert made.ranks[4] == Seat(1, 0, gpus=1)


def test_custom_resources_keep_engines_and_ranks_on_nodes_that_have_them():
    cluster = joined(engine_resources={"engine": 1}, rank_resources={"trainer": 0.5})
    made = plan(cluster, engines=1, gpus_each=1, ranks=1, gpus=False)
    assert [group.bundles[0].resources for group in made.groups] == [
        {"CPU": 1, "engine": 1},
        {"CPU": 1, "trainer": 0.5},
    ]


@pytest.mark.parametrize(
    ("args", "gpus"),
    [
        ([], 1),
        (["--tensor-parallel-size", "4"], 4),
        (["--tensor_parallel_size=2", "--pipeline-parallel-size", "3"], 6),
        (["-tp", "2", "--tensor-parallel-size", "8"], 8),  # as for vLLM, the last one counts
    ],
)
def test_the_gpus_of_an_engine_follow_from_its_flags(args: list[str], gpus: int):
    assert workers_of_engine(args) == gpus


def test_a_parallel_size_that_is_none_is_refused():
    with pytest.raises(ConfigError, match="--tensor-parallel-size is followed by 'two'"):
        workers_of_engine(["--tensor-parallel-size", "two"])


@pytest.mark.parametrize(
    ("cluster", "free", "said"),
    [
        (joined(), [{"CPU": 8, "GPU": 2}], "no node has 1 CPU, 4 GPU free, which engines need on one node"),
        (joined(), [{"CPU": 8, "GPU": 8}], "10 GPU are needed in all, and 8 are free"),
        (joined(), [{"CPU": 1, "GPU": 9}] * 2, "4 CPU are needed in all, and 2 are free"),
        (
            joined(engines="strict_pack"),
            [{"CPU": 8, "GPU": 6}] * 2,
            "no node has 2 CPU, 8 GPU free, which engines need on one node (strict_pack)",
        ),
        (
            joined(engines="strict_spread"),
            [{"CPU": 8, "GPU": 16}, {"CPU": 8}],
            "2 engines need a node each (strict_spread), and 1 have room for one",
        ),
        (joined(), [{"CPU": 9, "GPU": 5}, {"CPU": 9, "GPU": 3}, {"CPU": 9, "GPU": 3}], "2 times 1 CPU, 4 GPU"),
        (
            joined(rank_resources={"trainer": 1}),
            [{"CPU": 9, "GPU": 10}],
            "no node has 1 CPU, 1 GPU, 1 trainer free, which trainer ranks need on one node",
        ),
        (joined(), [], "no node has 1 CPU, 4 GPU free"),
    ],
)
def test_what_a_cluster_lacks_is_named(cluster: ClusterConfig, free: list[dict[str, float]], said: str):
    made = plan(cluster, engines=2, gpus_each=4, ranks=2, gpus=True)
    assert said in (shortage(made, nodes(*free)) or "")


@pytest.mark.parametrize("strategy", ["pack", "spread", "strict_spread"])
def test_a_cluster_that_has_it_all_lacks_nothing(strategy: str):
    made = plan(joined(engines=strategy), engines=2, gpus_each=4, ranks=2, gpus=True)
    assert shortage(made, nodes({"CPU": 4, "GPU": 5}, {"CPU": 4, "GPU": 5})) is None


@pytest.mark.parametrize("address", ["ray://head:10001", "head", ":6379", "head:port"])
def test_an_address_that_cannot_be_joined_is_refused(address: str):
    with pytest.raises(ValidationError, match="HOST:PORT"):
        ClusterConfig(ray_address=address)


STRATEGIES: list[Strategy] = ["pack", "spread", "strict_pack", "strict_spread"]
amounts = st.integers(0, 4).map(float)


def fits(groups: Sequence[BundleGroup], free: Sequence[Node]) -> bool:
    """Whether there is a place for every bundle: all ways are tried."""
    bundles = [(group, bundle) for group in groups for bundle in group.bundles]
    for places in product(range(len(free)), repeat=len(bundles)):
        left = [dict(node.free) for node in free]
        used: dict[str, list[int]] = {}
        for (group, bundle), place in zip(bundles, places, strict=True):
            used.setdefault(group.what, []).append(place)
            for name, amount in bundle.resources.items():
                left[place][name] = left[place].get(name, 0.0) - amount
        strict_pack = all(len(set(used[g.what])) == 1 for g in groups if g.strategy == "strict_pack")
        strict_spread = all(
            len(set(used[g.what])) == len(used[g.what]) for g in groups if g.strategy == "strict_spread"
        )
        if strict_pack and strict_spread and all(amount >= 0 for node in left for amount in node.values()):
            return True
    return False


@given(
    engines=st.integers(1, 2),
    ranks=st.integers(1, 2),
    gpus_each=st.integers(1, 3),
    gpus=st.booleans(),
    colocated=st.booleans(),
    by=st.tuples(st.sampled_from(STRATEGIES), st.sampled_from(STRATEGIES)),
    free=st.lists(st.fixed_dictionaries({"CPU": amounts, "GPU": amounts}), min_size=1, max_size=3),
)
def test_nothing_is_called_lacking_where_there_is_a_place_for_everything(
    engines: int,
    ranks: int,
    gpus_each: int,
    gpus: bool,
    colocated: bool,
    by: tuple[Strategy, Strategy],
    free: list[dict[str, float]],
):
    cluster = joined(engines=by[0], ranks=by[1], colocated=colocated)
    made = plan(cluster, engines=engines, gpus_each=gpus_each, ranks=ranks, gpus=gpus)
    if fits(made.groups, nodes(*free)):
        assert shortage(made, nodes(*free)) is None


@given(
    engines=st.integers(1, 5),
    ranks=st.integers(1, 9),
    gpus_each=st.integers(1, 4),
    gpus=st.booleans(),
    colocated=st.booleans(),
)
def test_everybody_has_one_seat_and_no_gpu_is_given_twice(
    engines: int, ranks: int, gpus_each: int, gpus: bool, colocated: bool
):
    made = plan(joined(colocated=colocated), engines=engines, gpus_each=gpus_each, ranks=ranks, gpus=gpus)
    seated = [bundle for group in made.groups for bundle in group.bundles]
    assert sorted(bundle.engine for bundle in seated if bundle.engine is not None) == list(range(engines))
    assert sorted(rank for bundle in seated for rank in bundle.ranks) == list(range(ranks))
    taken: dict[tuple[int, int], int] = {}
    for seat in [*made.engines, *made.ranks]:
        assert seat is not None
        taken[seat.group, seat.bundle] = taken.get((seat.group, seat.bundle), 0) + seat.gpus
    for (group, at), count in taken.items():
        assert count == made.groups[group].bundles[at].resources.get("GPU", 0)
    lent = [(seat.group, seat.bundle, seat.device) for seat in made.ranks if seat and seat.device is not None]
    assert len(set(lent)) == len(lent)
    assert len(lent) == (min(ranks, engines * gpus_each) if colocated and gpus else 0)
