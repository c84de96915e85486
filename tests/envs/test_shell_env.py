"""`agentrl/Shell-v0`: the final files decide, and nothing else."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator

import pytest

import agentrl
from agentrl.env import registry
from agentrl.errors import SandboxUnavailable
from agentrl.sandbox import default_sandbox
from agentrl_envs.shell.chores import CHORES
from agentrl_envs.shell.env import Shell
from agentrl_envs.shell.files import draw_files
from agentrl_envs.shell.tasks import given_problem, is_done, problem, split_of

MINE = {
    "instruction": "Write b to b.",
    "files": {"a": "a\n", "d/c": "c\n"},
    "expected": {"a": "a\n", "d/c": "c\n", "b": "b\n"},
}


@pytest.fixture(scope="module")
def env() -> Iterator[Shell]:
    try:
        made = Shell(default_sandbox())
    except SandboxUnavailable as error:
        pytest.skip(str(error))
    yield made
    made.close()


def run(command: str) -> agentrl.Message:
    function = {"name": "run", "arguments": json.dumps({"command": command})}
    return agentrl.assistant(None, tool_calls=[{"id": "call", "type": "function", "function": function}])


def after(env: Shell, *commands: str) -> float:
    """The score of one's own task after these commands."""
    env.reset(seed=1, options=MINE)
    for command in commands:
        env.step(run(command))
    _, reward, terminated, _, _ = env.step("Done.")
    assert terminated
    assert reward is not None
    return reward


@pytest.mark.parametrize("split", ["train", "eval"])
def test_the_reference_solves_fifty_tasks_and_an_empty_answer_none(env: Shell, split: str) -> None:
    for task in registry.tasks("agentrl/Shell-v0", split=split, seed=3, count=50):
        options = {"split": split}
        messages, _ = env.reset(seed=task.seed, options=options)
        assert env.step("")[1] == 0.0, env.asked.instruction
        messages, _ = env.reset(seed=task.seed, options=options)
        call = env.reference(messages)
        observation, _, terminated, _, _ = env.step(call)
        assert not terminated
        assert env.step(env.reference([*messages, call, *observation]))[1] == 1.0, env.asked


@pytest.mark.parametrize("chore", CHORES, ids=lambda chore: chore.__name__)
def test_each_kind_of_chore_changes_something_and_its_command_does_it(env: Shell, chore: object) -> None:
    rng = random.Random(11)
    drawn = next(made for made in (chore(rng, draw_files(rng)) for _ in range(100)) if made.before != made.after)  # type: ignore[operator]
    options = {
        "instruction": drawn.instruction,
        "files": dict(drawn.before),
        "expected": dict(drawn.after),
        "solution": drawn.solution,
    }
    messages, _ = env.reset(seed=1, options=options)
    assert drawn.instruction in messages[0].text
    (answer,), *_ = env.step(env.reference(messages))
    assert env.step("Done.")[1] == 1.0, answer


def test_the_right_files_are_full_marks(env: Shell) -> None:
    assert after(env, "echo b > b") == 1.0
    assert after(env, "printf b > b") == 1.0


@pytest.mark.parametrize(
    "commands",
    [
        (),
        ("echo c > b",),
        ("echo b > b", "touch extra"),
        ("echo b > b", "rm d/c"),
        ("echo b > b", "printf a > a"),
        ("echo b > x; ln -s x b; rm -f x",),
        ("mkdir b",),
        ("echo b > /tmp/b",),
        ("mkfifo b",),
        ("echo b > b", "sleep 60 & rm -rf .[!.]* *; kill -9 $$"),
    ],
)
def test_anything_else_is_nothing(env: Shell, commands: tuple[str, ...]) -> None:
    assert after(env, *commands) == 0.0


def test_the_folder_lasts_from_command_to_command(env: Shell) -> None:
    env.reset(seed=1, options=MINE)
    env.step(run("cd d && echo new > e"))
    (message,), *_ = env.step(run("pwd; cat d/e"))
    assert message.text == "/sandbox\nnew"


def test_a_failing_command_is_told_in_words(env: Shell) -> None:
    env.reset(seed=1, options=MINE)
    (message,), reward, terminated, *_ = env.step(run("cat missing"))
    assert message.text == "cat: missing: No such file or directory\n(it ended with exit code 1)"
    assert (reward, terminated) == (0.0, False)


def test_a_seed_is_the_same_task_everywhere_and_no_instruction_is_in_both_splits() -> None:
    assert problem(5, "train") == problem(5, "train")
    for split in ("train", "eval"):
        for seed in range(50):
            assert split_of(problem(seed, split)) == split  # type: ignore[arg-type]


def test_the_tasks_of_a_pass_differ() -> None:
    tasks = list(registry.tasks("agentrl/Shell-v0", split="train", seed=1, count=300))
    assert len({problem(task.seed).instruction for task in tasks}) == 300  # type: ignore[arg-type]


def test_an_unknown_split_and_an_incomplete_task_are_refused() -> None:
    with pytest.raises(ValueError, match="no split 'test'"):
        problem(1, "test")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="expected is not"):
        given_problem({"instruction": "x", "files": {}})


def test_only_a_new_file_may_differ_in_its_last_line_break() -> None:
    chore = given_problem(MINE)
    assert chore is not None
    right = {"a": b"a\n", "d/c": b"c\n", "b": b"b"}
    assert is_done(chore, right)
    assert not is_done(chore, {**right, "a": b"a"})
    assert not is_done(chore, {**right, "b": b"b \n"})
