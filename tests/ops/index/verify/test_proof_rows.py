"""Rows that prove a version: live, with a vector, of files that were read for it and of files that were not."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.table import Table

from examples.demo.row_deletes import append_position_deletes
from icepuffin.ann_kernels.metric import Metric
from icepuffin.ann_kernels.sketches.hashing import content_hash
from icepuffin.ops.index.verify.proof import draw_rows
from icepuffin.ops.rows.addresses import rows_at
from icepuffin.ops.storage import relative_to
from icepuffin.ops.table.live_files import live_files
from tests.conftest import STORAGE, make_rows

ROWS, GROUP, FILES = 250, 100, 5
DELETED = np.array([0, 3, 99, 100, 249])


@pytest.fixture
def table(table_factory: Callable[..., Table]) -> Table:
    """Files of three row groups. One row in ten has no vector."""
    new_table = table_factory(**{"write.parquet.row-group-limit": str(GROUP)})
    for file in range(FILES):
        rows = make_rows(file * ROWS, (file + 1) * ROWS)
        vectors = rows["embedding"].to_pylist()
        vectors[5::10] = [None] * len(vectors[5::10])
        new_table.append(rows.set_column(3, rows.schema.field(3), pa.array(vectors, rows.schema.field(3).type)))
    append_position_deletes(new_table, {live_files(new_table, head(new_table)).files[0].path: DELETED})
    return new_table.refresh()


def head(table: Table) -> int:
    return table.refresh().metadata.current_snapshot_id or 0


def plan_of(table: Table, added: int, build: int, metric: Metric = Metric.L2) -> Any:
    """What `draw_rows` needs of a plan whose first files were read."""
    live = live_files(table, head(table))
    field = table.schema().find_field("embedding").field_id
    return SimpleNamespace(
        build_id=f"{build:016x}" + "0" * 48,
        added=live.files[:added],
        live=live,
        definition=SimpleNamespace(metric=metric),
        schema=table.schema(),
        field_id=field,
    )


def slots_of(plan: Any) -> dict[str, int]:
    return {relative_to(file.path, plan.live.location): 3 * slot for slot, file in enumerate(plan.live.files)}


@pytest.mark.parametrize("metric", [Metric.L2, Metric.COSINE])
def test_rows_are_the_live_ones_with_a_vector_among_the_first_of_a_row_group(table: Table, metric: Metric) -> None:
    groups = set()
    for build in range(12):
        plan = plan_of(table, 2, build, metric)
        slots = slots_of(plan)
        drawn = draw_rows(plan, slots, STORAGE)
        assert len({part.path for part in drawn}) == len(drawn) == 4
        for part in drawn:
            slot, positions = rows_at(part.addresses)
            assert set(slot.tolist()) == {slots[relative_to(part.path, plan.live.location)]}
            stored = pq.ParquetFile(part.path.removeprefix("file://"))
            assert stored.num_row_groups == 3
            column = stored.read()["embedding"].to_pylist()
            group = int(positions[0]) // GROUP
            groups.add(group)
            dead = DELETED.tolist() if part.path == plan.live.files[0].path else []
            first = range(group * GROUP, min(group * GROUP + 64, ROWS))
            wanted = [row for row in first if row not in dead and column[row] is not None]
            assert positions.tolist() == wanted
            raw = np.array([column[row] for row in wanted], np.float32)
            assert part.hashes.tolist() == content_hash(raw).tolist()
            length = np.linalg.norm(raw, axis=1, keepdims=True) if metric is Metric.COSINE else 1.0
            assert part.vectors == pytest.approx(raw / length, rel=1e-6)
    assert groups == {0, 1, 2}


def test_two_files_that_were_read_are_drawn_and_two_others(table: Table) -> None:
    for added in range(FILES + 1):
        drawn: set[str] = set()
        for build in range(30):
            plan = plan_of(table, added, build)
            paths = [part.path for part in draw_rows(plan, slots_of(plan), STORAGE)]
            read = {file.path for file in plan.added}
            assert sum(path in read for path in paths) == min(2, added)
            assert sum(path not in read for path in paths) == min(2, FILES - added)
            drawn.update(paths)
        assert drawn == {file.path for file in plan.live.files}


def test_a_build_draws_the_same_rows_again(table: Table) -> None:
    plan = plan_of(table, 3, 7)
    one, other = (draw_rows(plan, slots_of(plan), STORAGE) for _ in range(2))
    assert [part.addresses.tolist() for part in one] == [part.addresses.tolist() for part in other]


def test_no_row_is_drawn_from_files_without_a_live_vector(table_factory: Callable[..., Table]) -> None:
    table = table_factory("bare")
    rows = make_rows(0, 80)
    none = pa.nulls(80, rows.schema.field(3).type)
    table.append(rows.set_column(3, rows.schema.field(3), none))
    table.append(make_rows(80, 100))
    append_position_deletes(table, {live_files(table, head(table)).files[0].path: np.arange(20)})
    append_position_deletes(table, {live_files(table, head(table)).files[1].path: np.arange(20)})
    plan = plan_of(table, 1, 0)
    assert draw_rows(plan, slots_of(plan), STORAGE) == []


def test_no_row_is_drawn_from_a_file_without_row_groups(table: Table) -> None:
    """As Parquet writers leave one for a partition that has become empty."""
    plan = plan_of(table, FILES, 0)
    path = Path(plan.live.files[0].path.removeprefix("file://"))
    pq.ParquetWriter(path, pq.read_schema(path)).close()
    empty = replace(plan.live.files[0], size=path.stat().st_size, record_count=0, deletes=())
    plan.live, plan.added = replace(plan.live, files=(empty,)), (empty,)
    assert pq.ParquetFile(path).num_row_groups == 0
    assert draw_rows(plan, slots_of(plan), STORAGE) == []
