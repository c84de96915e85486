import os
import tempfile

import agentrl


class Planted(agentrl.ToolEnv):
    """It changes what belongs to the whole process, and says so on standard output."""

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        os.chdir(tempfile.gettempdir())  # finds: changes-directory
        os.environ["PLANTED"] = str(seed)  # finds: changes-environment
        print("reset")  # finds: prints
        return [agentrl.user("Say something.")], {}

    def score(self, message):
        return 0.0
