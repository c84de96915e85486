"""Workers that die come back with their sessions while the others go on; none outlives its supervisor."""

from __future__ import annotations

import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from test_gateway_serve_command import END, line_with, start
from worker_gateway import (
    ADMIN,
    TIMEOUT_S,
    WorkerGateway,
    ask,
    free_port,
    gateway_of,
    key_of,
    until,
    worker_of,
)

from agentrl.audit.finding import Subject
from agentrl.audit.identity import IDENTITY
from agentrl.audit.once import ONCE
from agentrl.engine.scripted import ScriptedEngine
from agentrl.store.sql import SqlStore

pytestmark = pytest.mark.slow

QUESTION = [{"role": "user", "content": "q"}]


def further(messages: list[dict[str, Any]], answer: httpx.Response) -> list[dict[str, Any]]:
    assert answer.status_code == 200, answer.text
    return [*messages, answer.json()["choices"][0]["message"], {"role": "user", "content": "and?"}]


def healthy(gateway: WorkerGateway) -> bool:
    try:
        return gateway.http.get("/health").status_code == 200
    except httpx.TransportError:  # the worker at the public port is the one that was killed
        return False


@pytest.mark.parametrize("index", [0, 1])
def test_a_killed_worker_comes_back_with_its_episode_and_the_others_go_on(tmp_path: Path, index: int) -> None:
    """Every call of both episodes is there, each extending the one before; keys, URLs and engines are the same."""
    store = tmp_path / "trajectories.db"
    with (
        ScriptedEngine(lambda prompt_ids, sampling, version: [70, 71, END]) as engine,
        ScriptedEngine(lambda prompt_ids, sampling, version: [70, 71, END]) as later,
        gateway_of(engine.url, store=store) as gateway,
    ):
        sessions = list(gateway.open_at_each(metadata={"group_id": "g"}).values())
        assert gateway.http.post("/engines", json={"url": later.url, "id": "later"}).status_code == 201
        assert gateway.http.put("/engines/engine-0", json={"routable": False}).status_code == 200
        talks = [further(QUESTION, ask(session["base_url"], session, QUESTION)) for session in sessions]
        survivor = sessions[1 - index]
        gateway.worker_at(worker_of(sessions[index])).kill()
        talks[1 - index] = further(talks[1 - index], ask(survivor["base_url"], survivor, talks[1 - index]))
        until(lambda: healthy(gateway))
        for number, session in enumerate(sessions):
            while len(talks[number]) < 7:
                talks[number] = further(talks[number], ask(session["base_url"], session, talks[number]))
            done = gateway.http.post(f"/sessions/{session['session_id']}/finish", json={"stop_reason": "done"}).json()
            assert (done["calls"], done["rows"], done["trained_tokens"], done["dropped"]) == (3, 1, 9, {})
        listed = gateway.http.get("/engines").json()["engines"]
        assert [(e["id"], e["routable"]) for e in listed] == [("engine-0", False), ("later", True)]
    for session in sessions:
        trajectory = SqlStore.at(store, create=False).get(session["session_id"])
        assert [call.token_ids for call in trajectory.calls] == [[70, 71, END]] * 3
        assert [call.parent for call in trajectory.calls] == [None, 0, 1]
        for check in (IDENTITY, ONCE):
            assert check.examine(Subject(trajectory)).findings == []
    assert list(SqlStore.at(store, create=False).journal("gateway")) == []


def test_a_call_for_a_worker_that_is_down_is_refused_in_its_dialects_words(tmp_path: Path) -> None:
    with (
        ScriptedEngine(lambda prompt_ids, sampling, version: [70, END]) as engine,
        gateway_of(engine.url, store=tmp_path / "t.db") as gateway,
    ):
        other = list(gateway.open_at_each().values())[1]
        engine.hold()
        body = {"messages": QUESTION, "max_tokens": 4}
        with (
            httpx.Client(base_url=gateway.url, headers=key_of(other), timeout=TIMEOUT_S, trust_env=False) as agent,
            ThreadPoolExecutor(2) as calls,
        ):
            chat = calls.submit(agent.post, "/v1/chat/completions", json=body)
            messages = calls.submit(agent.post, "/v1/messages", json=body)
            until(lambda: len(engine.requests) == 2)
            gateway.worker_at(worker_of(other)).kill()
            refused = chat.result(), messages.result()
        assert [answer.status_code for answer in refused] == [503, 503]
        assert all(int(answer.headers["retry-after"]) >= 1 for answer in refused)
        assert refused[0].json()["error"]["code"] == "worker_down"
        assert refused[1].json()["error"]["details"]["error_code"] == "worker_down"
        engine.release()
        until(lambda: healthy(gateway))


@pytest.mark.parametrize(("first", "then"), [(2, 3), (3, 1), (1, 2)])
def test_another_number_of_workers_goes_on_with_the_sessions(tmp_path: Path, first: int, then: int) -> None:
    store, port = tmp_path / "trajectories.db", free_port()
    url, more = f"http://127.0.0.1:{port}", ["--port", str(port)]
    with ScriptedEngine(lambda prompt_ids, sampling, version: [70, END]) as engine:
        with gateway_of(engine.url, workers=first, store=store, more=more) as gateway:
            sessions = [gateway.open() for _ in range(3)]
            talks = [further(QUESTION, ask(f"{url}/v1", session, QUESTION)) for session in sessions]
            gateway.process.kill()  # a stop in order would finish them as abandoned
            gateway.process.wait(TIMEOUT_S)
        with gateway_of(engine.url, workers=then, store=store, more=more) as gateway:
            for session, talk in zip(sessions, talks, strict=True):
                further(talk, ask(f"{url}/v1", session, talk))
                done = gateway.http.post(f"/sessions/{session['session_id']}/finish", json={}).json()
                assert (done["calls"], done["rows"], done["trained_tokens"]) == (2, 1, 4)
    assert SqlStore.at(store, create=False).count() == 3


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_all_in_order_and_saves_what_is_open(tmp_path: Path, number: signal.Signals) -> None:
    store = tmp_path / "trajectories.db"
    with (
        ScriptedEngine(lambda prompt_ids, sampling, version: [70, END]) as engine,
        gateway_of(engine.url, store=store) as gateway,
    ):
        for session in gateway.open_at_each().values():
            further(QUESTION, ask(session["base_url"], session, QUESTION))
        workers = gateway.workers()
        gateway.process.send_signal(number)
        assert gateway.process.wait(TIMEOUT_S) == 0
        assert not any(worker.is_running() for worker in workers)
    found = SqlStore.at(store, create=False)
    assert [trajectory.stop_reason for trajectory in found.iterate()] == ["abandoned", "abandoned"]


@pytest.mark.parametrize("stopped", [False, True])
def test_no_worker_outlives_a_supervisor_that_is_killed(stopped: bool) -> None:
    """Not even one that is stopped, and so could not notice."""
    with gateway_of("http://127.0.0.1:9") as gateway:
        workers = gateway.workers()
        if stopped:
            workers[1].suspend()
        gateway.process.kill()
        _, left = psutil.wait_procs(workers, timeout=TIMEOUT_S)
        assert left == []


def refusal(*arguments: str) -> str:
    process: subprocess.Popen[str] = start(*arguments, admin_key=ADMIN)
    try:
        _, err = process.communicate(timeout=TIMEOUT_S)
    finally:
        process.kill()
    assert process.returncode == 1
    return err


def test_what_a_worker_cannot_start_for_is_what_the_command_says(tmp_path: Path) -> None:
    missing = refusal("--engine-url", "http://127.0.0.1:9", "--workers", "2", "--parser", "auto", "--store", "nonsense")
    assert "store URL 'nonsense' is not a SQLAlchemy URL" in missing


def test_a_worker_that_always_dies_ends_the_gateway() -> None:
    process = start("--engine-url", "http://127.0.0.1:9", "--workers", "2", admin_key=ADMIN)
    try:
        line_with(process, r"(gateway at )")
        until(lambda: process.poll() is not None or kill_workers(process))
        _, err = process.communicate(timeout=TIMEOUT_S)
    finally:
        process.kill()
    assert process.returncode != 0
    assert "of the gateway died 6 times in 120 s" in err


def kill_workers(process: subprocess.Popen[str]) -> bool:
    for worker in psutil.Process(process.pid).children():
        worker.kill()
    return False
