"""PyIceberg's S3 settings as options of s3fs."""

from collections.abc import Mapping
from typing import Any

from icepuffin.ops.storage.credentials import REMOTE_SIGNING, RemoteSigningError


def s3_options(given: Mapping[str, str]) -> dict[str, Any]:
    """s3fs options out of PyIceberg's names. Only these are read: a table's properties cannot add others.

    Raises RemoteSigningError where requests are to be signed by the catalog, and there are no keys to sign them with.
    """
    client: dict[str, Any] = {}
    if endpoint := given.get("s3.endpoint"):
        client["endpoint_url"] = endpoint
    if region := given.get("s3.region") or given.get("client.region"):
        client["region_name"] = region
    options: dict[str, Any] = {"client_kwargs": client}
    if key := given.get("s3.access-key-id") or given.get("client.access-key-id"):
        options["key"] = key
    if secret := given.get("s3.secret-access-key") or given.get("client.secret-access-key"):
        options["secret"] = secret
    if token := given.get("s3.session-token") or given.get("client.session-token"):
        options["token"] = token
    if given.get("s3.anonymous") == "true":
        options["anon"] = True
    if given.get("s3.force-virtual-addressing") != "true" and endpoint:
        options["config_kwargs"] = {"s3": {"addressing_style": "path"}}
    if "key" not in options and "anon" not in options:
        require_keys(given)
    return options


def require_keys(given: Mapping[str, str]) -> None:
    """Raises RemoteSigningError where the catalog wants to sign each request itself, and gives no keys."""
    has_key = "s3.access-key-id" in given or "client.access-key-id" in given or given.get("s3.anonymous") == "true"
    if given.get(REMOTE_SIGNING, "").lower() == "true" and not has_key:
        raise RemoteSigningError(
            f"the catalog signs requests to S3 itself ({REMOTE_SIGNING}), which icepuffin's S3 client cannot use. Let "
            "the catalog vend credentials: switch STS on for its warehouse, and leave "
            "header.X-Iceberg-Access-Delegation at vended-credentials, its default. Or give keys of your own in "
            "[catalogs.<name>], s3.access-key-id and s3.secret-access-key; or take those of the environment: "
            f"{REMOTE_SIGNING} = false"
        )
