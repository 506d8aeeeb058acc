"""The shard cache: shards that are ready to be searched, on the local disk as files to map, and in memory.

Existing caches keep bytes or pickled values. `diskcache` keeps rows of SQLite and pickles: a pickle of another writer
runs its code, and nothing is mapped. The caches of fsspec keep the raw bytes of an object, to be decoded at each
opening; they have no budget, and do not separate users by the credentials that fetched the bytes.
"""

from icepuffin.ops.cache.cache_settings import CacheSettings
from icepuffin.ops.cache.ready_shard import ReadyShard
from icepuffin.ops.cache.shard_cache import ShardCache, ShardKey, process_cache, use_settings

__all__ = ["CacheSettings", "ReadyShard", "ShardCache", "ShardKey", "process_cache", "use_settings"]
