"""Rebuild the embedded policy from nothing: tokenizer, model, warm start, model card. `make policy` runs it.

Takes about six minutes. The same seed and threads on the same machine give the same files. The warm start is meant to
be mediocre: it has every skill that the task needs and uses it in two episodes of five, so that reinforcement learning
has something to find and something to suppress.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import torch
import transformers
from policy_card import model_card
from policy_sampling import Measurement, measure
from policy_tokenizer import TURN_START, attach_template, build_tokenizer
from policy_training import Stage, copies, new_model, train, transcripts
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3ForCausalLM

from agentrl.assets import EMBEDDED, resolve_model
from agentrl_envs.calculator.env import Calculator
from agentrl_envs.calculator.transcripts import CORRECT, WARM_START

ROOT = Path(__file__).parent.parent
TEMPLATE = ROOT / "agentrl/assets/tiny_policy/chat_template.jinja"  # written by hand; all else there is built
TARGET = (0.33, 0.45)  # share of held-out tasks solved at temperature 1
MEASURED_TASKS = 1024

console = Console()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=TEMPLATE.parent, help="directory to write (default: the package's)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1, help="more are faster on an idle machine only")
    arguments = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(arguments.threads)

    started = time.monotonic()
    tokenizer = build_tokenizer((ROOT / "LICENSE").read_text(encoding="utf-8"), arguments.seed)
    attach_template(tokenizer, TEMPLATE)
    model = warm_started(tokenizer, arguments.seed)
    measured = {split: measure(model, tokenizer, split, MEASURED_TASKS, arguments.seed) for split in ("train", "eval")}
    for split, measurement in measured.items():
        report(split, measurement)
    write(arguments.out, model, tokenizer, measured, arguments.seed)
    console.print(
        f"wrote {arguments.out} in {time.monotonic() - started:.0f} s; try it: agentrl train, model {EMBEDDED!r}"
    )
    low, high = TARGET
    if not low <= measured["eval"].solved <= high:
        console.print(f"[red]held-out success is not in {low}..{high}: change the mix in calculator/transcripts.py")
        return 1
    return 0


def stages(tokenizer: PreTrainedTokenizerFast) -> list[Stage]:
    system = tools_turn(tokenizer)
    return [
        Stage("copying", 300, 3e-3, 64, copies(tokenizer)),
        Stage("correct episodes", 500, 2e-3, 32, transcripts(tokenizer, CORRECT, system)),
        Stage("mixed episodes", 300, 1e-3, 32, transcripts(tokenizer, WARM_START, system)),
    ]


def warm_started(tokenizer: PreTrainedTokenizerFast, seed: int) -> Qwen3ForCausalLM:
    torch.manual_seed(seed)
    model = new_model(tokenizer)
    console.print(f"{model.num_parameters():,} parameters, {len(tokenizer)} tokens")
    columns = (
        TextColumn("{task.description:18}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("loss {task.fields[loss]:.3f}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as progress:
        for stage in stages(tokenizer):
            row = progress.add_task(stage.name, total=stage.steps, loss=float("nan"))
            losses: list[float] = []

            def advance(step: int, loss: float, row: TaskID = row, losses: list[float] = losses) -> None:
                losses.append(loss)
                progress.update(row, completed=step + 1, loss=loss)

            started = time.monotonic()
            train(model, stage, pad_id=tokenizer.pad_token_id, seed=seed, on_step=advance)
            tail = losses[-50:]
            progress.console.print(
                f"{stage.name}: loss {sum(tail) / len(tail):.4f} after {time.monotonic() - started:.0f} s"
            )
    return model


def tools_turn(tokenizer: PreTrainedTokenizerFast) -> str:
    """The rendered turn that declares the calculator's tools: all that comes before the user's."""
    rendered: str = tokenizer.apply_chat_template(
        [{"role": "user", "content": ""}], tools=Calculator().tools, tokenize=False
    )
    return rendered[: rendered.index(f"{TURN_START}user")]


def report(split: str, measurement: Measurement) -> None:
    shares = ", ".join(f"{kind} {share:.3f}" for kind, share in measurement.outcomes.items())
    console.print(f"{split} ({measurement.count} tasks, temperature 1): {shares}")


def write(
    out: Path,
    model: Qwen3ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    measured: dict[str, Measurement],
    seed: int,
) -> None:
    out.mkdir(parents=True, exist_ok=True)
    model.generation_config = GenerationConfig(eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id)
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    (out / "model.safetensors").chmod(0o644)
    card = model_card(
        stages(tokenizer),
        measured,
        parameters=model.num_parameters(),
        tokens=len(tokenizer),
        seed=seed,
        threads=torch.get_num_threads(),
    )
    (out / "README.md").write_text(card, encoding="utf-8")
    if out == TEMPLATE.parent:
        resolve_model(EMBEDDED)


if __name__ == "__main__":
    sys.exit(main())
