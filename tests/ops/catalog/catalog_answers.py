"""Answers of a REST catalog, made of a table that SQLite keeps: no server runs."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.table import Table
from requests import PreparedRequest, Response
from requests.adapters import HTTPAdapter

URI = "http://catalog.invalid"


@dataclass
class Answers:
    """What the catalog answers about its table."""

    table: Table
    restrictions: Any = None
    status: int = 200
    expired: list[int] = field(default_factory=list)
    """Statuses of the next answers, by which a token is no longer good"""
    requests: list[str] = field(default_factory=list)

    @classmethod
    def about(cls, table: Table, monkeypatch: pytest.MonkeyPatch) -> "Answers":
        """Each REST catalog answers so from now on."""
        answers = cls(table)

        def send(_: HTTPAdapter, request: PreparedRequest, **__: Any) -> Response:
            return answers.send(request)

        monkeypatch.setattr(HTTPAdapter, "send", send)
        return answers

    def send(self, request: PreparedRequest) -> Response:
        url = str(request.url)
        answer = Response()
        answer.request, answer.url, answer.status_code = request, url, 200
        document: dict[str, Any] = {"defaults": {}, "overrides": {}}
        if "/tables/" in url:
            assert request.method == "GET"
            self.requests.append(url)
            answer.status_code = self.expired.pop() if self.expired else self.status
            place = self.table.refresh().metadata_location
            metadata = json.loads(Path(place.removeprefix("file://")).read_text(encoding="utf-8"))
            document = {"metadata-location": place, "metadata": metadata, "config": {}}
            if self.restrictions is not None:
                document["read-restrictions"] = self.restrictions
        answer._content = json.dumps(document).encode()
        return answer


def plain_catalog() -> Catalog:
    """A catalog as PyIceberg opens it."""
    return RestCatalog("plain", uri=URI)
