import threading

import agentrl


class Planted(agentrl.ToolEnv):
    """Each episode starts a thread and leaves it."""

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        threading.Thread(target=threading.Event().wait, daemon=True).start()  # finds: leak-thread
        return [agentrl.user("Say something.")], {}

    def score(self, message):
        return 0.0
