"""Who a REST catalog takes us for, by the token that is sent; and what it refuses, without a secret."""

import base64
import json
from collections.abc import Callable

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.rest import Capability, LoadCredentialsResponse, RestCatalog, TableResponse
from pyiceberg.io import load_file_io
from pyiceberg.table import Table

from icepuffin.ops.catalog.rest_catalog import Renewal, VendingCatalog, _identity, _subject, vended_storage
from icepuffin.ops.catalog.vended_config import storage_of
from icepuffin.ops.model import Grant
from icepuffin.ops.storage import AccessError


def signed(claims: object) -> str:
    """A JWT with some claims; the parts have no padding."""
    body = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    return f"header.{body}.signature"


@pytest.mark.parametrize("subject", ["a", "ab", "abc", "ÿÿÿ"])
def test_tokens_of_one_user_name_one_subject(subject: str) -> None:
    claims: dict[str, object] = {"iss": "https://login.example.org", "sub": subject}
    for expiry in (1, 20, 300):
        assert _subject(signed({**claims, "exp": expiry})) == ["https://login.example.org", subject]


@pytest.mark.parametrize("token", ["", "opaque", "a.b.c", signed({"iss": "x"}), signed({"sub": "x"}), signed(["iss"])])
def test_a_token_without_a_subject_stands_for_itself(token: str) -> None:
    assert _subject(token) == [token]


@pytest.mark.parametrize(
    ("setting", "others"),
    [
        *((name, {}) for name in ("uri", "warehouse", "prefix", "credential", "scope", "audience", "resource")),
        ("auth.type", {}),
        ("rest.signing-region", {}),
        ("header.X-User", {}),
        ("token", {}),
        ("client.access-key-id", {"rest.sigv4-enabled": "true"}),
        ("client.access-key-id", {"rest.sigv4-enabled": "TRUE"}),
    ],
)
def test_users_that_a_catalog_tells_apart_share_no_keys(setting: str, others: dict[str, str]) -> None:
    """By AWS keys where these sign the requests; else they open files alone, and the catalog sees none."""
    ann, bob = ({"uri": "https://c", **others, setting: name} for name in ("ann", "bob"))
    assert _identity(ann) == _identity(dict(ann)) != _identity(bob)
    if others:
        unsigned = [{"uri": "https://c", setting: name} for name in ("ann", "bob")]
        assert _identity(unsigned[0]) == _identity(unsigned[1])


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


def test_new_keys_are_those_that_a_catalog_with_grants_gives() -> None:
    class Granting(VendingCatalog):
        def __init__(self, name: str, **properties: str) -> None:
            pass

        def grants(self, identifier: tuple[str, ...]) -> tuple[Grant, ...]:
            return (Grant("/".join(identifier), {}),)

    assert Renewal(Granting, "lake", {}, ("ns", "t"))() == (Grant("ns/t", {}),)


def test_what_a_rest_catalog_vends_is_of_the_storage_and_what_another_has_is_its_settings(
    table_factory: Callable[..., Table], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = table_factory("t", **{"s3.endpoint": "http://thief"})
    own = storage_of(table)
    assert (own.vended, "s3.endpoint" in own.properties) == (None, False)
    catalog = VendingCatalog.__new__(VendingCatalog)  # without a request for its configuration
    Catalog.__init__(catalog, "lake", **{"type": "rest", "s3.region": "here"})
    catalog._auth_manager = None
    answer = {
        "metadata-location": "s3://lake/t/metadata/v1.metadata.json",
        "metadata": json.loads(table.metadata.model_dump_json()),
        "config": {"s3.access-key-id": "vended", "s3.secret-access-key": "s", "s3.region": "there"},
    }
    loaded = catalog._response_to_table(("db", "t"), TableResponse.model_validate(answer))
    storage = storage_of(loaded)
    assert storage.vended is not None
    assert [grant.properties["s3.access-key-id"] for grant in storage.vended.grants] == ["vended"]
    assert storage.properties == {"s3.region": "there"}
    nothing = LoadCredentialsResponse.model_validate({"storage-credentials": []})
    monkeypatch.setattr(catalog, "_supported_endpoints", {Capability.V1_LOAD_CREDENTIALS}, raising=False)
    monkeypatch.setattr(catalog, "_load_credentials", lambda _: nothing)
    monkeypatch.setattr(catalog, "load_table", lambda _: loaded)
    assert catalog.grants(("db", "t")) == storage.vended.grants, "an endpoint that gives no keys stands for none"


@pytest.mark.parametrize("location", ["", "s3://lake/t", "gs://lake/t"])
def test_neither_a_table_nor_its_catalog_chooses_code_nor_a_table_the_server_that_gets_keys(
    location: str, table_factory: Callable[..., Table]
) -> None:
    """Any writer sets properties of a table, before a reader of it has seen one."""
    hostile = {"py-io-impl": "antigravity.Trap", "s3.endpoint": "http://thief", "gcs.service.host": "http://thief"}
    table = table_factory("t", owner="somebody", **hostile)
    catalog = VendingCatalog.__new__(VendingCatalog)  # without a request for its configuration
    Catalog.__init__(catalog, "lake", **{"type": "rest", "s3.region": "here"})
    catalog._auth_manager = None
    answer = {
        "metadata-location": f"{location or table.location()}/metadata/v1.metadata.json",
        "metadata": json.loads(table.metadata.model_dump_json()),
        "config": {"py-io-impl": "antigravity.Trap", "s3.path-style-access": "true"},
    }
    loaded = catalog._response_to_table(("db", "t"), TableResponse.model_validate(answer))
    assert loaded.properties.items() >= hostile.items(), "they are the table's, and stay"
    foreign = Table(
        loaded.name(), loaded.metadata, loaded.metadata_location, load_file_io({}), catalog, answer["config"]
    )
    shown = [
        loaded.io.properties,
        vended_storage(loaded, catalog).properties,
        vended_storage(foreign, catalog).properties,
    ]
    assert "antigravity" not in repr(shown)
    assert "thief" not in repr(shown)
    assert loaded.io.properties["owner"] == "somebody"
    assert loaded.io.properties["s3.path-style-access"] == "true"
