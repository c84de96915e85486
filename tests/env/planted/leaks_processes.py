import subprocess

import agentrl


class Planted(agentrl.ToolEnv):
    """Each episode starts a program, and never ends it."""

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.program = subprocess.Popen(["sleep", "1000"])  # finds: leak-process
        return [agentrl.user("Say something.")], {}

    def score(self, message):
        return 0.0
