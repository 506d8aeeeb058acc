"""Stores that fail while rows are searched and while garbage is collected: each call once."""

import contextlib
import itertools
import random
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from icepuffin.ops.cache.cache_settings import CacheSettings
from icepuffin.ops.cache.shard_cache import use_settings
from icepuffin.ops.errors import IcepuffinError
from icepuffin.ops.index.definitions.ddl import drop_index
from icepuffin.ops.index.upkeep.garbage import collect_garbage
from icepuffin.ops.search.opening import open_index
from icepuffin.ops.search.reader import IndexReader
from icepuffin.ops.storage.local_storage import LocalStorage
from icepuffin.ops.storage.s3 import S3Storage
from icepuffin.ops.table.snapshots import is_derived
from tests.conftest import queries
from tests.faults.stages import DEFINITION, Stage, assert_named_files_stay, make_stage, read
from tests.faults.test_stores import FULL, drawn_numbers, failing_call, make_bucket_stage, with_calls
from tests.services.s3proxy import s3proxy

STRIDE = 1 if FULL else 17
"""Calls per fault"""
STORES = ["local", pytest.param("s3", marks=pytest.mark.services)]
_FAILURES = (OSError, IcepuffinError)
Rows = list[list[dict[str, Any]]]


@contextmanager
def stage_on(store: str, folder: Path, scenario: str) -> Iterator[tuple[Stage, type[Any]]]:
    """(a stage whose table lies in such a store, the class of that store)."""
    if store == "local":
        yield make_stage(folder / "table", scenario), LocalStorage
        return
    with s3proxy(folder) as storage:
        yield make_bucket_stage(folder, scenario, storage), S3Storage


def opened(stage: Stage) -> IndexReader:
    return open_index(stage.load(), DEFINITION, storage=stage.storage)


def answers(reader: IndexReader) -> Rows:
    """Rows with columns, rows that a condition allows, and a range: so wide a beam finds them all."""
    vectors, where = queries(3), "section = 'section 1'"
    return [
        reader.search(vectors, 5, search_list=300, columns=["id", "name"]).rows.to_pylist(),
        reader.search(vectors, 5, search_list=300, columns=["id"], where=where).rows.to_pylist(),
        reader.within(vectors[:1], 30.0, columns=["id"]).rows.to_pylist(),
    ]


@pytest.mark.parametrize("has_version", [True, False], ids=["version", "tail"])
@pytest.mark.parametrize("store", STORES)
def test_each_call_of_a_search_may_fail(
    store: str,
    has_version: bool,
    tmp_path: Path,
    survived: Counter[str],
    request: pytest.FixtureRequest,
    rng: random.Random,
) -> None:
    """No answer is a wrong one, and what failed leaves nothing in a reader, nor in the cache, that is."""
    request.addfinalizer(lambda: use_settings(None))
    caches = (CacheSettings(directory=tmp_path / f"cache-{number}") for number in itertools.count())
    with stage_on(store, tmp_path, "deletes and an append") as (stage, kind):
        if has_version:
            stage.work()
        use_settings(next(caches))
        undisturbed = answers(opened(stage))
        use_settings(next(caches))
        _, counted = with_calls(kind, lambda: answers(opened(stage)))
        assert counted.calls > 5
        for number in drawn_numbers(counted.calls, STRIDE, rng):
            use_settings(next(caches))
            reader = None
            with failing_call(kind, number), contextlib.suppress(*_FAILURES):
                reader = opened(stage)
                assert answers(reader) == undisturbed, number
            assert answers(reader or opened(stage)) == undisturbed, number
            assert answers(opened(stage)) == undisturbed, number
            survived[f"{store} call of a search failed"] += 1


def littered(stage: Stage) -> None:
    """Drop the index and expire what bound it, as the state before all trials."""
    stage.work()
    table = stage.load()
    drop_index(table, DEFINITION.name)
    metadata = table.refresh().metadata
    named = {ref.snapshot_id for ref in metadata.refs.values()}
    unnamed = [one.snapshot_id for one in metadata.snapshots if is_derived(one) and one.snapshot_id not in named]
    table.maintenance.expire_snapshots().by_ids(unnamed).commit()
    shutil.rmtree(stage.folder / "pristine")
    shutil.copytree(stage.folder / "live", stage.folder / "pristine")


@pytest.mark.parametrize("store", STORES)
def test_each_call_of_a_garbage_collection_may_fail(
    store: str, tmp_path: Path, survived: Counter[str], rng: random.Random
) -> None:
    """Whatever was deleted until then, the next one deletes the rest, and nothing that is named."""
    with stage_on(store, tmp_path, "an append that shares a pack") as (stage, kind):
        littered(stage)
        before = read(stage.load())

        def sweep() -> int:
            return len(collect_garbage(stage.load(), storage=stage.storage, grace=timedelta(0)).deleted)

        _, counted = with_calls(kind, sweep)
        swept = stage.files()
        assert_named_files_stay(stage)
        assert counted.calls > 3
        assert len(stage.files("pristine")) - len(swept) > 5
        for number in drawn_numbers(counted.calls, STRIDE, rng):
            stage.restore()
            with failing_call(kind, number), contextlib.suppress(*_FAILURES):
                sweep()
            assert swept <= stage.files(), number
            assert read(stage.load()) == before, number
            sweep()
            assert stage.files() == swept, number
            survived[f"{store} call of a garbage collection failed"] += 1
