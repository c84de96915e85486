"""The policy as a module whose forward pass returns logprobs of chosen tokens, never logits."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging as transformers_logging

from agentrl.errors import TrainerError
from agentrl_trainers.attention import attention_name
from agentrl_trainers.logprobs import chunked_logprobs

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class LogprobHead(torch.nn.Module):
    """The output head, from hidden states to logprobs, however many chunks that takes.

    It holds the head's parameters itself, so that ZeRO-3 gathers them once a pass: ranks with different numbers of
    trained tokens have different numbers of chunks, and a gather in each would wait for one that never comes.
    """

    def __init__(self, head: torch.nn.Linear, chunk: int) -> None:
        super().__init__()
        self.weight, self.bias, self.chunk = head.weight, head.bias, chunk

    def forward(
        self, hidden_NH: torch.Tensor, targets_N: torch.Tensor, temperature_N: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        def logits_of(hidden: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.linear(hidden, self.weight, self.bias)

        return chunked_logprobs(logits_of, hidden_NH, targets_N, temperature_N, chunk=self.chunk)


class PolicyModel(torch.nn.Module):
    """A causal language model, `lm`, behind `forward(tokens, which of them) -> logprobs`."""

    def __init__(self, lm: PreTrainedModel, *, logit_chunk: int) -> None:
        super().__init__()
        self.lm = lm
        self.head = LogprobHead(lm.get_output_embeddings(), logit_chunk)

    def forward(
        self,
        input_ids: torch.Tensor,  # [B, L]
        position_ids: torch.Tensor,  # [B, L], restarting at 0 with each packed sequence
        predictors_N: torch.Tensor,  # [N], flat index into B*L of the token *before* each target
        targets_N: torch.Tensor,  # [N], the token ids whose logprob is wanted
        temperature_N: torch.Tensor,  # [N]
        segment_lengths: Sequence[int] | None,  # of the packed sequences; None when each of B is one sequence
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Logprobs and entropies `[N]`, float32; N may be 0 and the results still carry a (zero) gradient."""
        packed = {} if segment_lengths is None else {"segment_lengths": segment_lengths}
        body = self.lm.base_model(input_ids=input_ids, position_ids=position_ids, use_cache=False, **packed)
        hidden_NH = body.last_hidden_state.flatten(0, 1).index_select(0, predictors_N)
        return self.head(hidden_NH, targets_N, temperature_N)


def load_policy(
    path: str | Path, *, dtype: str = "float32", attention: str = "segments", logit_chunk: int
) -> PolicyModel:
    """A PolicyModel of the Hugging Face directory `path`, on the CPU, without dropout.

    Raises TrainerError when there is no model there, or it does something to its logits that we would leave out.
    """
    if not (Path(path) / "config.json").is_file():
        raise TrainerError(f"no model at {path}: config.json is not there; give a Hugging Face model directory")
    config = AutoConfig.from_pretrained(path, local_files_only=True)
    _turn_off_dropout(config)
    transformers_logging.disable_progress_bar()
    lm = AutoModelForCausalLM.from_pretrained(
        path,
        config=config,
        dtype=DTYPES[dtype],
        attn_implementation=attention_name(attention, config),
        local_files_only=True,
    )
    policy = PolicyModel(lm.train(), logit_chunk=logit_chunk)
    _refuse_reshaped_logits(policy, str(path))
    return policy


def _turn_off_dropout(config: object) -> None:
    """Dropout would make logprobs differ from the engine's on every pass."""
    for name, value in vars(config).items():
        if ("dropout" in name or name.endswith("_pdrop")) and isinstance(value, int | float):
            setattr(config, name, type(value)(0))


def _refuse_reshaped_logits(policy: PolicyModel, path: str) -> None:
    """Some families scale or cap logits after the head; then logprobs from the head alone would be silently wrong."""
    ids = torch.arange(4)[None] % policy.lm.config.vocab_size
    targets, ones = torch.zeros(4, dtype=torch.long), torch.ones(4)
    with torch.no_grad():
        ours, _ = policy(ids, torch.arange(4)[None], torch.arange(4), targets, ones, None)
        whole = policy.lm(input_ids=ids, use_cache=False).logits[0].float().log_softmax(-1)[:, 0]
    if not torch.allclose(ours, whole, rtol=1e-3, atol=1e-3):
        raise TrainerError(
            f"{policy.lm.config.model_type} at {path} changes its logits after the output head, "
            "which is not supported; use a Llama- or Qwen-type model"
        )
