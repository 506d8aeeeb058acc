"""PyIceberg's S3 settings as options of s3fs."""

from collections.abc import Mapping
from typing import Any

from icepuffin.ops.storage.credentials import REMOTE_SIGNING, RemoteSigningError


def s3_options(properties: Mapping[str, str]) -> dict[str, Any]:
    """The options of s3fs for PyIceberg's settings. Only these are read: a table's properties cannot add others.

    Raises RemoteSigningError where the catalog is to sign requests, and there are no keys.
    """
    client: dict[str, Any] = {}
    if endpoint := properties.get("s3.endpoint"):
        client["endpoint_url"] = endpoint
    if region := properties.get("s3.region") or properties.get("client.region"):
        client["region_name"] = region
    options: dict[str, Any] = {"client_kwargs": client}
    if key := properties.get("s3.access-key-id") or properties.get("client.access-key-id"):
        options["key"] = key
    if secret := properties.get("s3.secret-access-key") or properties.get("client.secret-access-key"):
        options["secret"] = secret
    if token := properties.get("s3.session-token") or properties.get("client.session-token"):
        options["token"] = token
    if properties.get("s3.anonymous") == "true":
        options["anon"] = True
    if properties.get("s3.force-virtual-addressing") != "true" and endpoint:
        options["config_kwargs"] = {"s3": {"addressing_style": "path"}}
    if "key" not in options and "anon" not in options and properties.get(REMOTE_SIGNING, "").lower() == "true":
        raise RemoteSigningError(
            f"the catalog signs requests to S3 itself ({REMOTE_SIGNING}), which icepuffin's S3 client cannot use. Let "
            "the catalog vend credentials: switch STS on for its warehouse, and leave "
            "header.X-Iceberg-Access-Delegation at vended-credentials, its default. Or give keys of your own in "
            "the catalog's settings, s3.access-key-id and s3.secret-access-key; or take those of the environment: "
            f"{REMOTE_SIGNING} = false"
        )
    return options
