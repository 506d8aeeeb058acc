"""The build id of a sketch: a hash of the rows that it counts.

Snapshot id and sequence number of a blob say for which snapshot it was written, not which rows were counted. Trino's
INSERT unites the newest statistics of any ancestor with its own rows and stamps the union with the new snapshot:
deleted rows still count, and rows that others appended do not.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping

from icepuffin.ann_kernels.sketches.theta_estimates import DEFAULT_K
from icepuffin.ops.tasks.sketches.statistic import Kind, StatisticKey, kind_of
from icepuffin.ops.theta.file_sketches import FileKey

PROPERTY = "icepuffin.build-id"
"""Property of our theta blobs that holds the build id. A slot whose blobs have the expected ids is not written again"""
OTHERS = "icepuffin.others"
"""Property of one of our theta blobs: `others_id` of the statistics of other kinds in its file. Property of the file:
which they are
"""
OTHERS_FORMAT = 1
"""First part of the former; to be raised when a kind of statistics is added"""
FORMAT = "theta/4"
"""First part of every build id; to be raised when the same rows give other sketches"""
_OF_FORMAT = re.compile(r"theta/([0-9]{1,9}):")
_DIGITS = 16
"""Hexadecimal digits of a build id's hash: the metadata of the table has one for each column of each snapshot"""


def build_ids(table_uuid: str, statistics: Iterable[StatisticKey], files: Iterable[FileKey]) -> dict[StatisticKey, str]:
    """The ids of the sketches of some statistics over exactly the live rows of these files.

    The files, of which there may be 100,000, are listed once for all.
    """
    rows = json.dumps(sorted((file.path, file.deletes) for file in files)).encode()
    return {key: _build_id(table_uuid, *key, rows) for key in statistics}


def others_id(seals: Mapping[StatisticKey, str]) -> str:
    """What the build ids of all statistics but NDVs come to; empty where there are none."""
    others = sorted((*key, seal) for key, seal in seals.items() if kind_of(key) is not Kind.NDV)
    return f"{OTHERS_FORMAT}:{hashlib.sha256(json.dumps(others).encode()).hexdigest()[:_DIGITS]}" if others else ""


def is_later_others(others: str) -> bool:
    """Whether statistics other than NDVs are of a later release, which keeps them up."""
    number = others.partition(":")[0]
    return number.isascii() and number.isdigit() and len(number) < _DIGITS and int(number) > OTHERS_FORMAT


def _build_id(table_uuid: str, field_id: int, column_type: str, rows: bytes) -> str:
    """`rows`: a JSON list, which is the last part of what is hashed: a JSON list, too."""
    others = json.dumps([FORMAT, DEFAULT_K, table_uuid, field_id, column_type]).removesuffix("]")
    sealed = hashlib.sha256(f"{others}, ".encode())
    sealed.update(rows)
    sealed.update(b"]")
    return f"{FORMAT}:{sealed.hexdigest()[:_DIGITS]}"


def sealed_as(properties: Mapping[str, str] | None) -> str:
    """The build id among a blob's properties; empty where another engine wrote it."""
    return (properties or {}).get(PROPERTY, "")


def is_ours(properties: Mapping[str, str] | None) -> bool:
    """Whether a sketch is of this format of ours: it counts what its build id is made of."""
    return sealed_as(properties).startswith(f"{FORMAT}:")


def is_outdated(properties: Mapping[str, str] | None) -> bool:
    """Whether a sketch is of an earlier format of ours, which is not trusted any more."""
    return sealed_as(properties) != "" and not is_ours(properties) and not is_later(properties)


def is_later(properties: Mapping[str, str] | None) -> bool:
    """Whether a sketch is of a format of a later release, which keeps it up: its count is as good as ours."""
    later = _OF_FORMAT.match(sealed_as(properties))
    return later is not None and int(later[1]) > int(FORMAT.rpartition("/")[2])
