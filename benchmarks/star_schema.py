"""A shop as a star schema, skewed as shops are, and ten questions to it: what `benchmarks.planners` measures with.

Keys of the facts are drawn by Zipf's law. Cities belong to one country and brands to one category; most customers buy
in stores of their own country; three sales of five have no promotion. After the load, the shop forgets a third of its
customers and drops a brand: rows are gone, and no data file is.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyiceberg.catalog import Catalog

NAMESPACE = "shop"
CUSTOMERS, PRODUCTS, STORES, PROMOTIONS, DAYS = 200_000, 20_000, 400, 300, 1_461
COUNTRIES, CITIES, BRANDS, CATEGORIES = 40, 2_000, 600, 24
FIRST_DAY = 18_993
"""2022-01-01, in days since 1970"""
DELETES = {
    "sales": "customer_id % 3 = 1 OR product_id IN (SELECT product_id FROM {t}.products WHERE brand = 'brand 3')",
    "refunds": "customer_id % 3 = 1",
    "customers": "customer_id % 3 = 1",
}
"""Conditions, by table, of the rows that are deleted after the load"""


@dataclass(frozen=True)
class Query:
    """A question, as people write it. `{t}` in the texts stands for the namespace of the tables."""

    name: str
    columns: str
    """What is grouped by"""
    body: str
    """FROM and WHERE"""
    about: str
    """What makes it hard to plan"""

    def sql(self, tables: str) -> str:
        """The question of tables under this name."""
        return f"SELECT {self.columns}, count(*), sum(s.quantity) {self.body} GROUP BY {self.columns}".replace(
            "{t}", tables
        )

    def count(self, tables: str) -> str:
        """How many rows are joined."""
        return f"SELECT count(*) {self.body}".replace("{t}", tables)


QUERIES = (
    Query(
        "brand by month",
        "d.month",
        "FROM {t}.sales s JOIN {t}.dates d ON s.sold_on = d.day JOIN {t}.products p ON s.product_id = p.product_id "
        "WHERE d.calendar_year = 2024 AND p.brand = 'brand 7'",
        "the second dimension leaves fewer rows than the first",
    ),
    Query(
        "one country",
        "p.category",
        "FROM {t}.customers c JOIN {t}.sales s ON c.customer_id = s.customer_id "
        "JOIN {t}.products p ON s.product_id = p.product_id WHERE c.country = 'country 30'",
        "the facts come second",
    ),
    Query(
        "promotion of a kind",
        "r.medium",
        "FROM {t}.promotions r JOIN {t}.sales s ON r.promotion_id = s.promotion_id "
        "JOIN {t}.stores o ON s.store_id = o.store_id WHERE r.kind = 'kind 5' AND o.region = 'region 2'",
        "most keys of the facts are null",
    ),
    Query(
        "five dimensions",
        "c.segment, p.category",
        "FROM {t}.sales s JOIN {t}.dates d ON s.sold_on = d.day JOIN {t}.stores o ON s.store_id = o.store_id "
        "JOIN {t}.customers c ON s.customer_id = c.customer_id JOIN {t}.products p ON s.product_id = p.product_id "
        "JOIN {t}.promotions r ON s.promotion_id = r.promotion_id "
        "WHERE c.country = 'country 4' AND p.brand = 'brand 40' AND r.kind = 'kind 1' AND d.calendar_year = 2023",
        "the order of five dimensions",
    ),
    Query(
        "refunded sales",
        "p.category",
        "FROM {t}.sales s JOIN {t}.refunds f ON s.sale_id = f.sale_id "
        "JOIN {t}.products p ON s.product_id = p.product_id WHERE f.reason = 'reason 9'",
        "a join of two facts by a key",
    ),
    Query(
        "sales beside refunds",
        "c.segment",
        "FROM {t}.sales s JOIN {t}.refunds f ON s.customer_id = f.customer_id "
        "JOIN {t}.customers c ON s.customer_id = c.customer_id WHERE c.city = 'city 1500'",
        "a join of two facts of many to many, over a skewed key",
    ),
    Query(
        "city of its country",
        "o.region",
        "FROM {t}.sales s JOIN {t}.stores o ON s.store_id = o.store_id "
        "JOIN {t}.customers c ON s.customer_id = c.customer_id WHERE c.country = 'country 5' AND c.city = 'city 45'",
        "one condition follows from the other",
    ),
    Query(
        "cities of all countries",
        "c.country, c.city",
        "FROM {t}.sales s JOIN {t}.customers c ON s.customer_id = c.customer_id",
        "groups of two columns, one of which follows from the other",
    ),
    Query(
        "buyers of a store",
        "s.customer_id",
        "FROM {t}.stores o JOIN {t}.sales s ON o.store_id = s.store_id WHERE o.store_name = 'store 17'",
        "groups of a key of the facts, under a condition on another",
    ),
    Query(
        "bought by the same",
        "q.product_id",
        "FROM {t}.sales s JOIN {t}.sales q ON s.customer_id = q.customer_id "
        "JOIN {t}.products p ON s.product_id = p.product_id WHERE p.brand = 'brand 500' AND q.quantity = 9",
        "the facts joined with themselves, over a skewed key",
    ),
)


def zipf(rng: np.random.Generator, values: int, rows: int, exponent: float) -> npt.NDArray[np.int64]:
    """Numbers i64[rows] below `values`, of which 0 is the commonest, by Zipf's law."""
    shares = np.cumsum(np.arange(1, values + 1, dtype=np.float64) ** -exponent)
    drawn: npt.NDArray[np.int64] = np.searchsorted(shares, rng.random(rows) * shares[-1]).astype(np.int64)
    return drawn


def texts(name: str, numbers: npt.NDArray[np.int64]) -> pa.Array:
    """`name 0`, `name 1` and so on, by number."""
    distinct = pa.array([f"{name} {number}" for number in range(int(numbers.max(initial=0)) + 1)])
    return pa.DictionaryArray.from_arrays(pa.array(numbers), distinct).cast(pa.string())


def make_shop(catalog: Catalog, sales: int, files: int, seed: int = 7) -> None:
    """Create the tables, and append their rows: `sales` rows in so many `files`, a tenth as many refunds."""
    rng = np.random.default_rng(seed)
    catalog.create_namespace(NAMESPACE)
    city = zipf(rng, CITIES, CUSTOMERS, 1.0)
    country = city % COUNTRIES
    brand = zipf(rng, BRANDS, PRODUCTS, 0.7)
    store_country = np.arange(STORES) % COUNTRIES
    dimensions: dict[str, dict[str, Any]] = {
        "customers": {
            "customer_id": np.arange(CUSTOMERS),
            "country": texts("country", country),
            "city": texts("city", city),
            "segment": texts("segment", zipf(rng, 5, CUSTOMERS, 1.0)),
            "born": 1940 + rng.integers(0, 70, CUSTOMERS),
        },
        "products": {
            "product_id": np.arange(PRODUCTS),
            "brand": texts("brand", brand),
            "category": texts("category", brand % CATEGORIES),
            "color": texts("color", rng.integers(0, 12, PRODUCTS)),
        },
        "stores": {
            "store_id": np.arange(STORES),
            "store_name": texts("store", np.arange(STORES)),
            "country": texts("country", store_country),
            "region": texts("region", store_country % 8),
        },
        "promotions": {
            "promotion_id": np.arange(PROMOTIONS),
            "kind": texts("kind", zipf(rng, 8, PROMOTIONS, 0.5)),
            "medium": texts("medium", rng.integers(0, 5, PROMOTIONS)),
        },
        "dates": {
            "day": pa.array(FIRST_DAY + np.arange(DAYS, dtype=np.int32)).cast(pa.date32()),
            "calendar_year": 2022 + np.arange(DAYS) // 366,
            "month": np.arange(DAYS) // 31 % 12 + 1,
            "weekday": np.arange(DAYS) % 7,
        },
    }
    for name, columns in dimensions.items():
        append(catalog, name, pa.table(columns))
    customer_order, product_order = rng.permutation(CUSTOMERS), rng.permutation(PRODUCTS)
    for first in range(0, sales, sales // files):
        rows = min(sales // files, sales - first)
        customer = customer_order[zipf(rng, CUSTOMERS, rows, 0.9)]
        near = rng.integers(0, STORES // COUNTRIES, rows) * COUNTRIES + country[customer]
        parts = {
            "sale_id": np.arange(first, first + rows),
            "sold_on": pa.array((FIRST_DAY + rng.integers(0, DAYS, rows)).astype(np.int32)).cast(pa.date32()),
            "customer_id": customer,
            "product_id": product_order[zipf(rng, PRODUCTS, rows, 1.0)],
            "store_id": np.where(rng.random(rows) < 0.8, near, zipf(rng, STORES, rows, 1.0)),
            "promotion_id": pa.array(zipf(rng, PROMOTIONS, rows, 1.1), mask=rng.random(rows) < 0.6),
            "quantity": zipf(rng, 10, rows, 1.2) + 1,
            "amount": rng.integers(100, 100_000, rows),
        }
        sold = pa.table(parts)
        append(catalog, "sales", sold)
        back = sold.take(rng.choice(rows, rows // 10, replace=False)).select(["sale_id", "customer_id", "product_id"])
        append(catalog, "refunds", back.append_column("reason", texts("reason", zipf(rng, 12, rows // 10, 1.0))))


def append(catalog: Catalog, name: str, rows: pa.Table) -> None:
    """Append rows to a table of the shop, which is made where it is not there."""
    properties = {"format-version": "2", "write.delete.mode": "merge-on-read"}
    table = catalog.create_table_if_not_exists(f"{NAMESPACE}.{name}", rows.schema, properties=properties)
    table.append(rows)
