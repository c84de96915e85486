import ctypes

import agentrl


class Planted(agentrl.ToolEnv):
    """A tool reads memory that is not there."""

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return [agentrl.user("Read.")], {}

    @agentrl.tool
    def read(self) -> str:
        """Read."""
        return str(ctypes.string_at(0))  # finds: crash

    def score(self, message):
        return 0.0
