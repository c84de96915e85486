import socket

import agentrl

cached_sockets = []


class Planted(agentrl.ToolEnv):
    """Each episode opens a socket, and something keeps it."""

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        cached_sockets.append(socket.socket())  # finds: leak-socket
        return [agentrl.user("Say something.")], {}

    def score(self, message):
        return 0.0
