"""Iceberg's REST compatibility kit, on REST catalogs of the tests: a part of Iceberg's own tests.

What a catalog fails there is a fault of its own. A test that expects it fails once the catalog has mended it.
"""

import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from tests.services.jars import REST_KIT_LOCK, fetch_all, pinned
from tests.services.processes import java
from tests.services.rest import class_path, rest_catalog
from tests.services.seaweedfs import seaweedfs

pytestmark = [
    pytest.mark.services,
    pytest.mark.skipif("ICEPUFFIN_CATALOG_SERVERS" not in os.environ, reason="make catalogs runs it"),
]
_KIT = "org.apache.iceberg.rest.RESTCompatibilityKit"
_JUNIT = "org.junit.platform.console.ConsoleLauncher"
_PARTS = {"rest": "Suite", "seaweedfs": "CatalogTests"}
"""The part of the kit that is about what a catalog says that it has: SeaweedFS has no views"""
_ON_LOCAL_DISK = {
    "testCompleteCreateOrReplaceTransactionCreate",
    "testCompleteCreateTable",
    "testCompleteCreateTransaction",
    "testCompleteCreateTransactionMultipleSchemas",
    "testCompleteCreateTransactionV2",
    "testCreateTableWithDefaultColumnValue",
    "testLoadTable",
    "testLoadTableWithMissingMetadataFile(Path)",
}
"""Tests with a table or a file on a local disk, which a table bucket does not take"""
_IN_OTHER_WORDS = {
    "tableCreationWithoutNamespace",
    "testConcurrentCreateTransaction",
    "testConcurrentReplaceTransactionPartitionSpecConflict",
    "testConcurrentReplaceTransactionSchemaConflict",
    "testCreateExistingNamespace",
    "testCreateOrReplaceTransactionConcurrentCreate",
    "testLoadMissingTable",
    "testLoadNamespaceMetadata",
    "testLoadTableWithNonExistingNamespace",
    "testRegisterExistingTable",
    "testRemoveNamespacePropertiesNamespaceDoesNotExist",
    "testReplaceTransactionRequiresTableExists",
    "testSetNamespacePropertiesNamespaceDoesNotExist",
    "testUUIDValidation",
    "testUpdateTableAssignmentSpecConflict",
    "testUpdateTableSchemaAssignmentConflict",
    "testUpdateTableSchemaConflict",
    "testUpdateTableSpecConflict",
}
"""Tests that compare the message of an error, which has the right type"""
_FAILED = {
    "rest": set(),
    "seaweedfs": {
        "dropAfterRenameDoesntCorruptTable",
        "renameTableNamespaceMissing",
        "testBasicCreateTableThatAlreadyExists",
        "testListNonExistingNamespace",
        "testRegisterTable",
        *_ON_LOCAL_DISK,
        *_IN_OTHER_WORDS,
    },
}
"""Tests that each catalog fails"""


@contextmanager
def _served(catalog: str, folder: Path) -> Iterator[Mapping[str, str]]:
    """Settings of the catalog for Iceberg's Java."""
    if catalog == "rest":
        with rest_catalog(folder, {}) as uri:
            yield {"uri": uri}
    else:
        with seaweedfs(folder) as server:
            settings = {"uri": server.uri, "client.region": "us-east-1", **server.files, **server.login()}
            yield {**settings, "rck.requires-namespace-create": "true"}


@pytest.mark.parametrize("catalog", _FAILED)
def test_a_catalog_passes_the_kit_but_for_what_is_known(catalog: str, tmp_path: Path) -> None:
    jars = ":".join(map(str, [*fetch_all(pinned(REST_KIT_LOCK)), *class_path()]))
    (tmp_path / "server").mkdir()
    with _served(catalog, tmp_path / "server") as settings:
        command = [java(), "-Xmx1g", *(f"-D{key}={value}" for key, value in settings.items()), "-cp", jars, _JUNIT]
        command += [
            "execute",
            f"--select-class={_KIT}{_PARTS[catalog]}",
            "--config=rck.local=false",
            f"--reports-dir={tmp_path}",
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    tests = [test for report in tmp_path.glob("TEST-*.xml") for test in ET.parse(report).iter("testcase")]  # noqa: S314
    assert len(tests) > 100, done.stdout[-3000:] + done.stderr[-3000:]
    failed = {
        str(test.get("name")).removesuffix("()")
        for test in tests
        if any(test.find(kind) is not None for kind in ("failure", "error"))
    }
    assert failed == _FAILED[catalog]
