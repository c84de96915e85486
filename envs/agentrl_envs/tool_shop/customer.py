"""The user simulator: a customer who tells what is asked for, and leaves when told goodbye or out of patience."""

from __future__ import annotations

import random

from agentrl_envs.tool_shop.requests import CustomerRequest

PATIENCE = 8
"""Messages of the clerk that a customer answers."""

_OPENINGS = ("Hello, this is {name}.", "Hi! My name is {name}.", "Good morning, {name} here.")
_WISHES = {
    "cancel": "I would like to cancel an order.",
    "address": "I have to change the delivery address of an order.",
    "return": "I want to return something that I bought.",
    "buy": "I would like to buy something.",
}


class Customer:
    """Scripted, so that an episode costs nothing and its chance is the seed's. Knows products, never order numbers."""

    def __init__(self, wanted: CustomerRequest, rng: random.Random) -> None:
        self._wanted = wanted
        self._rng = rng
        self._patience = PATIENCE

    def opening(self) -> str:
        return f"{self._rng.choice(_OPENINGS).format(name=self._wanted.customer)} {_WISHES[self._wanted.kind]}"

    def answer(self, text: str) -> str | None:
        """What the customer says to a message of the clerk; None when the conversation is over."""
        heard = text.lower()
        self._patience -= 1
        if "goodbye" in heard or self._patience < 0:
            return None
        if "?" not in heard:
            return self._rng.choice(("Is that done, then?", "All right. And now?", "Fine, what else do you need?"))
        known = [fact for words, fact in self._facts() if fact and any(word in heard for word in words)]
        return " ".join(dict.fromkeys(known)) or self._rng.choice(("Yes, please.", "Yes, that is right."))

    def _facts(self) -> tuple[tuple[tuple[str, ...], str], ...]:
        """Words that ask for something, and what the customer then says."""
        wanted = self._wanted
        which = f"It is the {wanted.product}." if wanted.kind in ("buy", "return") else ""
        order = (
            ""
            if wanted.kind == "buy"
            else f"I do not have the number at hand; it is the order with the {wanted.product}."
        )
        return (
            (("address", "where", "deliver"), f"The address is {wanted.address}." if wanted.address else ""),
            (("how many", "quantity", "number of"), f"{wanted.quantity}, please." if wanted.kind == "buy" else ""),
            (("what", "which", "product", "item"), which),
            (("order", "number"), order),
            (("name", "who"), f"{wanted.customer}."),
        )
