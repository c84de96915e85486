"""A good clerk, as a policy: from the conversation so far to the next assistant message."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from agentrl.messages import Message, assistant
from agentrl_envs.tool_shop.requests import RETURN_DAYS

_GOODBYE = "I have noted it. Goodbye!"


def reference(messages: Sequence[Message]) -> Message:
    """Asks, looks up, acts as the rules allow, says goodbye. Raises ValueError for a customer who says too little."""
    said = [message.text for message in messages if message.role == "user"]
    opening, told = said[0], " ".join(said[1:])
    customer = _only(r"(?:this is|name is|morning,) (\w+ \w+)", opening)
    if "buy something" in opening:
        return _sell(messages, customer, told)
    if not told:
        asked = "Which item is it" if "return" in opening else "Which order is it, and is there a new address"
        return assistant(f"{asked}?")
    results = [message.text for message in messages if message.role == "tool"]
    if not results:
        return _call("find_orders", customer=customer)
    product = _only(r"(?:with|is) the (\w+)\.", told)
    order = next(order for order in json.loads(results[0]) if product in (item["product"] for item in order["items"]))
    acts = [_call("close_case", order_id=order["order_id"], outcome="refused")]
    if _allowed(opening, order):
        acts = [_change(opening, told, order, product), _call("close_case", order_id=order["order_id"], outcome="done")]
    return acts[len(results) - 1] if len(results) <= len(acts) else assistant(_GOODBYE)


def _allowed(opening: str, order: dict[str, Any]) -> bool:
    if "return" in opening:
        return bool(order["status"] == "delivered" and order["placed_days_ago"] <= RETURN_DAYS)
    return bool(order["status"] == "pending")


def _change(opening: str, told: str, order: dict[str, Any], product: str) -> Message:
    if "return" in opening:
        return _call("return_item", order_id=order["order_id"], product=product)
    if "cancel" in opening:
        return _call("cancel_order", order_id=order["order_id"])
    return _call("change_address", order_id=order["order_id"], address=_address(told))


def _sell(messages: Sequence[Message], customer: str, told: str) -> Message:
    if not told:
        return assistant("Which product, how many, and to which address?")
    results = [message.text for message in messages if message.role == "tool"]
    if len(results) == 1:
        return _call("close_case", order_id=int(_only(r"Order (\d+)", results[0])), outcome="done")
    if results:
        return assistant(_GOODBYE)
    quantity, product = int(_only(r"(\d+), please", told)), _only(r"is the (\w+)\.", told)
    return _call("place_order", customer=customer, product=product, quantity=quantity, address=_address(told))


def _address(told: str) -> str:
    return _only(r"address is ([^.]+)\.", told)


def _only(pattern: str, text: str) -> str:
    found = re.search(pattern, text)
    if found is None:
        raise ValueError(f"the customer did not say {pattern!r}: {text!r}")
    return found[1]


def _call(name: str, **arguments: Any) -> Message:
    function = {"name": name, "arguments": json.dumps(arguments)}
    return assistant(None, tool_calls=[{"id": "call_0", "type": "function", "function": function}])
