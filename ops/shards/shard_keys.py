"""The shards of a version in the shard cache, all in one layout."""

from icepuffin.ops.cache import ShardKey, process_cache
from icepuffin.ops.cache.shard_layout import is_compact, walked_bytes
from icepuffin.ops.index.versions.version_reader import OpenVersion


def in_compact_layout(opened: OpenVersion) -> bool:
    """Whether this process keeps the version's shards in the compact layout, by its settings and by their size."""
    routing, max_degree = opened.routing, opened.definition.max_degree
    nodes = sum(entry.count for entry in routing.shards)
    return is_compact(process_cache().settings, walked_bytes(nodes, routing.dims, max_degree))


def shard_keys(opened: OpenVersion) -> tuple[ShardKey, ...]:
    """The key of each shard, by shard id."""
    compact, shards = in_compact_layout(opened), zip(opened.shards, opened.routing.shards, strict=True)
    return tuple(ShardKey(stored, entry.sha256, compact) for stored, entry in shards)
