"""Nothing is wrong here."""

from typing import Any, ClassVar, Literal

import agentrl


class Planted(agentrl.ToolEnv):
    """Find the treasure; reward 1 for the room that it is in."""

    reward_range: ClassVar[tuple[float, float]] = (0.0, 1.0)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.room = int(self.np_random.integers(100))
        return [agentrl.user("In which of the rooms 0 to 99 is the treasure?")], {"rooms": 100}

    @agentrl.tool
    def compare(self, room: int, how: Literal["lower", "higher"] = "lower") -> bool:
        """Say whether the treasure is in a lower or higher room.

        Args:
            room: Its number.
            how: What to ask.
        """
        if not 0 <= room < 100:
            raise ValueError(f"there is no room {room}; rooms are 0 to 99")
        return self.room < room if how == "lower" else self.room > room

    def score(self, message: agentrl.Message) -> float:
        return float(message.text.strip() == str(self.room))

    def reference(self, messages: list[agentrl.Message]) -> agentrl.Message:
        return agentrl.assistant(str(self.room))
