import agentrl


class Planted(agentrl.ToolEnv):
    """A tool without a type hint cannot be described."""

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return [agentrl.user("Say something.")], {}

    @agentrl.tool
    def look(self, where) -> str:  # finds: tool-schema
        """Look somewhere."""
        return "nothing"

    def score(self, message):
        return 0.0
