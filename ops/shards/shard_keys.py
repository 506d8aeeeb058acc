"""The shards of a version in the shard cache, all in the fast or in the compact layout.

Fast: neighbours in rows of one width, codes of one byte in small dimensions. Compact: neighbours as they are stored,
codes of four bits wherever these preserve the nearest. Vectors lie on the disk in both, and few are read.
"""

from icepuffin.ann_kernels.simd.byte_products import BLOCK
from icepuffin.ops.cache import ShardKey, process_cache
from icepuffin.ops.cache.cache_settings import CacheSettings
from icepuffin.ops.index.versions.version_reader import OpenVersion
from icepuffin.ops.process.memory import memory_bytes

_SHARE = 0.5
"""Share of the machine's memory over which an index is kept in the compact layout: the rest is for other work"""


def is_compact(settings: CacheSettings, walked_bytes: int) -> bool:
    """Whether an index whose walks read `walked_bytes` in the fast layout is kept in the compact one."""
    if settings.layout == "auto":
        return walked_bytes > _SHARE * memory_bytes()
    return settings.layout == "compact"


def walked_bytes(nodes: int, dims: int, max_degree: int) -> int:
    """Bytes that walks may read of so many nodes in the fast layout: neighbours, and codes of one byte."""
    return nodes * (4 * max_degree + dims + -dims % BLOCK)


def in_compact_layout(opened: OpenVersion) -> bool:
    """Whether this process keeps the version's shards in the compact layout, by its settings and by their size."""
    routing, max_degree = opened.routing, opened.definition.max_degree
    nodes = sum(entry.count for entry in routing.shards)
    return is_compact(process_cache().settings, walked_bytes(nodes, routing.dims, max_degree))


def shard_keys(opened: OpenVersion) -> tuple[ShardKey, ...]:
    """The key of each shard, by shard id."""
    compact, shards = in_compact_layout(opened), zip(opened.shards, opened.routing.shards, strict=True)
    return tuple(ShardKey(stored, entry.sha256, compact) for stored, entry in shards)
