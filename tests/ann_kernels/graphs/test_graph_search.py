import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icepuffin.ann_kernels.arrays import read_only
from icepuffin.ann_kernels.codes import product_quantization
from icepuffin.ann_kernels.codes.code_sizes import choose_m
from icepuffin.ann_kernels.distances.distance import prepare
from icepuffin.ann_kernels.distances.distance_computers import FloatSpace
from icepuffin.ann_kernels.distances.top_k import ExactTopK, exact_top_k, merge_top_k
from icepuffin.ann_kernels.errors import DimensionError, KernelError, NonFiniteVectorError, ZeroVectorError
from icepuffin.ann_kernels.graphs import graph_search, vamana
from icepuffin.ann_kernels.graphs.graph_search import Searcher
from icepuffin.ann_kernels.graphs.robust_prune import PruneCandidates, robust_prune
from icepuffin.ann_kernels.graphs.vamana import VamanaParams
from icepuffin.ann_kernels.metric import Metric
from icepuffin.ann_kernels.rows.bitmap import Bitmap
from tests.ann_kernels.data import reached, recall
from tests.naive import vectors as naive
from tests.naive.shapes import limited

METRICS = [Metric.L2, Metric.COSINE, Metric.INNER_PRODUCT]
PARAMS = VamanaParams(max_degree=16, search_list=32)


def clustered(count: int, dims: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    centers = np.random.default_rng(99).standard_normal((10, dims))  # queries come from where the vectors do
    return (centers[rng.integers(0, 10, count)] + rng.standard_normal((count, dims))).astype(np.float32)


@pytest.mark.parametrize("metric", METRICS)
def test_exact_top_k_is_brute_force(metric: Metric) -> None:
    vectors, queries = clustered(200, 7), clustered(5, 7, seed=1)
    ids, distances = exact_top_k(prepare(queries, metric), prepare(vectors, metric), 6, metric)
    expected = naive.nearest(queries, vectors, 6, metric.value)
    assert ids.tolist() == expected
    true = [
        [naive.distance(query, vectors[row], metric.value) for row in rows]
        for query, rows in zip(queries, expected, strict=True)
    ]
    np.testing.assert_allclose(distances, true, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("metric", METRICS)
def test_streaming_top_k_does_not_depend_on_the_blocks(metric: Metric) -> None:
    vectors, queries = prepare(clustered(300, 5), metric), prepare(clustered(4, 5, seed=1), metric)
    top = ExactTopK(queries, 9, metric)
    for start in range(0, 300, 37):
        top.update(vectors[start : start + 37], np.arange(start, min(300, start + 37)))
    assert (top.result()[0] == exact_top_k(queries, vectors, 9, metric)[0]).all()


@given(st.lists(st.lists(st.integers(0, 50), max_size=6), min_size=1, max_size=5), st.integers(1, 12))
@settings(deadline=None)
def test_a_merge_of_sorted_runs_is_the_sorted_whole(runs: list[list[int]], k: int) -> None:
    arrays = []
    for run in runs:
        ordered = np.sort(np.array(run, np.float32))[None]
        arrays.append((np.arange(len(run), dtype=np.int64)[None], ordered))
    which, ids, distances = merge_top_k(arrays, k)
    whole = sorted((value, place, number) for number, run in enumerate(runs) for place, value in enumerate(sorted(run)))
    got = [(float(d), int(i), int(r)) for d, r, i in zip(distances[0], which[0], ids[0], strict=True) if i >= 0]
    assert got == [(float(value), place, number) for value, place, number in whole[:k]]


@given(st.integers(0, 2**31), st.integers(1, 8), st.floats(1.0, 2.0))
@settings(deadline=None, max_examples=40)
def test_robust_prune_is_the_papers(seed: int, limit: int, alpha: float) -> None:
    rng = np.random.default_rng(seed)
    vectors = rng.integers(0, 6, (30, 3)).astype(np.float32)
    ids = rng.integers(0, 30, 20).astype(np.int32)
    distances = ((vectors[ids] - vectors[4]) ** 2).sum(axis=1).astype(np.float32)
    out = np.empty(limit, np.int32)
    expected = naive.robust_prune(vectors, 4, ids.tolist(), alpha, limit)
    space, scratch = FloatSpace(read_only(vectors)), np.empty(0, np.int8)
    count = robust_prune(space, 4, PruneCandidates(ids, distances), 20, np.float32(alpha**2), out, scratch)
    assert out[:count].tolist() == expected


def test_a_node_is_no_neighbour_of_its_own() -> None:
    space, out = FloatSpace(read_only(np.array([[0], [1], [5]], np.float32))), np.empty(3, np.int32)
    candidates = PruneCandidates(np.array([2, 0, 1], np.int32), np.array([25, 0, 1], np.float32))
    assert robust_prune(space, 0, candidates, 3, np.float32(4), out, np.empty(0, np.int8)) == 2
    assert out[:2].tolist() == [1, 2]


@pytest.mark.parametrize("metric", METRICS)
def test_a_graph_finds_the_nearest(metric: Metric) -> None:
    vectors, queries = (prepare(clustered(count, 24, seed=seed), metric) for count, seed in ((2000, 0), (50, 1)))
    graph = vamana.build(vectors, metric, PARAMS)
    result, distances, _ = Searcher(graph, vectors, metric).search(queries, 10, search_list=60)
    true, _ = exact_top_k(queries, vectors, 10, metric)
    assert recall(result, true) >= 0.95
    assert (np.diff(distances, axis=1) >= 0).all()
    true_distances = [
        naive.distance(query, vectors[row], metric.value) for query, row in zip(queries, result[:, 0], strict=True)
    ]
    np.testing.assert_allclose(distances[:, 0], true_distances, rtol=1e-3, atol=1e-3)


def test_a_graph_does_not_depend_on_the_number_of_threads() -> None:
    vectors = clustered(1500, 12)
    first, second = (vamana.build(vectors, Metric.L2, PARAMS, threads=threads) for threads in (1, 3))
    assert (first.neighbors == second.neighbors).all()
    more = clustered(1700, 12)
    more[:1500] = vectors
    a, b = (vamana.insert(first, more, Metric.L2, PARAMS, threads=threads) for threads in (1, 3))
    assert (a.neighbors == b.neighbors).all()


def test_inserting_a_fifth_is_as_good_as_building_with_it() -> None:
    vectors, queries = clustered(3000, 24), clustered(100, 24, seed=1)
    graph = vamana.insert(vamana.build(vectors[:2400], Metric.L2, PARAMS), vectors, Metric.L2, PARAMS)
    whole = vamana.build(vectors, Metric.L2, PARAMS)
    true, _ = exact_top_k(queries, vectors, 10, Metric.L2)
    searchers = (Searcher(item, vectors, Metric.L2) for item in (graph, whole))
    inserted, built = (recall(item.search(queries, 10, search_list=40)[0], true) for item in searchers)
    assert inserted >= built - 0.01


@pytest.mark.parametrize("count", [1, 2, 16, 17, 40])
@pytest.mark.parametrize("dims", [1, 3, 64])
def test_every_node_can_be_reached(count: int, dims: int) -> None:
    graph = vamana.build(clustered(count, dims), Metric.L2, PARAMS)
    assert len(reached(graph)) == count


@pytest.mark.parametrize("vectors", [np.ones((300, 4), np.float32), np.repeat(clustered(6, 4), 50, axis=0)])
def test_equal_vectors_are_all_found(vectors: np.ndarray) -> None:
    graph = vamana.build(vectors, Metric.L2, PARAMS)
    assert len(reached(graph)) == len(vectors)
    found, _, _ = Searcher(graph, vectors, Metric.L2).search(vectors[:1], 10, search_list=32)
    assert (vectors[found[0]] == vectors[0]).all()


@pytest.mark.parametrize("metric", METRICS)
def test_few_queries_are_compared_in_place_with_the_same_result(metric: Metric) -> None:
    vectors, queries = prepare(clustered(500, 70), metric), prepare(clustered(12, 70, seed=1), metric)
    is_live = np.random.default_rng(0).random(500) < 0.5
    ids, distances = exact_top_k(queries, vectors, 9, metric, is_live=is_live)
    for row in range(len(queries)):
        alone = exact_top_k(queries[row : row + 1], vectors, 9, metric, is_live=is_live)
        assert (alone[0][0] == ids[row]).all()
        assert (alone[1][0] == distances[row]).all()


def test_a_beam_that_meets_too_few_live_nodes_compares_them_all() -> None:
    vectors = clustered(3000, 8)
    far = np.argsort(np.linalg.norm(vectors - vectors[0], axis=1))[-60:]
    is_live = np.zeros(len(vectors), bool)
    is_live[far] = True
    searcher = Searcher(vamana.build(vectors, Metric.L2, PARAMS), vectors, Metric.L2, is_live=is_live)
    found, distances, stats = searcher.search(vectors[:1], 10, search_list=32)
    wanted = exact_top_k(vectors[:1], vectors, 10, Metric.L2, is_live=is_live)
    assert (found == wanted[0]).all()
    assert (distances == wanted[1]).all()
    assert stats.expanded[0] < 100


def test_tombstones_are_walked_through_and_never_returned() -> None:
    vectors, queries = clustered(2000, 16), clustered(30, 16, seed=1)
    is_live = np.random.default_rng(0).random(2000) < 0.1
    graph = vamana.build(vectors, Metric.L2, PARAMS)
    found, _, _ = Searcher(graph, vectors, Metric.L2, is_live=is_live).search(queries, 10, search_list=32)
    assert is_live[found].all()
    assert recall(found, exact_top_k(queries, vectors, 10, Metric.L2, is_live=is_live)[0]) >= 0.9


@pytest.mark.parametrize("metric", METRICS)
def test_an_empty_graph_finds_nothing(metric: Metric) -> None:
    nothing = np.empty((0, 4), np.float32)
    ids, distances, _ = Searcher(vamana.build(nothing, metric, PARAMS), nothing, metric).search(
        np.ones((2, 4), np.float32), 3, search_list=8
    )
    assert (ids == -1).all()
    assert np.isinf(distances).all()


def test_all_live_nodes_are_returned_when_k_is_larger() -> None:
    vectors = clustered(300, 8)
    is_live = np.zeros(300, bool)
    is_live[::50] = True
    graph = vamana.build(vectors, Metric.L2, PARAMS)
    found, distances, _ = Searcher(graph, vectors, Metric.L2, is_live=is_live).search(vectors[:1], 20, search_list=20)
    assert sorted(found[0][:6].tolist()) == np.flatnonzero(is_live).tolist()
    assert (found[0][6:] == -1).all()
    assert np.isinf(distances[0][6:]).all()


@pytest.mark.parametrize(("m", "bits"), [(16, 8), (32, 4)])
def test_pq_codes_lead_to_the_neighbourhood(m: int, bits: int) -> None:
    vectors, queries = clustered(3000, 32), clustered(50, 32, seed=1)
    codebook = product_quantization.train_pq(vectors, m, bits=bits, seed=0)
    codes = product_quantization.encode_pq(vectors, codebook)
    assert codes.shape == (3000, 16)
    assert (
        np.square(product_quantization.decode_pq(codes, codebook) - vectors).sum(1).mean()
        < 0.3 * vectors.var(axis=0).sum()
    )
    graph = vamana.build(vectors, Metric.L2, PARAMS)
    found, _, _ = Searcher(graph, None, Metric.L2, pq=(codebook, codes)).search(queries, 40, search_list=80)
    assert recall(found, exact_top_k(queries, vectors, 10, Metric.L2)[0]) >= 0.9


def test_each_code_is_the_nearest_codeword() -> None:
    vectors = clustered(300, 8)
    codebook = product_quantization.train_pq(vectors, 4, seed=0, iterations=3)
    codes = product_quantization.encode_pq(vectors, codebook)
    for part in range(4):
        piece = vectors[:20, 2 * part : 2 * part + 2]
        gaps = np.square(piece[:, None] - codebook[part][None]).sum(axis=2)
        chosen = np.take_along_axis(gaps, codes[:20, part : part + 1].astype(int), axis=1)[:, 0]
        np.testing.assert_allclose(chosen, gaps.min(axis=1), atol=1e-4)


@pytest.mark.parametrize("metric", [Metric.L2, Metric.INNER_PRODUCT])
def test_two_codes_of_a_byte_add_what_their_codewords_do(metric: Metric) -> None:
    vectors, queries = clustered(300, 12), clustered(5, 12, seed=1)
    codebook = product_quantization.train_pq(vectors, 6, bits=4, seed=0, iterations=3)
    codes = product_quantization.encode_pq(vectors, codebook)
    assert codebook.shape == (6, 16, 2)
    assert codes.shape == (300, 3)
    for part in range(6):
        gaps = np.square(vectors[:, None, 2 * part : 2 * part + 2] - codebook[part][None]).sum(axis=2)
        own = codes[:, part // 2] >> 4 if part % 2 else codes[:, part // 2] & 15
        np.testing.assert_allclose(gaps[np.arange(300), own], gaps.min(axis=1), atol=1e-4)
    is_product = metric is Metric.INNER_PRODUCT
    tables = product_quantization.PqCodebook(codebook).tables(queries, inner_product=is_product)
    summed = tables[:, np.arange(3), codes].sum(axis=2)
    decoded = product_quantization.decode_pq(codes, codebook)
    true = -queries @ decoded.T if is_product else np.square(queries[:, None] - decoded[None]).sum(axis=2)
    np.testing.assert_allclose(summed, true, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(("dims", "m", "bits"), [(384, 96, 4), (128, 64, 4), (6, 6, 4), (26, 26, 4), (194, 2, 4)])
def test_codes_of_four_bits_fill_whole_bytes(dims: int, m: int, bits: int) -> None:
    assert choose_m(dims, bits=bits) == m
    with pytest.raises(KernelError, match=f"{dims + 1} dimensions cannot be cut into codes of 4 bits"):
        choose_m(dims + 1, bits=bits)
    with pytest.raises(KernelError, match="3 codes of 4 bits do not fill whole bytes"):
        product_quantization.train_pq(clustered(40, 6), 3, bits=4, seed=0)


@pytest.mark.parametrize(("dims", "m"), [(384, 48), (128, 32), (100, 25), (7, 7), (13, 13), (97, 1)])
def test_the_number_of_sub_quantizers_divides_the_dimensions(dims: int, m: int) -> None:
    assert choose_m(dims) == m


def test_bad_vectors_are_refused_at_the_boundary() -> None:
    good = np.ones((3, 2), np.float32)
    bad = good.copy()
    bad[1, 0] = np.nan
    with pytest.raises(NonFiniteVectorError, match="vector 1"):
        prepare(bad, Metric.L2)
    bad[1] = 0
    with pytest.raises(ZeroVectorError, match="vector 1"):
        prepare(bad, Metric.COSINE)
    with pytest.raises(DimensionError):
        prepare(np.ones(3), Metric.L2)
    graph = vamana.build(good, Metric.L2, PARAMS)
    with pytest.raises(DimensionError, match="2 dimensions"):
        Searcher(graph, good, Metric.L2).search(np.ones((1, 5)), 1, search_list=4)
    with pytest.raises(KernelError):
        Searcher(graph, good, Metric.L2).search(good, 0, search_list=4)
    with pytest.raises(KernelError):
        VamanaParams(alpha=0.5)


@pytest.mark.parametrize("dtype", [np.float64, np.float16])
def test_other_float_types_are_taken(dtype: type) -> None:
    vectors = clustered(10, 4).astype(dtype)
    assert prepare(vectors, Metric.L2).dtype == np.float32


@pytest.mark.parametrize("metric", METRICS)
def test_a_width_of_all_nodes_finds_all_whatever_codes_lose(metric: Metric) -> None:
    rng = np.random.default_rng(3)
    vectors = rng.standard_normal((2_000, 6)).astype(np.float32)
    vectors[:, 0] *= 1e6
    vectors = prepare(vectors, metric)
    graph = vamana.build(vectors, metric, PARAMS)
    query_vectors = prepare(rng.standard_normal((40, 6)).astype(np.float32), metric)
    _, found, _ = Searcher(graph, vectors, metric).search(query_vectors, 10, search_list=2_000)
    np.testing.assert_allclose(found, exact_top_k(query_vectors, vectors, 10, metric)[1], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("k", [1, 3, 10])
def test_one_dimension_is_searched_as_well_as_many(k: int) -> None:
    rng = np.random.default_rng(5)
    vectors, query_vectors = (rng.standard_normal((count, 1)).astype(np.float32) for count in (1_300, 100))
    graph = vamana.build(vectors, Metric.L2, VamanaParams(max_degree=4, search_list=32))
    searcher = Searcher(graph, vectors, Metric.L2)
    found, _, _ = searcher.search(query_vectors, k, search_list=1_299)
    assert recall(found, exact_top_k(query_vectors, vectors, k, Metric.L2)[0]) >= 0.98


@pytest.fixture(scope="module")
def crowd() -> tuple[np.ndarray, Searcher]:
    """(vectors of overlapping clusters, their searcher)."""
    vectors = clustered(6_000, 10)
    return vectors, Searcher(vamana.build(vectors, Metric.L2, PARAMS), vectors, Metric.L2)


@pytest.mark.parametrize("compared_per_node", [0, 20])
def test_live_nodes_that_lie_elsewhere_are_found(
    crowd: tuple[np.ndarray, Searcher], compared_per_node: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a wider beam, or by comparing them all."""
    monkeypatch.setattr(graph_search, "_CODES_PER_NODE", compared_per_node)
    vectors, searcher = crowd
    query_vectors = vectors[:40]
    recalls = []
    for query in query_vectors:
        from_query = np.linalg.norm(vectors - query, axis=1)
        is_live = (from_query > np.quantile(from_query, 0.6)) & (np.arange(len(vectors)) % 2 == 0)
        masked = searcher.masked(Bitmap.from_mask(is_live))
        true, _ = exact_top_k(query[None], vectors, 10, Metric.L2, is_live=is_live)
        found, _, _ = masked.search(query[None], 10, search_list=32, widest=120, meeting=30)
        recalls.append(recall(found, true))
    assert np.mean(recalls) >= 0.99


def test_a_beam_that_meets_enough_is_not_widened(
    crowd: tuple[np.ndarray, Searcher], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(graph_search, "_CODES_PER_NODE", 0)  # else all are compared
    vectors, searcher = crowd
    nearest = np.argsort(np.linalg.norm(vectors - vectors[0], axis=1))[:1_500]
    masked = searcher.masked(Bitmap.of_rows(nearest, len(vectors)))
    work = [masked.search(vectors[:1], 10, search_list=32, widest=500, meeting=meeting)[2] for meeting in (0, 15, 480)]
    assert work[0].expanded[0] == work[1].expanded[0] < 60
    assert work[2].expanded[0] > 300


@pytest.mark.parametrize("share", [0.02, 0.13])
@pytest.mark.parametrize(("k", "widths"), [(100, (100, 105, 112, 125, 200)), (10, (10, 11, 12, 20))])
def test_among_tombstones_a_beam_costs_no_more_than_a_wider_one(
    crowd: tuple[np.ndarray, Searcher], k: int, widths: tuple[int, ...], share: float
) -> None:
    """One of k places, of which tombstones took some, was given up, and all live nodes were compared."""
    vectors, searcher = crowd
    is_live = np.random.default_rng(0).random(len(vectors)) >= share
    masked = searcher.masked(Bitmap.from_mask(is_live))
    queries = vectors[:100] + np.float32(0.01)
    expected, _ = exact_top_k(queries, vectors, k, Metric.L2, is_live=is_live)
    costs, recalls = [], []
    for width in widths:
        ids, _, stats = masked.search(queries, k, search_list=width)
        costs.append(stats.distances.mean())
        recalls.append(recall(ids, expected))
    assert max(costs) == costs[-1]
    assert min(recalls) >= 0.9


def test_a_beam_that_is_widened_among_tombstones_goes_on_from_where_it_is(
    crowd: tuple[np.ndarray, Searcher], monkeypatch: pytest.MonkeyPatch
) -> None:
    vectors, searcher = crowd
    is_live = np.random.default_rng(0).random(len(vectors)) >= 0.1
    widths = []
    walk = Searcher._walk
    monkeypatch.setattr(Searcher, "_walk", lambda self, *rest: (widths.append(rest[2]), walk(self, *rest))[1])
    ids, _, stats = searcher.masked(Bitmap.from_mask(is_live)).search(vectors[:50], 100, search_list=100)
    assert is_live[ids].all()
    assert len(widths) == 1, "no walk began anew"
    assert 100 < stats.expanded.mean() <= widths[0].widest
    assert searcher.search(vectors[:50], 100, search_list=100)[2].expanded.max() <= widths[1].first + 10
    assert widths[1].first == widths[1].widest == 100, "without tombstones nothing is widened"


@pytest.mark.parametrize("coded_from", [1, 10_000])
def test_a_beam_goes_on_past_the_nodes_of_full_groups(coded_from: int) -> None:
    """Nodes of a group lie together, and dead ones take no place of live ones."""
    vectors, queries = clustered(2_000, 16), clustered(20, 16, seed=1)
    groups = np.argmin([((vectors - center) ** 2).sum(axis=1) for center in clustered(30, 16, seed=2)], axis=0)
    live = np.random.default_rng(3).random(2_000) < 0.8
    plain = Searcher(vamana.build(vectors, Metric.L2, PARAMS), vectors, Metric.L2, is_live=live, coded_from=coded_from)
    searcher = plain.grouped(groups.astype(np.int32), 2)
    found, _, work = searcher.search(queries, 12, search_list=60)
    ranks = [order[live[order]] for order in np.array(naive.nearest(queries, vectors, 2_000, "l2"))]
    expected = [limited(order.tolist(), groups.__getitem__, 12, 2) for order in ranks]
    assert np.mean([len({*own} & {*wanted}) / 12 for own, wanted in zip(found.tolist(), expected, strict=True)]) > 0.97
    assert (found >= 0).all()
    assert live[found].all()
    assert all(np.unique(groups[own], return_counts=True)[1].max() <= 2 for own in found)
    assert (work.expanded > 100).any()
    assert (work.expanded < 300).all()


def test_a_beam_is_not_widened_for_nodes_that_no_group_has() -> None:
    vectors, queries = clustered(2_000, 8), clustered(20, 8, seed=1)
    searcher = Searcher(vamana.build(vectors, Metric.L2, PARAMS), vectors, Metric.L2)
    two = (np.arange(2_000) % 2).astype(np.int32)
    found, _, work = searcher.grouped(two, 3).search(queries, 10, search_list=40)
    assert ((found >= 0).sum(axis=1) == 6).all()
    assert (work.expanded < 60).all()
    every = searcher.grouped(two, 3).search(queries, 10, search_list=2_000)[0]
    assert every.tolist() == naive.nearest(queries, vectors, 10, "l2"), "compared, whatever the groups"


def test_a_node_has_copies_of_other_groups() -> None:
    vectors = clustered(100, 8)
    searcher = Searcher(vamana.build(np.tile(vectors, (3, 1)), Metric.L2, PARAMS), np.tile(vectors, (3, 1)), Metric.L2)
    groups = np.concatenate([np.zeros(100), np.arange(1, 201)]).astype(np.int32)
    before = groups.copy()
    found, _, _ = searcher.grouped(groups, 1).search(vectors[:20], 6, search_list=40)
    nearest = naive.nearest(vectors[:20], vectors, 2, "l2")
    assert np.sort(found % 100, axis=1).tolist() == [sorted(3 * pair) for pair in nearest]
    assert (groups == before).all(), "they are the caller's"
