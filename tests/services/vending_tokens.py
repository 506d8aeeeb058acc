"""A REST catalog that vends tokens for GCS or ADLS, on PyIceberg's SQL catalog, and a store that takes no others."""

import contextlib
import json
import re
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import urlsplit

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import CommitTableRequest, Table

from tests.interop.buckets import BucketServer
from tests.services.adls import ACCOUNT, Adls, shared_access_signature
from tests.services.forwarding import Answer, Request, serving

_TABLE = re.compile(r"^/v1/namespaces/([^/]+)/tables/([^/?]+)(\?.*)?$")

How = Literal["config", "storage-credentials"]


@dataclass
class TokenVending:
    """The catalog, and what it has vended."""

    behind: Catalog
    """PyIceberg's catalog, with the store's own key"""
    server: BucketServer
    uri: str = ""
    how: How = "config"
    tokens: dict[str, float] = field(default_factory=dict)
    """Tokens, with the time at which they expire"""

    def expire(self) -> None:
        """All tokens so far are no good from now on."""
        self.tokens = dict.fromkeys(self.tokens, 0.0)
        self._enforce()

    def issue(self) -> dict[str, str]:
        """A new token, as a catalog tells it."""
        expires = time.time() + 3600 + len(self.tokens)
        until = str(int(expires * 1000))
        if isinstance(self.server, Adls):
            token, host = shared_access_signature(expires), f"{ACCOUNT}.dfs.core.windows.net"
            named = {f"adls.sas-token.{host}": token, f"adls.sas-token-expires-at-ms.{host}": until}
        else:
            token = secrets.token_hex(16)
            named = {"gcs.oauth2.token": token, "gcs.oauth2.token-expires-at": until}
        self.tokens[token] = expires
        self._enforce()
        return named

    def _enforce(self) -> None:
        own = {self.server.storage.properties.get("gcs.oauth2.token", "sig=none"): time.time() + 3600}
        self.server.behave(tokens={**self.tokens, **own})

    @property
    def address(self) -> dict[str, str]:
        """Settings that say where the store is."""
        if isinstance(self.server, Adls):
            return {"adls.account-host": urlsplit(self.server.uri).netloc, "adls.blob-storage-scheme": "http"}
        return {"gcs.service.host": self.server.uri}


@contextlib.contextmanager
def token_vending(behind: Catalog, server: BucketServer) -> Iterator[TokenVending]:
    state = TokenVending(behind, server)
    with serving(lambda request: _answer(state, request)) as state.uri:
        yield state
        server.behave()


def _answer(state: TokenVending, request: Request) -> Answer:
    if request.path.startswith("/v1/config"):
        return _json(200, {"defaults": {}, "overrides": {}})
    place = _TABLE.match(request.path)
    if place is None:
        return _json(404, {"error": {"message": request.path, "type": "NotFound", "code": 404}})
    table = state.behind.load_table((place[1], place[2]))
    if request.method == "GET":
        return _json(200, {**_described(table), **_vended(state, table.location())})
    commit = CommitTableRequest.model_validate_json(request.body)
    try:
        state.behind.commit_table(table, commit.requirements, commit.updates)
    except CommitFailedException as error:
        return _json(409, {"error": {"message": str(error), "type": "CommitFailedException", "code": 409}})
    return _json(200, _described(state.behind.load_table((place[1], place[2]))))


def _described(table: Table) -> dict[str, object]:
    return {"metadata-location": table.metadata_location, "metadata": json.loads(table.metadata.model_dump_json())}


def _vended(state: TokenVending, location: str) -> dict[str, object]:
    token = state.issue()
    if state.how == "config":
        return {"config": {**state.address, **token}}
    return {"config": state.address, "storage-credentials": [{"prefix": location, "config": token}]}


def _json(status: int, document: dict[str, object]) -> Answer:
    return Answer(status, (("Content-Type", "application/json"),), json.dumps(document).encode())
