"""The format of an index version. Its build id begins with it, so that a table's metadata tells which versions a search
can open.
"""

import hashlib
import json
from collections.abc import Mapping

FORMAT_VERSION = 3
"""Format of the versions that this release makes; to be raised with the version of any blob of theirs, and where the
layout of the file, or what a blob or the summary holds, changes. Versions of earlier formats were given up"""
_HASH_DIGITS = 32
"""Hexadecimal digits of a build id's hash: the metadata of the table has one for each version"""


def build_id_of(identity: Mapping[str, object]) -> str:
    """The build id of a version of this format. `identity`: everything that its bytes depend on, as JSON has it."""
    sealed = hashlib.sha256(json.dumps({**identity, "format": FORMAT_VERSION}, sort_keys=True).encode())
    return f"{FORMAT_VERSION}-{sealed.hexdigest()[:_HASH_DIGITS]}"


def seed_of(build_id: str) -> int:
    """A number that follows from a build id, for what is to be drawn alike in each attempt."""
    return int(build_id.rpartition("-")[2], 16)


def given_up(build_id: str) -> str:
    """Why a version with this build id is not read and the next refresh makes it anew, in words; empty for versions of
    this format, and of a later one, which its own release keeps up.
    """
    number = _format_of(build_id)
    if number is not None and number >= FORMAT_VERSION:
        return ""
    which = "without a format in its build id" if number is None else f"of format {number}"
    return f"version {which}: its layout was given up, this release reads {FORMAT_VERSION}"


def made_later(build_id: str) -> str:
    """Why a version with this build id is left to a later release, in words; empty for versions of other formats."""
    number = _format_of(build_id)
    if number is None or number <= FORMAT_VERSION:
        return ""
    return f"version of format {number}: a later release wrote it, this one reads {FORMAT_VERSION}"


def _format_of(build_id: str) -> int | None:
    """The format that a build id begins with; None where it has none."""
    number = build_id.partition("-")[0]
    is_number = number.isascii() and number.isdecimal() and len(number) < _HASH_DIGITS
    return int(number) if is_number else None
