"""Nothing is wrong here: async methods, a file, a thread, a child process, all given back."""

import asyncio
import tempfile
import threading
from pathlib import Path
from typing import Any

import agentrl


class Planted(agentrl.Env):
    """Count down from a number; reward 1 for each right one."""

    folder: tempfile.TemporaryDirectory[str] | None = None

    async def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        await self.close()
        self.folder = tempfile.TemporaryDirectory()
        self.notes = Path(self.folder.name, "notes").open("w")  # noqa: ASYNC230, SIM115
        self.stop = threading.Event()
        self.helper = threading.Thread(target=self.stop.wait)
        self.helper.start()
        self.left = int(self.np_random.integers(3, 6))
        return [agentrl.user(f"Count down from {self.left}.")], {}

    async def step(self, action: agentrl.Message | str) -> Any:
        text = action if isinstance(action, str) else action.text
        right = text.strip() == str(self.left)
        program = await asyncio.create_subprocess_exec("true")
        await program.wait()
        self.left -= 1
        over = self.left == 0
        return [] if over else [agentrl.user("Go on.")], float(right), over, False, {}

    async def close(self) -> None:
        if self.folder is not None:
            self.stop.set()
            self.helper.join()
            self.notes.close()
            self.folder.cleanup()
            self.folder = None
