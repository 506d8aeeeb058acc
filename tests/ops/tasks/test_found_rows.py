"""What shards find for the same queries: together it is the recall of a search of all of them."""

from dataclasses import replace

import numpy as np
import pytest

from icepuffin.ann_kernels.distances.exact_distances import pair_distances
from icepuffin.ann_kernels.graphs import vamana
from icepuffin.ann_kernels.metric import Metric
from icepuffin.ann_kernels.rows.bitmap import Bitmap
from icepuffin.ops.recall.shard_recall import BY_DEFAULTS, SHARED_QUERIES_PER_WIDE_ONE
from icepuffin.ops.tasks.found_rows import FoundRows, find_rows, recalls_of_all
from icepuffin.ops.tasks.recall_gate import curve_settings, held_out, search_by_defaults, searcher_of
from icepuffin.puffin.blobs.shard_blob import Shard
from tests.ops.tasks.searchable import searchable_shard

ROWS, SHARDS, QUERIES = 900, 3, 90
ALL = np.ones(ROWS, np.bool_)


def poor_shard(vectors: np.ndarray, metric: Metric) -> Shard:
    params = vamana.VamanaParams(max_degree=4, search_list=10, alpha=1.2)
    graph = vamana.build(vectors, metric, params)
    shape = searchable_shard(metric, rows=len(vectors))[0]
    return replace(
        shape, max_degree=4, search_list=10, medoid=graph.medoid, neighbors=graph.neighbors, degrees=graph.degrees,
        vectors=vectors,
    )  # fmt: skip


@pytest.mark.parametrize("metric", [Metric.L2, Metric.COSINE, Metric.INNER_PRODUCT])
@pytest.mark.parametrize("k", [10, 100])
@pytest.mark.parametrize("dead", [0, 3])
def test_the_recall_of_all_shards_is_that_of_the_nearest_rows_of_all_their_answers(
    metric: Metric, k: int, dead: int
) -> None:
    """Beside a search of each shard, whose answers are joined by loops. `dead`: of ten rows so many are gone, and each
    query has a dead row with its vector.
    """
    _, vectors = searchable_shard(metric, rows=ROWS)
    is_live = np.arange(ROWS) % 10 >= dead
    queried = np.flatnonzero(is_live)[:: is_live.sum() // QUERIES][:QUERIES]
    if dead:
        vectors[queried // 10 * 10] = vectors[queried]
    parts, masks = np.array_split(vectors, SHARDS), np.array_split(is_live, SHARDS)
    shards = [poor_shard(part, metric) for part in parts]
    queries = vectors[queried]
    found = [
        find_rows(shard, part, live, queries, count=QUERIES, threads=1)
        for shard, part, live in zip(shards, parts, masks, strict=True)
    ]
    of_k = [[rows for rows in part if rows.k == k] for part in found]
    by_defaults = recalls_of_all([rows for rows, _ in of_k], queries, metric)
    by_curve = recalls_of_all([rows for _, rows in of_k], queries, metric)
    assert by_curve.keys() == set(curve_settings(shards[0], k))
    counted = queried if k == 10 else queried[: -(-QUERIES // SHARED_QUERIES_PER_WIDE_ONE)]
    every, which = np.tile(np.arange(ROWS), len(counted)), np.repeat(np.arange(len(counted)), ROWS)
    exact = pair_distances(vectors[counted], vectors, which, every, metric).reshape(len(counted), ROWS)

    def recall(answers: list[list[int]], *, counts: np.ndarray, held: np.ndarray) -> float:
        hits = []
        for number, (query, rows) in enumerate(zip(counted.tolist(), answers, strict=True)):
            order = [
                row for row in np.argsort(exact[number]).tolist() if row != query and row not in held and is_live[row]
            ]
            nearest = [row for row in sorted(rows, key=lambda row: exact[number][row]) if row != query][:k]
            hits += [len({*nearest} & {*order[:k]}) / k] if query in counts else []
        return float(np.mean(hits))

    starts = np.cumsum([0, *map(len, parts)]).tolist()
    searchers = [searcher_of(*given) for given in zip(shards, parts, masks, strict=True)]
    needed = np.concatenate([start + it.landmarks for start, it in zip(starts, searchers, strict=False)])
    held = np.setdiff1d(queried, needed)
    answers: list[list[int]] = [[] for _ in counted]
    without: list[list[int]] = [[] for _ in counted]
    width, oversample = curve_settings(shards[0], k)[0]
    for start, shard, mask, searcher in zip(starts, shards, masks, searchers, strict=False):
        own = np.intersect1d(held, np.arange(start, start + len(mask))) - start
        live = mask.copy()
        live[own] = False
        nodes, _ = search_by_defaults(searcher, shard, vectors[counted], k + 1, threads=1)
        with held_out(shard, own):
            others = searcher.masked(Bitmap.from_mask(live), unreachable=len(own))
            other_nodes, _, _ = others.search(vectors[counted], k, search_list=width)
        for of_all, found_nodes in ((answers, nodes), (without, other_nodes)):
            for rows, of_shard in zip(of_all, found_nodes.tolist(), strict=True):
                rows += [start + node for node in of_shard if node >= 0]
    assert by_defaults == {BY_DEFAULTS: pytest.approx(recall(answers, counts=counted, held=np.array([])), abs=1e-9)}
    assert by_curve[width, oversample] == pytest.approx(recall(without, counts=held, held=held), abs=1e-9)
    if k == 10:
        assert by_defaults[BY_DEFAULTS] < 0.9, "else nothing is missed"
        assert 10 < len(held) <= len(queried) - (not dead)


def test_a_row_of_which_a_shard_has_halves_is_no_answer_to_itself() -> None:
    """The table has it as it is, and a graph of these rows leads to it as to no other."""
    _, vectors = searchable_shard(Metric.L2, rows=ROWS)
    halves = vectors.astype(np.float16)
    shard, queries = replace(poor_shard(vectors, Metric.L2), vectors=halves), vectors[::10]
    rounded = halves.astype(np.float32)
    for_rows, for_halves = (
        find_rows(shard, rounded, ALL, rows, count=QUERIES, threads=1) for rows in (queries, rounded[::10])
    )
    for of_row, of_half in zip(for_rows, for_halves, strict=True):
        expected = recalls_of_all([of_half], rounded[::10], Metric.L2)
        assert recalls_of_all([of_row], queries, Metric.L2) == pytest.approx(expected, abs=0.01)


def test_candidates_of_all_shards_compete_by_what_the_shards_hold() -> None:
    """Codes of one shard may pass for nearer than the nearest rows of the other: then these are no candidates."""
    _, vectors = searchable_shard(Metric.L2, rows=200)
    near, far = vectors[:100], vectors[100:] + np.float32(3)
    queries = near[:8]
    found = [
        find_rows(poor_shard(part, Metric.L2), part, ALL[:100], queries, count=8, threads=1)[0] for part in (near, far)
    ]
    alone = recalls_of_all(found, queries, Metric.L2)[BY_DEFAULTS]
    passing = replace(found[1], ranks=[found[1].ranks[0] * 0])
    assert alone > 0.5
    assert recalls_of_all([found[0], passing], queries, Metric.L2)[BY_DEFAULTS] < 0.2


def test_a_row_is_no_answer_to_itself_but_its_equals_are() -> None:
    """Each vector is there three times, and all of them are found."""
    _, some = searchable_shard(Metric.L2, rows=20)
    vectors = np.repeat(some, 3, axis=0)
    shard = replace(searchable_shard(Metric.L2, rows=60)[0], vectors=vectors)
    found = find_rows(shard, vectors, ALL[:60], vectors[:4], count=4, threads=1)[0]
    everything = replace(found, ranks=[found.nearest], found=[found.nearest])
    assert recalls_of_all([everything], vectors[:4], Metric.L2) == {BY_DEFAULTS: 1.0}


def test_too_few_rows_tell_nothing() -> None:
    shard, vectors = searchable_shard(Metric.L2, rows=11)
    found = find_rows(shard, vectors, ALL[:11], vectors[:4], count=4, threads=1)
    measured = {(rows.k, len(rows.settings)): recalls_of_all([rows], vectors[:4], Metric.L2) for rows in found}
    assert measured == {(10, 1): {BY_DEFAULTS: 1.0}, (100, 1): {}, (10, 8): {}, (100, 5): {}}
    assert find_rows(shard, vectors, ~ALL[:11], vectors[:4], count=4, threads=1) == (), "no row is live"


@pytest.mark.parametrize(("found", "expected"), [([0.0, 1.0, 1.0], 1.0), ([1.0, 1.0, 1.0], 0.0)])
def test_a_row_whose_others_are_all_as_far_has_to_find_itself(found: list[float], expected: float) -> None:
    ranks = np.arange(3.0)[None]
    parts = [FoundRows(2, [(0, 0)], np.array([[0.0, 1.0, 1.0]]), [ranks], [np.array([found])])]
    assert recalls_of_all(parts, np.ones((1, 4), np.float32), Metric.L2) == {(0, 0): expected}
