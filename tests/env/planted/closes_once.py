import agentrl


class Planted(agentrl.ToolEnv):
    """It deletes what it has deleted."""

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.room = "hall"
        return [agentrl.user("Say something.")], {}

    def close(self):
        if hasattr(self, "room") or self.__dict__.get("closed"):
            del self.room  # finds: close-twice
            self.closed = True

    def score(self, message):
        return 0.0
