"""Puffin files: bytes <-> typed objects. Knows nothing of catalogs, tables or engines."""

from icepuffin.puffin.footer import BlobMetadata, Footer
from icepuffin.puffin.layout import PlannedBlob, PuffinLayout, plan_puffin
from icepuffin.puffin.public_footer import DistinctCount
from icepuffin.puffin.reader import PuffinReader
from icepuffin.puffin.sources import BytesSource, FileSource, RangeSource
from icepuffin.puffin.writer import FileInfo, PuffinWriter

__all__ = [
    "BlobMetadata",
    "BytesSource",
    "DistinctCount",
    "FileInfo",
    "FileSource",
    "Footer",
    "PlannedBlob",
    "PuffinLayout",
    "PuffinReader",
    "PuffinWriter",
    "RangeSource",
    "plan_puffin",
]
