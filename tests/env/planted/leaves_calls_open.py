import agentrl


class Planted(agentrl.Env):
    """It offers a tool and answers the first call only."""

    tools = [  # noqa: RUF012
        {
            "type": "function",
            "function": {
                "name": "look",
                "description": "Look around.",
                "parameters": {"type": "object", "properties": {}},
            },
        }
    ]

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.turn = 0
        return [agentrl.user("Look around.")], {}

    def step(self, action):  # finds: tool-unanswered
        self.turn += 1
        calls = [] if isinstance(action, str) else action.tool_calls
        answers = [agentrl.tool_message("A room.", tool_call_id=call["id"]) for call in calls[:1]]
        over = not calls or self.turn == 8
        return answers, 0.0, over, False, {}
