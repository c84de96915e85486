from typing import Any

import agentrl


class Planted(agentrl.ToolEnv):
    """A tool says of its argument neither what it is nor what it is for."""

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return [agentrl.user("Say something.")], {}

    @agentrl.tool
    def look(self, where: Any, deep: bool = False) -> str:  # finds: tool-untyped tool-parameter-undocumented
        """Look somewhere."""
        return "nothing"

    @agentrl.tool
    def wait(self) -> str:  # finds: tool-undocumented
        return "done"

    def score(self, message):
        return 0.0
