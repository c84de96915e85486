"""One real vLLM server for the whole test session, and what tests do with it: sample, swap, and an oracle beside it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from agentrl.digest import digest_of_weights
from agentrl.engine.client import HttpEngineClient
from agentrl.engine.control import EngineControl
from agentrl.engine.swap import WeightSwap
from agentrl.types import Sampling, SwapMode, VersionSpan, WeightGroup

Tensors = dict[str, torch.Tensor]

HOSTILE_GENERATION_CONFIG = {"repetition_penalty": 1.3, "top_k": 5, "temperature": 0.2}
"""Case 15: sampling fields that a server told to read generation_config.json would fill in."""


@dataclass
class Sample:
    """One generation, joined."""

    prompt_ids: list[int]
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[VersionSpan] = field(default_factory=list)
    finish_reason: str | None = None
    chunks: int = 0


@dataclass
class VllmEngine:
    """The server. `version` counts the swaps that passed; swap through `swap`, so that it stays right."""

    url: str
    model: Path
    weights_dir: Path
    version: int = 0

    def initial(self) -> Tensors:
        return load_file(self.model / "model.safetensors")

    def groups(self, tensors: Mapping[str, torch.Tensor], version: int, count: int = 2) -> list[WeightGroup]:
        """Writes `tensors` as `count` groups in name order."""
        names = sorted(tensors)
        written = []
        for index in range(count):
            part = names[index::count]
            path = self.weights_dir / f"test-v{version}-g{index}.safetensors"
            save_file({name: tensors[name].contiguous() for name in part}, path)
            written.append(
                WeightGroup(
                    version=version,
                    index=index,
                    count=count,
                    path=str(path),
                    digest=digest_of_weights(path),
                    names=tuple(part),
                    num_bytes=path.stat().st_size,
                )
            )
        return written

    async def swap(
        self, tensors: Mapping[str, torch.Tensor], mode: SwapMode, groups: Sequence[WeightGroup] | None = None
    ) -> WeightSwap:
        """Swaps to the next version. Raises SwapError when the engine did not take it."""
        groups = self.groups(tensors, self.version + 1) if groups is None else groups
        control = EngineControl(self.url, engine_id="engine-0")
        try:
            async with WeightSwap([control], self.version + 1, mode) as swap:
                for group in groups:
                    await swap.load(group)
                    Path(group.path).unlink(missing_ok=True)
            self.version += 1
        finally:
            await control.close()
        return swap

    async def sample(self, client: HttpEngineClient, prompt_ids: Sequence[int], sampling: Sampling) -> Sample:
        sample = Sample(list(prompt_ids))
        async for chunk in client.stream(prompt_ids, sampling, request_id="test"):
            assert chunk.logprobs is not None
            sample.token_ids += chunk.token_ids
            sample.logprobs += chunk.logprobs
            sample.chunks += 1
            sample.finish_reason = chunk.finish_reason
            sample.versions = chunk.versions or []
        return sample

    def expected_logprobs(self, tensors: Mapping[str, torch.Tensor], sample: Sample, temperature: float) -> list[float]:
        """[S], by a transformers forward pass in fp32 over prompt and sample: the trainer's view of the weights."""
        model = AutoModelForCausalLM.from_pretrained(self.model, dtype=torch.float32)
        model.load_state_dict(dict(tensors), strict=False)
        ids = torch.tensor([sample.prompt_ids + sample.token_ids])
        with torch.no_grad():
            logits = model(ids).logits[0, len(sample.prompt_ids) - 1 : -1]
        logprobs = torch.log_softmax(logits / temperature, dim=-1)
        return logprobs[range(len(sample.token_ids)), sample.token_ids].tolist()


def copy_with_hostile_generation_config(model: Path, target: Path) -> Path:
    shutil.copytree(model, target)
    path = target / "generation_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | HOSTILE_GENERATION_CONFIG))
    return target
