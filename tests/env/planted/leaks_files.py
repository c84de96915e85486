import agentrl

kept = [None]
cached_files = []


class Planted(agentrl.ToolEnv):
    """Each episode opens a file, and something keeps it."""

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        cached_files.append(open(__file__))  # noqa: SIM115  # finds: leak-file
        return [agentrl.user("Say something.")], {}

    def score(self, message):
        return 0.0
