"""The shape of the `docker` command, for tests without an engine. It isolates nothing.

A container is a folder with its files and the ids of what runs in it. `/sandbox` in a command stands for its `work`.
 Every command line is written to `calls.jsonl` beside the containers.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

HOME = Path(os.environ.get("FAKE_DOCKER_HOME", "."))
WITH_VALUE = {
    "--name", "--pull", "--label", "--network", "--ipc", "--hostname", "--user", "--cap-drop", "--security-opt",
    "--memory", "--memory-swap", "--pids-limit", "--oom-score-adj", "--shm-size", "--tmpfs", "--ulimit", "--runtime",
    "--workdir", "--format",
}  # fmt: skip


def main() -> int:
    command, *rest = sys.argv[1:]
    with (HOME / "calls.jsonl").open("a") as calls:
        calls.write(json.dumps(sys.argv[1:]) + "\n")
    if (HOME / "engine-is-down").exists():
        print("Cannot connect to the Docker daemon. Is the docker daemon running?", file=sys.stderr)
        return 1
    options, words = parse(rest)
    return {"run": run, "exec": execute, "inspect": inspect, "rm": remove}[command](options, words)


def parse(arguments: list[str]) -> tuple[dict[str, list[str]], list[str]]:
    options: dict[str, list[str]] = {}
    while arguments and arguments[0].startswith("--"):
        option, *arguments = arguments
        name, equals, value = option.partition("=")
        if name in WITH_VALUE and not equals:
            value, *arguments = arguments
        options.setdefault(name, []).append(value)
    return options, arguments


def run(options: dict[str, list[str]], words: list[str]) -> int:
    if words[0] == "missing":
        print("Unable to find image 'missing' locally", file=sys.stderr)
        return 125
    (HOME / options["--name"][0] / "work").mkdir(parents=True)
    print("0123456789abcdef")
    return 0


def execute(options: dict[str, list[str]], words: list[str]) -> int:
    container = HOME / words[0]
    argv = [word.replace("/sandbox", str(container / "work")) for word in words[1:]]
    if argv == ["sh", "-c", "kill -9 -1"]:
        for group in container.glob("*.running"):
            kill(group)
        return 137
    if argv[0] == "stat":
        print((HOME / "free").read_text() if (HOME / "free").exists() else "100 100\n100 100\n100 100")
        return 0
    env = {"PATH": os.environ["PATH"], **dict(item.split("=", 1) for item in options.get("--env", []))}
    env["PATH"] = os.environ["PATH"]
    stdin = None if "--interactive" in options else subprocess.DEVNULL
    try:
        process = subprocess.Popen(argv, cwd=container / "work", env=env, stdin=stdin, start_new_session=True)
    except FileNotFoundError:
        print(f"exec: {argv[0]!r}: executable file not found in $PATH", file=sys.stderr)
        return 127
    group = container / f"{process.pid}.running"
    group.touch()
    code = process.wait()
    kill(group)
    return code if code >= 0 else 128 - code


def kill(group: Path) -> None:
    """A process group that we started and that has not been killed yet."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        group.unlink()
        os.killpg(int(group.stem), signal.SIGKILL)


def inspect(options: dict[str, list[str]], words: list[str]) -> int:
    print("true" if (HOME / "oom").exists() else "false")
    return 0


def remove(options: dict[str, list[str]], words: list[str]) -> int:
    shutil.rmtree(HOME / words[0], ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
