import agentrl


class Planted(agentrl.ToolEnv):
    """Its reward is not a number for an answer without words."""

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return [agentrl.user("Say something.")], {}

    def score(self, message):  # finds: reward-not-finite
        words = message.text.split()
        return 0.0 if words else float("nan")
