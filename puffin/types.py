"""Names that the Puffin spec and this project fix."""

MAGIC = b"PFA1"
"""Starts the file, starts the footer, ends the file."""

FOOTER_TAIL = 12
"""Bytes after the footer payload: i32 payload size, u32 flags, magic."""

FLAG_FOOTER_COMPRESSED = 1

THETA_V1 = "apache-datasketches-theta-v1"
DELETION_VECTOR_V1 = "deletion-vector-v1"
CENTROID_V1 = "flockdb-ann-centroid-v1"
ROUTING_V1 = "flockdb-ann-routing-v1"
SHARD_V1 = "flockdb-ann-index-v1"

COMMUNITY_NAMES = {
    "ann-centroid-index-v1": CENTROID_V1,
    "ann-routing-v1": ROUTING_V1,
    "ann-vamana-graph-v1": SHARD_V1,
}
"""Other names under which readers accept our blob types."""


def canonical_type(blob_type: str) -> str:
    """The name that this project writes for a blob type that is read."""
    return COMMUNITY_NAMES.get(blob_type, blob_type)
