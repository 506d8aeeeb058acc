"""The compact layout: the same answers in less memory, chosen by a setting or by the size of an index."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from pyiceberg.table import Table

from icepuffin.ann_kernels.codes.four_bit_quantization import FourBitCodes
from icepuffin.ann_kernels.graphs.graph import PackedGraph
from icepuffin.ops.cache import CacheSettings, ShardCache
from icepuffin.ops.cache.cache_settings import LAYOUT, PREFETCH
from icepuffin.ops.index.definitions.index_definition import IndexDefinition
from icepuffin.ops.index.index_materialization import materialize_index
from icepuffin.ops.process.memory import memory_bytes
from icepuffin.ops.search.opening import open_index
from icepuffin.ops.shards.shard_keys import is_compact, walked_bytes
from icepuffin.ops.tasks.task_runner import LocalRunner, RunContext
from tests.conftest import STORAGE, make_rows, queries
from tests.ops.cache.stored import kept_by, random_shard, stored

DEFINITION = IndexDefinition(name="e", column="embedding", metric="l2", max_degree=16, shards=2)


@pytest.mark.parametrize(
    ("variable", "name", "choices"),
    [(LAYOUT, "layout", ["auto", "fast", "compact"]), (PREFETCH, "prefetch", ["background", "never"])],
)
def test_the_environment_has_one_of_the_choices(
    monkeypatch: pytest.MonkeyPatch, variable: str, name: str, choices: list[str]
) -> None:
    message = f"the environment variable {variable} is 'small'; it takes {', '.join(choices)}"
    monkeypatch.setenv(variable, "small")
    with pytest.raises(ValueError, match=message):
        CacheSettings.from_environment()
    with pytest.raises(ValueError, match=f"of the shard cache is 'small'; it takes {', '.join(choices)}"):
        replace(CacheSettings(), **{name: "small"})
    for value in (*choices, ""):
        monkeypatch.setenv(variable, value)
        assert getattr(CacheSettings.from_environment(), name) == (value or choices[0])


def test_a_setting_or_the_size_beside_the_memory_decides() -> None:
    fast, compact, auto = (CacheSettings(layout=name) for name in ("fast", "compact", "auto"))
    assert [is_compact(settings, 1 << 60) for settings in (fast, compact, auto)] == [False, True, True]
    assert [is_compact(settings, 0) for settings in (fast, compact, auto)] == [False, True, False]
    half = memory_bytes() // 2
    assert [is_compact(auto, size) for size in (half - 1, half, half + 1)] == [False, False, True]
    assert walked_bytes(10, 100, 64) == 10 * (256 + 128)
    with pytest.raises(ValueError, match="'small'; it takes auto, fast, compact"):
        CacheSettings(layout="small")


def test_a_shard_is_kept_in_each_layout(tmp_path: Path) -> None:
    """Where memory holds none of the vectors, the system is not to read those around the few that are ranked."""
    key = stored(tmp_path, random_shard(rows=1_300, dims=80))
    cache = ShardCache(CacheSettings(tmp_path / "cache", 1 << 30, 0))
    fast = kept_by(cache, key)
    for _ in range(2):  # as it was fetched, and as it lies on the disk
        compact = kept_by(cache, replace(key, compact=True))
        assert isinstance(compact.graph, PackedGraph)
        assert isinstance(compact.searcher.codes, FourBitCodes)
        assert compact.vectors is not None
        assert "rr" in flags_of(compact.vectors.ctypes.data + compact.vectors.nbytes // 2)
        assert "rr" not in flags_of(compact.graph.adjacency.lists.ctypes.data)
    assert fast.vectors is not None
    assert "rr" not in flags_of(fast.vectors.ctypes.data + fast.vectors.nbytes // 2)
    vectors = np.asarray(fast.vectors)[:50]
    ids = [shard.searcher.search(vectors, 1, search_list=400)[0][:, 0].tolist() for shard in (fast, compact)]
    assert ids == [list(range(50))] * 2


def flags_of(address: int) -> list[str]:
    """What the system knows of the mapping around an address."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first = line.split(maxsplit=1)[0]
        if "-" in first:
            low, high = (int(part, 16) for part in first.split("-"))
            inside = low <= address < high
        elif inside and first == "VmFlags:":
            return line.split()[1:]
    raise AssertionError(f"{address:x} is mapped nowhere")


def test_an_index_answers_in_the_compact_layout(
    table_factory: Callable[..., Table], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a wide beam the answer is that of the fast layout; the reason for the tier tells which it is."""
    table = table_factory()
    table.append(make_rows(0, 2_600))
    materialize_index(RunContext(table, STORAGE, LocalRunner()), DEFINITION, table.metadata.current_snapshot_id or 0)
    answers = []
    for name in ("fast", "compact"):
        monkeypatch.setenv("ICEPUFFIN_SHARD_CACHE_LAYOUT", name)
        reader = open_index(table.refresh(), DEFINITION, storage=STORAGE)
        answer = reader.search(queries(20), 5, search_list=400)
        assert ("in the compact layout" in answer.profile.tier_why) == (name == "compact")
        answers.append(answer.rows)
        filtered = reader.search(queries(5), 5, where="section = 'section 2'", search_list=400)
        assert set(filtered.rows["section"].to_pylist()) == {"section 2"}
    assert answers[0].equals(answers[1])
