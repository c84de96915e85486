import time

import agentrl


class Planted(agentrl.ToolEnv):
    """A tool tells the time."""

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return [agentrl.user("What time is it?")], {}

    @agentrl.tool
    def now(self) -> float:
        """Tell the time."""
        return time.time()  # finds: not-deterministic

    def score(self, message):
        return 0.0
