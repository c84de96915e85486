"""Engines that are sent weights from GPU to GPU are asked over HTTP: the right thing, all at once."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
import torch

from agentrl.engine import ipc_handles
from agentrl.errors import TrainerError
from agentrl_trainers.deepspeed.engine_updates import EngineUpdates


class Server(ThreadingHTTPServer):
    """An engine's control calls: what was asked, and how many GPUs it has."""

    def __init__(self, gpus: int) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.gpus = gpus
        self.asked: list[tuple[str, Any]] = []
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self._answer({"world_size": self.server.gpus})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.asked.append((self.path, body))
        self._answer({}, 500 if self.server.gpus == 13 else 200)

    def _answer(self, body: dict[str, int], status: int = 200) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Silent."""


@pytest.fixture
def servers() -> Iterator[list[Server]]:
    made = [Server(2), Server(1), Server(4)]
    yield made
    for server in made:
        server.shutdown()


def test_the_workers_of_several_engines_have_ranks_one_after_another(servers: list[Server]) -> None:
    """2, 1 and 4 GPUs behind the trainer's rank 0: they begin at 1, 3 and 4 of 8."""
    client = EngineUpdates([server.url for server in servers], timeout_s=10)
    assert client.ask_world_sizes() == 7
    client.init_weight_transfer_engine({"rank_offset": 1, "world_size": 8, "packed": True})
    client.close()
    sent = [server.asked for server in servers]
    assert [path for asked in sent for path, _ in asked] == ["/init_weight_transfer_engine"] * 3
    assert [asked[0][1]["init_info"]["rank_offset"] for asked in sent] == [1, 3, 4]


def test_the_driver_opens_and_ends_the_update_and_vllm_sends_its_data_alone(servers: list[Server]) -> None:
    client = EngineUpdates([server.url for server in servers], timeout_s=10)
    client.start_weight_update()
    client.update_weights({"names": ["w"], "dtype_names": ["float32"], "shapes": [[2]]})
    client.finish_weight_update()
    client.close()
    expected = [("/update_weights", {"update_info": {"names": ["w"], "dtype_names": ["float32"], "shapes": [[2]]}})]
    assert [server.asked for server in servers] == [expected] * 3


def test_an_engine_that_refuses_is_named(servers: list[Server]) -> None:
    servers[1].gpus = 13
    client = EngineUpdates([server.url for server in servers], timeout_s=10)
    with pytest.raises(TrainerError, match=rf"engine {servers[1].url}/update_weights answered 500"):
        client.update_weights({"names": []})
    client.close()


def test_ipc_handles_go_as_json(servers: list[Server]) -> None:
    """As `IPCTrainerWeightTransferEngine` gives them: raw, with an empty field for pickled ones."""
    handle = (torch.Tensor, torch.Size([8]), (1,), 0, torch.storage.TypedStorage, torch.uint8, 0, b"m", 8, 0, False)
    handles = {"GPU-1": (*handle, b"c", 0, b"e", True)}
    client = EngineUpdates([servers[0].url], timeout_s=10)
    client.update_weights({"names": ["w"], "ipc_handles": handles, "ipc_handles_pickled": None, "tensor_sizes": [8]})
    client.close()
    [(_, body)] = servers[0].asked
    assert body["update_info"].keys() == {"names", "tensor_sizes", "handles"}
    assert ipc_handles.from_json(body["update_info"]["handles"]) == handles
