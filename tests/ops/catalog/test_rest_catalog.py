"""Who a REST catalog takes us for, by the token that is sent."""

import base64
import json

import pytest

from icepuffin.ops.catalog.rest_catalog import _subject


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
