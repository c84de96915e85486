"""`env check` finds each planted fault at its line, and nothing else; and nothing in what comes with agentrl."""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from agentrl.env import registry
from agentrl.env.check.report import Report
from agentrl.env.check.runner import record

PLANTED = Path(__file__).parent / "planted"
FILES = {file.stem: f"{file}:Planted" for file in sorted(PLANTED.glob("*.py"))}
LIMIT_S = 5.0  # of a call; a hang costs a test this long


def expected(env_id: str) -> set[tuple[str, int]]:
    """From the comments `# finds: CODE …`."""
    found = set()
    for line, text in enumerate(Path(env_id.partition(":")[0]).read_text().splitlines(), start=1):
        marked = re.search(r"# finds: (.+)$", text)
        if marked:
            found |= {(code, line) for code in marked[1].split()}
    return found


def check(env_id: str) -> Report:
    return Report.of(record(env_id, tasks=2, timeout_s=LIMIT_S))


@pytest.fixture(scope="module")
def reports(request: pytest.FixtureRequest) -> Iterator[dict[str, Future[Report]]]:
    """Of every environment that is tested, two at a time: most of a check is waiting for its processes."""
    here = [item for item in request.session.items if item.path == request.path]
    wanted = [item.callspec.params["env_id"] for item in here if hasattr(item, "callspec")]
    with ThreadPoolExecutor(2) as pool:
        yield {env_id: pool.submit(check, env_id) for env_id in wanted}


@pytest.mark.parametrize("env_id", FILES.values(), ids=FILES)
def test_each_planted_fault_is_found_at_its_line_and_nothing_else(
    env_id: str, reports: dict[str, Future[Report]]
) -> None:
    report = reports[env_id].result(timeout=250)
    said = "\n".join(f"{finding.code} {finding.place}: {finding.message}" for finding in report.findings)
    found = {(finding.code, finding.place.line if finding.place else 0) for finding in report.findings}
    assert found == expected(env_id), said
    assert {finding.place.file for finding in report.findings if finding.place} <= {env_id.partition(":")[0]}, said


def test_at_least_twelve_faults_are_planted() -> None:
    assert len([env_id for env_id in FILES.values() if expected(env_id)]) >= 12


@pytest.mark.parametrize("env_id", [env_id for env_id in registry.known() if env_id.startswith("agentrl/")])
def test_nothing_is_found_in_an_environment_that_comes_with_agentrl(
    env_id: str, reports: dict[str, Future[Report]]
) -> None:
    report = reports[env_id].result(timeout=250)
    assert report.findings == []
    assert report.reference
    assert report.steps > 0
