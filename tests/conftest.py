"""Shared by all tests: helper modules beside a test can be imported by their name."""

from __future__ import annotations

import sys
from pathlib import Path

import hypothesis
import pytest

for folder in sorted(Path(__file__).parent.iterdir()):
    if folder.is_dir():
        sys.path.insert(0, str(folder))

# The two cores are shared by several servers in some tests: how long an example takes says nothing about the code.
hypothesis.settings.register_profile("agentrl", deadline=None)
hypothesis.settings.load_profile("agentrl")


ALONE = ("tests/run", "tests/sandbox", "tests/rollout/test_rollout_isolation")
"""Tests that count processes of the whole machine, or time what others slow down, are no company for one another."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Side by side, tests of the real stack and those in `ALONE` share one process: there is one engine a session.

    A file of tests on trainer ranks, which share what one start of the ranks found, stays in one process too.
    """
    for item in items:
        if item.get_closest_marker("stack") or item.nodeid.startswith(ALONE):
            item.add_marker(pytest.mark.xdist_group("alone"))
        elif item.get_closest_marker("ranks"):
            item.add_marker(pytest.mark.xdist_group(item.path.stem))


def pytest_collection_finish(session: pytest.Session) -> None:
    """pytest 9.2 and pytest-xdist 3.8 lose the groups without a word, and tests disturb each other now and then."""
    if not session.config.getoption("loadgroup", False):
        return
    lost = [item.nodeid for item in session.items if item.get_closest_marker("xdist_group") and "@" not in item.nodeid]
    if lost:
        raise pytest.UsageError(f"pytest-xdist does not keep {lost[0]} in its group: install what the lock names")
