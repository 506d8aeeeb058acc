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
    number = build_id.partition("-")[0]
    if number.isascii() and number.isdecimal() and len(number) < _HASH_DIGITS:
        if int(number) >= FORMAT_VERSION:
            return ""
        return f"version of format {number}: its layout was given up, this release reads {FORMAT_VERSION}"
    return f"version without a format in its build id: its layout was given up, this release reads {FORMAT_VERSION}"
