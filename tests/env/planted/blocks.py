import asyncio
import time

import agentrl


class Planted(agentrl.Env):
    """It sleeps where it should await."""

    async def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        await asyncio.sleep(0.001)
        return [agentrl.user("Say something.")], {}

    async def step(self, action):
        self.look_up()
        return [], 0.0, True, False, {}

    def look_up(self):
        time.sleep(0.2)  # finds: blocks-event-loop
