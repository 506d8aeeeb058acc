import math

import pytest

from icepuffin.ops.index.planning.index_report import VersionRecall
from icepuffin.ops.recall.curves import DECIMALS, Width, combined
from icepuffin.ops.recall.shard_recall import AcrossShards, RecallBasis, ShardRecall, mean_recall, shared_queries


def parsed(text: str) -> ShardRecall:
    return ShardRecall.parse(text, written=0.9, live_rows=50, tombstones=7)


def test_a_measurement_is_read_as_it_was_written_but_is_not_of_this_run() -> None:
    recall = ShardRecall(0.98125, 64, 0.977, 16)
    assert (recall.basis, recall.text()) == (RecallBasis.HERE, "[0.98125,64,0.977,16,0]")
    again = parsed(recall.text())
    assert (again, again.basis) == (ShardRecall(0.98125, 64, 0.977, 16, is_new=False), RecallBasis.UNCHANGED)
    later = parsed(again.after(3).after(2).text())
    assert (later.recall, later.changed, later.basis) == (0.98125, 5, RecallBasis.OUTDATED)
    nothing = ShardRecall(0.0, 64, 0.0, 16, is_new=False)
    assert parsed(nothing.text()) == nothing


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "7",
        "[]",
        "[2,1,1,0,0]",
        "[-1,1,1,0,0]",
        "[NaN,1,1,0,0]",
        '["a",1,1,0,0]',
        "[1,1,2,1,0]",
        "[1,1,-1,1,0]",
        "[1,-1,1,0,0]",
        "[1,1,1,-1,0]",
        "[1,1,1,0,-1]",
        "[1e400,1,1,0,0]",
        "[1,1e400,1,0,0]",
        "[" * 100_000,
    ],
)
def test_without_a_readable_measurement_the_recall_is_that_of_the_shard_when_it_was_written(text: str) -> None:
    assert parsed(text) == ShardRecall(0.9, 50, changed=7, is_new=False)


def test_rounded_vectors_never_raise_what_the_table_s_own_have_measured() -> None:
    own = ShardRecall(0.99, 32, 0.98, 8)
    assert own.at_most(ShardRecall(0.9, 0)) == ShardRecall(0.9, 32)
    assert own.at_most(ShardRecall(1.0, 64, 0.5, 16)) == ShardRecall(0.99, 32, 0.5, 8)
    assert own.at_most(ShardRecall(math.nan, 0)).recall == 0.99


def test_the_recall_of_a_version_weighs_shards_by_their_live_rows() -> None:
    assert [mean_recall([(1.0, 300), (0.5, 100)], across) for across in (0.5, 2.0)] == [0.4375, 1.0]
    assert mean_recall([], 1.0) is None


def test_a_rounded_share_lowers_no_recall_of_1() -> None:
    """Searches of all shards find all, those of single ones 299 of 300 and the like: the gate's target may be 1."""
    for found in (299 / 300, 317 / 320, 0.9907):
        across = round(1 / found, DECIMALS)
        assert mean_recall([(found, 200), (found, 100)], across) == 1.0
        (point,) = combined([((Width(10, 1, found, 50.0),), 300)], {(10, 1): across})
        assert point.recall == 1.0


def test_the_recall_of_a_version_says_of_how_many_rows_it_is_that_of_today() -> None:
    """recall@100 is that of the shards where it was measured."""
    here, unchanged = ShardRecall(0.9, 64, 0.8, 16), ShardRecall(0.8, 64, is_new=False)
    outdated = ShardRecall(0.7, 32, changed=3, is_new=False)
    recall = VersionRecall.from_shards([(here, 300), (unchanged, 100), (outdated, 100)], AcrossShards())
    assert recall == VersionRecall(
        queries=160, wide=0.8, wide_queries=16, rows_here=300, rows_unchanged=100, rows_outdated=100
    )
    assert recall.summary == (
        "60% of the rows measured here, 20% of the rows in shards unchanged since they were measured, "
        "20% of the rows in shards not measured since they lost rows"
    )
    assert VersionRecall.from_shards([(unchanged, 100)], AcrossShards()).wide is None
    across = AcrossShards(((0, 0, 10, 0.9), (0, 0, 100, 0.9)))
    by_few = VersionRecall.from_shards([(here, 400), (here, 400)], across)
    assert (by_few.queries, by_few.wide_queries, by_few.wide) == (64, 16, pytest.approx(0.8 * 0.9))
    of_few = VersionRecall.from_shards([(here, 100), (here, 100)], across)
    assert (of_few.queries, of_few.wide_queries) == (19, 16)
    by_fewer = VersionRecall.from_shards([(here, 100)] * 600, AcrossShards(((0, 0, 10, 0.9),)))
    assert (by_fewer.queries, by_fewer.wide_queries) == (27, 600 * 16)
    assert VersionRecall.from_shards([], AcrossShards()).summary == ""


def test_what_searches_of_all_shards_find_is_read_as_it_was_written() -> None:
    across = AcrossShards(((0, 0, 10, 0.75), (0, 0, 100, 1.0), (40, 1, 10, 0.9), (160, 2, 100, 0.95)))
    again = AcrossShards.parse(across.text())
    assert across.text() == "[[0,0,10,0.75],[40,1,10,0.9],[160,2,100,0.95]]"
    assert (again.share(), again.share(100)) == (0.75, 1.0)
    assert (again.of_curve()[40, 1], again.of_curve(100)) == (0.9, {(160, 2): 0.95})
    assert AcrossShards(((40, 1, 10, 1.0),)).text() == ""
    assert AcrossShards.parse("[[0,0,10,1.5]]").share() == 1.5, "the shards alone found less"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "7",
        "[]",
        "[[0,0,10]]",
        "[[0,0,10,-0.5]]",
        "[[0,0,10,NaN]]",
        "[[0,0,10,1e400]]",
        "[[1e400,0,10,0.5]]",
        '["a"]',
        "[null]",
        "[" * 100_000,
    ],
)
def test_without_readable_shares_a_search_finds_what_its_shards_find(text: str) -> None:
    assert AcrossShards.parse(text) == AcrossShards()


def test_each_of_many_shards_is_searched_for_fewer_shared_queries() -> None:
    assert [shared_queries(shards) for shards in (1, 2, 256, 512, 1_024, 60_000)] == [64, 64, 64, 32, 16, 16]
