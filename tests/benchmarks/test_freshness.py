"""Figures of `benchmarks.freshness`, from commits and answers written out by hand."""

from benchmarks.freshness import Answer, Commit, figures

_COMMITS = (Commit(11, 10.0, 0.5), Commit(12, 11.0, 0.5), Commit(13, 12.0, 0.5))
_ANSWERS = (
    Answer(9.0, 0.001, 1, 1, 0),
    Answer(10.25, 0.002, 1, 1, 0),
    Answer(11.5, 0.003, 12, 1, 200),
    Answer(14.0, 0.004, 13, 12, 100),
)


def test_waits_and_ages_are_counted_from_the_end_of_each_commit() -> None:
    found = figures(1, _COMMITS, _ANSWERS)
    assert (found["commits"], found["versions"], found["unindexed"]) == (3, 1, 1)
    assert found["searchable_seconds"] == {"p50": 1.5, "p95": 1.95, "p99": 1.99, "longest": 2.0}
    assert found["indexed_seconds"] == {"p50": 3.5, "p95": 3.95, "p99": 3.99, "longest": 4.0}
    assert (found["age_seconds"]["p50"], found["age_seconds"]["longest"]) == (0.0, 0.25)
    assert found["tail_rows"]["longest"] == 200
    assert found["search_ms"]["calm"]["longest"] == 1.0
    assert found["search_ms"]["busy"]["longest"] == 4.0
