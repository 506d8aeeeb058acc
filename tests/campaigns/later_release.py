"""A release after this one, which there is not yet: this tree with one more of each thing that later releases may add.

Its edits are those of `EDITS`, in the source of modules as they are imported: one more parameter of an index, which is
left out at its default, and one more value of another; one more feature bit; sketches of a later format, and a blob of
statistics beside them. `bind_later` binds one more kind of derived snapshot, with a pack.
"""

import uuid
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

PARAMETERS: tuple[dict[str, object], ...] = ({"depth": 1}, {"blob_names": "later"})
"""What only this release understands of an index: a parameter, and a value of another"""
KIND = "later"
BLOB = "icepuffin-later-v1"
EDITS = {
    "icepuffin.ops.index.definitions.index_definition": (
        (
            "    blob_names: str = _parameter(",
            '    depth: int = _parameter(0, "Depth.", high=9)\n    blob_names: str = _parameter(',
        ),
        ('Literal["flockdb", "community"]', 'Literal["flockdb", "community", "later"]'),
        ("asdict(self)", '{key: value for key, value in asdict(self).items() if (key, value) != ("depth", 0)}'),
    ),
    "icepuffin.ops.index.files.planned_blobs": (('== "community"', '!= "flockdb"'),),
    "icepuffin.puffin.blobs.routing_blob": (
        ("VERSION = 6\n", "VERSION = 6\nwritten_bits = 0\n"),
        ("routing.base_snapshot_id, COMMON", "routing.base_snapshot_id, COMMON | written_bits"),
        ("features, COMMON)", "features, COMMON | 2)"),
    ),
    "icepuffin.ops.theta.build_id": (('"theta/4"', '"theta/5"'),),
    "icepuffin.ops.theta.statistics_slot": (
        (
            "    for old in carried:\n        meta",
            f"""    carried = [
        *(blob for blob in carried if blob.metadata.type != {BLOB!r}),
        CarriedBlob(BlobMetadata({BLOB!r}, (1,), snapshot.snapshot_id, 0, 0, 0, None, {{}}), b"later", listed=False),
    ]
    for old in carried:
        meta""",
        ),
    ),
}
"""(before, after) of pieces of source, by module"""


class _EditedLoader(SourceFileLoader):
    def get_code(self, fullname: str) -> CodeType:
        source = self.get_data(self.path).decode()
        for before, after in EDITS[fullname]:
            assert before in source, f"{fullname} has no {before!r}"
            source = source.replace(before, after)
        return compile(source, self.path, "exec")


class LaterRelease(MetaPathFinder):
    """Loads the edited modules; to be put before the other finders."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name not in EDITS or path is None:
            return None
        file = f"{path[0]}/{name.rpartition('.')[2]}.py"
        return spec_from_file_location(name, file, loader=_EditedLoader(name, file))


def bind_later(table: Any) -> int:
    """Bind a version of another kind to the head, with a pack; return the id of its snapshot."""
    from icepuffin.ops.binding import bindings  # noqa: PLC0415  of this release
    from icepuffin.ops.binding.derived_snapshots import Binding, NewPack  # noqa: PLC0415

    number = uuid.uuid4().hex
    paths = [f"{table.location()}/metadata/ann-{KIND}-{number}{part}.puffin" for part in ("", "-pack")]
    for path in paths:
        Path(path.removeprefix("file://")).write_bytes(b"PFA1")
    head, kind = table.metadata.current_snapshot_id, KIND
    binding = Binding(
        kind, kind, f"{kind}-{number}", head, "9-0", paths[0], 4, 2, None, new_packs=(NewPack(paths[1], 4, 2),)
    )
    return bindings.publish(table, binding).index_snapshot_id


def drop_later(table: Any) -> None:
    """Remove the versions of the other kind, with their packs and all tags on these."""
    from icepuffin.ops.binding.expiration import expire_derived  # noqa: PLC0415
    from icepuffin.ops.table.ownership import own_snapshots  # noqa: PLC0415

    ids = [snapshot_id for snapshot_id, owned in own_snapshots(table.metadata).items() if owned.kind == KIND]
    expire_derived(table, ids, [name for name, ref in table.metadata.refs.items() if ref.snapshot_id in ids])
