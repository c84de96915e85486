import agentrl


class Planted(agentrl.ToolEnv):
    """The basket is the class's, so all episodes fill the same one."""

    basket: list[str] = []  # noqa: RUF012  # finds: instances-interfere

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return [agentrl.user("Buy something.")], {}

    @agentrl.tool
    def buy(self) -> str:
        """Buy one thing."""
        self.basket.append("thing")
        return f"There are {len(self.basket)} things in the basket."

    def score(self, message):
        return 0.0
