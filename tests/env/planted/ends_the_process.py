import os

import agentrl


class Planted(agentrl.ToolEnv):
    """A tool ends the process that it runs in."""

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return [agentrl.user("Leave.")], {}

    @agentrl.tool
    def leave(self) -> str:
        """Leave."""
        os._exit(0)  # finds: crash

    def score(self, message):
        return 0.0
