"""PyIceberg's ADLS settings as configuration of obstore."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

from icepuffin.ops.storage.base import StorageError
from icepuffin.ops.storage.locations import normalize

if TYPE_CHECKING:
    from obstore.store import AzureConfig, AzureCredential

SAS = "adls.sas-token"
_PARTS_OF_CLIENT = ("adls.tenant-id", "adls.client-id", "adls.client-secret")
_NOT_SUPPORTED = ("adls.credential", "adls.anon")
_DOMAINS = ("core.windows.net", "core.usgovcloudapi.net", "core.chinacloudapi.cn")
"""Domains of Azure. No other host of a location gets credentials: whoever writes a table chooses its locations"""


@dataclass(frozen=True)
class AdlsAccount:
    """A storage account, and the one way in that its settings choose; none: where Azure's clients look for it."""

    name: str
    endpoint: str = ""
    """Address of the blob service, `https://host` or an emulator's `http://host:port/account`; empty for Azure's own"""
    key: str = field(default="", repr=False)
    sas: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    client: tuple[str, ...] = field(default=(), repr=False)
    """Tenant id, client id and client secret"""

    def obstore_config(self) -> "AzureConfig":
        """The way in is named, so that no variable of the environment opens another."""
        if self.sas:
            return {**self.address(), "sas_key": self.sas, "credential_type": "sas_token"}
        if self.token:
            return {**self.address(), "token": self.token, "credential_type": "bearer_token"}
        if self.key:
            return {**self.address(), "account_key": self.key, "credential_type": "access_key"}
        if self.client:
            tenant, client, secret = self.client
            names: AzureConfig = {"tenant_id": tenant, "client_id": client, "client_secret": secret}
            return {**self.address(), **names, "credential_type": "client_secret"}
        return self.address()

    def address(self) -> "AzureConfig":
        """The configuration without keys."""
        return {"account_name": self.name, "endpoint": self.endpoint} if self.endpoint else {"account_name": self.name}

    def credential(self, expires: datetime) -> "AzureCredential":
        """What a catalog vended, as obstore takes a credential that is renewed. Raises StorageError without any."""
        if self.sas:
            return {"sas_token": self.sas, "expires_at": expires}
        if self.token:
            return {"token": self.token, "expires_at": expires}
        if self.key:
            return {"access_key": self.key, "expires_at": expires}
        raise StorageError(f"the catalog vends nothing for storage account {self.name} that opens it")


def container_of(location: str) -> tuple[str, str, str]:
    """(container, host of the account or empty, key) of an `abfss:` location, or of one of its other spellings."""
    authority, _, key = normalize(location).removeprefix("abfss://").partition("/")
    container, _, host = authority.partition("@")
    return container, host, key


def adls_account(host: str, properties: Mapping[str, str]) -> AdlsAccount:
    """The account at `host`, `account.dfs.core.windows.net` or empty, as the settings describe it.

    The first of these that is set is used: SAS token, bearer token, account key, client with its secret. Raises
    StorageError where the account's name is missing, or where a setting cannot be used.
    """
    if unusable := [key for key in _NOT_SUPPORTED if properties.get(key)]:
        raise StorageError(
            f"{unusable[0]} cannot be used for ADLS: give {SAS}, adls.token, adls.account-key, "
            f"{', '.join(_PARTS_OF_CLIENT)}, or adls.connection-string"
        )
    connection = _connection(properties.get("adls.connection-string", ""))
    name = host.partition(".")[0] or properties.get("adls.account-name", "") or connection.get("AccountName", "")
    if not name:
        raise StorageError(
            "the storage account is not known: write locations as abfss://container@account.dfs.core.windows.net/..., "
            "or set adls.account-name in the catalog's settings"
        )
    if connection.get("AccountName", name) != name:
        raise StorageError(f"adls.connection-string is that of another storage account than {name}")
    client = tuple(properties.get(key, "") for key in _PARTS_OF_CLIENT)
    if any(client) and not all(client):
        raise StorageError(f"{', '.join(_PARTS_OF_CLIENT)} must be set together")
    return AdlsAccount(
        name,
        _endpoint(name, host, properties, connection),
        key=properties.get("adls.account-key", "") or connection.get("AccountKey", ""),
        sas=(_sas(name, properties) or connection.get("SharedAccessSignature", "")).removeprefix("?"),
        token=properties.get("adls.token", ""),
        client=client if all(client) else (),
    )


def _sas(name: str, properties: Mapping[str, str]) -> str:
    """The token for one account: catalogs name it by the account or by its host."""
    tokens = {key.removeprefix(f"{SAS}."): value for key, value in properties.items() if key.startswith(f"{SAS}.")}
    matching = (value for account, value in tokens.items() if account.partition(".")[0] == name)
    return next(matching, "") or properties.get(SAS, "")


def _endpoint(name: str, host: str, properties: Mapping[str, str], connection: Mapping[str, str]) -> str:
    if endpoint := connection.get("BlobEndpoint"):
        return endpoint.rstrip("/")
    scheme = properties.get("adls.blob-storage-scheme", "https")
    authority = properties.get("adls.blob-storage-authority") or properties.get("adls.account-host", "")
    if authority.startswith("."):
        return f"{scheme}://{name}{authority}"
    if authority:
        return f"{scheme}://{authority}" if authority.startswith(f"{name}.") else f"{scheme}://{authority}/{name}"
    if suffix := connection.get("EndpointSuffix"):
        return f"{connection.get('DefaultEndpointsProtocol', 'https')}://{name}.blob.{suffix}"
    if "." not in host:
        return ""
    domain = host.removeprefix(f"{name}.dfs.")
    if domain not in _DOMAINS:
        raise StorageError(f"{host} is no host of Azure. Set adls.account-host in the catalog's settings to trust it")
    return f"https://{name}.blob.{domain}"


def _connection(text: str) -> dict[str, str]:
    """The parts of a connection string, `Name=value;...`. Raises StorageError, without the text."""
    parts = dict(part.partition("=")[::2] for part in text.split(";") if part)
    if text and not parts.keys() & {"AccountName", "BlobEndpoint"}:
        raise StorageError(
            "adls.connection-string is no connection string: it has neither AccountName nor BlobEndpoint"
        )
    return parts
