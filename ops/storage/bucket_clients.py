"""obstore's clients for one bucket of GCS or one container of ADLS, with time limits."""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from obstore.store import AzureStore, GCSStore

from icepuffin.ops.storage.adls_options import adls_account, container_of
from icepuffin.ops.storage.base import StorageError

if TYPE_CHECKING:
    from obstore.store import AzureCredential, ClientConfig, GCSConfig, GCSCredential, ObjectStore, RetryConfig

_TOKEN = "gcs.oauth2.token"  # noqa: S105  the setting's name
_HOST = "gcs.service.host"
_RETRIES: "RetryConfig" = {"max_retries": 3, "retry_timeout": timedelta(minutes=3)}


def bucket_client(root: str, settings: Callable[[], Mapping[str, str]], *, renewed: bool) -> "ObjectStore":
    """A client for the bucket `gs://bucket` or the container `abfss://container@host`. Raises StorageError.

    `renewed`: the client takes its keys from `settings` again and again, since an upload may last longer than they do.
    """
    if root.startswith("gs:"):
        address = gcs_address(settings())

        def token() -> "GCSCredential":
            return gcs_credential(settings(), _soon())

        return GCSStore(
            root.removeprefix("gs://"),
            config=address if renewed else gcs_config(settings()),
            client_options=_limits(address.get("base_url", "")),
            retry_config=_RETRIES,
            credential_provider=token if renewed else None,
        )
    container, host, _ = container_of(root)
    account = adls_account(host, settings())

    def credential() -> "AzureCredential":
        return adls_account(host, settings()).credential(_soon())

    return AzureStore(
        container,
        config=account.address() if renewed else account.obstore_config(),
        client_options=_limits(account.endpoint),
        retry_config=_RETRIES,
        credential_provider=credential if renewed else None,
    )


def _soon() -> datetime:
    """A time so near that obstore, which renews five minutes early, keeps no key for long."""
    return datetime.now(UTC) + timedelta(minutes=1)


def _limits(endpoint: str) -> "ClientConfig":
    """Time limits, and whether the connection may be plain: only where the settings name such an endpoint."""
    return {
        "connect_timeout": timedelta(seconds=10),
        "read_timeout": timedelta(seconds=60),
        "timeout": timedelta(minutes=5),
        "allow_http": endpoint.startswith("http://"),
    }


def gcs_config(properties: Mapping[str, str]) -> "GCSConfig":
    """obstore's configuration. Only these settings are read: a table's properties cannot add others.

    Without a token the client looks for credentials where Google's clients do: GOOGLE_APPLICATION_CREDENTIALS, the file
    of `gcloud auth application-default login`, the metadata server.
    """
    token = properties.get(_TOKEN)
    return {**gcs_address(properties), "bearer_token": token} if token else gcs_address(properties)


def gcs_address(properties: Mapping[str, str]) -> "GCSConfig":
    """The same without keys."""
    host = properties.get(_HOST)
    return {"base_url": host.rstrip("/")} if host else {}


def gcs_credential(properties: Mapping[str, str], expires: datetime) -> "GCSCredential":
    """What a catalog vended, as obstore takes a credential that is renewed. Raises StorageError without any."""
    token = properties.get(_TOKEN)
    if not token:
        raise StorageError(f"the catalog vends no {_TOKEN}")
    return {"token": token, "expires_at": expires}
