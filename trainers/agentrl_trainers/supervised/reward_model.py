"""A reward model's weights out of the ranks: the body that was loaded, under a head with one output."""

from __future__ import annotations

from collections.abc import Set
from pathlib import Path

from transformers import PreTrainedModel

from agentrl.errors import TrainerError
from agentrl_trainers.deepspeed.engine import ZeroEngine
from agentrl_trainers.deepspeed.export import names_in, write_config
from agentrl_trainers.deepspeed.weights import WeightSource
from agentrl_trainers.value_model import HEAD

OUTPUT_HEAD = "lm_head.weight"  # of a language model; it stays behind


class RewardModelSource(WeightSource):
    """Exports what `AutoModelForSequenceClassification` and `agentrl reward serve model` load."""

    def __init__(self, zero: ZeroEngine, lm: PreTrainedModel, model_path: str | Path, *, min_bytes: int) -> None:
        self._architecture = type(lm).__name__
        super().__init__(zero, lm, model_path, min_bytes=min_bytes)

    def _check_names(self, tied: Set[str]) -> None:
        odd = (names_in(self._source) - {OUTPUT_HEAD, HEAD}) ^ (self._tensors.keys() - {HEAD})
        if odd:
            raise TrainerError(
                f"{self._source} spells its tensors differently from the loaded model, first: "
                f"{', '.join(sorted(odd)[:4])}; re-save it with transformers' save_pretrained as safetensors"
            )

    def _write_config(self, directory: Path) -> None:
        write_config(
            self._source,
            directory,
            self._tensors[HEAD].dtype,
            architectures=[self._architecture],
            id2label={"0": "reward"},  # one label: num_labels is 1
            label2id={"reward": 0},
        )
