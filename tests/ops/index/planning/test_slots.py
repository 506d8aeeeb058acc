"""File slots keep their numbers while nodes lie in them, no two files have one, and none is lost."""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from pyiceberg.table import Table

from examples.demo.row_deletes import append_position_deletes
from icepuffin.ops.binding.bound_versions import index_versions
from icepuffin.ops.index.planning.slots import assign_slots, file_table
from icepuffin.ops.index.verify.integrity import check_integrity
from icepuffin.ops.index.versions.version_reader import open_version
from icepuffin.ops.model import Action, DeleteFile, DeleteKind, FileSlot, LiveFile
from icepuffin.ops.shards.shard_reader import open_shard
from icepuffin.ops.table.row_deletes import fingerprint
from icepuffin.ops.tasks.task_runner import RunContext
from icepuffin.puffin.blobs.routing_blob import FREE_SLOT, NO_DELETES, CoveredFile
from tests.conftest import STORAGE, make_rows
from tests.ops.index.comparison import index_head

LOCATION = "s3://lake/t"


def live_file(name: str, rows: int, *, deletes: bool) -> LiveFile:
    delete = DeleteFile(f"{LOCATION}/d-{name}", DeleteKind.POSITION, 1, 1, 1)
    return LiveFile(f"{LOCATION}/{name}", 1, rows, 1, "PARQUET", deletes=(delete,) if deletes else ())


def drawn_plan(seed: int) -> Any:
    """A refresh after which files are new, gone, kept, or read again, of a base version with slots of every kind."""
    rng = np.random.default_rng(seed)
    base, files, added = [], [], []
    for number in range(int(rng.integers(0, 9))):
        kind = rng.choice(["free", "past", "gone", "kept", "again"])
        rows = int(rng.integers(10, 99))
        name = number + int(rng.integers(-1, 2)) if kind == "past" else number  # a file that was read again has two
        covered = CoveredFile(f"f{name}", rows, rows - int(rng.integers(5)), NO_DELETES, present=kind != "past")
        base.append(FREE_SLOT if kind == "free" else covered)
        if kind in {"kept", "again"}:
            files.append(live_file(f"f{number}", rows, deletes=bool(rng.integers(2))))
            added += files[-1:] if kind == "again" else []
    for number in range(int(rng.integers(0, 5))):
        added.append(live_file(f"new-{number}", int(rng.integers(1, 99)), deletes=False))
        files.append(added[-1])
    return SimpleNamespace(
        action=Action.REFRESHED,
        base=SimpleNamespace(routing=SimpleNamespace(files=tuple(base))),
        live=SimpleNamespace(location=LOCATION, files=tuple(sorted(files, key=lambda file: file.path))),
        added=tuple(added),
    )


@pytest.mark.parametrize("seed", range(100))
def test_files_that_stay_keep_their_slots_and_others_have_the_first_free_ones(seed: int) -> None:
    plan = drawn_plan(seed)
    base = plan.base.routing.files
    slots = {file.path.removeprefix(f"{LOCATION}/"): slot for slot, file in assign_slots(plan)}
    assert list(slots) == [file.path.removeprefix(f"{LOCATION}/") for file in plan.live.files]
    new = {file.path.removeprefix(f"{LOCATION}/") for file in plan.added}
    assert all(base[slot].present and base[slot].path == path for path, slot in slots.items() if path not in new)
    free = [slot for slot in range(len(base) + len(new)) if slot >= len(base) or base[slot] == FREE_SLOT]
    assert [slot for path, slot in slots.items() if path in new] == free[: len(new)]


@pytest.mark.parametrize("seed", range(100))
def test_the_table_has_each_live_file_and_what_nodes_still_lie_in(seed: int) -> None:
    plan = drawn_plan(seed)
    rng = np.random.default_rng(seed)
    base, files = plan.base.routing.files, assign_slots(plan)
    read = {slot: int(rng.integers(1, 9)) for slot, file in files if file in plan.added}
    removed = {slot: int(rng.integers(1, 5)) for slot, file in files if slot not in read and rng.integers(2)}
    slots = {slot for slot, _ in files}
    every = frozenset(FileSlot(slot) for slot, file in enumerate(base) if file.path)
    for referenced in (None, every, frozenset(slot for slot in every if rng.integers(2)), frozenset()):
        table = file_table(plan, files, read, removed, referenced)
        for slot, file in files:
            live = read[slot] if slot in read else base[slot].live_rows - removed.get(slot, 0)
            path = file.path.removeprefix(f"{LOCATION}/")
            assert table[slot] == CoveredFile(path, file.record_count, live, fingerprint(file), present=True)
        for slot, covered in enumerate(base):
            if slot not in slots:
                stays = covered.path and (referenced is None or slot in referenced)
                wanted = replace(covered, live_rows=0, present=False) if stays else FREE_SLOT
                assert (table[slot] if slot < len(table) else FREE_SLOT) == wanted
        assert len(table) <= max(len(base), *(slot + 1 for slot in slots), 0, 0)
        assert not table or table[-1] != FREE_SLOT


@pytest.mark.parametrize("action", [Action.BUILT, Action.REFRESHED])
def test_a_build_counts_its_files_whatever_version_there_was(action: Action) -> None:
    plan = drawn_plan(3)
    plan.action, plan.added = action, plan.live.files
    if action is Action.REFRESHED:
        plan.base = None
    files = assign_slots(plan)
    assert [slot for slot, _ in files] == list(range(len(plan.live.files)))
    table = file_table(plan, files, dict.fromkeys((slot for slot, _ in files), 1), {})
    assert [file.path for file in table] == [file.path.removeprefix(f"{LOCATION}/") for file in plan.live.files]


def test_no_slot_becomes_free_while_a_node_lies_in_it(table_factory: Callable[..., Table]) -> None:
    """Tombstones of a file that is gone keep its slot, whether a refresh reads their addresses or not."""
    table = table_factory()
    table.append(make_rows(0, 30))
    table.append(make_rows(30, 400))
    index_head(table)
    table.refresh().delete("id < 30")  # all of a file, and few enough for tombstones
    of_nodes = []
    for first in (400, 420, 440):
        index_head(table)
        version = open_version(index_versions(table.refresh(), "e")[-1], STORAGE)
        slots = np.concatenate([open_shard(shard, STORAGE).read().file_slots for shard in version.shards])
        of_nodes.append({int(slot): version.routing.files[slot].path for slot in np.unique(slots)})
        assert all(of_nodes[-1].values())
        table.append(make_rows(first, first + 20))
    assert [len(paths) for paths in of_nodes] == [2, 3, 4]
    assert of_nodes[0].items() <= of_nodes[1].items() <= of_nodes[2].items()
    append_position_deletes(table.refresh(), {next(iter(table.scan().plan_files())).file.file_path: np.arange(3)})
    index_head(table)
    assert check_integrity(RunContext(table, STORAGE), index_versions(table.refresh(), "e")[-1]).faults == ()
