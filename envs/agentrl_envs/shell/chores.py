"""The chores: each draws what is to be done, how the files are afterwards, and one command that does it.

`after` is computed here in Python, the command is plain shell: one checks the other in the tests.
"""

from __future__ import annotations

import random
import shlex
from collections.abc import Callable
from dataclasses import dataclass

from agentrl_envs.shell.files import WORDS, Files, below, folders, text_files

ANSWER = "answer.txt"


@dataclass(frozen=True)
class Chore:
    """What is asked, the files before and after, and a command that does it."""

    instruction: str
    before: Files
    after: Files
    solution: str


def count_lines(rng: random.Random, files: Files) -> Chore:
    path = rng.choice(text_files(files))
    lines = files[path].count("\n")
    return Chore(
        f"Count the lines of {path} and write the number to {ANSWER}.",
        files,
        {**files, ANSWER: f"{lines}\n"},
        f"wc -l < {shlex.quote(path)} > {ANSWER}",
    )


def count_files(rng: random.Random, files: Files) -> Chore:
    folder = rng.choice(folders(files))
    ending = rng.choice(("txt", "log"))
    found = [path for path in below(files, folder) if path.endswith(f".{ending}")]
    return Chore(
        f"Count the .{ending} files in {folder} and in the folders below it, and write the number to {ANSWER}.",
        files,
        {**files, ANSWER: f"{len(found)}\n"},
        f"find {shlex.quote(folder)} -type f -name '*.{ending}' | wc -l > {ANSWER}",
    )


def find_word(rng: random.Random, files: Files) -> Chore:
    """One file holds a word that no other has."""
    path = rng.choice(text_files(files))
    word = f"{rng.choice(WORDS)}-{rng.randint(100, 999)}"
    lines = files[path].splitlines(keepends=True)
    lines.insert(rng.randint(0, len(lines)), f"{rng.choice(WORDS)} {word} {rng.choice(WORDS)}\n")
    before = {**files, path: "".join(lines)}
    return Chore(
        f"One file contains {word}. Write its path to {ANSWER}.",
        before,
        {**before, ANSWER: f"{path}\n"},
        f"grep -rlF {word} * > {ANSWER}",
    )


def move(rng: random.Random, files: Files) -> Chore:
    path, folder = rng.choice(sorted(files)), rng.choice((*folders(files), f"{rng.choice(WORDS)}-new"))
    target = f"{folder}/{_free_name(rng, files, path.rpartition('.')[2])}"
    after = {(target if name == path else name): content for name, content in files.items()}
    quoted = shlex.quote(target)
    return Chore(
        f"Move {path} to {target}.",
        files,
        after,
        f'mkdir -p "$(dirname {quoted})" && mv {shlex.quote(path)} {quoted}',
    )


def rename_all(rng: random.Random, files: Files) -> Chore:
    old = rng.choice(("txt", "log"))
    new = rng.choice(("md", "old", "bak"))
    after = {
        (path.removesuffix(f".{old}") + f".{new}" if path.endswith(f".{old}") else path): content
        for path, content in files.items()
    }
    return Chore(
        f"Rename every .{old} file, in every folder, so that it ends in .{new} instead.",
        files,
        after,
        f"find . -type f -name '*.{old}' -exec sh -c 'for f; do mv \"$f\" \"${{f%.{old}}}.{new}\"; done' sh {{}} +",
    )


def delete_some(rng: random.Random, files: Files) -> Chore:
    folder = rng.choice(folders(files))
    ending = rng.choice(("txt", "log"))
    gone = {path for path in below(files, folder) if path.endswith(f".{ending}")}
    return Chore(
        f"Delete every .{ending} file in {folder} and in the folders below it.",
        files,
        {path: content for path, content in files.items() if path not in gone},
        f"find {shlex.quote(folder)} -type f -name '*.{ending}' -delete",
    )


def edit_setting(rng: random.Random, files: Files) -> Chore:
    settings = {rng.choice(WORDS): str(rng.randint(1, 99)) for _ in range(6)}
    key = rng.choice(sorted(settings))
    new = str(rng.randint(100, 999))
    path = f"{rng.choice(folders(files))}/settings.conf"

    def written(values: dict[str, str]) -> str:
        return "# settings\n" + "".join(f"{name} = {value}\n" for name, value in values.items())

    before = {**files, path: written(settings)}
    return Chore(
        f"In {path}, set {key} to {new}.",
        before,
        {**before, path: written({**settings, key: new})},
        f"sed -i 's/^{key} = .*/{key} = {new}/' {shlex.quote(path)}",
    )


def replace_word(rng: random.Random, files: Files) -> Chore:
    path = rng.choice(text_files(files))
    old, new = rng.choice(files[path].split()), f"{rng.choice(WORDS)}{rng.randint(10, 99)}"
    lines = [" ".join(new if word == old else word for word in line.split(" ")) for line in files[path].split("\n")]
    return Chore(
        f"In {path}, replace the word {old} by {new} wherever it stands.",
        files,
        {**files, path: "\n".join(lines)},
        f"sed -i 's/\\b{old}\\b/{new}/g' {shlex.quote(path)}",
    )


def sort_lines(rng: random.Random, files: Files) -> Chore:
    path = rng.choice(text_files(files))
    lines = files[path].splitlines()
    before = {**files, path: "".join(f"{line}\n" for line in [*lines, *rng.sample(lines, len(lines) // 2)])}
    return Chore(
        f"Write the lines of {path} to sorted.txt, in alphabetical order and each different line once.",
        before,
        {**before, "sorted.txt": "".join(f"{line}\n" for line in sorted(set(lines)))},
        f"LC_ALL=C sort -u {shlex.quote(path)} > sorted.txt",
    )


def add_up(rng: random.Random, files: Files) -> Chore:
    path = f"{rng.choice(folders(files))}/{rng.choice(WORDS)}.csv"
    rows = [(rng.choice(WORDS), rng.randint(1, 50), rng.randint(1, 500)) for _ in range(rng.randint(4, 12))]
    column = rng.choice((1, 2))
    total = sum(count if column == 1 else price for _, count, price in rows)
    table = "item,count,price\n" + "".join(f"{item},{count},{price}\n" for item, count, price in rows)
    before = {**files, path: table}
    return Chore(
        f"Add up the column {('count', 'price')[column - 1]} of {path} and write the sum to {ANSWER}.",
        before,
        {**before, ANSWER: f"{total}\n"},
        f"awk -F, 'NR > 1 {{ sum += ${column + 1} }} END {{ print sum }}' {shlex.quote(path)} > {ANSWER}",
    )


def join_parts(rng: random.Random, files: Files) -> Chore:
    folder = rng.choice(folders(files))
    parts = {f"{folder}/part{n}": f"{n} {' '.join(rng.choices(WORDS, k=3))}\n" for n in range(1, rng.randint(3, 12))}
    before = {**files, **parts}
    return Chore(
        f"Join the files part1, part2 and so on in {folder}, in the order of their numbers, into whole.txt.",
        before,
        {**before, "whole.txt": "".join(parts.values())},
        f"(cd {shlex.quote(folder)} && ls part* | sort -V | xargs cat) > whole.txt",
    )


def _free_name(rng: random.Random, files: Files, ending: str) -> str:
    used = {path.rpartition("/")[2] for path in files}
    return rng.choice([name for name in (f"{word}.{ending}" for word in WORDS) if name not in used])


CHORES: tuple[Callable[[random.Random, Files], Chore], ...] = (
    count_lines,
    count_files,
    find_word,
    move,
    rename_all,
    delete_some,
    edit_setting,
    replace_word,
    sort_lines,
    add_up,
    join_parts,
)
