"""A run file says its kind; each kind has its own keys, and those of another are refused with words."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from agentrl.cluster.model_paths import for_ranks
from agentrl.config import RunConfig
from agentrl.errors import ConfigError
from agentrl.kinds import load_config

RL = 'name = "a"\n[environment]\nid = "agentrl/Calculator-v0"\n'
SFT = 'kind = "sft"\nname = "a"\n[data]\ntrain = "a.jsonl"\n'
DPO = 'kind = "dpo"\nname = "a"\n[data]\ntrain = "a.jsonl"\n'
REWARD_MODEL = 'kind = "reward_model"\nname = "a"\n[data]\ntrain = "a.jsonl"\n'


@pytest.fixture
def run_file(tmp_path: Path):
    def write(text: str) -> Path:
        path = tmp_path / "run.toml"
        path.write_text(text)
        return path

    return write


def test_without_a_kind_it_is_reinforcement_learning(run_file) -> None:
    assert isinstance(load_config(run_file(RL)), RunConfig)


@pytest.mark.parametrize(("text", "kind"), [(SFT, "sft"), (DPO, "dpo"), (REWARD_MODEL, "reward_model")])
def test_the_kind_decides_which_tables_there_are(run_file, text: str, kind: str) -> None:
    config = load_config(run_file(text), ["seed=7"])
    assert (config.kind, config.loop.epochs, config.trainer.seed, config.directory) == (kind, 1, 7, Path("runs/a"))
    assert load_config(run_file(DPO)).trainer.dpo.beta == 0.1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            f"{SFT}[environment]\nid = 'x'\n",
            r"environment is a key of kind = 'rl', and this run is of kind 'sft'; leave",
        ),
        (
            f"{RL}[data]\ntrain = 'x'\n",
            "data is a key of kind = 'sft' and 'reward_model' and 'dpo', and this run is of",
        ),
        (f"{SFT}[loop]\ngroups_per_step = 8\n", "loop.groups_per_step is a key of kind = 'rl'"),
        (f"{RL}[loop]\nepochs = 2\n", "loop.epochs is a key of kind = 'sft' and 'reward_model' and 'dpo'"),
        (f"{DPO}roles = ['user']\n", "data.roles is a key of kind = 'sft'"),
        (f"{REWARD_MODEL}template_kwargs = {{}}\n", "data.template_kwargs is a key of kind = 'sft' and 'dpo'"),
        (f"{SFT}[trainer.dpo]\nbeta = 1.0\n", "trainer.dpo is a key of kind = 'dpo'"),
        (
            f"{SFT}[trainer.critic]\nenabled = true\n",
            "critic: read by kind = .rl. only, and this run is of kind = .sft.",
        ),
        (f"{DPO}[trainer]\nmini_batches = 2\nepochs = 2\n", "epochs, mini_batches: read by .*data are loop.epochs"),
        (f"{DPO}[trainer.aggregation]\nname = 'constant'\n", "aggregation: read by"),
        (f"{REWARD_MODEL}[trainer.lora]\nrank = 8\n", "a reward model's weights are trained themselves"),
        ('kind = "ppo"\nname = "a"\n', "kind = 'ppo' is none of rl, sft, reward_model, dpo"),
        (f"{SFT}train_ = 1\n", "data.train_: unknown key; did you mean 'train'"),
        ('kind = "sft"\nname = "a"\n[data]\n', "give exactly one"),
        (f"{SFT}from_run = 'runs/demo'\n", "give exactly one"),
        (f"{SFT}min_reward = 1.0\n", "from_run, which is not set"),
        (f"{SFT}eval = 'b.jsonl'\neval_fraction = 0.1\n", "both say what is held out"),
        ('kind = "dpo"\nname = "a"\n[data]\n', "train is required: a JSONL file of pairs"),
    ],
)
def test_what_a_kind_does_not_read_is_refused(run_file, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(run_file(text))


def test_sft_reads_the_aggregation(run_file) -> None:
    config = load_config(run_file(f"{SFT}[trainer.aggregation]\nname = 'sequence_mean'\n"))
    assert config.trainer.aggregation.name == "sequence_mean"


def test_the_resolved_configuration_can_be_read_again(run_file, tmp_path: Path) -> None:
    config = load_config(run_file(DPO))
    again = type(config).model_validate(config.model_dump(mode="json"))
    assert again == config
    assert "critic" not in config.model_dump()["trainer"]


def test_a_reference_is_found_before_anything_starts(run_file) -> None:
    """Ranks get its absolute path: they start in another directory."""
    named = load_config(run_file(f'{DPO}[trainer.dpo]\nreference = "agentrl:tiny"\n'))
    assert Path(for_ranks(named.trainer).dpo.reference).is_absolute()
    assert for_ranks(load_config(run_file(DPO)).trainer).dpo.reference == "initial"
    missing = load_config(run_file(f'{DPO}[trainer.dpo]\nreference = "no/such/model"\n'))
    with pytest.raises(ConfigError, match=r"trainer\.dpo\.reference: model 'no/such/model' is not a directory"):
        for_ranks(missing.trainer)


def test_no_kind_loads_torch_on_the_driver(run_file) -> None:
    code = (
        "import sys; from pathlib import Path; import agentrl.cluster.supervised; "
        f"from agentrl.kinds import load_config; load_config(Path({str(run_file(SFT))!r})); "
        "print(sorted({'torch', 'vllm', 'ray', 'deepspeed'} & sys.modules.keys()))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert found.stdout.strip() == "[]"
