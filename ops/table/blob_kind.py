"""What icepuffin binds to snapshots of a table, and the names of what it makes in a catalog."""

from enum import StrEnum

from icepuffin.ops.model import SnapshotId


class BlobKind(StrEnum):
    """Content of a bound file. The value is the prefix of the summary keys of the snapshot that carries it."""

    INDEX = "ann"
    """One version of an ANN index"""
    SKETCHES = "theta-sketches"
    """Theta sketches per data file, kept for the next count"""


KIND_KEY = "icepuffin.kind"
"""Summary key of all snapshots that icepuffin makes: the prefix of their other keys, which is a `BlobKind`, or the kind
of a later release."""
STATISTICS_FILE_KEY = "statistics-file"
"""Summary key of an index snapshot, by the paper: location of its file, which the statistics entry names, too."""
FIELDS_KEY = f"{BlobKind.SKETCHES}.fields"
"""Summary key of a snapshot with file sketches: field ids of their columns, by commas."""
SIZES_KEY = f"{BlobKind.INDEX}.sizes"
"""Summary key of an index snapshot: sizes of its version."""
DISTANCES_KEY = f"{BlobKind.INDEX}.distances"
"""Summary key of an index snapshot: which column its version is of, and how vectors are compared."""
SKETCHES_TAG = "theta_sketches"
"""The tag on the newest version of the file sketches."""
SCRATCH_TABLES = "icepuffin_trial_"
"""Prefix of the names of the tables that catalogs are tried on."""
LASTING_MS = 2**63 - 1
"""`max-ref-age-ms` of tags that are to last. A tag without it has the table's `history.expire.max-ref-age-ms`, and the
expiry of any engine drops it at that age."""
SIDE_TAG_AGE_MS = 5 * 24 * 3600 * 1000
"""`max-ref-age-ms` of the tag of a version whose snapshot is not the head, such as one of a backfill: Iceberg's default
age for snapshots. Until then other snapshots share what it has."""


def index_tag(name: str) -> str:
    """The tag on the newest version of an index; other versions have `<tag>-<data snapshot id>`."""
    return version_tag(BlobKind.INDEX, name)


def owner_tag(name: str) -> str:
    """The tag on the newest version of an index, or of the file sketches, whose name is that of their kind."""
    return version_tag(BlobKind.SKETCHES if name == BlobKind.SKETCHES else BlobKind.INDEX, name)


def pack_tag(name: str, holder_id: SnapshotId) -> str:
    """The tag that keeps a pack of an index, or of the file sketches: on its holder snapshot."""
    return f"{owner_tag(name)}-pack-{holder_id}"


def side_tag(name: str) -> str:
    """The tag on the last version with a tag of its own that shares packs. Each such commit moves it, so that a commit
    which removes packs finds it moved: the other tag is of any of the table's snapshots.
    """
    return f"{owner_tag(name)}-side"


def version_tag(kind: BlobKind, name: str) -> str:
    """The tag on the newest version of an index, or of the table's file sketches."""
    return f"ann_{name}" if kind is BlobKind.INDEX else SKETCHES_TAG
