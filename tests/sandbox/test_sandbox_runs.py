"""What a sandbox promises to a program that means no harm, and to who waits for it."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from living import eventually, lives
from sandboxes import KINDS, descendants_of_this_process, sandbox_of

from agentrl.errors import ConfigError, SandboxFault
from agentrl.sandbox import Sandbox, SandboxLimits, Verdict, host, scratch
from agentrl.sandbox.bubblewrap import Bubblewrap
from agentrl.sandbox.local import LocalSandbox
from agentrl.sandbox.unshare import Unshare


@pytest.fixture(params=KINDS)
def sandbox(request: pytest.FixtureRequest) -> Sandbox:
    return sandbox_of(request.param)


def test_a_program_gets_its_files_input_and_variables_and_nothing_else(sandbox: Sandbox) -> None:
    result = sandbox.run_blocking(
        ["sh", "-c", 'cat sub/a.txt; cat; echo "$COLOUR $HOME"; ls'],
        files={"sub/a.txt": "from a file\n", "b.bin": b"\0\xff"},
        stdin="from the input\n",
        env={"COLOUR": "blue"},
    )
    assert result.stdout == "from a file\nfrom the input\nblue /sandbox\nb.bin\nsub\n"
    assert (result.verdict, result.exit_code, result.reason, result.stderr) == (Verdict.OK, 0, "", "")


def test_an_exit_code_is_told(sandbox: Sandbox) -> None:
    result = sandbox.run_blocking(["sh", "-c", "echo why >&2; exit 3"])
    assert (result.verdict, result.exit_code, result.signal, result.stderr) == (Verdict.FAILED, 3, None, "why\n")
    assert result.reason == "it ended with exit code 3"


def test_a_program_that_is_not_there_fails_with_127(sandbox: Sandbox) -> None:
    result = sandbox.run_blocking(["no-such-program"])
    assert (result.verdict, result.exit_code) == (Verdict.FAILED, 127)
    assert "no-such-program" in result.stderr


def test_a_crash_is_told_from_a_failure(sandbox: Sandbox) -> None:
    result = sandbox.run_blocking(["python3", "-c", "import os; os.abort()"])
    assert (result.verdict, result.exit_code, result.signal) == (Verdict.KILLED, 134, 6)
    assert result.reason == "it was ended by SIGABRT"


def test_python_inside_is_the_python_outside(sandbox: Sandbox) -> None:
    result = sandbox.run_blocking(["python3", "-c", "import sys; print(sys.version)"])
    assert result.stdout.strip() == sys.version


def test_an_empty_input_is_the_end_of_the_file(sandbox: Sandbox) -> None:
    result = sandbox.run_blocking(["cat"], limits=SandboxLimits(wall_s=10))
    assert (result.verdict, result.stdout) == (Verdict.OK, "")


def test_an_input_that_nobody_reads_does_not_block(sandbox: Sandbox) -> None:
    assert sandbox.run_blocking(["true"], stdin="x" * 10_000_000).ok


def test_a_long_input_arrives_whole(sandbox: Sandbox) -> None:
    assert sandbox.run_blocking(["wc", "-c"], stdin="x" * 3_000_000).stdout.strip() == "3000000"


def test_of_a_long_output_both_ends_are_kept(sandbox: Sandbox) -> None:
    program = "print('first'); print('x' * 5000); print('last')"
    result = sandbox.run_blocking(["python3", "-c", program], limits=SandboxLimits(output_bytes=20))
    # 5,012 bytes in all, of which 10 are kept at either end.
    assert result.stdout == "first\nxxxx\n[4992 bytes left out]\nxxxx\nlast\n"
    assert (result.verdict, result.truncated) == (Verdict.OK, True)


def test_output_that_is_no_text_is_replaced(sandbox: Sandbox) -> None:
    assert sandbox.run_blocking(["printf", r"a\377b"]).stdout == "a\ufffdb"


def test_only_the_files_that_were_asked_for_come_back(sandbox: Sandbox) -> None:
    result = sandbox.run_blocking(
        ["sh", "-c", "mkdir -p a/b; echo 1 > one.txt; echo 2 > a/two.txt; echo 3 > a/b/three.txt; echo 4 > four.log"],
        collect=["*.txt", "a/**/three.txt", "missing"],
    )
    assert result.files == {"one.txt": b"1\n", "a/b/three.txt": b"3\n"}


def test_links_are_never_followed_when_files_are_collected(sandbox: Sandbox, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    script = f"ln -s {secret} link; ln -s {tmp_path} folder; ln -s / root; mkfifo pipe; echo x > real; ln real hard"
    result = sandbox.run_blocking(["sh", "-c", script], collect=["**", "folder/secret", f"root{secret}"])
    assert result.files == {"real": b"x\n", "hard": b"x\n"}


def test_files_with_holes_or_many_names_do_not_fill_our_memory(sandbox: Sandbox) -> None:
    limits = SandboxLimits(disk_bytes=1024 * 1024)
    script = "truncate -s 1000000 a; for n in 1 2 3 4 5; do ln a b$n; done"
    result = sandbox.run_blocking(["sh", "-c", script], collect=["**"], limits=limits)
    assert (list(result.files), result.left_out) == (["a"], 5)


def test_unreadable_files_are_collected_too(sandbox: Sandbox) -> None:
    script = "mkdir d; echo x > d/f; chmod 0 d/f d"
    assert sandbox.run_blocking(["sh", "-c", script], collect=["**"]).files == {"d/f": b"x\n"}


def test_a_workspace_lasts_from_run_to_run(sandbox: Sandbox, tmp_path: Path) -> None:
    workspace = tmp_path / "space"
    workspace.mkdir()
    (workspace / "given.txt").write_text("given")
    first = "cat given.txt; rm given.txt; mkdir -p d/e; echo made > d/e/f; ln -s d/e/f link; echo > x; chmod +x x"
    assert sandbox.run_blocking(["sh", "-c", first], workspace=workspace).stdout == "given"
    assert sorted(path.name for path in workspace.iterdir()) == ["d", "link", "x"]
    second = sandbox.run_blocking(["sh", "-c", "cat link; ./x && echo runs; touch d/new"], workspace=workspace)
    assert second.stdout == "made\nruns\n"
    assert (workspace / "d" / "new").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["space"]


def test_a_killed_program_leaves_its_workspace_as_it_was_then(sandbox: Sandbox, tmp_path: Path) -> None:
    result = sandbox.run_blocking(
        ["sh", "-c", "echo half > work; sleep 100"], workspace=tmp_path, limits=SandboxLimits(wall_s=1)
    )
    assert result.verdict is Verdict.TIMEOUT
    assert (tmp_path / "work").read_text() == "half\n"


def test_a_link_in_a_workspace_leads_nowhere_on_the_host(sandbox: Sandbox, tmp_path: Path) -> None:
    victim, workspace = tmp_path / "victim", tmp_path / "space"
    victim.write_text("whole")
    workspace.mkdir()
    sandbox.run_blocking(["sh", "-c", f"ln -s {victim} out; ln -s {tmp_path} up"], workspace=workspace)
    result = sandbox.run_blocking(["sh", "-c", "cat out; echo broken > out; echo x > up/y"], workspace=workspace)
    assert not result.ok
    assert victim.read_text() == "whole"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["space", "victim"]


def test_a_workspace_with_nasty_names_modes_and_kinds_survives(sandbox: Sandbox, tmp_path: Path) -> None:
    script = r"""
import os
open("new\nline", "w"); open(b"\xff\xfe", "w"); open("-rf", "w"); open("x" * 255, "w")
os.mkfifo("pipe"); os.mkdir("closed"); open("closed/in", "w").write("in"); os.chmod("closed", 0); os.chmod("-rf", 0)
open("suid", "w"); os.chmod("suid", 0o6755)
open("hard", "w").write("same"); os.link("hard", "hard2")
"""
    assert sandbox.run_blocking(["python3", "-c", script], workspace=tmp_path).ok
    names = sorted(os.fsencode(name) for name in os.listdir(tmp_path))
    assert names == [b"-rf", b"closed", b"hard", b"hard2", b"new\nline", b"suid", b"x" * 255, b"\xff\xfe"]
    assert (tmp_path / "suid").stat().st_mode & 0o6000 == 0
    assert (tmp_path / "hard").samefile(tmp_path / "hard2")
    again = sandbox.run_blocking(["sh", "-c", "cat closed/in; ls | wc -l"], workspace=tmp_path)
    assert again.stdout == "in9\n"  # eight entries, one of them over two lines


def test_twenty_calls_that_leave_sleeps_behind_end_in_time_and_leave_nothing(sandbox: Sandbox) -> None:
    """Case 34 of the field's faults: killed but not reaped, grandchildren that live on, pipes that stay open."""
    command = ["sleep", "27182"]

    def call(_: int) -> tuple[Verdict, float]:
        started = time.monotonic()
        result = sandbox.run_blocking(["bash", "-c", "sleep 27182 & sleep 27182"], limits=SandboxLimits(wall_s=1))
        return result.verdict, time.monotonic() - started

    for _ in range(5):
        with ThreadPoolExecutor(4) as pool:
            for verdict, seconds in pool.map(call, range(4)):
                assert verdict is Verdict.TIMEOUT
                assert seconds < 30  # what they left sleeping is not waited for; the rest is how busy the machine is

    def left() -> list[int]:
        return [process.pid for process in psutil.process_iter(["cmdline"]) if process.info["cmdline"] == command]

    assert eventually(lambda: left() == [], 10)  # the kernel takes a moment to end what it was told to
    assert descendants_of_this_process() == []


async def test_thirty_two_at_once_each_get_their_own_answer(sandbox: Sandbox) -> None:
    script = "import sys, time; open('mine', 'w').write(sys.argv[1]); time.sleep(0.2); print(open('mine').read())"
    results = await asyncio.gather(*(sandbox.run(["python3", "-c", script, str(n)]) for n in range(32)))
    assert [result.stdout.strip() for result in results] == [str(n) for n in range(32)]
    assert descendants_of_this_process() == []


async def test_the_event_loop_goes_on_while_a_program_runs(sandbox: Sandbox) -> None:
    task = asyncio.create_task(sandbox.run(["sleep", "1"]))
    turns = 0
    while not task.done():
        await asyncio.sleep(0.01)
        turns += 1
    assert turns > 20
    assert task.result().ok


async def test_a_cancelled_run_is_killed(sandbox: Sandbox) -> None:
    task = asyncio.create_task(sandbox.run(["sleep", "1000"]))
    async with asyncio.timeout(30):
        while not descendants_of_this_process():  # noqa: ASYNC110 - the kernel has no event for it
            await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert descendants_of_this_process() == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_host_process_that_is_killed_takes_its_programs_with_it(kind: str) -> None:
    sandbox_of(kind)
    code = f"from agentrl.sandbox import *; make_sandbox({kind!r}).run_blocking(['sleep', '31415'])"
    host = subprocess.Popen([sys.executable, "-c", code])
    inside: list[int] = []
    deadline = time.monotonic() + 60
    while not inside and time.monotonic() < deadline:
        inside = [p.pid for p in psutil.process_iter(["cmdline"]) if p.info["cmdline"] == ["sleep", "31415"]]
    assert inside
    host.kill()
    host.wait(10)
    while lives(inside[0]) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not lives(inside[0])


def test_lower_limits_of_our_own_hold_inside_too(sandbox: Sandbox) -> None:
    code = f"""
import resource
from agentrl.sandbox import make_sandbox
resource.setrlimit(resource.RLIMIT_DATA, (400_000_000, 400_000_000))
resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
result = make_sandbox({repr(sandbox)[13:-1]!r}).run_blocking(["sh", "-c", "ulimit -n; ulimit -d"])
print(result.stdout)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["100", str(400_000_000 // 1024)], done.stderr


def test_more_files_than_fit_the_disk_are_refused_in_words(sandbox: Sandbox) -> None:
    with pytest.raises(
        ValueError, match=r"1 files of 2000 bytes together do not fit a disk of 1000 bytes.*raise disk_bytes"
    ):
        sandbox.run_blocking(["true"], files={"big": "x" * 2000}, limits=SandboxLimits(disk_bytes=1000))


def test_a_workspace_that_is_not_there_is_a_fault_and_no_verdict(sandbox: Sandbox, tmp_path: Path) -> None:
    with pytest.raises(SandboxFault, match="is no folder; make it before the first run"):
        sandbox.run_blocking(["true"], workspace=tmp_path / "missing")


@pytest.mark.parametrize("isolation", [Bubblewrap, Unshare])
def test_more_folders_of_the_host_can_be_shown_and_only_read(isolation: type, tmp_path: Path) -> None:
    """Also one below a folder that only root may enter, as pytest's is."""
    sandbox_of(isolation.name)
    (tmp_path / "data").write_text("shown")
    tmp_path.chmod(0o755)
    python = host.find_python(None).executable
    programs = [host.program(name) for name in (("bwrap",) if isolation is Bubblewrap else ("unshare", "setpriv"))]
    made = isolation(*programs, *([] if isolation is Bubblewrap else [python]))
    sandbox = LocalSandbox(made, visible=[tmp_path])
    result = sandbox.run_blocking(
        ["sh", "-c", f"cat {tmp_path}/data; echo x > {tmp_path}/data; echo y > {tmp_path}/new"]
    )
    assert result.stdout == "shown"
    assert result.stderr.count("Read-only file system") == 2
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_a_folder_that_is_not_there_cannot_be_shown(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is no folder of this machine"):
        LocalSandbox(Bubblewrap("bwrap"), visible=[tmp_path / "missing"])


def test_a_virtual_environments_python_comes_with_its_packages() -> None:
    sandbox_of("bubblewrap")
    program = host.program("bwrap")
    assert program is not None
    sandbox = LocalSandbox(Bubblewrap(program), python=Path(sys.executable))
    assert sandbox.run_blocking(["python3", "-c", "import numpy; print(numpy.arange(3).sum())"]).stdout == "3\n"


def test_the_folder_of_a_process_that_was_killed_is_removed_by_the_next_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "import os; from agentrl.sandbox.scratch import ScratchFolder as F; f = F(); print(f.path); os.abort()"
    folders = [Path(run_in(tmp_path, code)) for _ in range(2)]
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    mine = scratch.ScratchFolder()
    for folder in (folders[0], mine.path):
        os.utime(folder, (0, 0))  # old enough not to be in the making
    scratch._clear_up.cache_clear()
    other = scratch.ScratchFolder()
    assert set(tmp_path.iterdir()) == {folders[1], mine.path, other.path}
    mine.remove()
    other.remove()
    assert set(tmp_path.iterdir()) == {folders[1]}


def run_in(tempdir: Path, code: str) -> str:
    """What a process printed before it was aborted, whose temporary files are in `tempdir`."""
    done = subprocess.run(
        [sys.executable, "-u", "-c", code], capture_output=True, text=True, env={"TMPDIR": str(tempdir)}, timeout=60
    )
    return done.stdout.strip()
