"""A gateway of two worker processes is, at its public port, what a gateway of one process is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest
from test_gateway_serve_command import END
from worker_gateway import ADMIN, TIMEOUT_S, WorkerGateway, ask, free_port, gateway_of, key_of, until, worker_of

from agentrl.engine.scripted import ScriptedEngine
from agentrl.store.sql import SqlStore

QUESTION = [{"role": "user", "content": "q"}]


@pytest.fixture(scope="module")
def engine() -> Iterator[ScriptedEngine]:
    with ScriptedEngine(lambda prompt_ids, sampling, version: [70, 71, END]) as engine:
        yield engine


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("workers") / "trajectories.db"


@pytest.fixture(scope="module")
def gateway(engine: ScriptedEngine, store: Path) -> Iterator[WorkerGateway]:
    with gateway_of(engine.url, store=store) as gateway:
        yield gateway


def test_sessions_go_to_the_workers_in_turn_and_their_urls_lead_there(gateway: WorkerGateway) -> None:
    urls = [worker_of(gateway.open()) for _ in range(6)]
    assert [urls.count(url) for url in dict.fromkeys(urls)] == [3, 3]
    assert gateway.url in urls


@pytest.mark.parametrize("through", ["its own worker", "the public port"])
def test_an_openai_episode_is_recorded_exactly(gateway: WorkerGateway, store: Path, through: str) -> None:
    for worker, session in gateway.open_at_each(metadata={"group_id": "g"}).items():
        base = worker if through == "its own worker" else gateway.url
        url = f"{base}/sessions/{session['session_id']}/v1"
        agent = openai.OpenAI(base_url=url, api_key=session["api_key"], max_retries=0)
        messages: list[Any] = list(QUESTION)
        for _ in range(2):
            answer = agent.chat.completions.create(model="policy", messages=messages)
            messages += [answer.choices[0].message.to_dict(), {"role": "user", "content": "and?"}]
        with agent.chat.completions.create(model="policy", messages=messages, stream=True) as stream:
            text = "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
        assert text == answer.choices[0].message.content
        done = gateway.http.post(f"/sessions/{session['session_id']}/finish", json={"stop_reason": "done"}).json()
        assert (done["calls"], done["rows"], done["trained_tokens"], done["dropped"]) == (3, 1, 9, {})
        trajectory = SqlStore.at(store, create=False).get(session["session_id"])
        assert [call.parent for call in trajectory.calls] == [None, 0, 1]
        assert gateway.http.get(f"/sessions/{session['session_id']}/trajectory").json()["rows"][0]["token_ids"] == (
            trajectory.rows[0].token_ids
        )


def test_an_anthropic_stream_is_forwarded_by_its_key_alone(gateway: WorkerGateway) -> None:
    for session in gateway.open_at_each().values():
        agent = anthropic.Anthropic(base_url=gateway.url, api_key=session["api_key"], max_retries=0)
        with agent.messages.stream(model="policy", max_tokens=8, messages=QUESTION) as stream:  # type: ignore[arg-type]
            assert stream.get_final_message().stop_reason == "end_turn"


def test_the_admin_names_a_session_by_header_at_any_worker(gateway: WorkerGateway) -> None:
    sessions = gateway.open_at_each()
    for worker in sessions:
        for session in sessions.values():
            headers = {"Authorization": f"Bearer {ADMIN}", "X-Session-ID": session["session_id"]}
            answer = httpx.post(
                f"{worker}/v1/chat/completions", json={"messages": QUESTION}, headers=headers, trust_env=False
            )
            assert answer.status_code == 200, answer.text


def test_a_key_opens_no_session_of_another_worker(gateway: WorkerGateway) -> None:
    """The refusal is the one that a gateway of one process gives, whichever worker is asked."""
    own, other = gateway.open_at_each().values()
    for worker in (worker_of(own), worker_of(other)):
        for path in ("v1/chat/completions", "reward"):
            url = f"{worker}/sessions/{other['session_id']}/{path}"
            answer = httpx.post(
                url, json={"messages": QUESTION, "reward": 1.0}, headers=key_of(own), timeout=TIMEOUT_S, trust_env=False
            )
            assert (answer.status_code, answer.json()["error"]["code"]) == (403, "wrong_session")
        for path in ("finish", "trajectory"):
            method = "POST" if path == "finish" else "GET"
            url = f"{worker}/sessions/{other['session_id']}/{path}"
            answer = httpx.request(method, url, headers=key_of(own), timeout=TIMEOUT_S, trust_env=False)
            assert (answer.status_code, answer.json()["error"]["code"]) == (403, "admin_only")
    assert gateway.http.get(f"/sessions/{other['session_id']}/trajectory").json()["calls"] == []


@pytest.mark.parametrize("place", ["00000000", "00000001", "ffffffff"])
def test_a_key_that_nobody_gave_out_is_unknown_wherever_it_points(gateway: WorkerGateway, place: str) -> None:
    headers = {"Authorization": f"Bearer sk-agentrl-{place}-{'A' * 43}"}
    answer = httpx.post(
        f"{gateway.url}/v1/messages", json={"messages": QUESTION}, headers=headers, timeout=TIMEOUT_S, trust_env=False
    )
    assert (answer.status_code, answer.json()["error"]["type"]) == (401, "authentication_error")


def test_the_header_of_workers_opens_nothing_without_their_key(gateway: WorkerGateway) -> None:
    for key in ("", "guess", ADMIN):
        answer = gateway.http.get("/internal/engines?epoch=0", headers={"x-agentrl-worker": key})
        assert answer.status_code == 404


def test_no_key_is_in_a_workers_command_line_or_environment(gateway: WorkerGateway) -> None:
    for worker in gateway.workers():
        said = " ".join([*worker.cmdline(), *worker.environ().values()])
        assert ADMIN not in said
        assert worker.cmdline()[-2].isdigit()  # files that it inherits, and nothing else of its assignment
        assert worker.cmdline()[-1].isdigit()


def test_a_session_id_is_given_once_by_all_workers(gateway: WorkerGateway) -> None:
    first = gateway.open(session_id="mine")
    other = next(url for url in gateway.open_at_each() if url != worker_of(first))
    for url in (gateway.url, other):
        answer = httpx.post(
            f"{url}/sessions",
            json={"session_id": "mine"},
            headers={"Authorization": f"Bearer {ADMIN}"},
            timeout=TIMEOUT_S,
            trust_env=False,
        )
        assert (answer.status_code, answer.json()["error"]["code"]) == (409, "session_exists")


def test_rewards_and_deletion_find_their_session(gateway: WorkerGateway) -> None:
    for session in gateway.open_at_each().values():
        path = f"/sessions/{session['session_id']}"
        by_key = httpx.post(
            f"{gateway.url}{path}/reward", json={"reward": 0.5}, headers=key_of(session), trust_env=False
        )
        assert by_key.json()["reward"] == 0.5
        assert gateway.http.get(f"{path}/trajectory").json()["reward"] == 0.5
        assert gateway.http.delete(path).status_code == 204
        assert gateway.http.get(f"{path}/trajectory").status_code == 404


def test_metrics_count_the_calls_of_all_workers(gateway: WorkerGateway) -> None:
    before = gateway.metric("agentrl_gateway_requests_total")
    for session in gateway.open_at_each().values():
        assert ask(session["base_url"], session, QUESTION).status_code == 200
    assert gateway.metric("agentrl_gateway_requests_total") == before + 2
    assert httpx.get(f"{gateway.url}/metrics", trust_env=False).status_code == 401
    assert gateway.http.get("/health").json() == {"status": "ok"}


def test_an_engine_is_added_told_and_removed_at_all_workers(gateway: WorkerGateway, engine: ScriptedEngine) -> None:
    """Held back, it serves no session of any worker; with an id that is taken it is refused, and nowhere added."""
    urls = list(gateway.open_at_each())
    with ScriptedEngine(lambda prompt_ids, sampling, version: [72, END]) as second:
        at_second = httpx.Client(base_url=urls[1], headers=gateway.http.headers, timeout=TIMEOUT_S, trust_env=False)
        with at_second:
            added = at_second.post("/engines", json={"url": second.url, "id": "second"})
            assert (added.status_code, added.json()["healthy"], added.json()["routable"]) == (201, True, True)
            taken = gateway.http.post("/engines", json={"url": second.url})
            assert (taken.status_code, taken.json()["error"]["code"]) == (409, "engine_exists")
            assert gateway.http.put("/engines/engine-0", json={"routable": False}).json()["routable"] is False
            for session in gateway.open_at_each().values():
                answer = ask(session["base_url"], session, QUESTION)
                assert answer.json()["usage"]["completion_tokens"] == 2
            assert [e["routable"] for e in at_second.get("/engines").json()["engines"]] == [False, True]
            assert at_second.put("/engines/engine-0", json={"routable": True}).json()["routable"] is True
            assert at_second.delete("/engines/second").status_code == 204
        assert [e["id"] for e in gateway.http.get("/engines").json()["engines"]] == ["engine-0"]


def test_a_run_has_its_own_engines_at_all_workers(gateway: WorkerGateway) -> None:
    run_key = gateway.http.post("/runs", json={"run_id": "r1"}).json()["run_key"]
    headers = {"Authorization": f"Bearer {run_key}"}
    with (
        ScriptedEngine(lambda prompt_ids, sampling, version: [72, 73, 74, END]) as own,
        httpx.Client(base_url=gateway.url, headers=headers, timeout=TIMEOUT_S, trust_env=False) as run,
    ):
        assert run.post("/engines", json={"url": own.url}).status_code == 201
        for session in [run.post("/sessions", json={}).json() for _ in range(2)]:
            answer = ask(session["base_url"], session, QUESTION)
            assert answer.json()["usage"]["completion_tokens"] == 4
        [listed] = run.get("/engines").json()["engines"]
        assert listed["url"] == own.url
        assert run.delete(f"/engines/{listed['id']}").status_code == 204


def test_a_large_body_is_forwarded_whole_and_one_too_large_is_refused(gateway: WorkerGateway) -> None:
    for session in gateway.open_at_each().values():
        tall = [{"role": "user", "content": "x" * 300_000}]
        answer = ask(f"{gateway.url}/v1", session, tall)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "context_length_exceeded")
        whole = b"x" * (64 * 2**20 + 1)
        refused = httpx.post(
            f"{gateway.url}/v1/completions", content=whole, headers=key_of(session), timeout=TIMEOUT_S, trust_env=False
        )
        assert (refused.status_code, refused.json()["error"]["code"]) == (413, "body_too_large")


def test_a_stream_comes_through_as_it_is_sampled_and_a_client_that_leaves_ends_its_call(store: Path) -> None:
    """Its first token is there while the engine holds the rest; when the client goes, the engine is free again."""
    with (
        ScriptedEngine(lambda prompt_ids, sampling, version: [70] * 50 + [END]) as engine,
        gateway_of(engine.url, store=store) as gateway,
    ):
        other = list(gateway.open_at_each().values())[1]
        engine.hold()
        engine.allow(2)
        body = {"messages": QUESTION, "stream": True}
        with gateway.http.stream("POST", "/v1/chat/completions", json=body, headers=key_of(other)) as answer:
            assert next(answer.iter_lines()).startswith("data: ")
        until(lambda: engine.requests[0].aborted)
        finished = gateway.http.post(f"/sessions/{other['session_id']}/finish", json={}).json()
        assert (finished["rows"], finished["dropped"]) == (0, {"aborted": 2})


def test_behind_a_proxy_every_url_is_the_public_one_and_every_call_is_forwarded(engine: ScriptedEngine) -> None:
    port = free_port()
    more = ["--public-url", "http://policy.example/v9", "--port", str(port)]
    with gateway_of(engine.url, more=more, workers=3, url=f"http://127.0.0.1:{port}") as gateway:
        for session in [gateway.open() for _ in range(3)]:
            assert session["base_url"] == f"http://policy.example/v9/sessions/{session['session_id']}/v1"
            answer = ask(f"{gateway.url}/sessions/{session['session_id']}/v1", session, QUESTION)
            assert answer.status_code == 200, answer.text
