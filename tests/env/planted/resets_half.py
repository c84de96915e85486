import agentrl


class Planted(agentrl.ToolEnv):
    """What was bought stays in the basket when it is reset."""

    def __init__(self):
        self.basket = []

    def reset(self, *, seed=None, options=None):  # finds: reset-incomplete
        super().reset(seed=seed)
        return [agentrl.user("Buy something.")], {}

    @agentrl.tool
    def buy(self) -> str:
        """Buy one thing."""
        self.basket.append("thing")
        return f"There are {len(self.basket)} things in the basket."

    def score(self, message):
        return 0.0
