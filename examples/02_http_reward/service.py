"""A reward service of your own: one POST scores episodes, one GET says it is up. It needs nothing of agentrl."""

import re

from fastapi import FastAPI
from pydantic import BaseModel

app = FastAPI()
OPERATIONS = {"+": int.__add__, "-": int.__sub__, "*": int.__mul__}


class Item(BaseModel):
    id: str  # give it back with the score; the same id is the same episode, however often it is asked for
    messages: list[dict]  # the whole conversation, OpenAI form
    text: str  # the policy's last message


class Request(BaseModel):
    items: list[Item]


@app.post("/score")
def score(request: Request) -> dict:
    return {"results": [score_one(item) for item in request.items]}


@app.get("/health")
def health() -> dict:
    return {"status": "ok"}


def score_one(item: Item) -> dict:
    question = re.fullmatch(r"What is (\d+)([-+*])(\d+)\?", item.messages[0]["content"])
    if question is None:  # not a wrong answer but one that cannot be judged: the reward is missing, and says why
        return {"id": item.id, "reward": None, "error": f"not a question I know: {item.messages[0]['content']!r}"}
    right = str(OPERATIONS[question[2]](int(question[1]), int(question[3])))
    used_tool = any(message["role"] == "tool" for message in item.messages)
    return {"id": item.id, "reward": float(item.text.strip() == right), "components": {"used_tool": float(used_tool)}}
