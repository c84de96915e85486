"""How a weight group gets to where engines read it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from agentrl.cluster.carriers import ObjectStoreCarrier, SharedMemoryCarrier, Shelf
from agentrl.cluster.transfer import adapter_name, adapter_rank, check_transfer, publisher
from agentrl.config import RunConfig
from agentrl.errors import ConfigError, TrainerError
from agentrl.train.publish import DirectPublisher, GroupPublisher, TrainerWeights
from agentrl.types import WeightGroup


def group(directory: Path, *, seconds: dict[str, float] | None = None) -> WeightGroup:
    return WeightGroup(
        version=3,
        index=0,
        count=1,
        path=str(directory / "v3.safetensors"),
        digest="",
        names=("w",),
        num_bytes=7,
        seconds=seconds or {},
    )


class TwinRanks:
    """A trainer in this process that writes, or keeps the bytes for others to write."""

    def __init__(self, written: WeightGroup) -> None:
        self.written = written
        self.asked: list[tuple[Any, ...]] = []

    async def all_ranks(self, method: str, *args: object) -> Any:
        self.asked.append((method, *args))
        Path(self.written.path).write_bytes(b"weights")
        return self.written

    async def all_ranks_in_two(self, method: str, *args: object) -> tuple[Any, Any]:
        self.asked.append((method, *args))
        return self.written, b"weights"


class Method:
    def __init__(self, do: Callable[..., object]) -> None:
        self._do = do

    async def remote(self, *args: object) -> object:
        return self._do(*args)


class Machine:
    """Another machine's shelf: the group's path there is a file below its own root."""

    def __init__(self, root: Path) -> None:
        self.files: dict[str, bytes] = {}
        self.put_weights = Method(lambda group, data: self.files.update({group.path: bytes(data)}))
        self.discard_weights = Method(lambda group: self.files.pop(group.path))


async def awaited(call: Awaitable[object]) -> object:
    return await call


def found(machines: list[Machine]) -> Callable[[], Awaitable[list[Machine]]]:
    async def find() -> list[Machine]:
        return machines

    return find


def gone(*_: object) -> None:
    raise RuntimeError("the node died")


async def test_in_shared_memory_the_trainer_writes_the_file_itself(tmp_path: Path) -> None:
    ranks, carrier = TwinRanks(group(tmp_path)), SharedMemoryCarrier(tmp_path)
    brought = await carrier.bring(ranks, 3, 0, changed_only=True)
    assert ranks.asked == [("write_weights", 3, 0, str(tmp_path), True)]
    assert Path(brought.path).read_bytes() == b"weights"
    await carrier.discard(brought)
    assert list(tmp_path.iterdir()) == []


async def test_through_the_object_store_every_machine_has_the_bytes_before_an_engine_is_told(tmp_path: Path) -> None:
    ranks, machines = TwinRanks(group(tmp_path, seconds={"gather": 0.5})), [Machine(tmp_path), Machine(tmp_path)]
    carrier = ObjectStoreCarrier(tmp_path, found(machines), remote=awaited)
    brought = await carrier.bring(ranks, 3, 0, changed_only=False)
    assert ranks.asked == [("pack_weights", 3, 0, str(tmp_path), False)]
    assert [machine.files for machine in machines] == [{brought.path: b"weights"}] * 2
    assert (brought.seconds.keys(), brought.seconds["gather"]) == ({"gather", "transfer"}, 0.5)
    await carrier.discard(brought)
    assert [machine.files for machine in machines] == [{}, {}]


async def test_a_machine_that_is_gone_is_left_out_until_it_is_back_for_a_later_version(tmp_path: Path) -> None:
    ranks, machines = TwinRanks(group(tmp_path)), [Machine(tmp_path), Machine(tmp_path)]
    carrier = ObjectStoreCarrier(tmp_path, found(machines), remote=awaited)
    back = machines[0].put_weights
    machines[0].put_weights = Method(gone)
    for index in range(2):
        await carrier.bring(ranks, 3, index, changed_only=False)
    assert [len(machine.files) for machine in machines] == [0, 1]
    machines[0].put_weights = back
    await carrier.bring(ranks, 4, 0, changed_only=False)
    assert [len(machine.files) for machine in machines] == [1, 1]


async def test_without_a_machine_that_takes_them_the_weights_are_an_error(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.put_weights = Method(gone)
    carrier = ObjectStoreCarrier(tmp_path, found([machine]), remote=awaited)
    with pytest.raises(TrainerError, match=r"no machine of the engines took weights.*the node died"):
        await carrier.bring(TwinRanks(group(tmp_path)), 3, 0, changed_only=False)


def test_a_file_is_whole_under_its_name(tmp_path: Path) -> None:
    Shelf().put_weights(group(tmp_path / "new"), memoryview(b"weights"))
    assert {path.name: path.read_bytes() for path in (tmp_path / "new").iterdir()} == {"v3.safetensors": b"weights"}


def run_of(**tables: object) -> RunConfig:
    return RunConfig.model_validate({"name": "x", "environment": {"id": "agentrl/Calculator-v0"}, **tables})


@pytest.mark.parametrize("transfer", ["nccl", "ipc"])
def test_from_gpu_to_gpu_without_gpus_is_refused_before_anything_starts(transfer: str) -> None:
    with pytest.raises(ConfigError, match=rf'weight_transfer = "{transfer}" goes from GPU to GPU, and the installed'):
        check_transfer(run_of(engine={"weight_transfer": transfer}))


def test_adapters_do_not_go_from_gpu_to_gpu() -> None:
    with pytest.raises(ConfigError, match=r'set trainer.lora.publish = "merged"'):
        check_transfer(run_of(engine={"weight_transfer": "nccl"}, trainer={"lora": {"rank": 8}}))


def test_engines_serve_an_adapter_only_where_one_is_sent() -> None:
    as_adapter, merged = (
        run_of(trainer={"lora": {"rank": 8}}),
        run_of(trainer={"lora": {"rank": 8, "publish": "merged"}}),
    )
    assert (adapter_rank(as_adapter), adapter_name(as_adapter)) == (8, "adapter")
    assert (adapter_rank(merged), adapter_name(merged)) == (0, None)
    assert (adapter_rank(run_of()), adapter_name(run_of())) == (0, None)


@pytest.mark.parametrize(
    ("transfer", "kind"),
    [
        ("shared_memory", GroupPublisher),
        ("object_store", GroupPublisher),
        ("nccl", DirectPublisher),
        ("ipc", DirectPublisher),
    ],
)
def test_the_publisher_is_chosen_by_the_run(transfer: str, kind: type) -> None:
    made: Any = publisher(
        run_of(engine={"weight_transfer": transfer}),
        object(),  # type: ignore[arg-type]
        object(),  # type: ignore[arg-type]
        TrainerWeights(),
        connected=[],
        connect=print,  # type: ignore[arg-type]
    )
    assert type(made) is kind
