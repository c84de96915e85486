"""Serve a customer who writes to a shop: find out what is wanted, look it up, act by the rules, say goodbye."""

from __future__ import annotations

import random
from typing import Any

import agentrl
from agentrl.env.base import ResetResult, StepResult
from agentrl.env.space import as_action
from agentrl_envs.tool_shop.customer import Customer
from agentrl_envs.tool_shop.requests import RETURN_DAYS, CustomerRequest, Outcome, request
from agentrl_envs.tool_shop.shop import Shop

RULES = (
    "You are the clerk of a shop. Serve the customer with your tools. Rules: the address of an order can be "
    "changed, and an order cancelled, only while it is pending. An item can be returned only from a delivered "
    f"order that was placed at most {RETURN_DAYS} days ago. Never change anything that was not asked for or is not "
    "allowed; say so instead. Ask for what you need to know. Close the case once, when you did or refused what "
    "was wanted. Then end the conversation with a message that says goodbye."
)


class ToolShop(agentrl.ToolEnv):
    """Reward 1 when the database is as a good clerk leaves it, else 0."""

    max_rounds = 24
    wanted: CustomerRequest
    _shop: Shop | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> ResetResult:
        """The customer that `seed` stands for in the split `options["split"]`."""
        super().reset(seed=seed)
        self.close()
        drawn = int(self.np_random.integers(2**53)) if seed is None else seed
        self.wanted = request(drawn, (options or {}).get("split", "train"))
        self._shop = Shop(self.wanted.seed)
        self._customer = Customer(self.wanted, random.Random(drawn))
        return [agentrl.system(RULES), agentrl.user(self._customer.opening())], {}

    def step(self, action: agentrl.Message | str) -> StepResult:
        message = as_action(action)
        said = None if message.tool_calls else self._customer.answer(message.text)
        if said is None:
            result: StepResult = super().step(message)
            return result
        return [agentrl.user(said)], 0.0, False, False, {}

    def score(self, message: agentrl.Message) -> float:
        """Looks at the final state alone: how it was reached and what was said does not count."""
        right = Shop(self.wanted.seed)
        try:
            self.wanted.carry_out(right)
            return float(self.shop.contents() == right.contents())
        finally:
            right.close()

    def close(self) -> None:
        if self._shop is not None:
            self._shop.close()
            self._shop = None

    @property
    def shop(self) -> Shop:
        assert self._shop is not None, "reset comes first"
        return self._shop

    @agentrl.tool
    def find_orders(self, customer: str) -> list[dict[str, Any]]:
        """All orders of a customer.

        Args:
            customer: First and last name.
        """
        return self.shop.find_orders(customer)

    @agentrl.tool
    def get_order(self, order_id: int) -> dict[str, Any]:
        """One order by its number.

        Args:
            order_id: The order's number.
        """
        return self.shop.get_order(order_id)

    @agentrl.tool
    def search_products(self, text: str) -> list[dict[str, Any]]:
        """Products whose name has a text in it, with price and stock.

        Args:
            text: Part of a name; empty for all products.
        """
        return self.shop.search_products(text)

    @agentrl.tool
    def cancel_order(self, order_id: int) -> str:
        """Cancel an order.

        Args:
            order_id: The order's number.
        """
        self.shop.cancel_order(order_id)
        return f"Order {order_id} is cancelled."

    @agentrl.tool
    def change_address(self, order_id: int, address: str) -> str:
        """Change the delivery address of an order.

        Args:
            order_id: The order's number.
            address: House number and street.
        """
        self.shop.change_address(order_id, address)
        return f"Order {order_id} goes to {address.strip()}."

    @agentrl.tool
    def return_item(self, order_id: int, product: str) -> str:
        """Take back an item of an order.

        Args:
            order_id: The order's number.
            product: The product's name.
        """
        self.shop.return_item(order_id, product)
        return f"The {product} of order {order_id} is returned."

    @agentrl.tool
    def place_order(self, customer: str, product: str, quantity: int, address: str) -> str:
        """Order a product for a customer.

        Args:
            customer: First and last name.
            product: The product's name.
            quantity: How many.
            address: House number and street.
        """
        return f"Order {self.shop.place_order(customer, product, quantity, address)} is placed."

    @agentrl.tool
    def close_case(self, order_id: int, outcome: Outcome) -> str:
        """Note how the customer's wish ended.

        Args:
            order_id: The order that it was about; a new order's number where something was bought.
            outcome: Whether the wish was carried out, or refused by the rules.
        """
        self.shop.close_case(order_id, outcome)
        return "The case is closed."
