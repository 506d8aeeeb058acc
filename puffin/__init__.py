"""Puffin files: bytes <-> typed objects. Knows nothing of catalogs, tables or engines."""

from icepuffin.puffin.file_layout import PlannedBlob, PuffinLayout, plan_puffin
from icepuffin.puffin.footer import BlobMetadata, Footer
from icepuffin.puffin.public_footer import DistinctCount
from icepuffin.puffin.puffin_reader import PuffinReader
from icepuffin.puffin.puffin_writer import FileInfo, PuffinWriter
from icepuffin.puffin.sources import BytesSource, FileSource, RangeSource

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
