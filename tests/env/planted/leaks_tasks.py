import asyncio

import agentrl

cached_tasks = []


class Planted(agentrl.Env):
    """Each episode starts a heartbeat and lets it beat."""

    async def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        cached_tasks.append(asyncio.create_task(self.beat()))
        return [agentrl.user("Say something.")], {}

    async def beat(self):
        while True:  # noqa: ASYNC110
            await asyncio.sleep(0.01)  # finds: leak-task

    async def step(self, action):
        return [], 0.0, True, False, {}
