"""Calls to GCS and ADLS that fail, each once: `make stores`. One retry makes all of it good."""

import random
import shutil
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

from icepuffin.ops.storage import Storage, open_storage
from icepuffin.ops.storage.buckets import BucketStorage
from tests.faults.stages import FULL, Stage, make_stage
from tests.faults.test_stores import assert_failures_survived, failing_call, undisturbed_run
from tests.interop.buckets import STORES, bucket_server

pytestmark = pytest.mark.services
STRIDE = 1 if FULL else 11
"""Calls per fault"""


@dataclass(frozen=True)
class BucketStage(Stage):
    """A table in a bucket, and its catalog on the disk."""

    pristine: dict[str, bytes] = field(default_factory=dict)
    """Objects of the table before anything was tried"""

    @property
    def _store(self) -> Storage:
        return open_storage(self.bucket, self.storage)

    def restore(self) -> None:
        super().restore()
        for info in list(self._store.list(self.warehouse)):
            self._store.delete(info.path)
        for name, data in self.pristine.items():
            self._store.create(f"{self.warehouse}/{name}", data)

    def objects(self) -> dict[str, bytes]:
        listed = list(self._store.list(self.warehouse))
        return {info.path.removeprefix(f"{self.warehouse}/"): self._content(info.path) for info in listed}

    def files(self, folder: str = "live") -> set[str]:
        return set(self.pristine if folder == "pristine" else self.objects())


@pytest.mark.parametrize("store", STORES)
def test_each_call_to_a_bucket_may_fail(store: str, tmp_path: Path, survived: Counter[str], rng: random.Random) -> None:
    with bucket_server(store, tmp_path) as server:
        bucket = f"{server.root}/{tmp_path.name}"
        made = make_stage(tmp_path / "table", "deletes and an append", bucket=bucket, storage=server.storage)
        stage = BucketStage(made.folder, bucket, server.storage)
        stage.pristine.update(stage.objects())
        outcome, numbers = undisturbed_run(stage, BucketStorage, STRIDE, rng)
        survived[f"{store} call failed"] += assert_failures_survived(
            stage, partial(failing_call, BucketStorage), numbers, outcome
        )
    shutil.rmtree(tmp_path / "table")
