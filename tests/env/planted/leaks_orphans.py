import subprocess

import agentrl


class Planted(agentrl.ToolEnv):
    """Each episode runs a shell that leaves a program in the background."""

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        subprocess.run(["sh", "-c", "setsid sleep 1000 >/dev/null 2>&1 &"])  # finds: leak-process
        return [agentrl.user("Say something.")], {}

    def score(self, message):
        return 0.0
