"""Each rank takes a GPU of its own, however many of them it sees. No GPU is needed to say which."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist

from agentrl.errors import TrainerError
from agentrl_trainers.deepspeed import process_group
from agentrl_trainers.deepspeed.devices import Seen, exchange, local_rank


def taken(*seen: Seen) -> list[int]:
    return [local_rank(seen, rank) for rank in range(len(seen))]


def test_ranks_that_see_all_gpus_of_a_machine_take_them_in_turn() -> None:
    """Ray gives an actor that asked for no GPU no device of its own."""
    assert taken(*[Seen("a", "", 4)] * 3) == [0, 1, 2]


def test_every_machine_counts_from_zero_however_its_ranks_are_numbered() -> None:
    one, other = Seen("a", "", 2), Seen("b", "", 2)
    assert taken(one, other, one, other) == [0, 0, 1, 1]


def test_a_rank_that_sees_one_gpu_of_its_own_takes_it() -> None:
    assert taken(Seen("a", "0", 1), Seen("a", "1", 1)) == [0, 0]


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_ranks_that_would_share_a_gpu_are_refused_on_all_ranks(rank: int) -> None:
    """A rank that went on alone would wait for the others until its time is over."""
    seen = [Seen("a", "3", 1), Seen("a", "3", 1), Seen("b", "", 8)]
    with pytest.raises(TrainerError, match=r"2 trainer ranks on a see the same 1 GPUs \(CUDA_VISIBLE_DEVICES=3\)"):
        local_rank(seen, rank)


def test_ranks_tell_each_other_what_they_see() -> None:
    store = dist.HashStore()
    seen = [Seen("a", "", 2), Seen("b", "0,1", 2)]
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda rank: exchange(store, rank, 2, seen[rank]), range(2)))
    assert found == [seen, seen]


def test_a_rank_joins_on_the_gpu_that_is_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 1 of two on a machine of two GPUs, as far as the process group: it stops where the other would come."""
    chosen: list[int] = []
    cuda = SimpleNamespace(is_available=lambda: True, device_count=lambda: 2, set_device=chosen.append)
    monkeypatch.setattr(torch, "cuda", cuda)
    monkeypatch.setattr(dist, "init_process_group", stop)
    for name, value in {"RANK": "", "WORLD_SIZE": "", "LOCAL_RANK": "", "GLOO_SOCKET_IFNAME": "lo"}.items():
        monkeypatch.setenv(name, value)  # so that what is set is taken back
    monkeypatch.delenv("LOCAL_RANK")
    store = dist.HashStore()
    exchange(store, 0, 1, process_group.devices.here())
    with pytest.raises(InterruptedError):
        process_group.join(store, 1, 2, "127.0.0.1", 1.0)
    assert chosen == [1]


def stop(*_: object, **__: object) -> None:
    raise InterruptedError
