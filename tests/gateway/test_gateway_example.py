"""`examples/03_any_agent`: the page's commands and their output, with the scripted engine that the page starts."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "03_any_agent"
README = (EXAMPLE / "README.md").read_text()
BIN = Path(sys.executable).parent


def command_with(words: str) -> list[str]:
    """The page's command that has these words, by this interpreter."""
    [line] = [line for line in README.splitlines() if line.startswith(".venv/bin/") and words in line]
    program, *arguments = shlex.split(line.removeprefix(".venv/bin/"))
    return [str(BIN / program), *arguments]


@contextmanager
def running(command: list[str], environment: dict[str, str], folder: Path, pattern: str) -> Iterator[str]:
    """A process that goes on, and what the first line with `pattern` in it captures."""
    process = subprocess.Popen(command, env=environment, cwd=folder, stdout=subprocess.PIPE, text=True, bufsize=1)
    try:
        assert process.stdout is not None
        found = next((match for line in process.stdout if (match := re.search(pattern, line))), None)
        assert found is not None, f"{command} ended without {pattern}"
        yield found[1]
    finally:
        process.terminate()
        process.communicate(timeout=30)


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, dict[str, str]]]:
    folder = tmp_path_factory.mktemp("example")
    environment = os.environ | {"AGENTRL_ADMIN_KEY": "sk-choose-your-own", "NO_PROXY": "127.0.0.1"}
    engine = command_with("scripted_engine.py")
    with running([engine[0], str(ROOT / engine[1])], environment, folder, r"(http://\S+)") as engine_url:
        serve = [part.replace("$ENGINE_URL", engine_url) for part in command_with("agentrl serve")]
        serve[serve.index("--port") + 1] = "0"
        with running(serve, environment, folder, r"gateway at (http://\S+)") as url:
            yield url, environment


@pytest.mark.parametrize("program", ["openai_agent.py", "anthropic_agent.py"])
def test_an_agent_that_knows_nothing_of_it_leaves_one_row_to_train_on(
    gateway: tuple[str, dict[str, str]], program: str
) -> None:
    url, environment = gateway
    python, script, _, agent = command_with(f"8080 {program}")
    done = subprocess.run(
        [python, str(ROOT / script), url, agent], env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() in README


@pytest.mark.parametrize("program", ["openai_agent.py", "anthropic_agent.py"])
def test_the_agents_do_not_know_agentrl(program: str) -> None:
    assert "import agentrl" not in (EXAMPLE / program).read_text()
    assert "from agentrl" not in (EXAMPLE / program).read_text()
