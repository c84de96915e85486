"""The shop: a small SQLite database in memory, filled from a seed, and what its clerk can do with it."""

from __future__ import annotations

import random
import sqlite3
from typing import Any

PRODUCTS = ("kettle", "lamp", "teapot", "blanket", "clock", "mirror", "vase", "toaster", "rug", "chair")
FIRST_NAMES = (
    "Ann",
    "Bo",
    "Cy",
    "Di",
    "Ed",
    "Flo",
    "Gus",
    "Ida",
    "Jo",
    "Kai",
    "Lou",
    "Mia",
    "Ned",
    "Ola",
    "Pia",
    "Ray",
)
LAST_NAMES = (
    "Lee",
    "Sand",
    "Moor",
    "Park",
    "Vale",
    "Hart",
    "Rey",
    "Wren",
    "Ash",
    "Bell",
    "Cole",
    "Dunn",
    "Frey",
    "Holt",
)
STREETS = ("Mill Lane", "High Street", "Park Road", "Station Road", "Church Lane", "Bridge Street")
PENDING, SHIPPED, DELIVERED, CANCELLED = "pending", "shipped", "delivered", "cancelled"

_SCHEMA = """
create table products (name text primary key, price integer not null, stock integer not null);
create table orders (
    id integer primary key, customer text not null, status text not null, placed_days_ago integer not null,
    address text not null
);
create table items (
    order_id integer not null references orders, product text not null references products, quantity integer not null,
    returned integer not null default 0, primary key (order_id, product)
);
create table cases (order_id integer not null, outcome text not null);
"""
TABLES = ("products", "orders", "items", "cases")


class Shop:
    """Every method that takes an id or a name raises ValueError, in words for the clerk, when there is no such thing.

    What the shop's rules forbid is not prevented here: to know them is the clerk's task.
    """

    def __init__(self, seed: int) -> None:
        # The connection moves with its environment from the thread that makes it to the one that closes it.
        self._db = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        self._db.executescript(_SCHEMA)
        self._fill(random.Random(seed))

    def close(self) -> None:
        self._db.close()

    def contents(self) -> list[list[tuple[Any, ...]]]:
        """All rows of all tables, in order: equal for two shops in the same state."""
        return [self._rows(f"select * from {table} order by 1, 2") for table in TABLES]

    def customers(self) -> list[str]:
        return [name for (name,) in self._rows("select distinct customer from orders order by customer")]

    def find_orders(self, customer: str) -> list[dict[str, Any]]:
        found = self._rows("select id from orders where lower(customer) = lower(?) order by id", customer.strip())
        if not found:
            raise ValueError(f"no orders of a customer called {customer!r}")
        return [self.get_order(order_id) for (order_id,) in found]

    def get_order(self, order_id: int) -> dict[str, Any]:
        found = self._rows("select customer, status, placed_days_ago, address from orders where id = ?", order_id)
        if not found:
            raise ValueError(f"there is no order {order_id}")
        customer, status, days, address = found[0]
        items = self._rows(
            "select product, quantity, returned from items where order_id = ? order by product", order_id
        )
        return {
            "order_id": order_id,
            "customer": customer,
            "status": status,
            "placed_days_ago": days,
            "address": address,
            "items": [{"product": name, "quantity": count, "returned": bool(back)} for name, count, back in items],
        }

    def search_products(self, text: str) -> list[dict[str, Any]]:
        rows = self._rows("select name, price, stock from products order by name")
        wanted = text.lower().strip()
        return [{"product": name, "price": price, "stock": stock} for name, price, stock in rows if wanted in name]

    def cancel_order(self, order_id: int) -> None:
        self.get_order(order_id)
        self._db.execute("update orders set status = ? where id = ?", (CANCELLED, order_id))

    def change_address(self, order_id: int, address: str) -> None:
        self.get_order(order_id)
        self._db.execute("update orders set address = ? where id = ?", (address.strip(), order_id))

    def return_item(self, order_id: int, product: str) -> None:
        order = self.get_order(order_id)
        if product not in (item["product"] for item in order["items"]):
            raise ValueError(f"order {order_id} has no {product!r}")
        self._db.execute("update items set returned = 1 where order_id = ? and product = ?", (order_id, product))

    def place_order(self, customer: str, product: str, quantity: int, address: str) -> int:
        """The new order's id."""
        if quantity < 1:
            raise ValueError(f"the quantity is {quantity}; it has to be at least 1")
        found = self._rows("select stock from products where name = ?", product)
        if not found:
            raise ValueError(f"there is no product {product!r}")
        if found[0][0] < quantity:
            raise ValueError(f"only {found[0][0]} of {product!r} are in stock")
        ((order_id,),) = self._rows("select max(id) + 1 from orders")
        self._db.execute("update products set stock = stock - ? where name = ?", (quantity, product))
        self._db.execute(
            "insert into orders values (?, ?, ?, 0, ?)", (order_id, customer.strip(), PENDING, address.strip())
        )
        self._db.execute("insert into items values (?, ?, ?, 0)", (order_id, product, quantity))
        return int(order_id)

    def close_case(self, order_id: int, outcome: str) -> None:
        """Notes how a customer's wish about an order ended."""
        self.get_order(order_id)
        self._db.execute("insert into cases values (?, ?)", (order_id, outcome))

    def _rows(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        return self._db.execute(statement, values).fetchall()

    def _fill(self, rng: random.Random) -> None:
        for product in PRODUCTS:
            self._db.execute("insert into products values (?, ?, ?)", (product, rng.randint(5, 90), rng.randint(5, 30)))
        order_id = rng.randint(100, 899)
        customers = [f"{first} {rng.choice(LAST_NAMES)}" for first in rng.sample(FIRST_NAMES, 8)]
        for customer in customers:
            # The products of one customer's orders differ, so that each names its order.
            products = rng.sample(PRODUCTS, 6)
            for index in range(rng.randint(2, 3)):
                status = rng.choice((PENDING, SHIPPED, DELIVERED, DELIVERED))
                days = rng.randint(1, 60) if status == DELIVERED else rng.randint(1, 5)
                self._db.execute(
                    "insert into orders values (?, ?, ?, ?, ?)", (order_id, customer, status, days, an_address(rng))
                )
                for product in products[2 * index : 2 * index + rng.randint(1, 2)]:
                    self._db.execute("insert into items values (?, ?, ?, 0)", (order_id, product, rng.randint(1, 3)))
                order_id += rng.randint(1, 9)


def an_address(rng: random.Random) -> str:
    return f"{rng.randint(1, 99)} {rng.choice(STREETS)}"
