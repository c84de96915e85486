"""Invariant 4 as a state machine: whatever dies when, nobody with an old version is routable."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from agentrl.cluster.pool import PoolOfEngines, Seat


def pool(*engine_ids: str) -> PoolOfEngines:
    made = PoolOfEngines(engine_ids)
    for engine_id in engine_ids:
        made.started(engine_id)
    return made


def swap(of: PoolOfEngines, version: int, *taking: str) -> list[str]:
    of.begin(version)
    for seat in of.up:
        if seat.engine_id in taking:
            assert of.took(seat)
    return of.end()


def test_engines_that_came_up_have_the_first_version():
    assert pool("a", "b").routable == ["a", "b"]


def test_an_engine_that_did_not_take_the_version_is_not_routable_until_it_took_it():
    engines = pool("a", "b")
    swap(engines, 1, "a")
    assert engines.routable == ["a"]
    assert [seat.engine_id for seat in engines.behind] == ["b"]
    assert swap(engines, 1, "b") == ["b"]
    assert engines.routable == ["a", "b"]


def test_a_swap_that_nobody_took_changes_no_version():
    engines = pool("a")
    swap(engines, 1)
    assert (engines.version, engines.routable) == (0, ["a"])


def test_an_engine_that_comes_back_has_the_initial_weights_and_is_behind():
    engines = pool("a", "b")
    swap(engines, 1, "a", "b")
    assert engines.lost("a")
    assert not engines.lost("a")
    engines.started("a")
    assert (engines.routable, engines["a"].version) == (["b"], 0)
    assert swap(engines, 2, "a", "b") == ["a"]
    assert engines.routable == ["a", "b"]


def test_what_an_earlier_life_acknowledges_counts_for_nothing():
    engines = pool("a", "b")
    engines.begin(1)
    first, other = engines.up
    engines.lost("a")
    engines.started("a")
    assert not engines.took(first)
    assert engines.took(other)
    engines.end()
    assert engines.routable == ["b"]


def test_an_engine_that_comes_up_during_a_swap_waits_for_the_next():
    engines = pool("a")
    engines.lost("a")
    engines.begin(1)
    engines.started("a")
    assert engines.routable == []


def test_an_engine_whose_weights_are_mixed_is_not_fed_and_not_routable():
    engines = pool("a")
    swap(engines, 1, "a")
    assert engines["a"].fed
    engines.missed("a")
    assert (engines.routable, engines["a"].fed) == ([], False)


def test_two_swaps_at_a_time_and_a_step_back_are_refused():
    engines = pool("a")
    swap(engines, 2, "a")
    with pytest.raises(ValueError, match="a swap to 1 while None is under way and 2 is current"):
        engines.begin(1)
    engines.begin(3)
    with pytest.raises(ValueError, match="a swap to 4 while 3 is under way"):
        engines.begin(4)


class Engines(RuleBasedStateMachine):
    """Against a model: the weights that every engine really has."""

    @initialize(count=st.integers(1, 4))
    def begin_run(self, count: int):
        self.names = [f"e{number}" for number in range(count)]
        self.pool = PoolOfEngines(self.names)
        self.weights: dict[str, int | None] = dict.fromkeys(self.names)  # None: down, or mixed
        self.seats: list[Seat] = []
        self.target: int | None = None
        self.taken = False

    @rule(data=st.data())
    def comes_up(self, data: st.DataObject):
        down = [name for name in self.names if self.pool[name].state in ("starting", "quarantined")]
        if down:
            name = data.draw(st.sampled_from(down))
            self.pool.started(name)
            self.weights[name] = 0

    @rule(data=st.data())
    def dies(self, data: st.DataObject):
        name = data.draw(st.sampled_from(self.names))
        if self.pool[name].state != "starting":
            self.pool.lost(name)
            self.weights[name] = None

    @precondition(lambda self: self.target is None)
    @rule(new=st.booleans())
    def swap_begins(self, new: bool):
        self.target = self.pool.version + new
        self.pool.begin(self.target)
        self.seats, self.taken = self.pool.up if new else self.pool.behind, False

    @precondition(lambda self: self.target is not None and self.seats)
    @rule(data=st.data(), how=st.sampled_from(["takes", "fails", "sender"]))
    def one_engine(self, data: st.DataObject, how: str):
        seat = self.seats.pop(data.draw(st.integers(0, len(self.seats) - 1)))
        name = seat.engine_id
        same = self.pool[name].life == seat.life and self.pool[name].state in ("current", "behind")
        if how == "takes":
            assert self.pool.took(seat) == same
            if same:
                self.weights[name], self.taken = self.target, True
        elif same and how == "fails":
            self.pool.lost(name)
            self.weights[name] = None
        elif same:
            self.pool.missed(name)
            self.weights[name] = None

    @precondition(lambda self: self.target is not None and not self.seats)
    @rule()
    def swap_ends(self):
        before, took = self.pool.version, [n for n in self.names if self.weights[n] == self.target]
        self.pool.end()
        assert self.pool.version == (self.target if took and self.taken else before)
        self.target = None

    @invariant()
    def nobody_with_other_weights_is_routable(self):
        if hasattr(self, "pool") and self.target is None:
            assert [self.weights[name] for name in self.pool.routable] == [self.pool.version] * len(self.pool.routable)

    @invariant()
    def within_a_swap_the_routable_have_the_old_version_or_the_new_one(self):
        if hasattr(self, "pool") and self.target is not None:
            assert {self.weights[name] for name in self.pool.routable} <= {self.pool.version, self.target}


TestEngines = Engines.TestCase
TestEngines.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
