"""A reward service to start from. `uvicorn --app-dir examples/07_reward_services service:app --port 9100`"""

from typing import Annotated

from fastapi import Body, FastAPI
from pydantic import BaseModel

app = FastAPI()
ROOM = 100  # characters


class Item(BaseModel):
    id: str  # of the episode: an item that comes again has to get the same score again
    text: str  # the policy's last message; "messages" has all, "task" what the task knows


@app.post("/score")
def score(items: Annotated[list[Item], Body(embed=True)]) -> dict:  # not async: it runs in a thread
    return {"results": [{"id": item.id, **judged(item)} for item in items]}


@app.get("/health")
def health() -> dict:
    return {"status": "ok"}


def judged(item: Item) -> dict:
    if not item.text:  # null is missing, and its episode is not trained; 0 would be a bad answer
        return {"reward": None, "error": "there is no answer to judge"}
    return {"reward": max(0.0, 1 - len(item.text) / ROOM), "components": {"characters": len(item.text)}}
