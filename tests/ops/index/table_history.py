"""What writers, readers and maintenance may do to a table, in any order: the rules of its random histories."""

import contextlib
import itertools
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from pyiceberg.expressions import In
from pyiceberg.table import Table
from pyiceberg.transforms import IdentityTransform, VoidTransform
from pyiceberg.types import DoubleType, StringType

from examples.demo.row_deletes import append_position_deletes
from icepuffin.ops.binding.bound_versions import index_versions
from icepuffin.ops.binding.errors import LostRaceError
from icepuffin.ops.binding.expiration import expire_packs
from icepuffin.ops.cache.cache_settings import LAYOUT
from icepuffin.ops.index import refresh
from icepuffin.ops.index.definitions.ddl import drop_index
from icepuffin.ops.index.definitions.index_definition import IndexDefinition
from icepuffin.ops.index.index_materialization import materialize_index
from icepuffin.ops.index.planning import dead_nodes
from icepuffin.ops.index.planning.work_bounds import refresh_bounds
from icepuffin.ops.index.upkeep.garbage import collect_garbage
from icepuffin.ops.index.verify.integrity import check_integrity
from icepuffin.ops.index.versions import index_packs
from icepuffin.ops.model import Action
from icepuffin.ops.search.result import Coverage
from icepuffin.ops.shards import vector_runs
from icepuffin.ops.table.blob_kind import SIDE_TAG_AGE_MS
from icepuffin.ops.table.live_files import live_files
from icepuffin.ops.table.snapshots import data_snapshots
from icepuffin.ops.tasks.task_runner import LocalRunner, RunContext
from tests.conftest import STORAGE, make_rows
from tests.interop.lakes import open_lake
from tests.ops.index import history_steps
from tests.ops.index.history_steps import require_within, unnamed_snapshots
from tests.ops.index.snapshot_answers import COUNTS, DIMS, TAGS, SnapshotAnswers
from tests.ops.index.test_refresh_retries import ALL_STAGES, DriverLostError, DyingRunner

DEFINITION = IndexDefinition(
    name="e", column="embedding", metric="l2", max_degree=12, search_list=48, shards=2, target_recall=0.5
)
FIELD_IDS = {"section": 3, "id": 1, "tags": 5, "name": 2}
FILTERS = st.sampled_from([(), ("section",), ("section", "id"), ("tags",), ("tags", "section", "id")])
INCLUDED = st.sampled_from([(), ("name",), ("section", "id"), ("name", "section", "id")])
_numbers = itertools.count()


def tags_of(number: int) -> list[str | None] | None:
    """The tags of a row: some twice, some null, or none at all."""
    rng = np.random.default_rng([7, number])
    if rng.random() < 0.1:
        return None
    drawn = rng.integers(0, TAGS + 1, rng.integers(0, 5)).tolist()
    return [None if tag == TAGS and rng.random() < 0.3 else f"tag {tag}" for tag in drawn]


class RivalRunner:
    """Somebody else acts between two stages of a refresh."""

    parallelism = 2
    task_threads = 1

    def __init__(self, stages: int, act: Callable[[], object]) -> None:
        """`stages`: how many are done before."""
        self._stages = stages
        self._act = act
        self.acted = False

    def run(self, function: Callable[[Any], Any], tasks: Sequence[Any], *, label: str, progress: Any = None) -> Any:
        if not self._stages:
            self.acted = True
            self._act()
        self._stages -= 1
        return [function(task) for task in tasks]


class TableHistory(RuleBasedStateMachine):
    """What writers, readers and maintenance may do to a table, in any order."""

    folder = Path()
    catalog_uri = ""
    """Address of a catalog that all histories share; empty: each has one of its own, a SQLite file"""

    def __init__(self) -> None:
        super().__init__()
        self._patch = pytest.MonkeyPatch()
        self._lakes = contextlib.ExitStack()
        self.next_id = 0
        self.table: Table = None  # type: ignore[assignment]  # made by the first rule
        self.definition = DEFINITION
        self.extra_column = False
        self.wide = False
        self.followed = False
        """Whether every step is followed by a refresh, as a sensor does it"""
        self.compared = 0
        """Snapshots that were compared so far"""

    def teardown(self) -> None:
        COUNTS["histories"] += 1
        self._patch.undo()
        self._lakes.close()
        shutil.rmtree(self.folder)

    @initialize(
        version=st.sampled_from(["1", "2", "2"]),
        followed=st.booleans(),
        deltas=st.sampled_from([4, 4, 2, 1, 0]),
        share=st.sampled_from([0.25, 1.0]),
        recorded=st.booleans(),
        filters=FILTERS,
        include=INCLUDED,
        pack_bytes=st.sampled_from([1, 5_000, index_packs.PACK_BYTES]),
        run_bytes=st.sampled_from([1, 1, 200, vector_runs.MIN_BYTES]),
        method=st.sampled_from(["diskann", "diskann", "centroid"]),
        layout=st.sampled_from(["fast", "compact"]),
        vectors=st.sampled_from(["f32", "f32", "f16", "rq4", "rq8"]),
        cells=st.sampled_from(["none", "sq8", "sq4"]),
    )
    def create(
        self,
        version: str,
        followed: bool,
        deltas: int,
        share: float,
        recorded: bool,
        filters: tuple[str, ...],
        include: tuple[str, ...],
        pack_bytes: int,
        run_bytes: int,
        method: str,
        layout: str,
        vectors: str,
        cells: str,
    ) -> None:
        """`recorded`: no work is so small that a retry does not find what is done."""
        self.followed = followed
        self._patch.setenv(LAYOUT, layout)
        self._patch.setattr(index_packs, "PACK_BYTES", pack_bytes)
        self._patch.setattr(vector_runs, "MIN_BYTES", run_bytes)
        self._patch.setattr(vector_runs, "MAX_RUNS", 6)
        self._patch.setattr(index_packs, "MAX_PACKS", 4)
        if recorded:
            self._patch.setattr(refresh, "SMALL_WORK", 0)
            self._patch.setattr(dead_nodes, "NODES_AT_ONCE", 0)
        self.definition = replace(
            DEFINITION,
            field_id=4,
            method=method,
            vectors=vectors,
            cells=cells,
            max_deltas=deltas,
            delta_share=share,
            filters=filters,
            filter_ids=tuple(FIELD_IDS[name] for name in filters),
            include=include,
            include_ids=tuple(FIELD_IDS[name] for name in include),
        )
        folder = self.folder
        folder.mkdir()
        uri = self.catalog_uri or f"sqlite:///{folder}/catalog.db"
        lake = self._lakes.enter_context(open_lake(f"h_{os.getpid()}_{next(_numbers)}", uri, folder))
        schema = make_rows(0, 1).schema.append(pa.field("tags", pa.list_(pa.string())))
        self.table = lake.catalog.create_table(
            f"{lake.namespace}.t", schema, f"{lake.root}/t", properties={"format-version": version}
        )
        self.append(80)

    # ------------------------------------------------------------------------------------------- what writers do

    @rule(count=st.one_of(st.integers(1, 8), st.integers(1, 60)))
    def append(self, count: int) -> None:
        self.table.append(self._rows(count))
        COUNTS["append"] += 1

    @rule(section=st.integers(0, 4), count=st.integers(1, 20))
    def overwrite_a_part(self, section: int, count: int) -> None:
        self.table.overwrite(self._rows(count), overwrite_filter=f"{self._section_column()} = 'section {section}'")
        COUNTS["overwrite a part"] += 1

    @rule(share=st.floats(0.02, 0.5), seed=st.integers(0, 99))
    def change_sections(self, share: float, seed: int) -> None:
        """Rows keep their vectors, so that their nodes move with them; some sections become null."""
        changed = self._choose(share, seed)
        rows = self.table.scan(row_filter=In("id", changed.tolist())).to_arrow()  # type: ignore[arg-type, misc]
        if len(rows):
            drawn = np.random.default_rng(seed).integers(0, 6, len(rows)).tolist()
            sections = pa.array([f"section {number}" if number < 5 else None for number in drawn])
            rows = rows.set_column(2, self._section_column(), sections).cast(self.table.schema().as_arrow())
            self.table.overwrite(rows, overwrite_filter=In("id", changed.tolist()))  # type: ignore[arg-type, misc]
            COUNTS["change sections"] += 1

    @rule()
    def rename_the_section_column(self) -> None:
        old = self._section_column()
        with self.table.update_schema() as update:
            update.rename_column(old, "part" if old == "section" else "section")
        COUNTS["rename section"] += 1

    @rule(filters=FILTERS, include=INCLUDED)
    def keep_other_columns(self, filters: tuple[str, ...], include: tuple[str, ...]) -> None:
        filter_ids, include_ids = (tuple(FIELD_IDS[name] for name in names) for names in (filters, include))
        self.definition = replace(
            self.definition, filters=filters, filter_ids=filter_ids, include=include, include_ids=include_ids
        )

    @rule()
    def compact(self) -> None:
        rows = self.table.scan().to_arrow()
        if len(rows):
            self.table.overwrite(rows.cast(self.table.schema().as_arrow()))
            COUNTS["compact"] += 1

    @rule(share=st.floats(0.02, 0.5), seed=st.integers(0, 99))
    def delete_copy_on_write(self, share: float, seed: int) -> None:
        doomed = self._choose(share, seed)
        if len(doomed):
            self.table.delete(In("id", doomed.tolist()))  # type: ignore[arg-type, misc]
            COUNTS["copy-on-write delete"] += 1

    @precondition(lambda self: self.table.metadata.format_version == 2)
    @rule(share=st.floats(0.02, 0.6), seed=st.integers(0, 99))
    def delete_merge_on_read(self, share: float, seed: int) -> None:
        rng = np.random.default_rng(seed)
        head = self.table.metadata.current_snapshot_id
        files = live_files(self.table, head).files if head else ()
        if files:
            chosen = rng.permutation(len(files))[: 1 + int(rng.integers(3))]
            counts = {files[at].path: files[at].record_count for at in chosen.tolist()}
            rows = {path: rng.permutation(count)[: max(1, int(share * count))] for path, count in counts.items()}
            append_position_deletes(self.table, rows)
            COUNTS["position deletes"] += 1

    @rule(back=st.integers(1, 4))
    def roll_back(self, back: int) -> None:
        COUNTS["roll back"] += history_steps.roll_back(self.table, back)

    @rule()
    def rename_the_vector_column(self) -> None:
        old = self._vector_column()
        with self.table.update_schema() as update:
            update.rename_column(old, "vector" if old == "embedding" else "embedding")
        COUNTS["rename"] += 1

    @rule()
    def add_or_drop_a_column(self) -> None:
        with self.table.update_schema() as update:
            if self.extra_column:
                update.delete_column("extra")
            else:
                update.add_column("extra", StringType())
        self.extra_column = not self.extra_column
        COUNTS["add or drop a column"] += 1

    @precondition(lambda self: not self.wide)
    @rule()
    def widen_the_vectors(self) -> None:
        with self.table.update_schema() as update:
            update.update_column(f"{self._vector_column()}.element", DoubleType())
        self.wide = True
        COUNTS["widen float to double"] += 1

    @precondition(lambda self: self.table.metadata.format_version == 1)
    @rule()
    def upgrade_the_format(self) -> None:
        with self.table.transaction() as transaction:
            transaction.upgrade_table_version(2)
        COUNTS["upgrade the format"] += 1

    @precondition(lambda self: not any(isinstance(it.transform, VoidTransform) for it in self.table.spec().fields))
    @rule()
    def partition_or_not(self) -> None:
        """A field that v1 dropped stays as a void one, and PyIceberg writes no spec with another beside it."""
        fields = self.table.spec().fields
        with self.table.update_spec() as update:
            if fields:
                update.remove_field(fields[0].name)
            else:
                update.add_field(self._section_column(), IdentityTransform())
        COUNTS["another partition spec"] += 1

    @rule(pick=st.integers(0, 50))
    def expire_an_old_snapshot(self, pick: int) -> None:
        if old := unnamed_snapshots(self.table):
            self.table.maintenance.expire_snapshots().by_id(old[pick % len(old)]).commit()
            COUNTS["expire"] += 1

    @rule()
    def expire_all_that_may_be(self) -> None:
        COUNTS["expire all"] += history_steps.expire_all_that_may_be(self.table)

    @rule(count=st.integers(1, 30), indexed=st.booleans())
    def write_to_a_branch(self, count: int, indexed: bool) -> None:
        if "audit" not in self.table.metadata.refs:
            head = self.table.metadata.current_snapshot_id
            if head is None:
                return
            self.table.manage_snapshots().create_branch(head, "audit").commit()
        self.table.append(self._rows(count), branch="audit")
        head = self.table.metadata.refs["audit"].snapshot_id
        if indexed:
            self._index(head)
        else:
            self._answers(head).compare()
        COUNTS["write to a branch"] += 1

    # ---------------------------------------------------------------------------------------------- what we do

    @rule()
    def switch_the_sensor(self) -> None:
        self.followed = not self.followed

    @rule()
    def index_the_head(self) -> None:
        self._index(self.table.metadata.current_snapshot_id)

    @rule(pick=st.integers(0, 50))
    def index_any_snapshot(self, pick: int) -> None:
        snapshots = data_snapshots(self.table)
        if snapshots:
            self._index(snapshots[pick % len(snapshots)].snapshot_id)

    @rule(
        stage=st.sampled_from(ALL_STAGES),
        after_all=st.booleans(),
        count=st.integers(1, 40),
        seed=st.integers(0, 99),
        expired=st.booleans(),
    )
    def lose_the_driver(self, stage: str, after_all: bool, count: int, seed: int, expired: bool) -> None:
        """In a refresh of what has just changed; whoever indexes that snapshot next finds what was staged, and perhaps
        not the snapshots by which it was planned.
        """
        if self.table.metadata.format_version == 2:
            self.delete_merge_on_read(share=0.1, seed=seed)
        if stage in ("hash_files", "match_rows", "relocate"):
            self.compact()
        self.append(count)
        head = self.table.refresh().metadata.current_snapshot_id
        if head is None:
            return
        dying = DyingRunner(stage, after_all=after_all)
        with pytest.MonkeyPatch.context() as patch, contextlib.suppress(DriverLostError):
            patch.setattr(refresh, "SMALL_WORK", 0)  # small work does not come to a runner
            patch.setattr(dead_nodes, "NODES_AT_ONCE", 0)
            materialize_index(RunContext(self.table, STORAGE, dying), self.definition, head)
        self.table.refresh()
        COUNTS["driver lost" if dying.died else "driver not lost"] += 1
        if expired:
            self.expire_all_that_may_be()

    @rule(
        stages=st.integers(0, 3),
        act=st.sampled_from(["index_the_head", "append", "append_and_index", "compact", "roll_back", "tags_age"]),
        count=st.integers(1, 40),
    )
    def work_beside_a_refresh(self, stages: int, act: str, count: int) -> None:
        """Of what has just changed. The other one has a table object of its own; a lost race is run again."""
        self.append(count)
        head = self.table.refresh().metadata.current_snapshot_id
        assert head is not None
        other = self.table.catalog.load_table(self.table.name())
        acts: dict[str, Callable[[], object]] = {
            "append": lambda: self.append(count),
            "append_and_index": lambda: (self.append(count), self.index_the_head()),
            "roll_back": lambda: self.roll_back(back=1),
        }
        rival = RivalRunner(stages, acts.get(act) or getattr(self, act))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(refresh, "SMALL_WORK", 0)
            patch.setattr(dead_nodes, "NODES_AT_ONCE", 0)
            try:
                materialize_index(RunContext(other, STORAGE, rival), self.definition, head)
            except LostRaceError:
                COUNTS["races lost"] += 1
                materialize_index(RunContext(other.refresh(), STORAGE, rival), self.definition, head)
        self.table.refresh()
        COUNTS[f"beside a refresh: {act}" if rival.acted else "nothing beside a refresh"] += 1
        self._answers(head).compare()

    @rule()
    def tags_age(self) -> None:
        """As Iceberg's cleaners drop tags that are past their age, and then what these alone have kept."""
        refs = self.table.refresh().metadata.refs
        aged = [name for name, ref in refs.items() if ref.max_ref_age_ms == SIDE_TAG_AGE_MS]
        if aged:
            with self.table.manage_snapshots() as manager:
                for name in aged:
                    manager.remove_tag(name)
            self.expire_all_that_may_be()
            COUNTS["tags aged"] += len(aged)

    @rule()
    def drop_the_index_and_sweep(self) -> None:
        versions_before = index_versions(self.table.refresh(), "e")
        if not any(version.tags for version in versions_before):
            return
        drop_index(self.table, "e")
        gone = [version.index_snapshot_id for version in versions_before]
        self.table.refresh().maintenance.expire_snapshots().by_ids(gone).commit()
        collect_garbage(self.table, storage=STORAGE, grace=timedelta(0))
        assert not index_versions(self.table.refresh(), "e")
        COUNTS["drop, gc"] += 1

    @rule()
    def sweep(self) -> None:
        expire_packs(self.table)
        COUNTS["sweep"] += 1
        collect_garbage(self.table, storage=STORAGE, grace=timedelta(0))

    @rule(pick=st.integers(0, 50))
    def search_an_old_snapshot(self, pick: int) -> None:
        snapshots = data_snapshots(self.table)
        if snapshots:
            self._answers(snapshots[pick % len(snapshots)].snapshot_id).compare()

    @invariant()
    def the_head_is_answered_right(self) -> None:
        if self.table is not None and self.table.metadata.current_snapshot_id is not None:
            COUNTS["steps"] += 1
            if self.followed:
                self._index(self.table.metadata.current_snapshot_id)
            else:
                self._answers(self.table.metadata.current_snapshot_id).compare()

    # ------------------------------------------------------------------------------------------------- parts

    def _rows(self, count: int) -> pa.Table:
        rows = make_rows(self.next_id, self.next_id + count, dims=DIMS)
        rows = rows.append_column("tags", pa.array(map(tags_of, range(self.next_id, self.next_id + count))))
        self.next_id += count
        names = ["id", "name", self._section_column(), self._vector_column(), "tags"]
        rows = rows.rename_columns(names)
        if self.extra_column:
            rows = rows.append_column("extra", pa.array([f"extra {count}"] * count))
        return rows.cast(self.table.schema().as_arrow())

    def _vector_column(self) -> str:
        return "vector" if "vector" in self.table.schema().column_names else "embedding"

    def _section_column(self) -> str:
        return self.table.schema().find_field(3).name

    def _choose(self, share: float, seed: int) -> npt.NDArray[np.int64]:
        ids = np.sort(np.asarray(self.table.scan(selected_fields=("id",)).to_arrow()["id"]))
        return np.sort(np.random.default_rng(seed).permutation(ids)[: int(share * len(ids))])

    def _index(self, snapshot_id: int | None) -> None:
        assert snapshot_id is not None
        snapshot = self.table.refresh().snapshot_by_id(snapshot_id)
        assert snapshot is not None
        bounds = refresh_bounds(self.table, self.definition, snapshot)
        report = materialize_index(RunContext(self.table, STORAGE, LocalRunner(1)), self.definition, snapshot_id)
        if bounds is not None:
            COUNTS["bounded by the metadata"] += 1
            require_within(bounds, report)
        COUNTS[f"index: {report.action}"] += 1
        COUNTS[f"method: {self.definition.method}"] += 1
        COUNTS[f"vectors: {self.definition.vectors}"] += 1
        COUNTS["rows inserted"] += report.inserted
        COUNTS["rows remapped"] += report.remapped
        COUNTS["shards rebuilt"] += report.shards_rebuilt
        COUNTS["versions with deltas"] += report.deltas > 0
        COUNTS["rows distributed from deltas"] += report.merged
        assert report.deltas <= self.definition.max_deltas
        answers = self._answers(snapshot_id)
        found = answers.compare()
        if report.action is not Action.EMPTY:
            assert found.coverage is Coverage.EXACT_VERSION
            answers.require_attributes()
            answers.require_included()
            made = [item for item in index_versions(self.table, "e") if item.base_snapshot_id == snapshot_id]
            assert check_integrity(RunContext(self.table, STORAGE), made[-1]).faults == ()

    def _answers(self, snapshot_id: int) -> SnapshotAnswers:
        self.compared += 1
        return SnapshotAnswers(self.table, self.definition, snapshot_id, self.compared, self.wide)
