import agentrl


class Planted(agentrl.ToolEnv):
    """It hands out what no other process can read."""

    def reset(self, *, seed=None, options=None):  # finds: info-not-json
        super().reset(seed=seed)
        return [agentrl.user("Say something.")], {"self": self}

    def score(self, message):
        return 0.0
