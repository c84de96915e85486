import agentrl

current = {"number": 0}  # finds: instances-interfere


class Planted(agentrl.ToolEnv):
    """Every reset forgets what the other instances were asked."""

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        current["number"] = int(self.np_random.integers(10**9))
        return [agentrl.user("Ask for the number.")], {}

    @agentrl.tool
    def ask(self) -> int:
        """Ask for the number."""
        return current["number"]

    def score(self, message):
        return 0.0
