"""The math service against pairs whose equality is plain."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator

import httpx
import psutil
import pytest
import pytest_asyncio

from agentrl.reward.protocol import Item, Score
from agentrl_rewards.math import service as math_service
from agentrl_rewards.math.service import MathVerify

PAIRS = [
    ("12", "The answer is 12", 1.0),
    ("1/2", r"so it is $\frac{1}{2}$", 1.0),
    ("1/2", "0.5", 1.0),
    (r"\frac{1}{2}", "0.5", 1.0),
    (r"\sqrt{2}", "$2^{1/2}$", 1.0),
    ("x+1", "$1+x$", 1.0),
    ("1,234", "1234", 1.0),
    (12, r"\boxed{12}", 1.0),
    ("12", "21", 0.0),
    ("12", "", 0.0),
    ("12", "I cannot say", 0.0),
    ("(1,2)", "$(1,3)$", 0.0),
]


@pytest_asyncio.fixture
async def service() -> AsyncIterator[MathVerify]:
    made = MathVerify(workers=1)
    yield made
    await made.close()


async def test_equal_values_are_equal_however_they_are_written(service: MathVerify) -> None:
    items = [
        Item(id=str(index), text=text, task={"options": {"answer": label}})
        for index, (label, text, _) in enumerate(PAIRS)
    ]
    found = {score.id: score for score in await service.score(items)}
    assert [found[str(index)].error for index in range(len(PAIRS))] == [None] * len(PAIRS)
    assert [found[str(index)].reward for index in range(len(PAIRS))] == [reward for _, _, reward in PAIRS]


async def test_a_label_that_is_no_mathematics_leaves_its_item_alone_unscored(service: MathVerify) -> None:
    items = [
        Item(id="a", text="1", task={"options": {"answer": "???"}}),
        Item(id="b", text="1", task={"options": {}}),
        Item(id="c", text="1", task={"options": {"answer": "1"}}),
    ]
    found = {score.id: score for score in await service.score(items)}
    assert found["a"] == Score(
        id="a", error="the task's answer '???' cannot be read as mathematics; write it as LaTeX or a number"
    )
    assert found["b"].error == "the task has no option 'answer' (it has none); put the right answer there"
    assert found["c"].reward == 1.0


def deadly(label: str, text: str, timeout_s: int) -> float:
    """In place of the judging, in the worker: "die" ends its process."""
    if text == "die":
        os._exit(3)
    return 1.0


async def test_an_item_that_ends_processes_costs_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(math_service, "_judge", deadly)
    service = MathVerify(workers=1)
    items = [
        Item(id=str(index), text=text, task={"options": {"answer": "1"}})
        for index, text in enumerate(["1", "die", "2"])
    ]
    found = {score.id: score for score in await service.score(items)}
    assert [found[str(index)].reward for index in range(3)] == [1.0, None, 1.0]
    assert found["1"].error == "the process that worked it out died of it"
    assert (await service.score(items[:1]))[0].reward == 1.0
    await service.close()


def test_the_workers_of_a_service_that_is_killed_end_with_it() -> None:
    command = [sys.executable, "-u", "-m", "agentrl.cli.main", "reward", "serve", "math", "--option", "workers=1"]
    service = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert service.stdout is not None
        url = service.stdout.readline().split()[4]
        asked = {"items": [{"id": "a", "text": "1", "task": {"options": {"answer": "1"}}}]}
        answer = httpx.post(f"{url}/score", json=asked, timeout=60, trust_env=False).json()
        assert answer["results"][0]["reward"] == 1.0
        started = psutil.Process(service.pid).children(recursive=True)
        assert started, "a worker is there"
    finally:
        service.kill()
        service.communicate()
    _, alive = psutil.wait_procs(started, timeout=30)
    assert alive == []
