import tempfile

import agentrl


class Planted(agentrl.ToolEnv):
    """Each episode makes a folder, and nobody deletes it."""

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.folder = tempfile.mkdtemp()  # finds: leak-temporary
        return [agentrl.user("Say something.")], {}

    def score(self, message):
        return 0.0
