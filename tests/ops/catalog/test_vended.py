"""Keys that a REST catalog vends, for users who have none of their own: used, renewed, and refused in clear words."""

import base64
import json
import pickle
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import ForbiddenError
from pyiceberg.table import Table

from icepuffin.ops.binding.bound_versions import index_versions
from icepuffin.ops.cache import ShardKey, process_cache
from icepuffin.ops.catalog.stored_file_io import current_io
from icepuffin.ops.catalog.vended_config import storage_of
from icepuffin.ops.index.index_materialization import materialize_index
from icepuffin.ops.index.planning.index_report import IndexReport
from icepuffin.ops.index.versions.version_reader import open_version
from icepuffin.ops.search.opening import open_exact, open_index
from icepuffin.ops.storage import AccessError, StorageError, credentials, open_storage, principal
from icepuffin.ops.storage.credentials import RemoteSigningError
from icepuffin.ops.storage.s3 import S3Storage
from icepuffin.ops.storage.s3_options import s3_options
from icepuffin.ops.tasks.task_runner import LocalRunner, Progress, RunContext
from tests.conftest import make_rows, queries
from tests.ops.catalog.vended_tables import connected, new_table
from tests.ops.index.comparison import DEFINITION
from tests.services.vending import Vending

pytestmark = [pytest.mark.services, pytest.mark.usefixtures("no_keys")]


@pytest.fixture
def lake(vending_lake: Vending) -> Vending:
    return vending_lake


@pytest.fixture
def pass_time(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Let seconds pass for the client; the store's clock stays."""

    def later(seconds: float) -> None:
        monkeypatch.setattr(credentials, "_now", lambda: (time.time() + seconds) * 1000)

    return later


def build(table: Table, runner: Any = None) -> IndexReport:
    head = table.metadata.current_snapshot_id or 0
    runner = runner or LocalRunner()
    report = materialize_index(RunContext(table, storage_of(table), runner), DEFINITION, head)
    table.refresh()
    return report


@pytest.mark.parametrize("how", ["config", "storage-credentials", "credentials endpoint"])
def test_nothing_but_the_catalog_is_configured_and_keys_are_renewed_in_time(
    how: Any, lake: Vending, tmp_path: Path, pass_time: Callable[[float], None]
) -> None:
    lake.how = how
    table = new_table(lake, tmp_path)
    build(table)
    reader = open_index(table, "e")
    requests_before = len(lake.vended_paths)
    found = reader.search(queries(3), 5, columns=["id"], where="id >= 10")
    true = open_exact(table, "embedding", DEFINITION.metric).search(queries(3), 5, where="id >= 10", columns=["id"])
    assert found.rows["id"].equals(true.rows["id"])
    assert len(lake.vended_paths) == requests_before, "keys that are good are not requested again"
    pass_time(3600 - 4 * 60)
    reader.search(queries(1), 5, columns=["name"])
    assert len(lake.vended_paths) == requests_before + 1
    assert lake.vended_paths[-1].endswith("/credentials") == (how == "credentials endpoint")
    table.scan(selected_fields=("section",)).to_arrow()
    assert len(lake.vended_paths) == requests_before + 1, "the table's own reader and ours share them"
    assert lake.refused == []


def test_files_are_deleted_one_by_one_where_a_request_about_the_bucket_is_refused(
    lake: Vending, tmp_path: Path
) -> None:
    lake.takes_batches = False
    table = new_table(lake, tmp_path)
    build(table)
    storage = storage_of(table)
    staged = open_storage(table.location(), storage).list(f"{table.location()}/metadata/_icepuffin/")
    assert list(staged) == [], "the build's own files"
    assert set(lake.refused) == {"AccessDenied"}


def test_a_clock_ahead_of_all_keys_fetches_no_new_keys_at_each_request(
    lake: Vending, tmp_path: Path, pass_time: Callable[[float], None]
) -> None:
    table = new_table(lake, tmp_path)
    build(table)
    reader = open_index(table, "e")
    pass_time(10 * 3600)
    reader.search(queries(1), 5, columns=["name"])
    requests_before = len(lake.vended_paths)
    for number in range(4):
        reader.search(queries(1), 5, columns=["section"], where=f"id >= {number}")
    assert len(lake.vended_paths) == requests_before
    lake.expire()
    assert reader.search(queries(1), 5, columns=["name", "section"]).rows.num_rows == 5
    assert len(lake.vended_paths) > requests_before, "a store's refusal of the keys is trusted at once"


@pytest.mark.parametrize("sends_expiry", [True, False])
def test_keys_that_the_store_refuses_are_replaced(sends_expiry: bool, lake: Vending, tmp_path: Path) -> None:
    lake.sends_expiry = sends_expiry
    table = new_table(lake, tmp_path)
    build(table)
    reader = open_index(table, "e")
    lake.expire()
    assert reader.search(queries(1), 5, columns=["name"]).rows.num_rows == 5
    assert set(lake.refused) == {"ExpiredToken"}
    lake.expire()
    assert table.scan(selected_fields=("id",)).to_arrow().num_rows == 200, "PyIceberg's own client likewise"


def test_keys_that_expire_after_a_manifest_was_opened_are_replaced(
    lake: Vending, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = new_table(lake, tmp_path)
    io, location = current_io(table, storage_of(table)), (table.current_snapshot() or pytest.fail("gone")).manifest_list
    assert io.new_input(location).exists()
    size = S3Storage.size

    def expired_then(store: S3Storage, path: str) -> int:
        monkeypatch.setattr(S3Storage, "size", size)
        length = store.size(path)
        lake.expire()
        return length

    monkeypatch.setattr(S3Storage, "size", expired_then)
    with io.new_input(location).open() as stream:
        assert stream.read().startswith(b"Obj")
    assert set(lake.refused) == {"ExpiredToken"}


class Slow(LocalRunner):
    """By the time that tasks run, what was vended before has expired; and again when they are done."""

    def __init__(self, lake: Vending) -> None:
        super().__init__()
        self.lake = lake
        self.runs = 0

    def run(
        self, function: Callable[[Any], Any], tasks: Sequence[Any], *, label: str, progress: Progress | None = None
    ) -> list[Any]:
        self.lake.expire()
        later = [pickle.loads(pickle.dumps(task)) for task in tasks]  # noqa: S301  our own bytes
        done = super().run(function, later, label=label, progress=progress)
        self.lake.expire()
        self.runs += 1
        return done


def test_a_build_outlives_its_keys(lake: Vending, tmp_path: Path) -> None:
    table = new_table(lake, tmp_path)
    runner = Slow(lake)
    report = build(table, runner)
    assert report.action == "built"
    assert runner.runs >= 2
    assert "ExpiredToken" in lake.refused
    table.append(make_rows(200, 220))
    assert build(table, runner).action == "refreshed"
    assert open_index(table, "e").search(queries(1), 5).rows.num_rows == 5


def test_a_task_that_starts_late_gets_keys_by_itself(lake: Vending, tmp_path: Path) -> None:
    table = new_table(lake, tmp_path)
    path = str(build(table).puffin_path)
    lake.seconds = 0.2
    late = pickle.dumps(storage_of(table.refresh()))
    time.sleep(0.3)
    lake.seconds = 3600
    program = (
        "import pickle, sys; from icepuffin.ops.storage import open_storage\n"
        "config = pickle.load(sys.stdin.buffer); print(open_storage(sys.argv[1], config).read_range(sys.argv[1], 0, 4))"
    )
    requests_before = len(lake.vended_paths)
    done = subprocess.run([sys.executable, "-c", program, path], input=late, capture_output=True, check=True)
    assert done.stdout.strip() == b"b'PFA1'"
    assert len(lake.vended_paths) == requests_before + 1
    assert lake.refused == []


def test_a_catalog_that_vends_no_more_keys_is_reported_with_what_to_do(
    lake: Vending, tmp_path: Path, pass_time: Callable[[float], None], caplog: pytest.LogCaptureFixture
) -> None:
    table = new_table(lake, tmp_path)
    path = str(build(table).puffin_path)
    config = storage_of(table)
    assert open_storage(path, config).exists(path)
    lake.lost = True
    pass_time(3600 - 60)
    assert open_storage(path, config).read_range(path, 0, 4) == b"PFA1", "for as long as the keys are good"
    assert "there are no new ones" in caplog.text
    pass_time(3600 + 60)
    with pytest.raises(AccessError, match=r"vended\..* expired at 20.*not authorized.*run it again"):
        open_storage(path, config).read_range(path, 0, 4)
    with pytest.raises(AccessError) as caught:
        table.scan().to_arrow()
    message = "".join(traceback.format_exception(caught.value)) + caplog.text
    assert not any(secret in message for key in lake.keys.values() for secret in (key.secret_key, key.token))
    lake.lost = False
    pass_time(3600 + 120)
    assert open_storage(path, config).read_range(path, 0, 4) == b"PFA1"


def test_who_lost_access_is_served_nothing_out_of_the_cache(
    lake: Vending, tmp_path: Path, pass_time: Callable[[float], None]
) -> None:
    table = new_table(lake, tmp_path)
    build(table)
    config = storage_of(table)
    opened = open_version(index_versions(table, "e")[-1], config)
    key = ShardKey(opened.shards[0], opened.routing.shards[0].sha256)
    process_cache().shard(key, config)
    lake.lost = True
    with pytest.raises(ForbiddenError):
        connected(lake).load_table(table.name())
    pass_time(3600 + 60)
    for read in (process_cache().shard, process_cache().holds):
        with pytest.raises(AccessError, match="may still read"):
            read(key, config)


def test_the_cache_follows_the_user_and_not_the_keys(lake: Vending, tmp_path: Path) -> None:
    table = new_table(lake, tmp_path)

    def owner(**properties: str) -> str:
        return principal(table.location(), storage_of(connected(lake, **properties).load_table(table.name())))

    def signed(subject: str, number: int) -> str:
        claims = json.dumps({"iss": "https://idp.example", "sub": subject, "exp": number, "jti": f"{number}"}).encode()
        return f"head.{base64.urlsafe_b64encode(claims).decode().rstrip('=')}.signature-{number}"

    alike = {owner(token="a"), owner(token="a"), principal(table.location(), storage_of(table.refresh()))}
    assert len(alike) == 2
    assert len({*alike, owner(token="b"), owner(token="a", warehouse="other")}) == 4
    assert owner(token=signed("ann", 1)) == owner(token=signed("ann", 2)) != owner(token=signed("bob", 3))


def test_vended_keys_win_over_keys_of_ones_own(lake: Vending, tmp_path: Path) -> None:
    table = new_table(lake, tmp_path)
    own = {"s3.access-key-id": "own", "s3.secret-access-key": "own", "client.session-token": "own"}
    again = connected(lake, **own).load_table(table.name())
    assert open_exact(again, "embedding", DEFINITION.metric).search(queries(1), 3).rows.num_rows == 3
    plain = connected(lake, **own, **{"header.X-Iceberg-Access-Delegation": ""}).load_table(table.name())
    assert storage_of(plain).vended is None
    assert s3_options(storage_of(plain).properties)["key"] == "own"


def test_a_catalog_that_somebody_else_opened_vends_as_well(
    lake: Vending, tmp_path: Path, pass_time: Callable[[float], None]
) -> None:
    table = new_table(lake, tmp_path)
    build(table)
    foreign = load_catalog("lake", type="rest", uri=lake.catalog).load_table(table.name())
    reader = open_index(foreign, "e")
    requests_before = len(lake.vended_paths)
    lake.expire()
    pass_time(3600 - 60)
    assert reader.search(queries(1), 5, columns=["name"], where="id >= 10").rows.num_rows == 5
    assert len(lake.vended_paths) == requests_before + 1
    assert lake.refused == []


def test_requests_that_the_catalog_would_sign_are_refused_with_what_to_set(lake: Vending, tmp_path: Path) -> None:
    table = new_table(lake, tmp_path)
    lake.how = "remote signing"
    table.refresh()
    with pytest.raises(RemoteSigningError, match=r"s3\.remote-signing-enabled.*vended-credentials.*s3\.access-key-id"):
        open_index(table, "e")
    with pytest.raises(AccessError, match="signs requests to S3 itself"):
        open_storage(table.location(), storage_of(table))
    with_keys = connected(lake, **{"s3.access-key-id": "a", "s3.secret-access-key": "b"}).load_table(table.name())
    assert s3_options(storage_of(with_keys).properties)["key"] == "a"
    ambient = connected(lake, **{"s3.remote-signing-enabled": "false"}).load_table(table.name())
    assert "key" not in s3_options(storage_of(ambient).properties | {"s3.remote-signing-enabled": "false"})


def test_where_nothing_is_vended_the_missing_keys_are_named(lake: Vending, tmp_path: Path) -> None:
    table = new_table(lake, tmp_path)
    lake.how = "nothing"
    bare = connected(lake, **{"s3.endpoint": lake.store, "s3.region": "us-east-1"}).load_table(table.name())
    with pytest.raises(AccessError, match=r"the catalog vends none.*s3\.access-key-id"):
        open_storage(table.location(), storage_of(bare)).exists(f"{table.location()}/x")


def test_nothing_that_was_vended_shows(lake: Vending, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    table = new_table(lake, tmp_path)
    build(table)
    config = storage_of(table)
    shown = f"{config!r} {config} {table.io!r} {open_storage(table.location(), config)!r} {caplog.text}"
    shown += json.dumps(table.metadata.model_dump(mode="json"), default=str)
    assert "vended" in shown
    for key in lake.keys.values():
        assert not any(secret in shown for secret in (key.access_key, key.secret_key, key.token))


def test_keys_are_good_for_their_table_alone(lake: Vending, tmp_path: Path) -> None:
    table = new_table(lake, tmp_path)
    config = storage_of(table)
    store = open_storage(table.location(), config)
    with pytest.raises(StorageError, match=r"refuses access.*that catalog 'lake' vended for vended\..*, good until 20"):
        store.read_range("s3://lake/vended/other/x", 0, 1)
    with pytest.raises(AccessError, match="there are no credentials for it"):
        open_storage("s3://lake/vended/other", config).read_range("s3://lake/vended/other/x", 0, 1)
