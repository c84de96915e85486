"""An engine's process from start to stop, with a fake server in vLLM's place: nothing is ever left behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from agentrl.engine.config import EngineConfig, EngineTimeouts
from agentrl.engine.replica import EngineReplica
from agentrl.errors import ConfigError, EngineError

FAKE = (sys.executable, str(Path(__file__).with_name("fake_server.py")))
WAIT_S = 20.0


@pytest.fixture
def replica(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., EngineReplica]]:
    """Makes replicas whose fake server does as told; stops them at the end."""
    made: list[EngineReplica] = []

    def make(does: str, *, index: int = 0, **fields: object) -> EngineReplica:
        monkeypatch.setenv("AGENTRL_FAKE", does)
        timeouts = EngineTimeouts(startup_s=2.0 if does == "sick" else WAIT_S, stop_s=0.5)
        config = EngineConfig(timeouts=timeouts, **fields)  # type: ignore[arg-type]
        made.append(
            EngineReplica(
                "model",
                config,
                logs_dir=tmp_path / "logs",
                weights_dir=tmp_path / "shm",
                index=index,
                command=FAKE,
            )
        )
        return made[-1]

    yield make
    for one in made:
        one.stop()


def processes_of(directory: Path) -> list[psutil.Process]:
    """Running processes whose log is in `directory`: all that a replica of this test started."""
    found = []
    for process in psutil.process_iter():
        try:
            out = os.readlink(f"/proc/{process.pid}/fd/1")
            if out.startswith(str(directory)) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (OSError, psutil.NoSuchProcess):
            continue
    return found


def gone(directory: Path) -> bool:
    deadline = time.monotonic() + WAIT_S
    while processes_of(directory) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not processes_of(directory)


def test_it_starts_is_alive_and_stops(replica: Callable[..., EngineReplica], tmp_path: Path) -> None:
    engine = replica("serve")
    heard: list[str] = []
    url = engine.start(heard.append)
    assert url == engine.url
    assert engine.alive()
    assert all(line.startswith("engine-0: starting vLLM") for line in heard)
    engine.stop()
    assert not engine.alive()
    assert processes_of(tmp_path) == []
    engine.stop()  # may be repeated


def test_it_can_start_again_after_a_stop(replica: Callable[..., EngineReplica]) -> None:
    engine = replica("serve")
    engine.start()
    with pytest.raises(EngineError, match="started already"):
        engine.start()
    engine.stop()
    engine.start()
    assert engine.alive()


def test_a_server_that_is_killed_is_not_alive(replica: Callable[..., EngineReplica], tmp_path: Path) -> None:
    engine = replica("serve")
    engine.start()
    (process,) = processes_of(tmp_path)
    process.kill()
    process.wait(WAIT_S)
    assert not engine.alive()


def test_a_server_that_never_becomes_healthy_is_one_clear_error(
    replica: Callable[..., EngineReplica], tmp_path: Path
) -> None:
    engine = replica("sick")
    with pytest.raises(EngineError, match=r"engine-0 was not healthy within 2 s; raise engine.timeouts.startup_s") as e:
        engine.start()
    assert str(tmp_path / "logs" / "engine-0.log") in str(e.value)
    assert "serves" in str(e.value)  # the log's end
    assert processes_of(tmp_path) == []


def test_a_server_that_dies_at_start_is_quoted(replica: Callable[..., EngineReplica], tmp_path: Path) -> None:
    engine = replica("die")
    with pytest.raises(EngineError, match="engine-0 died at start with status 3") as e:
        engine.start()
    assert "cannot find the model's weights" in str(e.value)
    assert processes_of(tmp_path) == []


def test_a_server_and_a_child_that_ignore_sigterm_are_killed(
    replica: Callable[..., EngineReplica], tmp_path: Path
) -> None:
    engine = replica("stubborn")
    engine.start()
    assert len(processes_of(tmp_path)) == 2
    engine.stop()
    assert processes_of(tmp_path) == []


def test_a_port_in_use_is_named_and_nothing_is_started(replica: Callable[..., EngineReplica], tmp_path: Path) -> None:
    """Case 79."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"port {port} is in use"):
            replica("serve", ports=(port,)).start()
    assert processes_of(tmp_path) == []


def test_four_engines_at_once_get_four_ports(replica: Callable[..., EngineReplica]) -> None:
    """Case 79."""
    urls = [replica("serve", index=index, replicas=4).start() for index in range(4)]
    assert len(set(urls)) == 4


def test_no_engine_outlives_a_parent_that_is_killed(tmp_path: Path) -> None:
    """kill -9 runs no cleanup; the pipe that its death closes does."""
    program = f"""
import signal
from pathlib import Path
from agentrl.engine.config import EngineConfig
from agentrl.engine.replica import EngineReplica
here = Path({str(tmp_path)!r})
replica = EngineReplica("m", EngineConfig(), logs_dir=here, weights_dir=here / "shm", command={FAKE!r})
print(replica.start(), flush=True)
signal.pause()
"""
    environment = os.environ | {"AGENTRL_FAKE": "stubborn"}
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, env=environment) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline().startswith(b"http://127.0.0.1:")
        assert len(processes_of(tmp_path)) == 2
        parent.send_signal(signal.SIGKILL)
    assert gone(tmp_path)
