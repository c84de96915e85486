"""The policy as a module whose forward pass returns logprobs of chosen tokens, never logits."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, BitsAndBytesConfig, PretrainedConfig, PreTrainedModel
from transformers.utils import logging as transformers_logging

from agentrl.errors import TrainerError
from agentrl_trainers.attention import attention_name
from agentrl_trainers.config import TrainerConfig
from agentrl_trainers.logprobs import chunked_logprobs
from agentrl_trainers.token_share import TokenShare, states_of

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class LogprobHead(torch.nn.Module):
    """The output head, from hidden states to logprobs, however many chunks that takes. It computes in float32.

    It holds the head's parameters itself, so that ZeRO-3 gathers them once a pass: ranks with different numbers of
    trained tokens have different numbers of chunks, and a gather in each would wait for one that never comes.
    """

    def __init__(self, head: torch.nn.Linear, chunk: int) -> None:
        super().__init__()
        self.weight, self.bias, self.chunk = head.weight, head.bias, chunk

    def forward(
        self, hidden_NH: torch.Tensor, targets_N: torch.Tensor, temperature_N: torch.Tensor, entropy_gradient: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        weight = self.weight.float()  # once, so that the gradients of all chunks are summed before they are rounded
        bias = None if self.bias is None else self.bias.float()

        def logits_of(hidden: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.linear(hidden.float(), weight, bias)

        return chunked_logprobs(
            logits_of, hidden_NH, targets_N, temperature_N, chunk=self.chunk, entropy_gradient=entropy_gradient
        )


class PolicyModel(torch.nn.Module):
    """A causal language model, `lm`, behind `forward(tokens, which of them) -> logprobs`."""

    def __init__(self, lm: PreTrainedModel, *, logit_chunk: int) -> None:
        super().__init__()
        self.lm = lm
        self.head = LogprobHead(lm.get_output_embeddings(), logit_chunk)
        self.token_share: TokenShare | None = None  # set where several ranks pass the same rows

    def forward(
        self,
        input_ids: torch.Tensor,  # [B, L]
        position_ids: torch.Tensor,  # [B, L], restarting at 0 with each packed sequence
        predictors_N: torch.Tensor,  # [N], flat index into B*L of the token *before* each target
        targets_N: torch.Tensor,  # [N], the token ids whose logprob is wanted
        temperature_N: torch.Tensor,  # [N]
        segment_lengths: Sequence[int] | None,  # of the packed sequences; None when each of B is one sequence
        entropy_gradient: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Logprobs and entropies `[N]`, float32; N may be 0 and the results still carry a (zero) gradient."""
        share = self.token_share
        hidden_NH, mine_N = states_of(self.lm.base_model, input_ids, position_ids, predictors_N, segment_lengths, share)
        if share is None or mine_N is None:
            return self.head(hidden_NH, targets_N, temperature_N, entropy_gradient)
        logprobs, entropy = self.head(hidden_NH, targets_N[mine_N], temperature_N[mine_N], entropy_gradient)
        return share.join(logprobs, mine_N), share.join(entropy, mine_N)


def load_policy(
    path: str | Path,
    *,
    dtype: str = "float32",
    attention: str = "segments",
    logit_chunk: int,
    quantization: BitsAndBytesConfig | None = None,
) -> PolicyModel:
    """A PolicyModel of the Hugging Face directory `path`, on the CPU, without dropout.

    quantization: of its frozen weights (`adapter.quantization`); the model is on the GPU then.

    Raises TrainerError when there is no model there, or it does something to its logits that we would leave out.
    """
    config = config_of(path)
    lm = AutoModelForCausalLM.from_pretrained(
        path,
        config=config,
        dtype=DTYPES[dtype],
        attn_implementation=attention_name(attention, config),
        local_files_only=True,
        quantization_config=quantization,
    )
    _refuse_reshaped_logits(lm, str(path))
    return PolicyModel(lm.train(), logit_chunk=logit_chunk)


def prepare(lm: PreTrainedModel, config: TrainerConfig) -> None:
    """What a model needs that is trained with this config, before DeepSpeed takes it.

    Raises TrainerError when its heads cannot be shared by the ranks of one row.
    """
    if config.memory.activation_checkpointing:
        lm.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    ranks, heads = config.sequence_parallel, lm.config.num_attention_heads
    shared_heads = getattr(lm.config, "num_key_value_heads", heads)
    if heads % ranks or shared_heads % ranks:
        raise TrainerError(
            f"trainer.sequence_parallel = {ranks} shares out attention heads, and the model has {heads} and "
            f"{shared_heads} of keys and values; set a divisor of both"
        )


def config_of(path: str | Path, **changes: object) -> PretrainedConfig:
    """The configuration of the Hugging Face directory `path`, for training: with `changes`, and without dropout.

    Raises TrainerError when there is no model there.
    """
    if not (Path(path) / "config.json").is_file():
        raise TrainerError(f"no model at {path}: config.json is not there; give a Hugging Face model directory")
    config: PretrainedConfig = AutoConfig.from_pretrained(path, local_files_only=True, **changes)
    _turn_off_dropout(config)
    transformers_logging.disable_progress_bar()
    return config


def _turn_off_dropout(config: object) -> None:
    """Dropout would make logprobs differ from the engine's on every pass."""
    for name, value in vars(config).items():
        if ("dropout" in name or name.endswith("_pdrop")) and isinstance(value, int | float):
            setattr(config, name, type(value)(0))


def _refuse_reshaped_logits(lm: PreTrainedModel, path: str) -> None:
    """Some families scale or cap logits after the head; then logprobs from the head alone would be silently wrong.

    Logits are compared in the model's own dtype, where the same head gives the same numbers.
    """
    attention = lm.config._attn_implementation
    ids = torch.arange(4, device=lm.device)[None] % lm.config.vocab_size  # quantized weights are on the GPU already
    lm.set_attn_implementation("sdpa")  # the model's own may have no kernel for the CPU
    try:
        with torch.no_grad():
            ours = lm.get_output_embeddings()(lm.base_model(input_ids=ids, use_cache=False).last_hidden_state)
            whole = lm(input_ids=ids, use_cache=False).logits
    finally:
        lm.set_attn_implementation(attention)
    if not torch.allclose(ours.float(), whole.float(), rtol=1e-3, atol=1e-3):
        raise TrainerError(
            f"{lm.config.model_type} at {path} changes its logits after the output head, "
            "which is not supported; use a Llama- or Qwen-type model"
        )
