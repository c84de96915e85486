"""Invariant 11, cases 86 and 87: what an environment author imports needs no engine, trainer or Unix-only module."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

HEAVY = ("torch", "vllm", "ray", "deepspeed", "transformers", "fastapi", "uvicorn")
UNIX_ONLY = ("resource", "fcntl", "uvloop")


def run_python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def blocking(names: tuple[str, ...]) -> str:
    return f"""
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {names!r}:
            raise ImportError("blocked: " + name)
sys.meta_path.insert(0, Blocked())
"""


def test_import_agentrl_takes_under_half_a_second() -> None:
    timed = "import time; start = time.perf_counter(); import agentrl; print(time.perf_counter() - start)"
    # The best of three: another process may hold the processor in one of them.
    assert min(float(run_python(timed)) for _ in range(3)) < 0.5


def test_import_agentrl_loads_no_heavy_library() -> None:
    loaded = run_python("import sys, agentrl; print(*{name.partition('.')[0] for name in sys.modules})").split()
    assert not set(HEAVY) & set(loaded)


@pytest.mark.parametrize("module", ["agentrl.env.registry", "agentrl.rollout.worker", "agentrl.reward.scorer"])
def test_env_rollout_and_reward_import_where_nothing_heavy_or_unix_only_is_installed(module: str) -> None:
    names = ("torch", "vllm", "ray", "deepspeed", "transformers", *UNIX_ONLY)
    run_python(blocking(names) + f"import agentrl, {module}; agentrl.ToolEnv; agentrl.tool")


def test_every_public_name_resolves() -> None:
    assert run_python("import agentrl; print(all(getattr(agentrl, name) for name in agentrl.__all__))") == "True\n"


def test_an_unknown_name_says_what_there_is() -> None:
    said = run_python("""
        import agentrl
        try:
            agentrl.ToolEnvironment
        except AttributeError as error:
            print(error)
    """)
    assert "ToolEnvironment" in said
    assert "ToolEnv," in said
