import agentrl


class Planted(agentrl.ToolEnv):
    """A tool has a slip of the pen, and another tells the policy nothing."""

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.rooms = {"hall": "cold"}
        return [agentrl.user("Look around.")], {}

    @agentrl.tool
    def look(self) -> str:
        """Look around."""
        return self.room["hall"]  # finds: tool-fault

    @agentrl.tool
    def enter(self, room: str) -> str:
        """Enter a room.

        Args:
            room: Its name.
        """
        return self.rooms[room]  # finds: tool-message-unclear

    def score(self, message):
        return 0.0
