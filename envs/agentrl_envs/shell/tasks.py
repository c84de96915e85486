"""Tasks over a folder of files: which there are, which are held out, and when one is done."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from agentrl_envs import splits
from agentrl_envs.shell.chores import CHORES, Chore
from agentrl_envs.shell.files import draw_files
from agentrl_envs.splits import Split, require_split


def problem(seed: int, split: str = "train") -> Chore:
    """The chore of `split` that `seed` stands for; the same on every machine. Raises ValueError for another split."""
    require_split(split, "the shell environment")
    rng = random.Random(seed)
    while True:
        drawn = rng.choice(CHORES)(rng, draw_files(rng))
        if split_of(drawn) == split and drawn.before != drawn.after:
            return drawn


def split_of(chore: Chore) -> Split:
    """A fifth of all instructions is held out, by their hash: no seed can leak one into training."""
    return splits.split_of(chore.instruction)


def given_problem(options: Mapping[str, Any]) -> Chore | None:
    """What a task's options "instruction", "files" and "expected" say; None when there is no "instruction".

    "expected" has the files that are to be there in the end and no others, like "files" by path. Raises ValueError when
    something is missing.
    """
    if "instruction" not in options:
        return None
    for key in ("files", "expected"):
        if not isinstance(options.get(key), Mapping):
            raise ValueError(
                f"a task of one's own gives instruction, files and expected (content by path); {key} is not"
            )
    files, expected = ({str(k): str(v) for k, v in options[key].items()} for key in ("files", "expected"))
    return Chore(str(options["instruction"]), files, expected, str(options.get("solution", "")))


def is_done(chore: Chore, found: Mapping[str, bytes]) -> bool:
    """Whether exactly the right files are there. A line break at the end of a file that was not there before is no
    matter: `echo` writes one and `printf` does not."""
    if found.keys() != chore.after.keys():
        return False
    return all(_same(path, found[path], content, chore) for path, content in chore.after.items())


def _same(path: str, found: bytes, expected: str, chore: Chore) -> bool:
    text = found.decode("utf-8", "replace")
    return text == expected if path in chore.before else text.rstrip("\n") == expected.rstrip("\n")
