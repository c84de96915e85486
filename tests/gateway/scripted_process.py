"""A scripted engine in a process of its own, that can be killed or stopped like a real one.

Its policy counts: the token after a prompt is a function of how many ids there are, so any engine can go on from
where another was lost, and a missing or doubled token shows. `python scripted_process.py LENGTH PACE_S` serves it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

FIRST_ID, LAST_ID = 40, 90  # printable letters in the tests' tokenizer
STARTED_S = 30


def counted(position: int) -> int:
    """The token at a position of prompt + sample."""
    return FIRST_ID + position % (LAST_ID - FIRST_ID)


class EngineProcess:
    def __init__(self, process: subprocess.Popen[str], url: str) -> None:
        self.url = url
        self._process = process

    def kill(self) -> None:
        self._process.kill()

    def stop(self) -> None:
        """It neither answers nor dies."""
        self._process.send_signal(signal.SIGSTOP)

    def end(self) -> None:
        self._process.kill()
        self._process.wait(STARTED_S)


@contextmanager
def engine_processes(count: int, *, length: int, pace_s: float) -> Iterator[Sequence[EngineProcess]]:
    """Engines that sample `length` tokens a request, one every `pace_s` seconds."""
    command = [sys.executable, __file__, str(length), str(pace_s)]
    processes = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONUNBUFFERED": "1"})
        for _ in range(count)
    ]
    engines = []
    try:
        for process in processes:
            assert process.stdout is not None
            engines.append(EngineProcess(process, process.stdout.readline().strip()))
        yield engines
    finally:
        for process in processes:
            process.kill()
            process.wait(STARTED_S)


async def _serve(length: int, pace_s: float) -> None:
    from agentrl.engine.scripted import ScriptedEngine

    def script(prompt_ids: list[int], sampling: object, version: int) -> list[int]:
        return [counted(len(prompt_ids) + i) for i in range(length)]

    async with ScriptedEngine(script) as engine:
        engine.hold()
        print(engine.url)
        while True:
            await asyncio.sleep(pace_s)
            engine.allow(engine.running)


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1]), float(sys.argv[2])))
