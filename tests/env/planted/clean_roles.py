"""Nothing is wrong here: two speakers who take turns."""

from typing import Any, ClassVar

import agentrl
from agentrl.env.roles import Role


class Planted(agentrl.Env):
    """Two players say numbers by turns; reward 1 for the higher one."""

    roles: ClassVar[dict[str, Role]] = {"left": Role(), "right": Role()}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.said: list[int] = []
        self.least = int(self.np_random.integers(10))
        return [agentrl.user(f"Say a number from {self.least} to 9.")], {"role": "left"}

    def step(self, action: agentrl.Message | str) -> Any:
        text = (action if isinstance(action, str) else action.text).strip()
        self.said.append(int(text) if text in map(str, range(self.least, 10)) else -1)
        if len(self.said) == 1:
            return [agentrl.user(f"Say a number from {self.least} to 9.")], 0.0, False, False, {"role": "right"}
        left, right = self.said
        return [], float(right > left), True, False, {"role_rewards": {"left": float(left > right)}}
