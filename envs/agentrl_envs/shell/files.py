"""A small tree of text files, drawn from a generator."""

from __future__ import annotations

import random
from collections.abc import Mapping

Files = Mapping[str, str]
"""Content by path; folders are those of the paths."""

WORDS = (
    "amber", "birch", "cedar", "delta", "ember", "fjord", "grove", "heron", "inlet", "jetty", "koala", "lemon",
    "maple", "north", "ocean", "pearl", "quartz", "river", "stone", "tulip", "umber", "violet", "willow", "zebra",
)  # fmt: skip
_FOLDERS = ("docs", "data", "src", "notes", "old notes", "logs")
_SUBFOLDERS = ("2023", "2024", "draft", "final copy")


def draw_files(rng: random.Random) -> Files:
    """6 to 14 files in two to four folders, at least one of them a .txt file; some names have a space."""
    places = []
    for folder in rng.sample(_FOLDERS, rng.randint(2, 4)):
        places.append(folder)
        if rng.random() < 0.5:
            places.append(f"{folder}/{rng.choice(_SUBFOLDERS)}")
    names = rng.sample(WORDS, rng.randint(6, 14))
    paths = [f"{rng.choice(places)}/{name}.{rng.choice(('txt', 'txt', 'log'))}" for name in names[1:]]
    return {path: _text(rng) for path in [f"{places[0]}/{names[0]}.txt", *paths]}


def folders(files: Files) -> list[str]:
    return sorted({path.rpartition("/")[0] for path in files})


def below(files: Files, folder: str) -> list[str]:
    """The files in a folder and in those below it."""
    return [path for path in files if path.startswith(f"{folder}/")]


def text_files(files: Files) -> list[str]:
    return sorted(path for path in files if path.endswith(".txt"))


def _text(rng: random.Random) -> str:
    return "".join(" ".join(rng.choices(WORDS, k=rng.randint(1, 6))) + "\n" for _ in range(rng.randint(2, 12)))
