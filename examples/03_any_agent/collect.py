"""Runs an agent program once, in a session of the gateway, and prints what there is to train on.

AGENTRL_ADMIN_KEY=... python collect.py http://127.0.0.1:8080 openai_agent.py
"""

import os
import subprocess
import sys
from pathlib import Path

import httpx

QUESTION, ANSWER = "What is 12*34?", "408"


def main(gateway: str, program: str) -> None:
    admin = {"Authorization": f"Bearer {os.environ['AGENTRL_ADMIN_KEY']}"}
    with httpx.Client(base_url=gateway, headers=admin, timeout=60, trust_env=False) as control:
        opened = {"task": {"id": "12*34"}, "limits": {"max_calls": 4, "deadline_s": 120}, "reward_by": "admin"}
        session = control.post("/sessions", json=opened).raise_for_status().json()
        said = run(program, session["base_url"], session["api_key"])
        path = f"/sessions/{session['session_id']}"
        control.post(f"{path}/reward", json={"reward": float(said == ANSWER)}).raise_for_status()
        control.post(f"{path}/finish", json={"stop_reason": "done"}).raise_for_status()
        trajectory = control.get(f"{path}/trajectory").raise_for_status().json()
    trained = sum(sum(row["loss_mask"]) for row in trajectory["rows"])
    print(f"{program}: {said!r}, reward {trajectory['reward']:g}; {len(trajectory['calls'])} calls, ", end="")
    print(f"{len(trajectory['rows'])} row, {trained} tokens to train on, {sum(trajectory['dropped'].values())} dropped")


def run(program: str, base_url: str, key: str) -> str:
    """The agent's output. Its SDK finds the session in the variables that it reads anyway."""
    there = {
        "OPENAI_BASE_URL": base_url,
        "OPENAI_API_KEY": key,
        "ANTHROPIC_BASE_URL": base_url.removesuffix("/v1"),
        "ANTHROPIC_API_KEY": key,
    }
    command = [sys.executable, str(Path(__file__).parent / program), QUESTION]
    done = subprocess.run(command, env=os.environ | there, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout.strip()


if __name__ == "__main__":
    main(*sys.argv[1:])
