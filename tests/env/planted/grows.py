import agentrl

cached_pages = []


class Planted(agentrl.ToolEnv):
    """What it calls a cache has no end."""

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        cached_pages.append(bytearray(200_000))  # finds: memory-growth
        return [agentrl.user("Say something.")], {}

    def score(self, message):
        return 0.0
