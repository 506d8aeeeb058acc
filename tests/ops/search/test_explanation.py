"""Each part of an explanation, word by word, of profiles made for it."""

import math
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from icepuffin.ops.model import ShardId, SnapshotId
from icepuffin.ops.recall.curves import Foresight
from icepuffin.ops.search.indexed.cold_shards import ColdReads
from icepuffin.ops.search.measured.live_recall import LiveRecall
from icepuffin.ops.search.result import (
    Certificate,
    Coverage,
    OpeningCost,
    Profile,
    Pruning,
    SearchResult,
    ShardWork,
    explain,
)
from icepuffin.ops.search.tuning import SearchParameters

WORK = (ShardWork(ShardId(3), 2_000, 2, 1_500, 5_000), ShardWork(ShardId(7), 900, 1, 0, 10))
MEASURED = LiveRecall(0.5, 1_200, 0.9, 0.88, 0.92)
PROFILE = Profile(
    why="its own version",
    strategy="beam",
    shards=2,
    nodes_expanded=1_500,
    distances=5_010,
    tail_rows=1,
    milliseconds={"index": 1_000.5, "rows": 2.25},
    parameters=SearchParameters(40, 3, why="the index's own"),
    work=WORK,
    queries=2,
    bytes_read={"index": 0, "rows": 12_345},
)
ROWS = pa.table({"query": pa.array([0], pa.int32()), "rank": pa.array([1], pa.int32()), "distance": [0.5]})
RESULT = SearchResult(
    ROWS,
    Coverage.EXACT_VERSION,
    SnapshotId(9),
    SnapshotId(8),
    SnapshotId(7),
    PROFILE,
    ("late",),
    OpeningCost(5.04, 4_096),
)
WHOLE = [
    ("answer", "snapshot 9, exact-version: its own version"),
    ("tier", "in-process"),
    ("version", "index snapshot 8, made for 7"),
    ("opened", "4,096 bytes of shards in 5.0 ms, once"),
    ("strategy", "beam"),
    ("parameters", "L = 40, oversample = 3, every shard; the index's own"),
    ("foreseen", "nothing: the curves that were measured with the index do not have these parameters"),
    ("happened", "2,505 distances in 1.5 shards per query"),
    ("shard 3", "1,500 of 2,000 nodes visited, 5,000 distances, 2 queries"),
    ("shard 7", "10 distances"),
    ("distances", "5,010 in the index, 1 row scanned beside it"),
    ("index", "1,000.50 ms"),
    ("rows", "2.25 ms, 12,345 bytes"),
    ("total", "1,002.75 ms, 12,345 bytes"),
    ("warning", "late"),
]


def test_the_parts_of_an_explanation_are_in_the_order_in_which_they_happened() -> None:
    assert list(explain(RESULT)) == WHOLE
    bare = replace(RESULT, index_snapshot_id=None, base_snapshot_id=None, opening=None, warnings=())
    scanned = replace(bare, profile=replace(PROFILE, nodes_expanded=0, work=(), parameters=None))
    left_out = {"version", "opened", "parameters", "foreseen", "happened", "shard 3", "shard 7", "warning"}
    assert list(explain(scanned)) == [part for part in WHOLE if part[0] not in left_out]


def test_where_rows_are_hidden_an_explanation_has_no_cost_but_the_time() -> None:
    withheld = replace(PROFILE, withheld=True, matching_rows=1, condition="by the values", tail="in memory")
    assert list(explain(replace(RESULT, profile=withheld))) == [
        *WHOLE[:4],
        ("strategy", "beam, 1 row matches"),
        ("total", "1,002.75 ms; hidden rows have a part in other costs"),
        ("warning", "late"),
    ]


def parameters(foreseen: Foresight | None = None, **changes: Any) -> dict[str, Any]:
    return {"parameters": SearchParameters(40, foreseen=foreseen, **changes)}


FORESEEN = Foresight(0.95, 1_670.0, 1.0)
COLD = ColdReads(3, 0, 1_234, 5_678, 1, 2, 0.98765)


@pytest.mark.parametrize(
    ("changes", "part", "text"),
    [
        ({"tier": "distributed", "tier_why": "it is large"}, "tier", "distributed: it is large"),
        ({"matching_rows": 0}, "strategy", "beam, 0 rows match"),
        ({"matching_rows": 1_000}, "strategy", "beam, 1,000 rows match"),
        ({"condition": "by the values"}, "condition", "by the values"),
        ({"tail": "in memory"}, "tail", "in memory"),
        (
            {"pruning": Pruning(4_000, 3_000, 1_000, 985, "2 balls")},
            "pruning",
            "3,000 of 4,000 files and 98.5% of the rows out of reach; 2 balls",
        ),
        (
            {"pruning": Pruning(0, 0, 0, 0, "no index")},
            "pruning",
            "0 of 0 files and 0.0% of the rows out of reach; no index",
        ),
        (
            {"cold": COLD},
            "cells",
            (
                "1,234 of 3 shards that this process does not have: 5,678 bytes by 1 request in 2 rounds; "
                "recall 0.9877 was measured through them when they were written"
            ),
        ),
        (
            {"cold": replace(COLD, left_out=1_000)},
            "cells",
            (
                "1,234 of 3 shards that this process does not have, 1,000 farther ones were left out: 5,678 bytes by "
                "1 request in 2 rounds; recall 0.9877 was measured through them when they were written"
            ),
        ),
        (parameters(shards=1), "parameters", "L = 40, oversample = 3, the nearest 1 shard; the index's own"),
        (
            parameters(probe_slack=0.25),
            "parameters",
            "L = 40, oversample = 3, shards up to 25% farther than the nearest one; the index's own",
        ),
        (
            parameters(FORESEEN),
            "foreseen",
            "recall 0.9500, 1,670 distances in 1 shard per query, by the curves measured with the index",
        ),
        (parameters(FORESEEN), "happened", "2,505 distances in 1.5 shards per query, 150% of the foreseen"),
        (parameters(Foresight(0.95, source="a trial")), "foreseen", "recall 0.9500, by a trial"),
        (
            parameters(replace(FORESEEN, shards=2.5, shards_without_curve=3)),
            "foreseen",
            (
                "recall 0.9500, 1,670 distances in 2.5 shards and some in 3 of later rows per query, "
                "by the curves measured with the index"
            ),
        ),
        (
            parameters(replace(FORESEEN, shards_without_curve=3)),
            "happened",
            "2,505 distances in 1.5 shards per query",
        ),
        (
            {"live_recall": MEASURED},
            "happened",
            "2,505 distances in 1.5 shards per query; live recall 0.9000 (0.8800 to 0.9200), 1,200 measured",
        ),
        ({"live_recall": LiveRecall(0.5)}, "happened", "2,505 distances in 1.5 shards per query"),
        (
            {"milliseconds": {"compare": 1.0}, "tail_rows": 2_000},
            "distances",
            "5,010, those of 2,000 rows beside the index among them",
        ),
        (
            {"included_rows": {"id": 1, "name": 2_000}, "bytes_read": {"included": 4_096, "rows": 0}},
            "included",
            "id of 1 row, name of 2,000 rows: 4,096 bytes of the index",
        ),
        (
            {"included_rows": {"id": 1}, "bytes_read": {"rows": 1_000}},
            "included",
            "id of 1 row: 0 bytes of the index, and 1,000 of data files for the others",
        ),
        (
            {"certificate": Certificate((math.inf, 0.5, 2.0), (math.inf, 0.75, 2.125), {"a": 0.5, "b": 0.125})},
            "certified",
            (
                "the last row is at 2, and no row of the pruned files is under 2.125; "
                "the nearest of these is b, ruled out by 0.125"
            ),
        ),
        (
            {"certificate": Certificate((0.5,), (0.75,))},
            "certified",
            "the last row is at 0.5, and no row of the pruned files is under 0.75",
        ),
        ({"certificate": Certificate((0.5,), (math.inf,))}, "certified", "every row was compared"),
        ({"certificate": Certificate((), ())}, "certified", "every row was compared"),
        (
            {"certificate": Certificate((0.5,), (math.inf,)), "matching_rows": 5},
            "certified",
            "every matching row was compared",
        ),
    ],
)
def test_a_part_says_what_the_profile_has(changes: dict[str, Any], part: str, text: str) -> None:
    parts = dict(explain(replace(RESULT, profile=replace(PROFILE, **changes))))
    assert parts[part] == text


def test_of_many_shards_those_with_most_work_are_named_and_the_others_counted() -> None:
    work = tuple(ShardWork(ShardId(number), 1_000, 1, 0, 100 - number // 2) for number in range(9))
    parts = dict(explain(replace(RESULT, profile=replace(PROFILE, work=work))))
    assert parts["shards"] == "1 others: 96 distances"
    assert "shards" not in dict(explain(replace(RESULT, profile=replace(PROFILE, work=work[:8]))))
    assert [name for name in parts if name.startswith("shard ")] == [f"shard {number}" for number in range(8)]


def test_the_headline_counts_rows_and_queries_and_has_the_warnings() -> None:
    assert RESULT.headline() == "1 row, snapshot 9, exact-version, warning: late"
    both = pa.concat_tables([ROWS, ROWS.set_column(0, "query", pa.array([1], pa.int32()))])
    assert replace(RESULT, rows=both, warnings=()).headline() == "2 rows of 2 queries, snapshot 9, exact-version"
    grids = [next(iter(result.grids())) for result in (RESULT, replace(RESULT, rows=both))]
    assert [list(grid.columns) for grid in grids] == [["rank", "distance"], ["query", "rank", "distance"]]
