"""Puffin files: bytes <-> typed objects. Knows nothing of catalogs, tables or engines."""

from puffin.footer import BlobMetadata, Footer
from puffin.layout import PlannedBlob, PuffinLayout, plan_puffin
from puffin.reader import PuffinReader
from puffin.sources import BytesSource, FileSource, RangeSource
from puffin.writer import FileInfo, PuffinWriter

__all__ = [
    "BlobMetadata",
    "BytesSource",
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
