"""Arrow columns of every type that a sketch takes, in every way to hold them."""

from collections.abc import Callable

import pyarrow as pa


def _pieces(array: pa.Array) -> pa.ChunkedArray:
    third = len(array) // 3
    return pa.chunked_array([array[:third], array[:0], array[third:]], array.type)


def _sliced(array: pa.Array) -> pa.Array:
    padding = array.take(pa.array([0] * 3)) if len(array) else pa.nulls(3, array.type)
    return pa.concat_arrays([padding, array, padding])[3 : 3 + len(array)]


HELD: dict[str, Callable[[pa.Array], pa.Array | pa.ChunkedArray]] = {
    "whole": lambda array: array,
    "sliced": _sliced,
    "chunked": _pieces,
    "dictionary": lambda array: array.dictionary_encode(),
    "dictionary with a null": lambda array: pa.DictionaryArray.from_arrays(
        pa.array(range(len(array)), pa.int32()), array
    ),
    "chunked dictionary": lambda array: _pieces(array).dictionary_encode(),
}
"""Ways to hold the same values, by name"""
