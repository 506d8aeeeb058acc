"""Names that the Puffin spec and this project fix."""

import enum

MAGIC = b"PFA1"
"""Magic number of the format: at the start of the file, and at the start and end of the footer."""

FOOTER_TAIL = 12
"""Bytes after the footer payload: i32 payload size, u32 flags, magic."""

FLAG_FOOTER_COMPRESSED = 1

MAX_BLOB_BYTES = 2**31 - 1
"""Bytes of a blob, at most: no Java reader takes more"""
MAX_DIMS = 65_536
"""Dimensions of the longest vectors in a blob."""
MAX_METRIC = 3
"""Largest number of a metric in a blob."""


class BlobType(enum.StrEnum):
    """The types of the blobs that this project reads or writes. Files of others have blobs of other types, too."""

    THETA = "apache-datasketches-theta-v1"
    DELETION_VECTOR = "deletion-vector-v1"
    CENTROID = "flockdb-ann-centroid-v1"
    ROUTING = "flockdb-ann-routing-v1"
    SHARD = "flockdb-ann-index-v1"
    ADDRESSES = "icepuffin-ann-addresses-v1"
    VECTORS = "icepuffin-ann-vectors-v1"
    ATTRIBUTES = "icepuffin-ann-attributes-v1"
    TOKENS = "icepuffin-ann-tokens-v1"
    INCLUDED = "icepuffin-ann-included-v1"
    INCLUDED_VALUES = "icepuffin-ann-included-values-v1"
    TEXT = "icepuffin-ann-text-v1"
    WORDS = "icepuffin-ann-words-v1"


COMMUNITY_NAMES = {
    "ann-centroid-index-v1": BlobType.CENTROID,
    "ann-routing-v1": BlobType.ROUTING,
    "ann-vamana-graph-v1": BlobType.SHARD,
}
"""Other names of our blob types. Readers accept them, and an index may have its blobs written under them."""


def community_type(blob_type: BlobType) -> str:
    """The other name of a blob type; the same where there is none."""
    return next((name for name, kind in COMMUNITY_NAMES.items() if kind is blob_type), blob_type)


def canonical_type(blob_type: str) -> str:
    """The name that this project has for a blob type that is read."""
    return COMMUNITY_NAMES.get(blob_type, blob_type)
