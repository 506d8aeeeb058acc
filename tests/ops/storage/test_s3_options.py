"""PyIceberg's settings of S3 become options of its client, and no others do."""

import pytest
from botocore.exceptions import ClientError

from icepuffin.ops.storage import RefusedError, StorageError, s3
from icepuffin.ops.storage.credentials import REMOTE_SIGNING, RemoteSigningError
from icepuffin.ops.storage.s3_file_systems import LiteralFileSystem
from icepuffin.ops.storage.s3_options import s3_options

PATH_STYLE = {"s3": {"addressing_style": "path"}}
OWN = {"s3.access-key-id": "id", "s3.secret-access-key": "secret", "s3.session-token": "token", "s3.region": "north"}
OF_CLIENTS = {name.replace("s3.", "client."): f"client's {value}" for name, value in OWN.items()}


def test_keys_of_s3_come_before_those_of_all_clients() -> None:
    assert s3_options(OWN) == s3_options(OF_CLIENTS | OWN)
    assert s3_options(OWN) == {
        "client_kwargs": {"region_name": "north"},
        "key": "id",
        "secret": "secret",
        "token": "token",
    }
    assert s3_options(OF_CLIENTS) == {
        "client_kwargs": {"region_name": "client's north"},
        "key": "client's id",
        "secret": "client's secret",
        "token": "client's token",
    }


def test_an_endpoint_is_called_by_paths_unless_the_settings_want_names_of_hosts() -> None:
    endpoint = {"s3.endpoint": "http://minio"}
    client = {"client_kwargs": {"endpoint_url": "http://minio"}}
    assert s3_options(endpoint) == {**client, "config_kwargs": PATH_STYLE}
    assert s3_options({**endpoint, "s3.force-virtual-addressing": "false"}) == {**client, "config_kwargs": PATH_STYLE}
    assert s3_options({**endpoint, "s3.force-virtual-addressing": "true"}) == client
    assert s3_options({}) == s3_options({"s3.force-virtual-addressing": "false"}) == {"client_kwargs": {}}


def test_requests_are_signed_unless_the_settings_say_that_none_are() -> None:
    assert s3_options({"s3.anonymous": "true"}) == {"client_kwargs": {}, "anon": True}
    assert s3_options({"s3.anonymous": "false"}) == {"client_kwargs": {}}


def test_other_settings_add_nothing() -> None:
    others = {"s3.signer": "S3V4RestSigner", "s3.proxy-uri": "http://thief", "s3.connect-timeout": "1", "anon": "true"}
    assert s3_options(others) == {"client_kwargs": {}}


@pytest.mark.parametrize("switch", ["true", "True"])
def test_a_catalog_that_signs_requests_itself_is_refused_where_there_are_no_keys(switch: str) -> None:
    signing = {REMOTE_SIGNING: switch}
    for settings in ({}, {"s3.secret-access-key": "secret"}, {"s3.anonymous": "false"}):
        with pytest.raises(RemoteSigningError, match="Let the catalog vend credentials"):
            s3_options({**signing, **settings})
    assert s3_options({**signing, **OWN}) == s3_options(OWN)
    assert s3_options({**signing, **OF_CLIENTS}) == s3_options(OF_CLIENTS)
    assert s3_options({**signing, "s3.anonymous": "true"}) == s3_options({"s3.anonymous": "true"})
    assert s3_options({REMOTE_SIGNING: "false"}) == s3_options({})


@pytest.mark.parametrize("key", ["x", "a/x?versionId=1", "day=a%2Fb/x", "a b/+&y", "a/", "a//b", "a/?versionId="])
def test_every_character_of_a_key_is_literal(key: str) -> None:
    files = LiteralFileSystem(anon=True, skip_instance_cache=True)
    for path in (f"lake/{key}", f"s3://lake/{key}"):
        assert files.split_path(path) == ("lake", key, None)
    assert files.split_path("s3://lake") == ("lake", "", None)


@pytest.mark.parametrize(
    ("code", "kind"),
    [("AccessDenied", RefusedError), ("AllAccessDisabled", RefusedError), ("InternalError", StorageError)],
)
def test_an_object_that_is_not_deleted_is_named_with_the_reason(code: str, kind: type[StorageError]) -> None:
    error = s3._deletion_error("s3://lake/a", {"Code": code, "Message": "not so"})
    assert type(error) is kind
    assert str(error).startswith("s3://lake/a")
    assert f"({code}: not so)" in str(error)


@pytest.mark.parametrize(
    ("status", "is_so"), [(400, True), (405, True), (411, True), (501, True), (403, False), (404, False), (503, False)]
)
def test_a_store_that_does_not_take_a_request_for_several_objects_is_told_from_one_that_fails(
    status: int, is_so: bool
) -> None:
    """Then they are deleted one by one."""
    answer = {"Error": {"Code": "X"}, "ResponseMetadata": {"HTTPStatusCode": status}}
    of_client, raised = OSError("as s3fs has it"), StorageError("as the caller has it")
    of_client.__cause__, raised.__cause__ = ClientError(answer, "DeleteObjects"), of_client
    assert s3._is_not_taken(raised) is is_so
    assert not s3._is_not_taken(StorageError("without a cause"))
