"""Rebuild an embedded policy from nothing: tokenizer, model, warm start, model card. `make policy` runs it.

Takes about six minutes. The same seed and threads on the same machine give the same files. The warm start is meant to
be mediocre: it has every skill that the tasks need and uses it in two episodes of five, so that reinforcement learning
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
from policy_recipes import RECIPES, Recipe
from policy_sampling import Measurement, measure
from policy_tokenizer import attach_template, build_tokenizer
from policy_training import new_model, train
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3ForCausalLM

from agentrl.assets import DIRECTORIES, EMBEDDED, resolve_model

ROOT = Path(__file__).parent.parent
TEMPLATE = DIRECTORIES[EMBEDDED] / "chat_template.jinja"  # written by hand, for all policies; all else is built
MEASURED_TASKS = 1024

console = Console()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=RECIPES, default=EMBEDDED)
    parser.add_argument("--out", type=Path, help="directory to write (default: the package's)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1, help="more are faster on an idle machine only")
    arguments = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(arguments.threads)

    started = time.monotonic()
    recipe: Recipe = RECIPES[arguments.model]
    out: Path = arguments.out or DIRECTORIES[recipe.model]
    english = (ROOT / "LICENSE").read_text(encoding="utf-8")
    tokenizer = build_tokenizer(recipe.skills, recipe.vocab_size, english, arguments.seed)
    attach_template(tokenizer, TEMPLATE)
    model = warm_started(recipe, tokenizer, arguments.seed)
    measured = {
        skill.name: {
            split: measure(model, tokenizer, skill, split, MEASURED_TASKS, arguments.seed)
            for split in ("train", "eval")
        }
        for skill in recipe.skills
    }
    for name, splits in measured.items():
        for split, measurement in splits.items():
            report(name, split, measurement)
    write(out, recipe, model, tokenizer, measured, arguments.seed)
    console.print(f"wrote {out} in {time.monotonic() - started:.0f} s; try it: agentrl train, model {recipe.model!r}")
    low, high = recipe.target
    missed = [name for name, splits in measured.items() if not low <= splits["eval"].solved <= high]
    for name in missed:
        console.print(f"[red]held-out success is not in {low}..{high}: change the mix in {name}/transcripts.py")
    return 1 if missed else 0


def warm_started(recipe: Recipe, tokenizer: PreTrainedTokenizerFast, seed: int) -> Qwen3ForCausalLM:
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
        for stage in recipe.stages(tokenizer):
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


def report(name: str, split: str, measurement: Measurement) -> None:
    shares = ", ".join(f"{kind} {share:.3f}" for kind, share in measurement.outcomes.items())
    console.print(f"{name}, {split} ({measurement.count} tasks, temperature 1): {shares}")


def write(
    out: Path,
    recipe: Recipe,
    model: Qwen3ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    measured: dict[str, dict[str, Measurement]],
    seed: int,
) -> None:
    out.mkdir(parents=True, exist_ok=True)
    model.generation_config = GenerationConfig(eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id)
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    (out / "model.safetensors").chmod(0o644)
    card = model_card(
        recipe,
        recipe.stages(tokenizer),
        measured,
        parameters=model.num_parameters(),
        tokens=len(tokenizer),
        seed=seed,
        threads=torch.get_num_threads(),
    )
    (out / "README.md").write_text(card, encoding="utf-8")
    resolve_model(str(out))


if __name__ == "__main__":
    sys.exit(main())
