"""What is quoted of a catalog's errors."""

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


def test_the_first_line_of_a_value_is_not_quoted() -> None:
    error = ValueError(f"no warehouse for {PROPERTIES['key']}\nof admin")
    assert other_reason(error, PROPERTIES) == " (the catalog's answer: no warehouse for <key>)"
    assert not other_reason(ValueError("Table does not exist: admin.rows"), PROPERTIES)
