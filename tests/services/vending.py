"""A REST catalog that vends S3 keys, and a store that takes no others: proxies in front of the real ones.

Keys are good for one table and for a while. The store checks each request's signature as S3 does, refuses what is not
signed, not known, expired or elsewhere, and signs what is left with the one key that the real server behind it has.
"""

import contextlib
import json
import re
import secrets
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from tests.services.forwarding import Answer, Request, forward, serving

_AUTHORIZATION = re.compile(
    r"AWS4-HMAC-SHA256 Credential=([^/]+)/\d+/([^/]+)/s3/aws4_request, *SignedHeaders=([^,]+), *Signature=(\w+)"
)
_TABLE = re.compile(r"^/v1/namespaces/([^/]+)/tables/([^/?]+)(/credentials)?(\?.*)?$")

How = Literal["config", "storage-credentials", "credentials endpoint", "remote signing", "nothing"]


@dataclass(frozen=True)
class Key:
    """One set of vended credentials."""

    access_key: str
    secret_key: str
    token: str
    location: str
    """`bucket/key` that they are good for"""
    expires: float


@dataclass
class Vending:
    """How the catalog vends from now on, and what has happened so far."""

    catalog: str = ""
    """Address of the catalog"""
    store: str = ""
    """Address of the S3 server"""
    how: How = "storage-credentials"
    seconds: float = 3600.0
    """Keys' lifetime"""
    sends_expiry: bool = True
    lost: bool = False
    """Whether the user may not read tables any more"""
    takes_batches: bool = True
    """Whether the store checks each name of a request to delete several, and does not refuse it for its path"""
    keys: dict[str, Key] = field(default_factory=dict)
    vended_paths: list[str] = field(default_factory=list)
    """Requests to the catalog that were answered with credentials: their paths"""
    refused: list[str] = field(default_factory=list)
    """Codes of what the store refused"""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def expire(self) -> None:
        """All keys so far are no good from now on."""
        self.keys = {name: replace(key, expires=0.0) for name, key in self.keys.items()}

    def issue(self, location: str) -> dict[str, str]:
        """New credentials for what lies at `location`, as a catalog tells them."""
        name = f"VENDED{secrets.token_hex(7).upper()}"
        key = Key(name, secrets.token_hex(20), secrets.token_hex(32), location, time.time() + self.seconds)
        self.keys[name] = key
        properties = {
            "s3.access-key-id": name,
            "s3.secret-access-key": key.secret_key,
            "s3.session-token": key.token,
        }
        if self.sends_expiry:
            properties["s3.session-token-expires-at-ms"] = str(int(key.expires * 1000))
        return properties


@contextlib.contextmanager
def vending(catalog: str, s3: Mapping[str, str]) -> Iterator[Vending]:
    """Stand in front of a REST catalog, and of the S3 server that its tables lie on."""
    state = Vending()
    with (
        serving(lambda request: _of_catalog(state, catalog, request)) as state.catalog,
        serving(lambda request: _of_store(state, s3, request)) as state.store,
    ):
        yield state


def _of_catalog(state: Vending, upstream: str, request: Request) -> Answer:
    place = _TABLE.match(request.path)
    if request.path.startswith("/v1/config") and state.how == "credentials endpoint":
        return _with_endpoint(forward(upstream, request))
    if place is None:
        return forward(upstream, request)
    if state.lost:
        error = {"message": "not authorized", "type": "ForbiddenException", "code": 403}
        return Answer(403, (("Content-Type", "application/json"),), json.dumps({"error": error}).encode())
    requests_credentials = place[3] is not None
    result = forward(upstream, replace(request, path=request.path.replace("/credentials", "")))
    wanted = request.headers.get("X-Iceberg-Access-Delegation") == "vended-credentials"
    if request.method != "GET" or result.status != 200 or not wanted:
        return result
    state.vended_paths.append(request.path)
    document = json.loads(result.body)
    vended = _vended(state, document["metadata"]["location"])
    if requests_credentials:
        return result.with_body(json.dumps({"storage-credentials": vended["storage-credentials"]}).encode())
    document["config"] = {**document.get("config", {}), **vended.pop("config")}
    return result.with_body(json.dumps({**document, **vended}).encode())


def _vended(state: Vending, location: str) -> dict[str, Any]:
    config = {"s3.endpoint": state.store, "s3.region": "us-east-1", "s3.path-style-access": "true"}
    if state.how == "nothing":
        return {"config": {}}
    if state.how == "remote signing":
        return {"config": {**config, "s3.remote-signing-enabled": "true", "s3.signer.uri": state.catalog}}
    with state.lock:
        keys = state.issue(location.partition("://")[2])
    if state.how == "config":
        return {"config": {**config, **keys}}
    elsewhere = {"prefix": "s3://elsewhere/", "config": {**keys, "s3.access-key-id": "NOT-THIS-ONE"}}
    return {"config": config, "storage-credentials": [elsewhere, {"prefix": f"{location}/", "config": keys}]}


def _with_endpoint(answer: Answer) -> Answer:
    document = json.loads(answer.body)
    document["endpoints"].append("GET /v1/{prefix}/namespaces/{namespace}/tables/{table}/credentials")
    return answer.with_body(json.dumps(document).encode())


def _of_store(state: Vending, s3: Mapping[str, str], request: Request) -> Answer:
    code = _refusal(state, request)
    if code is not None:
        state.refused.append(code)
        text = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{code}: said the store</Message></Error>"
        return Answer(400 if code == "ExpiredToken" else 403, (("Content-Type", "application/xml"),), text.encode())
    return forward(s3["s3.endpoint"], _signed_anew(s3, request))


def _refusal(state: Vending, request: Request) -> str | None:
    """What is wrong with a request's signature, by S3's codes."""
    request_headers = {key.lower(): value for key, value in request.headers.items()}
    signed = _AUTHORIZATION.match(request_headers.get("authorization", ""))
    if signed is None:
        return "AccessDenied"
    name, region, headers, signature = signed.groups()
    key = state.keys.get(name)
    if key is None:
        return "InvalidAccessKeyId"
    if request_headers.get("x-amz-security-token") != key.token:
        return "InvalidToken"
    if time.time() >= key.expires:
        return "ExpiredToken"
    auth = S3SigV4Auth(Credentials(key.access_key, key.secret_key, key.token), "s3", region)
    covered = {header: request_headers[header] for header in headers.split(";")}
    plain = AWSRequest(request.method, f"http://{request_headers['host']}{request.path}", covered)
    plain.context["timestamp"] = request_headers["x-amz-date"]
    if auth.signature(auth.string_to_sign(plain, auth.canonical_request(plain)), plain) != signature:
        return "SignatureDoesNotMatch"
    bucket, _, prefix = key.location.partition("/")
    path, _, query = request.path.lstrip("/").partition("?")
    inside = path.startswith(f"{bucket}/{prefix}/") or f"prefix={prefix.replace('/', '%2F')}" in query
    if request.method == "POST" and path == bucket and query == "delete":  # S3 checks each name
        names = re.findall(r"<Key>(.*?)</Key>", request.body.decode())
        inside = state.takes_batches and all(name.startswith(f"{prefix}/") for name in names)
    return None if inside else "AccessDenied"


class _SignedPayload(S3SigV4Auth):  # type: ignore[misc]
    def payload(self, request: AWSRequest) -> str:
        return str(request.context["payload"])


def _signed_anew(s3: Mapping[str, str], request: Request) -> Request:
    dropped = ("authorization", "x-amz-security-token", "host", "connection", "expect", "x-amz-date")
    kept = {key: value for key, value in request.headers.items() if key.lower() not in dropped}
    anew = AWSRequest(request.method, f"{s3['s3.endpoint']}{request.path}", kept, request.body)
    anew.context["payload"] = anew.headers["X-Amz-Content-SHA256"]
    credentials = Credentials(s3["s3.access-key-id"], s3["s3.secret-access-key"])
    _SignedPayload(credentials, "s3", s3["s3.region"]).add_auth(anew)
    return replace(request, headers=dict(anew.headers.items()))
