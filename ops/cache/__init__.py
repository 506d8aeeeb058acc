"""Shards of indexes, kept ready to be searched: on the local disk as files to map, and in this process's memory.

Why a cache of our own: what exists keeps bytes, or pickled values. `diskcache` keeps rows of SQLite and pickles (to
unpickle a file that something else wrote runs its code, and nothing is mapped); fsspec's caches keep an object's raw
bytes, to be decoded at each opening, without a budget and without knowing whose credentials fetched them.
"""

from icepuffin.ops.cache.ready import ReadyShard
from icepuffin.ops.cache.settings import CacheSettings
from icepuffin.ops.cache.shards import ShardCache, ShardKey, process_cache, use_settings

__all__ = ["CacheSettings", "ReadyShard", "ShardCache", "ShardKey", "process_cache", "use_settings"]
