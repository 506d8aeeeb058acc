"""What release 0.1.0 wrote is read, and answers as it did then. `golden_files.py` made it."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import icepuffin
from icepuffin.ops.binding.bound_versions import index_versions
from icepuffin.ops.index.verify.integrity import check_integrity
from icepuffin.ops.model import Action
from icepuffin.ops.tasks.task_runner import RunContext
from icepuffin.puffin.types import BlobType
from tests.conformance.golden_files import (
    BLOBS,
    GOLDEN,
    LOCATION,
    answers_of,
    blob_types,
    catalog_in,
    lying_in,
    metadata_file,
    plain,
)
from tests.conftest import STORAGE

ANSWERS: dict[str, Any] = json.loads((GOLDEN / "answers.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", sorted(ANSWERS["blobs"]))
def test_a_golden_blob_is_read_as_it_was(name: str) -> None:
    _, decode = BLOBS[name]
    read = json.loads(json.dumps(plain(decode((GOLDEN / "blobs" / f"{name}.bin").read_bytes()))))
    assert read == ANSWERS["blobs"][name]


def test_the_golden_table_answers_as_it_did(tmp_path: Path) -> None:
    with lying_in(GOLDEN / "t"):
        newest = metadata_file(GOLDEN / "t").name
        table = catalog_in(tmp_path).register_table("db.t", f"{LOCATION}/metadata/{newest}")
        assert table.location() == LOCATION
        assert answers_of(table) == ANSWERS["table"]
        versions = index_versions(table, "e")
        assert len(versions) == len(ANSWERS["table"]) == 3
        assert not any(check_integrity(RunContext(table, STORAGE), version).faults for version in versions)


def test_a_golden_table_is_refreshed_from_what_it_has(tmp_path: Path) -> None:
    folder = tmp_path / "t"
    shutil.copytree(GOLDEN / "t", folder)
    with lying_in(folder):
        table = catalog_in(tmp_path).register_table("db.t", f"{LOCATION}/metadata/{metadata_file(folder).name}")
        table.delete("id = 125")
        report = icepuffin.refresh(table, "e", sketches=True, storage=STORAGE, threads=1)
        assert report.sketches is not None
        assert (report.sketches.files_sketched, report.sketches.files_reused) == (1, 1)
        assert report.sketches.ndv["id"] == 139
        assert [index.action for index in report.indexes.values()] == [Action.REFRESHED]
        assert not check_integrity(RunContext(table.refresh(), STORAGE), index_versions(table, "e")[-1]).faults


def test_the_golden_files_are_small_and_have_each_type_of_blob() -> None:
    sizes = [path.stat().st_size for path in GOLDEN.rglob("*") if path.is_file()]
    assert sum(sizes) <= 300_000
    of_table = blob_types(GOLDEN / "t")
    of_deletes, of_moved_rows, of_lists = BlobType.DELETION_VECTOR, BlobType.ADDRESSES, BlobType.TOKENS
    assert {*BlobType} - of_table == {of_deletes, of_moved_rows, of_lists}
    assert {"deletion-vector", "addresses", "tokens"} < BLOBS.keys()
    assert {path.stem for path in (GOLDEN / "blobs").iterdir()} == BLOBS.keys()
