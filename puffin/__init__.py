"""Puffin files: bytes <-> typed objects. Knows nothing of catalogs, tables or engines."""

from icepuffin.puffin.footer import BlobMetadata, DistinctCount, Footer
from icepuffin.puffin.puffin_reader import PuffinReader
from icepuffin.puffin.puffin_writer import FileInfo, PuffinLayout, PuffinWriter, plan_puffin
from icepuffin.puffin.sources import BytesSource, RangeSource

__all__ = [
    "BlobMetadata",
    "BytesSource",
    "DistinctCount",
    "FileInfo",
    "Footer",
    "PuffinLayout",
    "PuffinReader",
    "PuffinWriter",
    "RangeSource",
    "plan_puffin",
]
