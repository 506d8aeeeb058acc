"""Values of snapshots' summaries. Any writer may set them, so a number may be none."""

import logging
import math
import re
from collections.abc import Mapping
from functools import lru_cache

from pyiceberg.table.snapshots import Snapshot

_log = logging.getLogger(__name__)
_NUMBER = re.compile("-?[0-9]{1,19}")
_LIMIT = 2**63


def summary_of(snapshot: Snapshot) -> Mapping[str, str]:
    """The properties of a snapshot's summary but its operation; none where it has no summary. What is no text in the
    metadata is written as one: PyIceberg, for one, stores numbers as its caller gives them.
    """
    properties = {} if snapshot.summary is None else snapshot.summary.additional_properties  # its truth is a slow call
    if {*map(type, properties.values())} <= {str}:
        return properties
    return {key: str(value) for key, value in properties.items()}


def number_of(text: str) -> int | None:
    """The whole number of 64 bits that a text is; None where it is none."""
    number = int(text) if _NUMBER.fullmatch(text) else _LIMIT
    return number if -_LIMIT <= number < _LIMIT else None


def whole_number(text: str) -> int:
    """The same. Raises ValueError for a text that is none."""
    number = number_of(text)
    if number is None:
        raise ValueError(f"{text!r:.40} is no whole number")
    return number


def finite_number(text: str) -> float:
    """The number that a text is. Raises ValueError for a text that is none, and for infinity and NaN."""
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text!r:.40} is no finite number")
    return number


def find_count(snapshot: Snapshot, key: str) -> int | None:
    """A number of a snapshot's summary, such as `added-records`; None where it has none. A value that is no number is
    warned of, once, and left out of account, as Iceberg's own readers do.
    """
    text = summary_of(snapshot).get(key)
    number = None if text is None else number_of(text)
    if text is not None and number is None:
        _warn(snapshot.snapshot_id, key, f"{text!r:.40}")
    return number


def snapshot_count(snapshot: Snapshot, key: str) -> int:
    """`find_count`; 0 where there is no number."""
    return find_count(snapshot, key) or 0


@lru_cache(maxsize=4096)
def _warn(snapshot_id: int, key: str, value: str) -> None:
    _log.warning(
        "snapshot %s: %s is %s in its summary, no number: it is left out of account. Its writer set it",
        snapshot_id, key, value,
    )  # fmt: skip
