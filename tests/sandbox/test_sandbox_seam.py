"""Requests and limits are checked before anything runs; which sandbox is taken is never a guess."""

from __future__ import annotations

import logging
import platform
import struct
import time
from typing import Any

import pytest

from agentrl.errors import ConfigError, EnvironmentFault, SandboxUnavailable
from agentrl.sandbox import (
    SandboxLimits,
    SandboxRequest,
    SandboxResult,
    ScriptedSandbox,
    Verdict,
    choose,
    default_sandbox,
    make_sandbox,
    seccomp,
)
from agentrl.sandbox import host as sandbox_host


@pytest.mark.parametrize("limit", SandboxLimits.__struct_fields__)
@pytest.mark.parametrize("value", [0, -1, float("inf"), float("nan")])
def test_a_limit_that_limits_nothing_is_refused_by_name(limit: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"sandbox limit {limit} is .*give a positive, finite number"):
        SandboxLimits(**{limit: value})


@pytest.mark.parametrize("path", ["/etc/passwd", "../up", "a/../../b", "", ".", "a\0b", "x" * 256])
def test_a_file_outside_the_work_folder_is_refused(path: str) -> None:
    with pytest.raises(ValueError, match="is not in the work folder"):
        SandboxRequest.of(["true"], files={path: ""})


@pytest.mark.parametrize(
    "request_",
    [
        {"argv": []},
        {"argv": "ls -l"},
        {"argv": ["a\0b"]},
        {"argv": ["a"], "env": {"A=B": ""}},
        {"argv": ["bash", "-c", "é" * 65_536]},  # 131,072 bytes, where Linux takes 131,071
    ],
)
def test_a_request_that_no_program_can_get_is_refused(request_: dict[str, Any]) -> None:
    with pytest.raises(
        ValueError, match=r"argv|NUL|name of an environment variable|131,072 bytes long; an argument has 131,071"
    ):
        SandboxRequest.of(**request_)


def test_the_scripted_sandbox_answers_in_turn_and_remembers() -> None:
    sandbox = ScriptedSandbox([SandboxResult(verdict=Verdict.OK, stdout="hi")])
    assert sandbox.run_blocking(["echo"], files={"a": "b"}).stdout == "hi"
    assert (sandbox.requests[0].argv, sandbox.requests[0].files) == (("echo",), {"a": b"b"})
    with pytest.raises(AssertionError, match="no result left"):
        sandbox.run_blocking(["echo"])


def test_without_isolation_nothing_runs_and_the_fix_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox_host, "program", lambda name: None)
    with pytest.raises(SandboxUnavailable) as raised:
        make_sandbox()
    for words in ("bwrap is not installed", "unshare and setpriv", "install bubblewrap", "AGENTRL_SANDBOX=unsafe"):
        assert words in str(raised.value)
    assert isinstance(raised.value, ConfigError)  # a command ends with it
    assert isinstance(raised.value, EnvironmentFault)  # and it is never told to a policy as its own mistake


def test_a_namespace_program_that_does_not_work_here_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox_host, "program", lambda name: "/bin/false")
    with pytest.raises(SandboxUnavailable, match="the sandbox did not start"):
        make_sandbox("bubblewrap")


def test_an_unknown_sandbox_is_refused() -> None:
    with pytest.raises(ConfigError, match="there is no sandbox 'jail'; use one of auto, bubblewrap"):
        make_sandbox("jail")


def test_the_unsafe_one_is_taken_only_when_asked_for_and_warns_loudly(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    choose._made.cache_clear()
    monkeypatch.setenv("AGENTRL_SANDBOX", "unsafe")
    with caplog.at_level(logging.WARNING):
        sandbox = default_sandbox()
    choose._made.cache_clear()
    assert "WITHOUT A SANDBOX" in caplog.text
    result = sandbox.run_blocking(["sh", "-c", "cat a; echo x > b"], files={"a": "1\n"}, collect=["b"])
    assert (result.stdout, result.files) == ("1\n", {"b": b"x\n"})


def test_the_unsafe_one_kills_what_a_program_started(monkeypatch: pytest.MonkeyPatch) -> None:
    started = time.monotonic()
    script = "sleep 1000 & setsid sleep 1000 & sleep 1000"
    result = make_sandbox("unsafe").run_blocking(["bash", "-c", script], limits=SandboxLimits(wall_s=1))
    assert result.verdict is Verdict.TIMEOUT
    assert time.monotonic() - started < 10


def test_the_default_is_made_once() -> None:
    assert default_sandbox() is default_sandbox()
    assert default_sandbox("unsafe") is default_sandbox("unsafe")


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_filter_of_system_calls_decides_by_number_and_argument(machine: str) -> None:
    """The BPF program is run here by an interpreter of its few instructions."""
    arch = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}[machine]
    clone, socket, ioctl, ptrace, read = (56, 41, 16, 101, 0) if machine == "x86_64" else (220, 198, 29, 117, 63)
    code = seccomp.program(machine)
    assert code is not None
    allow, refuse = 0x7FFF0000, 0x00050000

    def decide(number: int, *arguments: int, arch: int = arch) -> int:
        return run_bpf(code, number, arch, arguments)

    assert decide(read) == allow
    assert decide(ptrace) == refuse | 1  # EPERM
    assert decide(435) == refuse | 38  # clone3: ENOSYS
    assert [decide(clone, flags) for flags in (0x3D0F00, 0x10000000)] == [allow, refuse | 1]  # a thread; CLONE_NEWUSER
    assert [decide(socket, family) for family in (1, 2, 10, 16)] == [allow] * 4
    assert [decide(socket, family) for family in (0, 17, 38, 40)] == [refuse | 97] * 4  # EAFNOSUPPORT
    assert [decide(ioctl, 0, request) for request in (0x5401, 0x5412)] == [allow, refuse | 1]
    assert decide(read, arch=0x40000003) == 0x80000000  # 32 bits: other numbers, so the process is killed
    assert decide(0x40000000 | read) == refuse | 38  # x32


def test_a_processor_without_a_table_has_no_filter() -> None:
    assert seccomp.program("riscv64") is None
    assert seccomp.program(platform.machine()) is not None or platform.machine() not in ("x86_64", "aarch64")


def run_bpf(code: bytes, number: int, arch: int, arguments: tuple[int, ...]) -> int:
    data = struct.pack("=IIQ6Q", number, arch, 0, *arguments, *[0] * (6 - len(arguments)))
    at, accumulator = 0, 0
    while True:
        operation, if_true, if_false, value = struct.unpack_from("=HBBI", code, 8 * at)
        at += 1
        if operation == 0x20:
            accumulator = struct.unpack_from("=I", data, value)[0]
        elif operation == 0x06:
            return value
        else:
            test = {0x15: accumulator == value, 0x35: accumulator >= value, 0x45: bool(accumulator & value)}[operation]
            at += if_true if test else if_false
