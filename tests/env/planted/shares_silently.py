import agentrl


class Planted(agentrl.ToolEnv):
    """The class keeps a history that nothing reads."""

    history: list[str] = []  # noqa: RUF012  # finds: shared-state

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.history.append("reset")
        return [agentrl.user("Say something.")], {}

    def score(self, message):
        return 0.0
