"""What is quoted of a catalog's errors."""

from base64 import b64encode

import pytest

from icepuffin.ops.catalog.redaction import other_reason, without_values

PROPERTIES = {
    "type": "rest",
    "user": "admin",
    "password": "admin-4711",
    "s3": {"secret": "admin-4711-0815"},
    "key": "-----BEGIN KEY-----\nMIIEvQ\n-----END KEY-----",
}


def test_a_value_that_begins_like_another_one_is_replaced_as_a_whole() -> None:
    error = ValueError("admin may not use admin-4711, nor admin-4711-0815")
    assert str(without_values(error, PROPERTIES)) == "ValueError: <user> may not use <password>, nor <s3.secret>"
    nested = {"auth": {"oauth2": {"client_secret": "admin-4711"}}}
    assert str(without_values(error, nested)).startswith("ValueError: admin may not use <auth.oauth2.client_secret>,")


def test_the_first_line_of_a_value_is_not_quoted() -> None:
    error = ValueError(f"no warehouse for {PROPERTIES['key']}\nof admin")
    assert other_reason(error, PROPERTIES) == " (the catalog's answer: no warehouse for <key>)"
    assert not other_reason(ValueError("Table does not exist: admin.rows"), PROPERTIES)
    assert not other_reason(ValueError(), PROPERTIES)


def test_a_long_answer_is_cut_and_one_of_two_hundred_characters_is_not() -> None:
    for length, end in ((200, "x)"), (201, "x...)")):
        shown = other_reason(ValueError("x" * length), {})
        assert shown == f" (the catalog's answer: {'x' * 199}{end}"


def test_short_values_the_type_and_the_warehouse_are_quoted() -> None:
    properties = {"user": "ann", "password": "anna", "type": "glue", "warehouse": "s3://lake"}
    error = ValueError("ann and anna of glue at s3://lake")
    assert str(without_values(error, properties)) == "ValueError: ann and <password> of glue at s3://lake"


@pytest.mark.parametrize(
    ("properties", "quoted"),
    [
        ({"credential": "client:s3cret-half"}, "client_secret=s3cret-half"),
        ({"uri": "https://ann:p%40ss-4711@catalog"}, "no host ann:p@ss-4711"),
        ({"uri": "postgresql://ann:p%40ss-4711@host/lake"}, "password p%40ss-4711"),
        ({"uri": "postgresql://ann:p@ss-4711@127.0.0.1/lake"}, "could not translate host name ss-4711@127.0.0.1"),
        ({"uri": "https://ann:p%40ss-4711@catalog"}, f"Authorization: {b64encode(b'ann:p@ss-4711').decode()}"),
        ({"uri": "https://ann:p%40ss-4711@catalog"}, f"key {b64encode(b'p@ss-4711').decode()}"),
        ({"uri": "https://a%40b:p%40ss-4711@catalog"}, f"Authorization: {b64encode(b'a@b:p@ss-4711').decode()}"),
        *(({"uri": f"postgresql://ann:first{cut}ss-4711@host"}, "no port ss-4711") for cut in "@:/?#"),
        ({"auth": {"credential": "client:s3cret-half"}}, "client_secret=s3cret-half"),
        ({"header.Authorization": "Bearer own-4711"}, "own-4711 has expired"),
        ({}, "401 for {'Authorization': 'Bearer issued-4711.x-y'}"),
        ({}, '{"access_token": "issued-4711", "expires_in": 3600}'),
        ({}, '{"refresh_token": "issued-4711"}'),
        ({}, "id_token=issued-4711"),
        ({}, "token: issued-4711"),
        ({}, "Basic YW5uOnBAc3MtNDcxMQ=="),
    ],
)
def test_a_secret_that_is_a_part_of_a_value_or_was_issued_is_not_quoted(
    properties: dict[str, str], quoted: str
) -> None:
    shown = str(without_values(ValueError(quoted), properties))
    assert "<" in shown
    for secret in ("s3cret", "ss-4711", "own-4711", "issued", "YW5uO", "cEBzcy00NzEx", "YUBiO"):
        assert secret not in shown


def test_a_host_and_a_port_are_quoted() -> None:
    error = ValueError("cannot connect to 127.0.0.1:9000 as ann")
    assert "127.0.0.1:9000" in str(without_values(error, {"s3.endpoint": "http://127.0.0.1:9000", "user": "x"}))
