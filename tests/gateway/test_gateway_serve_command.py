"""`agentrl serve`: starts, says where it is, ends cleanly, and refuses bad input in one sentence."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from gateway_builders import always

from agentrl.assets import EMBEDDED
from agentrl.cli.serve import serve
from agentrl.engine.scripted import ScriptedEngine
from agentrl.errors import ConfigError
from agentrl.store.sql import SqlStore

END = 509  # <|im_end|> of the embedded policy


def start(*arguments: str, admin_key: str | None) -> subprocess.Popen[str]:
    environment = {name: value for name, value in os.environ.items() if name != "AGENTRL_ADMIN_KEY"}
    if admin_key is not None:
        environment["AGENTRL_ADMIN_KEY"] = admin_key
    code = "import typer; from agentrl.cli.serve import serve; typer.run(serve)"
    command = [sys.executable, "-c", code, "--tokenizer", EMBEDDED, *arguments]
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1
    )


def line_with(process: subprocess.Popen[str], pattern: str) -> str:
    """What the first matching line captures. Fails when the output ends first (the test's timeout bounds the wait)."""
    assert process.stdout is not None
    for line in process.stdout:
        if found := re.search(pattern, line):
            return found[1]
    raise AssertionError(f"no line matched {pattern}; stderr: {process.stderr.read() if process.stderr else ''}")


def test_it_serves_an_episode_into_a_store_and_ends_on_interrupt(tmp_path: Path) -> None:
    store_url = f"sqlite:///{tmp_path / 'trajectories.db'}"
    with ScriptedEngine(always([END])) as engine:
        process = start("--engine-url", engine.url, "--store", store_url, admin_key=None)
        try:
            url = line_with(process, r"gateway at (http://\S+)")
            key = line_with(process, r"admin key, shown once: (\S+)")
            admin = {"Authorization": f"Bearer {key}"}
            with httpx.Client(base_url=url, headers=admin, timeout=30, trust_env=False) as http:
                session_id = http.post("/sessions", json={}).json()["session_id"]
                body = {"messages": [{"role": "user", "content": "q"}]}
                answer = http.post(f"/sessions/{session_id}/v1/chat/completions", json=body)
                assert answer.json()["choices"][0]["finish_reason"] == "stop"
                assert http.post(f"/sessions/{session_id}/finish", json={}).status_code == 200
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=30)
        finally:
            process.kill()
    assert (process.returncode, err, key in out) == (0, "", False)
    assert SqlStore(store_url, create=False).get(session_id).calls[0].token_ids == [END]


def test_it_starts_before_its_engine_is_up_and_does_not_print_a_key_that_it_was_given() -> None:
    process = start("--engine-url", "http://127.0.0.1:9", admin_key="sk-given")
    try:
        line_with(process, r"(gateway at http)")
        assert "engine-0 at http://127.0.0.1:9" in line_with(process, r"warning: (.*)")
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 0
    assert "sk-given" not in out


def test_a_tokenizer_folder_that_is_not_there_is_a_configuration_error() -> None:
    with pytest.raises(ConfigError, match="nowhere"):
        serve(["http://127.0.0.1:9"], "nowhere")


def test_an_engine_url_without_a_scheme_is_a_configuration_error() -> None:
    with pytest.raises(ConfigError, match="not a URL"):
        serve(["localhost:8000"], EMBEDDED)


def test_it_says_that_sessions_end_with_a_gateway_that_has_no_store() -> None:
    process = start("--engine-url", "http://127.0.0.1:9", admin_key="sk-given")
    try:
        assert "sessions and trajectories stay in memory" in line_with(process, r"warning: no --store was given: (.*)")
    finally:
        process.kill()
        process.communicate(timeout=30)


@pytest.mark.parametrize(("option", "named"), [({"name": ""}, "name"), ({"parser": "morse"}, "parser")])
def test_an_option_that_cannot_be_is_a_configuration_error_that_names_it(option: dict[str, str], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        serve(["http://127.0.0.1:9"], EMBEDDED, **option)  # type: ignore[arg-type]
