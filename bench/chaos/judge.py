"""The reward service of the campaign's run. The run starts it, and it is shot at too."""

from __future__ import annotations

from agentrl.reward.protocol import Item
from agentrl.reward.service import ItemService

ENOUGH = 40  # characters


class Brief(ItemService):
    """1 for a short last message."""

    def score_item(self, item: Item) -> float:
        return float(len(item.text or "") <= ENOUGH)
