"""Each adapter against the real package: the tests of `test_package_*.py`, in an environment that has it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from adapter_venvs import REPOSITORY, adapter_python

TESTS = {
    "games": ["reasoning_gym", "textarena"],
    "nemo": ["nemo_gym"],
    "openenv": ["openenv"],
    "trainers": ["skyrl", "trl", "trl_objective"],
    "verifiers": ["verifiers"],
}
LARGE = {"nemo"}
"""Installed in `make test-all` only: 200 MB for a protocol of one request."""
AT_ONCE = 2  # they are processes of their own, and mostly imports


@pytest.fixture(scope="module")
def running(request: pytest.FixtureRequest) -> Iterator[dict[str, Future[subprocess.CompletedProcess[str]]]]:
    """All that were selected, started side by side."""
    selected = [item.callspec.params["name"] for item in request.session.items if item.path == request.path]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        yield {name: pool.submit(run_tests, name) for name in selected}


def run_tests(name: str) -> subprocess.CompletedProcess[str]:
    python = adapter_python(name)
    files = [f"tests/adapters/test_package_{module}.py" for module in TESTS[name]]
    return subprocess.run(
        [str(python), "-m", "pytest", "--tb=short", "-rs", *files],
        cwd=REPOSITORY,
        env={**os.environ, "AGENTRL_ADAPTER_VENV": name},
        capture_output=True,
        text=True,
        timeout=240,
    )


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in LARGE else name for name in TESTS]
)
def test_adapters_keep_their_promises_with_the_real_packages(
    name: str, running: dict[str, Future[subprocess.CompletedProcess[str]]]
) -> None:
    done = running[name].result()
    assert done.returncode == 0, done.stdout + done.stderr
    assert "skipped" not in done.stdout, done.stdout
