"""Workers come to agree on the engines, whatever they had and in whatever order they hear of changes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agentrl.gateway.workers.board import Add, Board, Change, Member, Remove, Tell, changes

RUNS, IDS, URLS = st.sampled_from(["", "run"]), st.sampled_from(["e0", "e1", "e2"]), st.sampled_from(["u0", "u1", "u2"])


@st.composite
def boards(draw: st.DrawFn) -> Board:
    pools = {}
    for run_id in draw(st.sets(RUNS)):
        ids, urls = draw(st.permutations(["e0", "e1", "e2"])), draw(st.permutations(["u0", "u1", "u2"]))
        size = draw(st.integers(0, 3))
        pools[run_id] = [
            Member(engine_id, url, draw(st.none() | st.integers(0, 3)), draw(st.booleans()), draw(st.integers(0, 4)))
            for engine_id, url in list(zip(ids, urls, strict=True))[:size]
        ]
    return Board(draw(st.integers(0, 4)), pools)


def carried_out(board: Board, todo: list[Change]) -> dict[str, dict[str, tuple[str, bool]]]:
    """Engines by run and id, with their URL and whether they are held back. An id or URL that is there is refused."""
    pools = {
        run: {engine.id: (engine.url, engine.held_back) for engine in members} for run, members in board.pools.items()
    }
    for change in todo:
        pool = pools.setdefault(change.run_id, {})
        if isinstance(change, Add):
            assert change.engine.id not in pool
            assert change.engine.url not in {url for url, _ in pool.values()}
            pool[change.engine.id] = (change.engine.url, False)
        elif isinstance(change, Remove):
            del pool[change.engine_id]
        else:
            assert isinstance(change, Tell)
            url, held_back = pool[change.engine_id]
            pool[change.engine_id] = (url, held_back if change.routable is None else not change.routable)
    return {run: pool for run, pool in pools.items() if pool}


@given(here=boards(), there=boards())
def test_the_changes_lead_from_any_board_to_any_other(here: Board, there: Board) -> None:
    assert carried_out(here, changes(here, there)) == carried_out(there, [])


@given(board=boards())
def test_a_board_is_no_change_to_itself(board: Board) -> None:
    """But for versions that were told after its epoch, which are told again."""
    assert all(isinstance(change, Tell) and change.routable is None for change in changes(board, board))


def test_a_version_is_told_once_and_then_left_to_health_checks() -> None:
    told = Board(5, {"": [Member("e0", "u0", version=3, told=5)]})
    before = Board(4, {"": [Member("e0", "u0", version=2)]})
    assert changes(before, told) == [Tell("", "e0", 3, None)]
    after = Board(5, {"": [Member("e0", "u0", version=0)]})  # the engine was restarted since, with older weights
    assert changes(after, Board(6, told.pools)) == []


def test_a_run_is_not_without_engines_while_one_replaces_another() -> None:
    here = Board(1, {"run": [Member("e0", "u0")]})
    there = Board(2, {"run": [Member("e1", "u1", held_back=True)]})
    assert changes(here, there) == [
        Add("run", there.pools["run"][0]),
        Tell("run", "e1", None, False),
        Remove("run", "e0"),
    ]
