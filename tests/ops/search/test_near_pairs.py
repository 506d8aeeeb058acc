"""Pairs of near rows, beside comparing each row with each."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from pyiceberg.table import Table

from examples.demo.row_deletes import append_position_deletes
from icepuffin.ops.search.errors import QueryError
from icepuffin.ops.search.opening import open_exact, open_index
from icepuffin.ops.table.live_files import live_files
from tests.conftest import DIMS, ROWS, STORAGE, make_rows, vectors_of
from tests.ops.index.comparison import DEFINITION, index_head

pytestmark = pytest.mark.usefixtures("no_disk_cache")
WITHIN = 0.3


def copies(first: int, of: list[int], noise: float) -> pa.Table:
    """Rows that are nearly those of some ids."""
    rows = make_rows(first, first + len(of))
    vectors = vectors_of(np.array(of)) + noise * np.random.default_rng(first).standard_normal((len(of), DIMS))
    column = pa.array(vectors.astype(np.float32).tolist(), pa.list_(pa.float32()))
    return rows.set_column(rows.schema.get_field_index("embedding"), "embedding", column).cast(ROWS)


@pytest.fixture
def table(table_factory: Callable[..., Table]) -> Table:
    """Families of near rows, larger than a first search gives; deletes, and rows that the index lacks."""
    made = table_factory()
    made.append(make_rows(0, 200))
    made.append(copies(1_000, [5] * 40 + [6, 7, 7, 8], 0.01))
    index_head(made, DEFINITION)
    made.append(copies(2_000, [5, 6, 11, 12, 12], 0.01))
    file = next(one for one in live_files(made.refresh(), made.metadata.current_snapshot_id or 0).files)
    append_position_deletes(made, {file.path: np.arange(0, 2)})
    return made.refresh()


def true_pairs(table: Table, metric: str) -> dict[tuple[int, int], float]:
    rows = table.scan().to_arrow()
    ids, vectors = rows["id"].to_pylist(), np.array(rows["embedding"].to_pylist(), np.float64)
    if metric == "cosine":
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        far = 1 - vectors @ vectors.T
    else:
        far = np.linalg.norm(vectors[:, None] - vectors[None], axis=2)
    limit = WITHIN if metric == "l2" else 0.01
    return {
        (min(ids[a], ids[b]), max(ids[a], ids[b])): far[a, b]
        for a in range(len(ids)) for b in range(a) if far[a, b] < limit
    }  # fmt: skip


@pytest.mark.parametrize("metric", ["l2", "cosine"])
def test_pairs_are_those_of_comparing_each_row_with_each(table: Table, metric: str) -> None:
    definition = replace(DEFINITION, metric=metric, name=metric, search_list=100, max_degree=32)
    index_head(table, definition)
    truth = true_pairs(table, metric)
    assert len(truth) > 700
    for reader in (
        open_index(table.refresh(), definition, storage=STORAGE),
        open_exact(table, "embedding", metric, storage=STORAGE),
    ):
        found = reader.pairs(WITHIN if metric == "l2" else 0.01, columns=["id"], sample=1_000)
        pairs = {
            (min(row["left_id"], row["right_id"]), max(row["left_id"], row["right_id"])): row["distance"]
            for row in found.rows.to_pylist()
        }
        assert pairs.keys() == truth.keys()
        assert len(found) == len(pairs)
        assert [pairs[pair] for pair in truth] == pytest.approx(list(truth.values()), abs=1e-6)
        assert (found.found, found.expected, found.recall) == (len(truth), len(truth), 1.0)
        assert found.rows["distance"].to_pylist() == sorted(pairs.values())


def test_what_a_graph_misses_is_counted(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """A search that never looks for more than two rows finds few of the pairs, and says so."""
    monkeypatch.setattr("icepuffin.ops.search.near_pairs._FIRST_K", 2)
    monkeypatch.setattr("icepuffin.ops.search.near_pairs._WIDER", 1)
    reader = open_index(table, DEFINITION, storage=STORAGE)
    monkeypatch.setattr(reader, "_max_k", 2)
    found = reader.pairs(WITHIN, columns=["id"], sample=1_000)
    assert found.expected == len(true_pairs(table, "l2"))
    assert found.found == len(found) < found.expected / 5
    assert found.interval[0] < found.recall < found.interval[1] < 0.3
    assert "of all" in repr(found)


def test_a_limit_and_bad_arguments_say_what_to_do(table: Table) -> None:
    reader = open_index(table, DEFINITION, storage=STORAGE)
    with pytest.raises(QueryError, match=r"over 100 pairs are within 0\.3: narrow it, or raise limit"):
        reader.pairs(WITHIN, limit=100)
    with pytest.raises(QueryError, match="sample"):
        reader.pairs(WITHIN, sample=0)
    products = open_exact(table, "embedding", "ip", storage=STORAGE)
    with pytest.raises(QueryError, match="inner products are no distances"):
        products.pairs(1.0)
    assert len(reader.pairs(0.0)) == 0
