"""Whether a catalog keeps what binds a version to a table, and where its store takes the files: tried on a scratch
table, before any work.

PyIceberg writes the metadata of tables of SQL, Glue and Hive catalogs, and these only store where it lies. A REST
catalog writes it itself, from the updates of a commit. Some leave out tags, or change the parents of snapshots.
"""

import logging
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

import pyarrow as pa
from pyiceberg.catalog import Catalog, MetastoreCatalog
from pyiceberg.exceptions import BadRequestError
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.update import AssertRefSnapshotId, RemoveSnapshotRefUpdate
from pyiceberg.types import LongType, NestedField

from icepuffin.ops.binding.bindings import publish, unsupported_catalog
from icepuffin.ops.binding.bound_versions import own_names
from icepuffin.ops.binding.commit import CommitOutcome, attempt_commit
from icepuffin.ops.binding.derived_snapshots import Binding, NewPack
from icepuffin.ops.binding.errors import UnsupportedCatalogError
from icepuffin.ops.binding.files_folder import FilesFolder, folder_of
from icepuffin.ops.binding.manifest_lists import require_committable
from icepuffin.ops.catalog.redaction import without_values
from icepuffin.ops.catalog.vended_config import storage_of
from icepuffin.ops.model import SnapshotId
from icepuffin.ops.storage import RefusedError, Storage, open_storage, split_location
from icepuffin.ops.table.blob_kind import SCRATCH_TABLES, BlobKind, index_tag
from icepuffin.ops.table.snapshots import UnknownSnapshotError, base_snapshot_id, table_name

_log = logging.getLogger(__name__)
_SCHEMA = Schema(NestedField(1, "id", LongType(), required=False))
_NAME = "trial"
_TRIED: dict[tuple[str, str, str], FilesFolder] = {}
"""Folder of files, by (uri, warehouse, bucket), of the catalogs that kept everything, in this process"""
_TRIALS = 2
"""Scratch tables on which a commit has to be refused before that counts: one refusal may be of that moment"""


def require_bindable(table: Table) -> FilesFolder:
    """The folder in which icepuffin's files are to lie. `remember_folder` writes it into the table's properties.

    A table that has a version shows what its catalog keeps. For other tables of a REST catalog a scratch table is made
    in the same namespace, bound, read again and dropped, with objects of names such as ours, once per process and
    bucket. Where that cannot be done, for whatever reason, a warning is logged.

    Raises UnsupportedCatalogError or UnsupportedFormatError where nothing can be bound, whatever the work, and
    RefusedError where the store takes objects in none of the folders.
    """
    require_committable(table)
    catalog, folder = table.catalog, folder_of(table)
    uri, warehouse = (str(catalog.properties.get(name, "")) for name in ("uri", "warehouse"))
    key = uri, warehouse, split_location(table.location())[0]
    if isinstance(catalog, MetastoreCatalog) or _has_version(table):
        return folder
    try:
        if key not in _TRIED:
            _TRIED[key] = _try_catalog(table)
    except UnsupportedCatalogError as error:
        raise unsupported_catalog(
            table, error.change, f". This was seen on a scratch table; {table_name(table)} was not changed"
        ) from None
    except RefusedError as error:
        raise RefusedError(f"{table_name(table)} was not changed: {error}") from None
    except Exception as error:  # PyIceberg's errors have no base of their own, and no work depends on the trial
        _log.warning(
            "%s: whether catalog %r keeps tags and snapshots as they are sent was not tried out before the work, as a "
            "scratch table could not be written (%s). The first commit will show it",
            table_name(table), catalog.name, without_values(error, catalog.properties),
        )  # fmt: skip
        return folder
    return folder if folder is FilesFolder.OWN else _TRIED[key]


def _try_catalog(table: Table) -> FilesFolder:
    """The folder that the table's store takes.

    Raises UnsupportedCatalogError, RefusedError, and what kept the trial from its end.
    """
    for _ in range(_TRIALS):
        with _scratch_table(table) as scratch:
            try:
                _try_out(scratch)
            except BadRequestError as error:
                reason = str(without_values(error, scratch.catalog.properties)).splitlines()[0]
                refusal = unsupported_catalog(scratch, f"refuses the commit of a version ({reason})")
            else:
                bucket, table_bucket = (split_location(it.location())[0] for it in (scratch, table))
                return _try_store(scratch if bucket == table_bucket else table)  # another bucket may take other names
    raise refusal


def _try_store(table: Table) -> FilesFolder:
    """The first folder in which the store takes objects of names such as ours. They are deleted again.

    Raises RefusedError where it takes them in none, and what the store raises.
    """
    location = table.location().rstrip("/")
    store = open_storage(location, storage_of(table))
    name, refusals = f"{_NAME}-{uuid.uuid4().hex}", []
    for folder in FilesFolder:
        created: list[str] = []
        try:
            for path in (f"{location}/{folder}/ann-{name}.puffin", f"{location}/{folder.staging}/{name}/{name}.bin"):
                store.create(path, b"")
                created.append(path)
        except RefusedError as error:
            refusals.append(str(error))
        else:
            return folder
        finally:
            _remove(store, created)
    raise RefusedError(
        f"the store takes no file of icepuffin beside a table: {'; '.join(refusals)}. Give its user the right to write "
        "there, or use another store"
    )


def _remove(store: Storage, created: Sequence[str]) -> None:
    """Delete the objects. Where the user has no right to, publishing goes on: they are named in a warning."""
    try:
        for path in created:
            store.delete(path)
    except RefusedError as error:
        _log.warning(
            "a trial of the store left %s, as its user may not delete there (%s). Delete them. Files that runs stage "
            "will stay, too, until `icepuffin gc` is run by a user with the right to delete",
            " and ".join(created), error,
        )  # fmt: skip


def _has_version(table: Table) -> bool:
    """Whether the metadata that the catalog gave has a version without a parent, with tag and statistics entry."""
    entries = {entry.snapshot_id for entry in table.metadata.statistics}
    snapshots = {snapshot.snapshot_id: snapshot for snapshot in table.metadata.snapshots}
    for tag, ref in table.metadata.refs.items():
        snapshot = snapshots.get(ref.snapshot_id)
        if snapshot is None or snapshot.snapshot_id not in entries or tag not in own_names(snapshot):
            continue
        if snapshot.parent_snapshot_id is None and base_snapshot_id(snapshot) is not None:
            return True
    return False


@contextmanager
def _scratch_table(table: Table) -> Iterator[Table]:
    """A table beside `table`, with one snapshot and no rows. It is dropped in any case."""
    catalog, identifier = table.catalog, (*table.name()[:-1], f"{SCRATCH_TABLES}{uuid.uuid4().hex}")
    is_created = False
    try:
        catalog.create_table(identifier, _SCHEMA, properties={"format-version": "2"})
        is_created = True
        scratch = catalog.load_table(identifier)  # some catalogs vend keys with this answer alone
        scratch.append(pa.table({"id": pa.array([], pa.int64())}))
        yield scratch
    finally:
        _drop(catalog, identifier, is_created=is_created)


def _drop(catalog: Catalog, identifier: tuple[str, ...], *, is_created: bool) -> None:
    """Drop the table with its files, or without them where the catalog deletes none. What fails hides no other error.

    `is_created`: False where it is not known, as where the answer was lost.
    """
    if not is_created and not _exists(catalog, identifier, default=False):
        return
    for drop in (catalog.purge_table, catalog.drop_table):
        try:
            drop(identifier)
        except Exception as error:  # see require_bindable
            refusal = without_values(error, catalog.properties)
        else:
            return
    if _exists(catalog, identifier, default=True):
        _log.warning(
            "scratch table %s stays in catalog %r, as it could not be dropped (%s); drop it",
            ".".join(identifier), catalog.name, refusal,
        )  # fmt: skip


def _exists(catalog: Catalog, identifier: tuple[str, ...], *, default: bool) -> bool:
    """Whether the table exists; `default` where the catalog does not say."""
    try:
        return catalog.table_exists(identifier)
    except Exception:  # see require_bindable
        return default


def _try_out(scratch: Table) -> None:
    """Bind a version and a pack, of files that nobody reads, and commit what has to be refused.

    Raises UnsupportedCatalogError, BadRequestError where the commit is refused, and what `publish` raises.
    """
    metadata, tag = f"{scratch.location()}/metadata", index_tag(_NAME)
    binding = Binding(
        kind=BlobKind.INDEX,
        name=_NAME,
        tag=tag,
        base_snapshot_id=SnapshotId(scratch.metadata.current_snapshot_id or 0),
        build_id=_NAME,
        puffin_path=f"{metadata}/ann-{_NAME}.puffin",
        file_size=4,
        footer_size=2,
        expected_ref=None,
        new_packs=(NewPack(path=f"{metadata}/ann-{_NAME}-pack.puffin", size=4, footer_size=2),),
    )
    try:
        publish(scratch, binding)
    except UnknownSnapshotError:  # nobody else expires snapshots of this table
        base = binding.base_snapshot_id
        raise unsupported_catalog(scratch, f"dropped snapshot {base} when a version of it was committed") from None
    if scratch.metadata.refs[tag].max_ref_age_ms != binding.max_ref_age_ms:
        raise unsupported_catalog(scratch, f"does not keep the max-ref-age-ms of tag {tag}, so any expiry drops it")
    unmet = (AssertRefSnapshotId(ref=tag, snapshot_id=None),)
    outcome = CommitOutcome.REFUSED
    with suppress(BadRequestError):  # by which some catalogs answer to requirements that are not met
        outcome = attempt_commit(scratch, (RemoveSnapshotRefUpdate(ref_name=tag),), unmet)
    if outcome is CommitOutcome.DONE:
        raise unsupported_catalog(
            scratch, "takes commits whose requirements are not met, so that runs would undo each other's"
        )
