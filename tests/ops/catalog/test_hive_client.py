"""The newer call to a Hive Metastore is made where the server lacks the older one. `tests/interop` has servers."""

from collections.abc import Callable

import pytest

from icepuffin.ops.catalog.hive_client import with_newer


class Answered(Exception):  # noqa: N818  as thrift has it
    """Stands for thrift's TApplicationException: thrift is installed beside Hive alone."""

    UNKNOWN_METHOD = 1

    def __init__(self, kind: int) -> None:
        self.type = kind


def refusing(error: Exception) -> Callable[[str], str]:
    def get_table(_: str) -> str:
        raise error

    return get_table


def newer(name: str) -> str:
    return f"newer {name}"


def test_the_newer_call_is_made_where_the_server_does_not_know_the_older_one() -> None:
    assert with_newer(lambda name: f"older {name}", newer, Answered)("t") == "older t"
    call = with_newer(refusing(Answered(Answered.UNKNOWN_METHOD)), newer, Answered)
    assert call("t") == "newer t"
    assert hasattr(call, "__wrapped__"), "by which it is known not to be replaced again"


@pytest.mark.parametrize("error", [Answered(6), KeyError("t")])
def test_another_error_of_the_older_call_is_raised_as_it_is(error: Exception) -> None:
    with pytest.raises(type(error)) as raised:
        with_newer(refusing(error), newer, Answered)("t")
    assert raised.value is error
