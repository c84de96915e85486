"""The gateway benchmark at tiny scale: it measures what it says, and fails when a target is missed."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path

import pytest

from agentrl.assets import EMBEDDED, resolve_model
from agentrl.engine.client import HttpEngineClient
from agentrl.gateway.render import Renderer
from agentrl.types import Sampling, TokenChunk, VersionSpan
from bench.gateway.answers import Answers
from bench.gateway.mock_engine import EngineProtocol
from bench.gateway.prefix_cache import possible_hits
from bench.gateway.processes import ROOT
from bench.gateway.quantile import quantile
from bench.gateway.results import Results, SessionLoad, missed
from bench.gateway.sessions import Load, run_sessions
from bench.gateway.workload import Sizes, Workload

SIZES = Sizes(prompt_tokens=300, answer_tokens=32, turns=3)


@asynccontextmanager
async def mock_engine(answers: Answers) -> AsyncIterator[HttpEngineClient]:
    server = await asyncio.get_running_loop().create_server(
        lambda: EngineProtocol(answers, latency_s=0.0, separate_writes=False), "127.0.0.1", 0
    )
    client = HttpEngineClient(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    try:
        yield client
    finally:
        await client.close()
        server.close()


@pytest.mark.parametrize(("stream_interval", "pieces"), [(1, 32), (8, 5), (0, 1)])
async def test_the_mock_engine_streams_one_and_the_same_answer_in_pieces_of_any_size(
    stream_interval: int, pieces: int
) -> None:
    workload, chunks = Workload(SIZES), list[TokenChunk]()
    answers = Answers(workload, stream_interval)
    assert answers.stream(stream_interval).count(b'"token_ids":[') == pieces
    async with mock_engine(answers) as client:
        async for chunk in client.stream(workload.prompt_ids(0, 0), Sampling(max_tokens=32), request_id="r"):
            chunks.append(chunk)
    assert [token_id for chunk in chunks for token_id in chunk.token_ids] == workload.answer_ids
    assert sum(len(chunk.logprobs or []) for chunk in chunks) == 32
    assert (chunks[-1].finish_reason, chunks[-1].versions) == ("stop", [VersionSpan(0, 0, 32)])


def test_the_prompt_ids_that_peers_are_told_are_those_that_agentrl_renders() -> None:
    workload, renderer = Workload(SIZES), Renderer.load(resolve_model(EMBEDDED))
    first = renderer.first(json.loads(workload.body(7, 0))["messages"], None)
    assert workload.prompt_ids(7, 0) == first
    assert renderer.text(workload.answer_ids) == workload.answer


def test_prompts_have_the_promised_size_on_average_and_extend_each_other() -> None:
    workload = Workload(Sizes(prompt_tokens=2000, answer_tokens=200, turns=4))
    prompts = [workload.prompt_ids(3, turn) for turn in range(4)]
    assert sum(map(len, prompts)) / 4 == pytest.approx(2000, rel=0.05)
    for earlier, later in pairwise(prompts):
        held = earlier + workload.answer_ids
        assert later[: len(held)] == held


def test_a_share_of_values_does_not_exceed_its_quantile() -> None:
    values = [float(value) for value in range(100, 0, -1)]
    assert [quantile(values, share) for share in (0.5, 0.99, 1.0)] == [50.0, 99.0, 100.0]
    assert quantile([7.0], 0.99) == 7.0


def test_whole_blocks_of_the_turn_before_can_be_hit_but_not_its_last_token() -> None:
    # 100 + 21 - 1 = 120 tokens are 7 blocks of 16, 160 + 33 - 1 = 192 are 12; nothing comes after the third turn
    assert possible_hits([(100, 21), (160, 33), (230, 5)], block_size=16) == 7 * 16 + 12 * 16


def load(**changes: float) -> SessionLoad:
    numbers = dict.fromkeys(SessionLoad.__struct_fields__, 1.0)
    return SessionLoad(**(numbers | {"errors": 0, "loop_lag_p99_ms": 99.0} | changes))  # type: ignore[arg-type]


def test_results_that_meet_every_target_miss_none() -> None:
    results = Results(
        requests_per_s_32={"none": 9000, "agentrl": 1600, "rllm": 200, "openenv": 320},
        p50_ms_1={"none": 0.1, "agentrl": 2.0, "rllm": 3, "openenv": 2},
        vllm_tokens_ratio=0.95,
        prefix_hit_ratio=0.95,
        sessions=load(),
    )
    assert missed(results) == []


@pytest.mark.parametrize(
    ("results", "sentence"),
    [
        (Results(requests_per_s_32={"agentrl": 799, "rllm": 100}), "8.0 times rllm's 100; the target is 8 times"),
        (Results(requests_per_s_32={"agentrl": 450, "openenv": 100}), "4.5 times openenv's 100; the target is 5"),
        (Results(p50_ms_1={"agentrl": 2.5, "none": 0.5}), "agentrl adds 2.00 ms at 1 client"),
        (Results(vllm_tokens_ratio=0.94), "0.940; the target is 0.95"),
        (Results(prefix_hit_ratio=0.5), "prefix-cache hits over the possible ones: 0.500"),
        (Results(sessions=load(errors=2)), "2 of 1.0 concurrent sessions failed"),
        (Results(sessions=load(loop_lag_p99_ms=100.0)), "lags 100 ms (p99)"),
    ],
)
def test_a_missed_target_is_one_sentence_with_its_numbers(results: Results, sentence: str) -> None:
    [found] = missed(results)
    assert sentence in found


def test_a_quick_run_measures_agentrl_beside_no_gateway_and_writes_its_results(tmp_path: Path) -> None:
    out = tmp_path / "gateway.json"
    command = [sys.executable, "-m", "bench.gateway", "--quick", "--skip-sessions", "--out", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    results = json.loads(out.read_text())
    assert set(results["requests_per_s_32"]) == set(results["p50_ms_1"]) == {"none", "agentrl"}
    assert min(*results["requests_per_s_32"].values(), *results["p50_ms_1"].values()) > 0
    assert results["prompt_tokens"]["agentrl"] == pytest.approx(300, rel=0.1)
    assert "agentrl (2 workers) 0.1.0" in done.stdout


def test_many_sessions_at_once_all_get_their_answers(tmp_path: Path) -> None:
    size = Load(sessions=64, turns=3, latency_ms=30, prompt_tokens=200, answer_tokens=16)
    result = run_sessions(size, tmp_path)
    assert (result.errors, result.requests) == (0, 64 * 3)
    assert result.rss_peak_mib >= result.rss_start_mib > 0
    assert result.loop_lag_max_ms >= result.loop_lag_p99_ms >= result.loop_lag_p50_ms
