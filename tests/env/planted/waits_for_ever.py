import asyncio

import agentrl


class Planted(agentrl.Env):
    """It waits for an event that nobody sets."""

    async def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return [agentrl.user("Wait.")], {}

    async def step(self, action):
        await self.ready()
        return [], 0.0, True, False, {}

    async def ready(self):
        await asyncio.Event().wait()  # finds: hang
