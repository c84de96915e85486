"""The Docker sandbox against a command of the `docker` client's shape. Of a real engine: docs/sandbox.md."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import fake_docker
import pytest

from agentrl.errors import SandboxFault, SandboxUnavailable
from agentrl.sandbox import SandboxLimits, Verdict, make_sandbox
from agentrl.sandbox import host as sandbox_host
from agentrl.sandbox.docker import DockerSandbox, unpack

LIMITS = SandboxLimits(wall_s=20, cpu_s=3, memory_bytes=1000, processes=5, disk_bytes=4_000_000, open_files=77)
"""So much disk that the archives of the tests fit."""


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home = tmp_path / "engine"
    home.mkdir()
    monkeypatch.setenv("FAKE_DOCKER_HOME", str(home))
    return home


@pytest.fixture
def docker(engine: Path, tmp_path: Path) -> str:
    program = tmp_path / "docker"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} {fake_docker.__file__} "$@"\n')
    program.chmod(0o755)
    return str(program)


@pytest.fixture
def sandbox(docker: str) -> DockerSandbox:
    return DockerSandbox("image", program=docker)


def calls(engine: Path) -> list[list[str]]:
    return [json.loads(line) for line in (engine / "calls.jsonl").read_text().splitlines()]


def test_a_program_runs_with_its_files_and_its_container_is_removed(sandbox: DockerSandbox, engine: Path) -> None:
    result = sandbox.run_blocking(
        ["sh", "-c", "cat d/a; cat; echo made > b; exit 3"], files={"d/a": "file "}, stdin="input", collect=["b"]
    )
    assert (result.verdict, result.exit_code, result.stdout) == (Verdict.FAILED, 3, "file input")
    assert result.files == {"b": b"made\n"}
    assert calls(engine)[-1][:2] == ["rm", "--force"]
    assert [path.name for path in engine.iterdir()] == ["calls.jsonl"]


def test_a_program_that_is_not_there_fails_with_127_whatever_the_engine_makes_of_it(sandbox: DockerSandbox) -> None:
    """Engine 20.10 says 126."""
    result = sandbox.run_blocking(["no-such-program"])
    assert (result.verdict, result.exit_code) == (Verdict.FAILED, 127)


def test_the_container_has_no_network_no_rights_and_every_limit(sandbox: DockerSandbox, engine: Path) -> None:
    sandbox.run_blocking(["true"], limits=LIMITS)
    command, *arguments = calls(engine)[0]
    options, words = fake_docker.parse(arguments)
    assert command == "run"
    assert words == ["image", "sleep", "320"]
    assert {"--read-only", "--rm", "--init", "--detach"} <= options.keys()
    assert options["--network"] == ["none"]
    assert options["--cap-drop"] == ["ALL"]
    assert options["--security-opt"] == ["no-new-privileges"]
    assert options["--pull"] == ["never"]
    assert options["--memory"] == options["--memory-swap"] == ["12001000"]  # and three file systems in memory
    assert options["--pids-limit"] == ["13"]
    assert options["--shm-size"] == ["4000000"]
    assert set(options["--ulimit"]) == {"core=0:0", "cpu=3:4", "fsize=5048576", "nofile=77:77"}
    assert [tmpfs.split(":")[0] for tmpfs in options["--tmpfs"]] == ["/sandbox", "/tmp"]
    assert all("size=4000000" in tmpfs and "nr_inodes=10000" in tmpfs for tmpfs in options["--tmpfs"])
    started = next(call for call in calls(engine) if call[0] == "exec" and call[-1] == "true")
    assert started[started.index("--user") + 1] == "1000:1000"


def test_a_workspace_lasts(sandbox: DockerSandbox, tmp_path: Path) -> None:
    workspace = tmp_path / "space"
    workspace.mkdir()
    sandbox.run_blocking(["sh", "-c", "mkdir d; echo 1 > d/f; ln -s d/f link"], workspace=workspace)
    assert sandbox.run_blocking(["cat", "link"], workspace=workspace).stdout == "1\n"


def test_a_timeout_kills_everything_and_keeps_the_files(sandbox: DockerSandbox) -> None:
    started = time.monotonic()
    result = sandbox.run_blocking(
        ["sh", "-c", "echo x > f; sleep 1000 & sleep 1000"], limits=SandboxLimits(wall_s=2), collect=["f"]
    )
    assert (result.verdict, result.exit_code, result.files) == (Verdict.TIMEOUT, None, {"f": b"x\n"})
    assert time.monotonic() - started < 30


def test_a_program_that_the_kernel_killed_for_memory_is_told_from_one_that_killed_itself(
    sandbox: DockerSandbox, engine: Path
) -> None:
    assert sandbox.run_blocking(["sh", "-c", "kill -9 $$"]).verdict is Verdict.KILLED
    (engine / "oom").touch()
    assert sandbox.run_blocking(["sh", "-c", "kill -9 $$"]).verdict is Verdict.MEMORY


def test_a_failure_with_a_full_disk_is_told(sandbox: DockerSandbox, engine: Path) -> None:
    (engine / "free").write_text("0 9\n9 9\n9 9\n")
    assert sandbox.run_blocking(["false"]).verdict is Verdict.DISK
    assert sandbox.run_blocking(["true"]).verdict is Verdict.OK


def test_a_program_that_is_not_there_fails_with_127(sandbox: DockerSandbox) -> None:
    assert sandbox.run_blocking(["no-such-program"]).exit_code == 127


def test_an_engine_that_is_down_and_an_image_that_is_missing_are_faults(docker: str, engine: Path) -> None:
    with pytest.raises(SandboxFault, match="docker run failed: Unable to find image 'missing' locally"):
        DockerSandbox("missing", program=docker).run_blocking(["true"])
    (engine / "engine-is-down").touch()
    with pytest.raises(SandboxFault, match="Is the docker daemon running"):
        DockerSandbox("image", program=docker).run_blocking(["true"])


def test_it_is_made_by_name_and_tried(docker: str, engine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENTRL_SANDBOX_IMAGE", "mine")
    monkeypatch.setattr(sandbox_host, "program", lambda name: docker)
    assert repr(make_sandbox("docker")) == "DockerSandbox(mine)"
    (engine / "engine-is-down").touch()
    with pytest.raises(SandboxUnavailable, match="Is the docker daemon running"):
        make_sandbox("docker")


def test_the_real_client_knows_every_option(engine: Path) -> None:
    """It checks options before it looks for the engine, which it cannot reach here."""
    real = shutil.which("docker")
    if real is None:
        pytest.skip("the docker client is not installed")
    arguments = DockerSandbox("image", program=real)._create("name", LIMITS)
    done = subprocess.run(
        [real, "--host", f"unix://{engine}/no-engine.sock", *arguments], capture_output=True, text=True, timeout=60
    )
    assert done.returncode != 0
    assert "no-engine.sock" in done.stderr
    assert "unknown flag" not in done.stderr
    assert "invalid" not in done.stderr


def test_an_archive_cannot_write_outside_its_folder(tmp_path: Path) -> None:
    inside, outside = tmp_path / "in", tmp_path / "out"
    inside.mkdir()
    outside.mkdir()
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:

        def add(name: str, **header: object) -> None:
            member = tarfile.TarInfo(name)
            for key, value in header.items():
                setattr(member, key, value)
            member.size = 1 if member.isreg() else 0
            archive.addfile(member, io.BytesIO(b"x"))

        add("link", type=tarfile.SYMTYPE, linkname=str(outside))
        add("link/through")
        add("../up")
        add("/abs")
        add("hard", type=tarfile.LNKTYPE, linkname="../out/x")
        add("device", type=tarfile.CHRTYPE)
        add("./good", mode=0o6755)
    unpack(buffer.getvalue(), inside)
    assert sorted(path.name for path in inside.iterdir()) == ["good", "link"]
    assert list(outside.iterdir()) == []
    assert (inside / "good").stat().st_mode & 0o7777 == 0o755
    assert [path.name for path in tmp_path.iterdir() if path not in (inside, outside)] == []
