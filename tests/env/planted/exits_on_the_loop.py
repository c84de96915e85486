import sys

import agentrl


class Planted(agentrl.Env):
    """It takes an error for the end of the program."""

    async def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return [agentrl.user("Say something.")], {}

    async def step(self, action):
        sys.exit("that is no answer")  # finds: raises
