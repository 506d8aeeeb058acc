"""Row addresses: the number of a file and a row position, as one integer.

Addresses sort by file, then by position. That is the order of rows at equal distance.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

_POSITION_BITS = 36
"""Bits of a row position, for 68 billion rows per file; 27 bits are left for 134 million files"""
_POSITION_MASK = (1 << _POSITION_BITS) - 1


def addresses_of(files: npt.NDArray[Any] | int, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """int64[...]: addresses of the rows at `positions` of `files`, which are file numbers or file slots.

    Negative file numbers, which stand for no row, give negative addresses.
    """
    return np.asarray((np.asarray(files, np.int64) << _POSITION_BITS) | positions)


def rows_at(addresses: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """(files, positions), both int64[...]; -1 and -1 for negative addresses."""
    row = addresses >= 0
    if row.all():
        return addresses >> _POSITION_BITS, addresses & _POSITION_MASK
    return np.where(row, addresses >> _POSITION_BITS, -1), np.where(row, addresses & _POSITION_MASK, -1)
