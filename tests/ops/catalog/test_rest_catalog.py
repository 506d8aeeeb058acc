"""Who a REST catalog takes us for, by the token that is sent; and what it refuses, without a secret."""

import base64
import json

import pytest
from pyiceberg.catalog.rest import RestCatalog

from icepuffin.ops.catalog.rest_catalog import Renewal, VendingCatalog, _subject
from icepuffin.ops.storage import AccessError


def signed(claims: dict[str, object]) -> str:
    """A JWT with some claims; the parts have no padding."""
    body = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    return f"header.{body}.signature"


@pytest.mark.parametrize("subject", ["a", "ab", "abc", "ÿÿÿ"])
def test_tokens_of_one_user_name_one_subject(subject: str) -> None:
    claims: dict[str, object] = {"iss": "https://login.example.org", "sub": subject}
    for expiry in (1, 20, 300):
        assert _subject(signed({**claims, "exp": expiry})) == ["https://login.example.org", subject]


@pytest.mark.parametrize("token", ["", "opaque", "a.b.c", signed({"iss": "x"}), signed({"sub": "x"})])
def test_a_token_without_a_subject_stands_for_itself(token: str) -> None:
    assert _subject(token) == [token]


@pytest.mark.parametrize("base", [RestCatalog, VendingCatalog])
def test_a_request_for_new_keys_that_fails_is_one_line_without_a_secret(base: type[RestCatalog]) -> None:
    class Refusing(base):  # type: ignore[misc, valid-type]
        def __init__(self, name: str, **properties: str) -> None:
            raise ValueError(f"{name} refuses {properties['token']}\nwith {properties['token']}")

    renewal = Renewal(Refusing, "lake", {"token": "hunter2hunter2"}, ("ns", "t"))
    with pytest.raises(
        AccessError, match=r"^the request for new ones failed: ValueError: lake refuses <token>$"
    ) as caught:
        renewal()
    assert "hunter2" not in repr(renewal)
    assert caught.value.__suppress_context__
