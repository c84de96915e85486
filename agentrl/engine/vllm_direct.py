"""vLLM's own GPU weight transfers, with our checks. Imported inside vLLM's workers only. Not run: they need a GPU.

vLLM loads what it is sent and trusts it to be all. Here a version must bring the model's own tensors, each once, and
all that did not come before through the same connection.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vllm.distributed.weight_transfer.base import WeightTransferUpdateInfo
from vllm.distributed.weight_transfer.ipc_engine import (
    IPCWeightTransferEngine,
    IPCWeightTransferInitInfo,
    IPCWeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.nccl_engine import (
    NCCLWeightTransferEngine,
    NCCLWeightTransferInitInfo,
    NCCLWeightTransferUpdateInfo,
)

from agentrl.engine import ipc_handles
from agentrl.engine.manifest import FORMATS, Manifest
from agentrl.errors import SwapError


class Books:
    """What an update has brought, against what the model has."""

    def __init__(self, model_config: Any) -> None:
        tied = bool(getattr(model_config.hf_text_config, "tie_word_embeddings", False))
        self._expected = Manifest.of_checkpoint(Path(model_config.model), tied=tied)
        self._dtype = model_config.dtype
        self._received: set[str] = set()
        self._held: set[str] = set()  # by earlier versions of the same connection

    def start(self) -> None:
        self._received.clear()

    def enter(self, names: list[str], dtype_names: list[str], shapes: list[list[int]]) -> None:
        """Raises SwapError for a tensor that is unknown, came already, or has another shape or number format."""
        headers = {
            name: (tuple(shape), FORMATS[f"torch.{dtype}"])
            for name, dtype, shape in zip(names, dtype_names, shapes, strict=True)
        }
        self._expected.check_group(headers, already=self._received, engine_dtype=self._dtype)
        self._received.update(names)

    def finish(self) -> None:
        """Raises SwapError when some are missing."""
        self._expected.check_complete(self._received | self._held)
        self._held |= self._received


class CheckedNccl(NCCLWeightTransferEngine):
    """The `agentrl_nccl` backend."""

    def init_transfer_engine(self, init_info: NCCLWeightTransferInitInfo) -> None:
        super().shutdown()  # the group of a trainer that is gone
        super().init_transfer_engine(init_info)
        self._books = Books(self.model_config)

    def start_weight_update(self) -> None:
        self._books.start()
        super().start_weight_update()

    def receive_weights(self, update_info: NCCLWeightTransferUpdateInfo) -> None:
        self._books.enter(update_info.names, update_info.dtype_names, update_info.shapes)
        super().receive_weights(update_info)

    def finish_weight_update(self) -> None:
        super().finish_weight_update()
        self._books.finish()


@dataclass
class JsonIpcUpdateInfo(WeightTransferUpdateInfo):
    """One packed chunk. handles: `ipc_handles.to_json` of its buffer."""

    names: list[str]
    dtype_names: list[str]
    shapes: list[list[int]]
    tensor_sizes: list[int]
    handles: dict[str, dict[str, Any]]


class CheckedIpc(IPCWeightTransferEngine):
    """The `agentrl_ipc` backend."""

    update_info_cls = JsonIpcUpdateInfo

    def init_transfer_engine(self, init_info: IPCWeightTransferInitInfo) -> None:
        super().init_transfer_engine(init_info)
        self._books = Books(self.model_config)

    def start_weight_update(self) -> None:
        self._books.start()
        super().start_weight_update()

    def receive_weights(self, update_info: JsonIpcUpdateInfo) -> None:
        if not self.packed:
            raise SwapError("CUDA IPC weights come packed; the trainer said otherwise when it connected")
        self._books.enter(update_info.names, update_info.dtype_names, update_info.shapes)
        super().receive_weights(
            IPCWeightTransferUpdateInfo(
                names=update_info.names,
                dtype_names=update_info.dtype_names,
                shapes=update_info.shapes,
                ipc_handles=ipc_handles.from_json(update_info.handles),
                tensor_sizes=update_info.tensor_sizes,
            )
        )

    def finish_weight_update(self) -> None:
        super().finish_weight_update()
        self._books.finish()
