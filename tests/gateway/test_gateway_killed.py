"""kill -9 of a gateway in the middle of an episode: the next one of its name goes on with the session."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import httpx
import pytest
from test_gateway_serve_command import END, line_with, start

from agentrl.engine.scripted import ScriptedEngine
from agentrl.store.sql import SqlStore

ADMIN = "sk-agentrl-admin-of-the-test"


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


@pytest.mark.parametrize("killed_after", [1, 2])
def test_an_episode_goes_on_at_the_next_gateway(tmp_path: Path, killed_after: int) -> None:
    """The agent keeps its key and its conversation; the trajectory has every call, each extending the one before."""
    store_url = f"sqlite:///{tmp_path / 'trajectories.db'}"
    turns = iter([[70, END], [71, 72, END], [73, END]])
    with ScriptedEngine(lambda prompt_ids, sampling, version: next(turns)) as engine:
        arguments = ["--engine-url", engine.url, "--store", store_url]
        process = start(*arguments, admin_key=ADMIN)
        try:
            url = line_with(process, r"gateway at (http://\S+)")
            opened = httpx.post(
                f"{url}/sessions",
                json={"metadata": {"index": 4}, "limits": {"max_calls": 3}},
                headers={"Authorization": f"Bearer {ADMIN}"},
                trust_env=False,
            ).json()
            key = {"Authorization": f"Bearer {opened['api_key']}"}
            messages, prompts = [user("q0")], []
            for turn in range(3):
                answer = httpx.post(
                    f"{url}/v1/chat/completions", json={"messages": messages}, headers=key, timeout=30, trust_env=False
                )
                assert answer.status_code == 200, answer.text
                prompts.append(answer.json()["usage"]["prompt_tokens"])
                messages += [answer.json()["choices"][0]["message"], user(f"q{turn + 1}")]
                if turn + 1 == killed_after:
                    process.send_signal(signal.SIGKILL)
                    process.communicate(timeout=30)
                    process = start(*arguments, admin_key=ADMIN)
                    url = line_with(process, r"gateway at (http://\S+)")
            over = httpx.post(
                f"{url}/v1/chat/completions", json={"messages": messages}, headers=key, timeout=30, trust_env=False
            )
            assert (over.status_code, over.json()["error"]["code"]) == (400, "session_limit_reached")
            finish = f"{url}/sessions/{opened['session_id']}/finish"
            done = httpx.post(finish, json={}, headers={"Authorization": f"Bearer {ADMIN}"}, trust_env=False)
            assert done.status_code == 200, done.text
        finally:
            process.kill()
            process.communicate(timeout=30)
    store = SqlStore(store_url, create=False)
    trajectory = store.get(opened["session_id"])
    assert [call.token_ids for call in trajectory.calls] == [[70, END], [71, 72, END], [73, END]]
    assert [call.parent for call in trajectory.calls] == [None, 0, 1]
    assert [len(call.prompt_token_ids) for call in trajectory.calls] == prompts
    assert [sum(row.loss_mask) for row in trajectory.rows] == [7]
    assert (trajectory.metadata, trajectory.dropped) == ({"index": 4}, {})
    assert list(store.journal("gateway")) == []
    store.close()
