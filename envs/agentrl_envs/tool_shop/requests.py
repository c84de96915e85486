"""What customers want, whether the shop's rules allow it, and what the shop looks like afterwards."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any, Literal

from agentrl_envs.splits import Split, require_split, split_of
from agentrl_envs.tool_shop.shop import DELIVERED, PENDING, PRODUCTS, Shop, an_address

RETURN_DAYS = 30
Kind = Literal["cancel", "address", "return", "buy"]
Outcome = Literal["done", "refused"]

_ALLOWED_SHARE = 0.6
"""Of the wishes about an order: most orders are past changing, and refusing everything must not pay."""


@dataclass(frozen=True)
class CustomerRequest:
    """One customer's wish. `order_id` is what the clerk has to find out; the customer knows it by `product` only."""

    seed: int  # of the shop
    kind: Kind
    customer: str
    product: str
    order_id: int = 0
    address: str = ""
    quantity: int = 1

    @property
    def split(self) -> Split:
        """A fifth of the customers is held out, by hash of the name: no conversation of training begins like theirs."""
        return split_of(self.customer)

    def allowed(self, shop: Shop) -> bool:
        """By the rules that the clerk is told."""
        if self.kind == "buy":
            return True
        order = shop.get_order(self.order_id)
        if self.kind == "return":
            return bool(order["status"] == DELIVERED and order["placed_days_ago"] <= RETURN_DAYS)
        return bool(order["status"] == PENDING)

    def carry_out(self, shop: Shop) -> None:
        """Leaves the shop as a good clerk would: the wish carried out when the rules allow it, the case closed."""
        order_id = self.order_id
        outcome: Outcome = "done" if self.allowed(shop) else "refused"
        if outcome == "done":
            match self.kind:
                case "cancel":
                    shop.cancel_order(order_id)
                case "address":
                    shop.change_address(order_id, self.address)
                case "return":
                    shop.return_item(order_id, self.product)
                case "buy":
                    order_id = shop.place_order(self.customer, self.product, self.quantity, self.address)
        shop.close_case(order_id, outcome)


def request(seed: int, split: str = "train") -> CustomerRequest:
    """The request of `split` that `seed` stands for. Raises ValueError for another split."""
    require_split(split, "tool_shop")
    rng = random.Random(seed)
    while True:
        found = _drawn(rng)
        if found.split == split:
            return found


def _drawn(rng: random.Random) -> CustomerRequest:
    kind: Kind = rng.choice(("cancel", "address", "return", "buy"))
    allowed = kind == "buy" or rng.random() < _ALLOWED_SHARE
    while True:
        found, is_allowed = _wish(rng, kind)
        if is_allowed == allowed:
            return found


def _wish(rng: random.Random, kind: Kind) -> tuple[CustomerRequest, bool]:
    """One of a new shop's customer, and whether the rules allow it."""
    seed = rng.randrange(2**32)
    shop = Shop(seed)
    try:
        customer = rng.choice(shop.customers())
        if kind == "buy":
            address, quantity = an_address(rng), rng.randint(1, 4)
            found = CustomerRequest(seed, kind, customer, rng.choice(PRODUCTS), address=address, quantity=quantity)
        else:
            order: dict[str, Any] = rng.choice(shop.find_orders(customer))
            product = rng.choice(order["items"])["product"]
            address = an_address(rng) if kind == "address" else ""
            found = CustomerRequest(seed, kind, customer, product, order["order_id"], address)
        return found, found.allowed(shop)
    finally:
        shop.close()
