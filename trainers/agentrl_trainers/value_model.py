"""The critic as a module: a transformer body and one number for each state that a trained token was sampled from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import AutoModelForSequenceClassification, PreTrainedModel
from transformers.utils import logging as transformers_logging

from agentrl.errors import TrainerError
from agentrl_trainers.attention import attention_name
from agentrl_trainers.model import DTYPES, config_of
from agentrl_trainers.token_share import TokenShare, states_of

HEAD = "score.weight"  # [1, H], as transformers calls it in every `...ForSequenceClassification`


class ValueHead(torch.nn.Module):
    """The scalar head, computed in float32. It holds the parameters itself, so that ZeRO-3 gathers them for it."""

    def __init__(self, head: torch.nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias = head.weight, head.bias

    def forward(self, hidden_NH: torch.Tensor) -> torch.Tensor:
        """Values `[N]`."""
        bias = None if self.bias is None else self.bias.float()
        return torch.nn.functional.linear(hidden_NH.float(), self.weight.float(), bias).squeeze(-1)


class ValueModel(torch.nn.Module):
    """`lm`'s body with its scalar head, behind `forward(tokens, which of them) -> values`."""

    def __init__(self, lm: PreTrainedModel) -> None:
        super().__init__()
        self.lm = lm
        self.head = ValueHead(lm.score)
        self.token_share: TokenShare | None = None  # set where several ranks pass the same rows

    def forward(
        self,
        input_ids: torch.Tensor,  # [B, L]
        position_ids: torch.Tensor,  # [B, L], restarting at 0 with each packed sequence
        predictors_N: torch.Tensor,  # [N], flat index into B*L of the last token of each state
        segment_lengths: Sequence[int] | None,  # of the packed sequences; None when each of B is one sequence
    ) -> torch.Tensor:
        """Values `[N]`, float32; N may be 0 and they still carry a (zero) gradient."""
        share = self.token_share
        hidden_NH, mine_N = states_of(self.lm.base_model, input_ids, position_ids, predictors_N, segment_lengths, share)
        values_N: torch.Tensor = self.head(hidden_NH)
        return values_N if share is None or mine_N is None else share.join(values_N, mine_N)


def load_value_model(path: str | Path, *, dtype: str = "float32", attention: str = "segments") -> ValueModel:
    """A ValueModel of the Hugging Face directory `path`, on the CPU, without dropout.

    The directory may be a language model's, whose body is taken and whose head begins at 0 (so that every value does),
    or one with a scalar head (a reward model, an earlier critic). Raises TrainerError when it is neither.
    """
    config = config_of(path, num_labels=1)
    verbosity = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity_error()  # it warns of a head that is not there, which is what is wanted
    try:
        lm, report = AutoModelForSequenceClassification.from_pretrained(
            path,
            config=config,
            dtype=DTYPES[dtype],
            attn_implementation=attention_name(attention, config),
            local_files_only=True,
            output_loading_info=True,
        )
    except (ValueError, RuntimeError) as error:
        raise TrainerError(f"{config.model_type} at {path} cannot be a critic: {error}") from error
    finally:
        transformers_logging.set_verbosity(verbosity)
    missing = set(report["missing_keys"])
    if missing - {HEAD} or getattr(lm, "score", None) is None:
        raise TrainerError(f"{path} lacks the weights {sorted(missing - {HEAD})[:5]} of {type(lm).__name__}")
    if missing:
        torch.nn.init.zeros_(lm.score.weight)
    return ValueModel(lm.train())
