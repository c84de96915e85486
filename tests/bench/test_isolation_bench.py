"""The isolation benchmark at tiny scale: it measures what it says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from bench.gateway.processes import ROOT


def test_it_measures_both_kinds_of_isolation_with_a_spinner_and_without(tmp_path: Path) -> None:
    out = tmp_path / "isolation.json"
    command = [sys.executable, "-m", "bench.isolation", "--rounds", "1", "--others", "3", "--limit-s", "0.5"]
    done = subprocess.run(
        [*command, "--think-s", "0.01", "--out", str(out)], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    results = json.loads(out.read_bytes())["results"]
    assert [(r["isolation"], r["environment"], r["spinner"]) for r in results] == [
        (isolation, environment, spinner)
        for isolation in ("thread", "process")
        for environment in ("plain", "async")
        for spinner in (False, True)
    ]
    for result in results:
        assert result["stop_reasons"] == (["env_timeout"] if result["spinner"] else [])
        assert all(0.5 <= ended < 2.5 for ended in result["ended_after_s"])  # its limit and 2 s
        assert 0 < result["p50_ms"] <= result["p99_ms"] <= result["max_ms"]
    assert "p99 ms" in done.stdout
