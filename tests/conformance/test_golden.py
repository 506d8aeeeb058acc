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
    TABLES,
    answers_of,
    blob_types,
    golden_table,
    plain,
)
from tests.conftest import STORAGE
from tests.repeatable import LOCATION, lying_in

ANSWERS: dict[str, Any] = json.loads((GOLDEN / "answers.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", sorted(ANSWERS["blobs"]))
def test_a_golden_blob_is_read_as_it_was(name: str) -> None:
    _, decode = BLOBS[name]
    read = json.loads(json.dumps(plain(decode((GOLDEN / "blobs" / f"{name}.bin").read_bytes()))))
    assert read == ANSWERS["blobs"][name]


@pytest.mark.parametrize("name", TABLES)
def test_a_golden_table_answers_as_it_did(name: str, tmp_path: Path) -> None:
    with lying_in(GOLDEN):
        table = golden_table(tmp_path, name)
        assert (table.location(), str(table.format_version)) == (f"{LOCATION}/{name}", TABLES[name][0])
        assert answers_of(table) == ANSWERS["tables"][name]
        versions = index_versions(table, "e")
        assert len(versions) == len(ANSWERS["tables"][name]) == 3
        assert not any(check_integrity(RunContext(table, STORAGE), version).faults for version in versions)
        assert all(bool(version.packs) == (name == "packs") for version in versions)


@pytest.mark.parametrize("name", TABLES)
def test_a_golden_table_is_refreshed_from_what_it_has(name: str, tmp_path: Path) -> None:
    shutil.copytree(GOLDEN / name, tmp_path / name)
    with lying_in(tmp_path):
        table = golden_table(tmp_path, name, tmp_path)
        table.delete("id = 125")
        report = icepuffin.refresh(table, "e", sketches=True, storage=STORAGE, threads=1)
        assert report.sketches is not None
        assert (report.sketches.files_sketched, report.sketches.files_reused) == (1, 1)
        assert report.sketches.ndv["id"] == 139
        assert [index.action for index in report.indexes.values()] == [Action.REFRESHED]
        assert not check_integrity(RunContext(table.refresh(), STORAGE), index_versions(table, "e")[-1]).faults


def test_a_version_of_the_golden_packs_shares_those_of_the_one_before(tmp_path: Path) -> None:
    with lying_in(GOLDEN):
        versions = index_versions(golden_table(tmp_path, "packs"), "e")
    paths = [{pack.path for pack in version.packs} for version in versions]
    assert paths[0] & paths[1]
    assert paths[1] & paths[2]


def test_the_golden_files_are_small_and_have_each_type_of_blob() -> None:
    sizes = [path.stat().st_size for path in GOLDEN.rglob("*") if path.is_file()]
    assert sum(sizes) <= 600_000
    of_table = blob_types(GOLDEN / "t")
    of_deletes, of_moved_rows, of_lists = BlobType.DELETION_VECTOR, BlobType.ADDRESSES, BlobType.TOKENS
    of_words = {BlobType.TEXT, BlobType.WORDS}  # the next release writes its own files
    assert {*BlobType} - of_table == {of_deletes, of_moved_rows, of_lists} | of_words
    assert {"deletion-vector", "addresses", "tokens"} < BLOBS.keys()
    assert {path.stem for path in (GOLDEN / "blobs").iterdir()} == BLOBS.keys()
