import itertools

import agentrl


class Planted(agentrl.Env):
    """An async step that never gives the event loop back."""

    async def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return [agentrl.user("Wait.")], {}

    async def step(self, action):
        return next(number for number in itertools.count() if number < 0)  # finds: hang
