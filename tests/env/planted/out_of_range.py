import agentrl


class Planted(agentrl.ToolEnv):
    """It declares rewards up to 1 and gives as many as there are words."""

    reward_range = (0.0, 1.0)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return [agentrl.user("Say something.")], {}

    def score(self, message):  # finds: reward-range
        return float(len(message.text.split()))
