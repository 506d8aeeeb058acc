import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icepuffin.ann_kernels.level_runs import are_periodic, look_up
from tests.naive import level_runs as naive

widths = st.sampled_from([1, 2, 3, 7, 8, 9, 13, 20, 31, 32])


@st.composite
def runs(draw: st.DrawFn, bits: int) -> bytes:
    """Runs of both kinds, whole or cut off."""
    number = st.integers(0, (1 << bits) - 1)
    parts = [
        naive.repeated(draw(number), draw(st.integers(1, 300)), bits)
        if draw(st.booleans())
        else naive.packed(draw(st.lists(number, min_size=1, max_size=20)), bits)
        for _ in range(draw(st.integers(0, 4)))
    ]
    data = b"".join(parts)
    return data[: len(data) - draw(st.integers(0, 2))]


@settings(deadline=None)
@given(st.data(), widths)
def test_values_of_a_dictionary_are_those_at_the_numbers(data: st.DataObject, bits: int) -> None:
    stored, count = data.draw(runs(bits) | st.binary(max_size=12)), data.draw(st.integers(0, 400))
    dictionary = np.arange(data.draw(st.sampled_from([1, 2, 100, 300])), dtype=np.float32) + 0.5
    out = np.full(count, -1, np.float32)
    numbers = naive.unpacked(stored, bits, count)
    is_right = numbers is not None and all(number < len(dictionary) for number in numbers)
    assert look_up(np.frombuffer(stored, np.uint8), bits, dictionary, out) == is_right
    if is_right:
        assert out.tolist() == dictionary[np.array(numbers, int)].tolist()


def levels(count: int, first: int, period: int, at_start: int, elsewhere: int) -> list[int]:
    return [elsewhere if (first + place) % period else at_start for place in range(count)]


def encoded(values: list[int], bits: int, rng: np.random.Generator) -> bytes:
    """Some runs of these numbers: a number that is repeated may be in a run of either kind."""
    out, place = b"", 0
    while place < len(values):
        same = next((i for i in range(place, len(values)) if values[i] != values[place]), len(values)) - place
        if same > 1 and rng.random() < 0.7:
            length = int(rng.integers(1, same + 1))
            out += naive.repeated(values[place], length, bits)
        else:
            length = min(8 * int(rng.integers(1, 4)), len(values) - place)
            out += naive.packed(values[place : place + length], bits)
        place += length
    return out


@settings(deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 300), st.integers(0, 50), st.integers(1, 40), st.integers(0, 3), widths)
def test_levels_are_periodic_where_each_is_and_not_where_one_is_another(
    seed: int, count: int, first: int, period: int, at_start: int, bits: int
) -> None:
    rng = np.random.default_rng(seed)
    at_start, elsewhere = min(at_start, (1 << bits) - 1), 1
    values = levels(count, first, period, at_start, elsewhere)
    stored = np.frombuffer(encoded(values, bits, rng), np.uint8)
    assert naive.unpacked(stored.tobytes(), bits, count) == values
    assert are_periodic(stored, bits, first, count, period, at_start, elsewhere)
    place = int(rng.integers(count))
    values[place] ^= 1
    other = np.frombuffer(encoded(values, bits, rng), np.uint8)
    assert not are_periodic(other, bits, first, count, period, at_start, elsewhere)


@settings(deadline=None)
@given(st.binary(max_size=30), widths, st.integers(1, 60), st.integers(0, 9), st.integers(1, 9))
def test_any_bytes_are_levels_only_where_the_numbers_are(
    stored: bytes, bits: int, count: int, first: int, period: int
) -> None:
    expected = naive.unpacked(stored, bits, count) == levels(count, first, period, 0, 1)
    assert are_periodic(np.frombuffer(stored, np.uint8), bits, first, count, period, 0, 1) == expected


@pytest.mark.parametrize("run", [naive.repeated(3, 8, 2), naive.packed([0, 3, 1], 2)])
def test_a_number_past_the_end_of_the_dictionary_is_no_value(run: bytes) -> None:
    stored, out = np.frombuffer(run, np.uint8), np.empty(3, np.float32)
    assert look_up(stored, 2, np.zeros(4, np.float32), out)
    assert not look_up(stored, 2, np.zeros(3, np.float32), out)


def test_a_run_of_two_goes_past_the_start_of_a_period() -> None:
    stored = np.frombuffer(naive.repeated(0, 2, 1), np.uint8)
    assert are_periodic(stored, 1, 0, 2, 2, 0, 0)
    assert not are_periodic(stored, 1, 0, 2, 2, 0, 1)


@pytest.mark.parametrize("bits", [29, 30, 31, 32])
def test_numbers_that_lie_in_five_bytes_are_read_whole(bits: int) -> None:
    most = (1 << bits) - 1
    stored = np.frombuffer(naive.packed([1, most, most, most, most, most, most, most], bits), np.uint8)
    assert are_periodic(stored, bits, 0, 8, 8, 1, most)
    assert not are_periodic(stored, bits, 0, 8, 8, 1, most >> 1)


@pytest.mark.parametrize("bits", [0, 33, -1])
def test_numbers_of_no_bits_and_of_more_than_32_are_not_read(bits: int) -> None:
    run = np.array([2, 0, 0, 0, 0, 0], np.uint8)
    assert not are_periodic(run, bits, 0, 1, 1, 0, 0)
    assert not look_up(run, bits, np.zeros(1, np.float32), np.empty(1, np.float32))
