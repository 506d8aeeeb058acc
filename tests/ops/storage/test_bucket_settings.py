"""PyIceberg's settings for GCS and ADLS, without a server."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from icepuffin.ops.catalog.connection import open_catalog
from icepuffin.ops.catalog.stored_file_io import StoredFileIO
from icepuffin.ops.model import Grant, StorageConfig, VendedGrants
from icepuffin.ops.storage import StorageError, bucket_clients, normalize, open_storage, principal
from icepuffin.ops.storage.adls_options import adls_account
from icepuffin.ops.storage.bucket_clients import bucket_client, gcs_config
from icepuffin.ops.storage.credentials import combined, ends_of, nearest

HOST = "acc.dfs.core.windows.net"
SECRET = "hunter2hunter2"


@pytest.mark.parametrize("scheme", ["abfss", "abfs", "wasbs", "WASB"])
def test_a_container_has_one_spelling(scheme: str) -> None:
    kind = "blob" if scheme.lower().startswith("wasb") else "dfs"
    written = f"{scheme}://lake@acc.{kind}.core.windows.net/a//b.blob.c"
    assert normalize(written) == f"abfss://lake@{HOST}/a//b.blob.c"
    assert normalize(f"{scheme}://lake/a") == "abfss://lake/a"


def test_a_bucket_of_google_has_one_spelling() -> None:
    assert normalize("gcs://lake/a//b") == normalize("gs://lake/a//b") == "gs://lake/a//b"
    assert normalize("s3n://lake/a//b") == normalize("S3A://lake/a//b") == "s3://lake/a//b"
    with pytest.raises(StorageError, match="use file://, s3://, gs:// or abfss://"):
        open_storage("hdfs://lake/a", StorageConfig())


def test_the_first_way_in_that_is_set_is_the_only_one() -> None:
    settings = {"adls.account-key": "key"}
    assert adls_account(HOST, settings).obstore_config()["credential_type"] == "access_key"
    settings |= {"adls.tenant-id": "t", "adls.client-id": "c", "adls.client-secret": "s"}
    assert adls_account(HOST, settings).obstore_config()["credential_type"] == "access_key"
    settings |= {"adls.token": "bearer"}
    assert adls_account(HOST, settings).obstore_config() == {
        "account_name": "acc",
        "endpoint": "https://acc.blob.core.windows.net",
        "token": "bearer",
        "credential_type": "bearer_token",
    }
    settings |= {"adls.sas-token.other": "not this", f"adls.sas-token.{HOST}": "?sig=1"}
    assert adls_account(HOST, settings).obstore_config()["sas_key"] == "sig=1"
    assert "credential_type" not in adls_account(HOST, {}).obstore_config(), "then Azure's own rules hold"


def test_each_way_in_is_handed_to_the_client_by_its_own_names() -> None:
    client = {"adls.tenant-id": "t", "adls.client-id": "c", "adls.client-secret": "s"}
    address = {"account_name": "acc", "endpoint": "https://acc.blob.core.windows.net"}
    ways: list[tuple[dict[str, str], dict[str, str]]] = [
        ({"adls.sas-token": "?sig=1"}, {"sas_key": "sig=1", "credential_type": "sas_token"}),
        ({"adls.account-key": "k"}, {"account_key": "k", "credential_type": "access_key"}),
        (client, {"tenant_id": "t", "client_id": "c", "client_secret": "s", "credential_type": "client_secret"}),
    ]
    for settings, keys in ways:
        assert adls_account(HOST, settings).obstore_config() == {**address, **keys}


@pytest.mark.parametrize(
    ("setting", "name"),
    [("adls.sas-token", "sas_token"), ("adls.token", "token"), ("adls.account-key", "access_key")],
)
def test_a_vended_key_is_handed_to_the_client_with_its_expiry(setting: str, name: str) -> None:
    expires = datetime(2026, 11, 20, tzinfo=UTC)
    assert adls_account(HOST, {setting: "x"}).credential(expires) == {name: "x", "expires_at": expires}


@pytest.mark.parametrize("domain", ["core.windows.net", "core.usgovcloudapi.net", "core.chinacloudapi.cn"])
def test_the_hosts_of_azure_are_reached_without_a_setting(domain: str) -> None:
    assert adls_account(f"acc.dfs.{domain}", {}).endpoint == f"https://acc.blob.{domain}"
    account = adls_account("", {"adls.account-name": "acc"})
    assert (account.name, account.endpoint) == ("acc", ""), "where Azure's client knows the address by itself"


@pytest.mark.parametrize(
    ("root", "settings", "is_plain"),
    [
        ("gs://lake", {}, False),
        ("gs://lake", {"gcs.service.host": "https://127.0.0.1:1"}, False),
        ("gs://lake", {"gcs.service.host": "http://127.0.0.1:1"}, True),
        (f"abfss://lake@{HOST}", {}, False),
        (f"abfss://lake@{HOST}", {"adls.blob-storage-scheme": "http", "adls.account-host": "127.0.0.1:1"}, True),
    ],
)
def test_a_client_connects_without_tls_only_where_the_settings_name_such_an_endpoint(
    root: str, settings: dict[str, str], is_plain: bool
) -> None:
    client = bucket_client(
        root, lambda: {"gcs.oauth2.token": "t", "adls.account-key": "a2V5", **settings}, renewed=False
    )
    assert str((client.client_options or {})["allow_http"]).lower() == str(is_plain).lower()


def test_a_client_whose_keys_are_renewed_keeps_none() -> None:
    settings = {"gcs.oauth2.token": SECRET, "adls.account-key": "a2V5"}
    for root in ("gs://lake", f"abfss://lake@{HOST}"):
        renewed = bucket_client(root, lambda: settings, renewed=True)
        assert renewed.credential_provider is not None
        assert not {"bearer_token", "account_key", "credential_type"} & {*map(str, renewed.config)}
    until_then = bucket_clients._soon() - datetime.now(UTC)
    assert timedelta(0) < until_then < timedelta(minutes=5), "obstore renews five minutes early"


def test_a_connection_string_names_account_key_and_endpoint() -> None:
    text = "DefaultEndpointsProtocol=https;AccountName=acc;AccountKey=a2V5==;EndpointSuffix=core.usgovcloudapi.net"
    account = adls_account("", {"adls.connection-string": text})
    assert (account.name, account.key, account.endpoint) == ("acc", "a2V5==", "https://acc.blob.core.usgovcloudapi.net")
    text = "DefaultEndpointsProtocol=http;AccountName=acc;AccountKey=a2V5==;EndpointSuffix=lake.example"
    assert adls_account("", {"adls.connection-string": text}).endpoint == "http://acc.blob.lake.example"
    without = text.partition(";")[2]
    assert adls_account("", {"adls.connection-string": without}).endpoint == "https://acc.blob.lake.example"
    text = "AccountName=acc;SharedAccessSignature=sig=1;BlobEndpoint=http://127.0.0.1:10000/acc/;"
    account = adls_account(HOST, {"adls.connection-string": text})
    assert (account.sas, account.endpoint) == ("sig=1", "http://127.0.0.1:10000/acc")


def test_an_account_elsewhere_is_reached_by_the_scheme_and_the_host_of_the_settings() -> None:
    settings = {"adls.blob-storage-scheme": "http", "adls.account-host": "127.0.0.1:10000"}
    assert adls_account(HOST, settings).endpoint == "http://127.0.0.1:10000/acc"
    for authority in (".blob.lake.example", "acc.blob.lake.example"):
        account = adls_account(HOST, {"adls.blob-storage-authority": authority, "adls.account-host": "not this"})
        assert account.endpoint == "https://acc.blob.lake.example"


@pytest.mark.parametrize(
    ("host", "settings", "words"),
    [
        ("", {}, "the storage account is not known: write locations as abfss://.* or set adls.account-name in"),
        ("acc.dfs.evil.example", {"adls.sas-token.acc": SECRET}, "no host of Azure. Set adls.account-host in"),
        ("acc.evil.example", {"adls.sas-token.acc": SECRET}, "no host of Azure"),
        (HOST, {"adls.connection-string": f"AccountName=other;AccountKey={SECRET}"}, "another storage account"),
        (HOST, {"adls.connection-string": SECRET}, "no connection string"),
        (HOST, {"adls.client-id": "c", "adls.client-secret": SECRET}, "must be set together"),
        (HOST, {"adls.credential": SECRET}, r"adls\.credential cannot be used"),
        (HOST, {"adls.anon": "true"}, r"adls\.anon cannot be used"),
    ],
)
def test_settings_that_open_nothing_are_refused_without_showing_them(
    host: str, settings: dict[str, str], words: str
) -> None:
    with pytest.raises(StorageError, match=words) as caught:
        adls_account(host, settings)
    assert SECRET not in str(caught.value)
    shown = repr(
        adls_account(HOST, {"adls.account-key": SECRET, "adls.token": SECRET, f"adls.sas-token.{HOST}": SECRET})
    )
    assert SECRET not in shown


def test_settings_of_google_name_token_and_endpoint() -> None:
    settings = {"gcs.oauth2.token": "t", "gcs.service.host": "http://127.0.0.1:4443/"}
    assert gcs_config(settings) == {"base_url": "http://127.0.0.1:4443", "bearer_token": "t"}
    assert gcs_config({"gcs.project-id": "p"}) == {}


@pytest.mark.parametrize(
    ("location", "vended", "words"),
    [
        ("gs://lake/a", {"gcs.oauth2.token-expires-at": "99999999999999"}, r"vends no gcs\.oauth2\.token"),
        (f"abfss://lake@{HOST}/a", {"adls.sas-token.other": "sig=1"}, "vends nothing for storage account acc"),
    ],
)
def test_vended_credentials_that_open_nothing_are_named(location: str, vended: dict[str, str], words: str) -> None:
    grants = (Grant(location, vended),)
    config = StorageConfig(vended=VendedGrants("lake", "ns.t", location, grants, lambda: grants))
    with pytest.raises(StorageError, match=words):
        open_storage(location, config).size(location)


def test_vended_keys_replace_all_of_their_kind() -> None:
    own = {"adls.account-key": "own", "adls.connection-string": "own", "gcs.oauth2.token": "own", "s3.endpoint": "x"}
    vended = combined(own, {"adls.sas-token.acc": "vended"})
    assert vended == {"gcs.oauth2.token": "own", "s3.endpoint": "x", "adls.sas-token.acc": "vended"}
    assert combined(own, {"gcs.oauth2.token": "vended"}) == {**own, "gcs.oauth2.token": "vended"}


def test_the_first_expiry_of_any_kind_counts() -> None:
    google = Grant("gs://lake", {"gcs.oauth2.token": "t", "gcs.oauth2.token-expires-at": "2000"})
    azure = Grant("abfss://", {f"adls.sas-token.{HOST}": "t", f"adls.sas-token-expires-at-ms.{HOST}": "1000"})
    assert ends_of((google,)) == 2000
    assert ends_of((google, azure)) == 1000
    assert nearest((google, azure), "gcs://lake/a") == google
    assert nearest((google, azure), "wasbs://c@acc.blob.core.windows.net/a") == azure


def test_users_are_told_apart_without_showing_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def who(location: str, **settings: str) -> str:
        return principal(location, StorageConfig({key.replace("_", "."): value for key, value in settings.items()}))

    google = [who("gs://lake/a", gcs_oauth2_token=SECRET), who("gs://lake/a", gcs_oauth2_token="other")]
    azure = [principal(f"abfss://c@{HOST}/a", StorageConfig({"adls.account-key": key})) for key in (SECRET, "other")]
    ambient = [who("gs://lake/a"), who(f"abfss://c@{HOST}/a")]
    assert len({*google, *azure, *ambient}) == 6
    assert google[0] == who("gcs://lake/b", gcs_oauth2_token=SECRET)
    monkeypatch.setenv("AZURE_CLIENT_ID", "somebody")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/nowhere")
    assert not {who("gs://lake/a"), who(f"abfss://c@{HOST}/a")} & set(ambient)
    assert google[0] == who("gs://lake/a", gcs_oauth2_token=SECRET)


def test_who_logs_in_as_another_is_another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the variables and the files by which Google's and Azure's clients find an account."""
    key, login = tmp_path / "key.json", tmp_path / ".config/gcloud/application_default_credentials.json"
    login.parent.mkdir(parents=True)
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(key))
    monkeypatch.setenv("HOME", str(tmp_path))
    google, azure, ours = "gs://lake/a", f"abfss://c@{HOST}/a", StorageConfig()
    for file in (key, login):
        file.write_text("ann")
        ann = principal(google, ours)
        file.write_text("bob")
        assert principal(google, ours) != ann
        file.write_text("ann")
        assert principal(google, ours) == ann
    for location, variable in (
        (google, "CLOUDSDK_CORE_ACCOUNT"),
        (azure, "IDENTITY_ENDPOINT"),
        (azure, "MSI_ENDPOINT"),
    ):
        before = principal(location, ours)
        monkeypatch.setenv(variable, "bob")
        assert principal(location, ours) != before


def test_a_catalog_with_such_settings_reads_files_by_the_same(tmp_path: object) -> None:
    uri = f"sqlite:///{tmp_path}/catalog.db"
    for settings in ({"adls.account-key": "a2V5"}, {"warehouse": "gs://lake/a"}):
        catalog = open_catalog("lake", {"type": "sql", "uri": uri, **settings})
        assert isinstance(catalog._load_file_io(location=f"abfss://c@{HOST}/x"), StoredFileIO)
        catalog.close()  # type: ignore[attr-defined]
