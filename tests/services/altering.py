"""A proxy on loopback in front of a REST catalog, that changes commits as some catalogs do."""

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from tests.services.forwarding import Answer, Request, forward, serving

Change = Literal[
    "", "no tags", "no ages", "no statistics", "no parent", "another parent", "version current", "pack current",
    "no old snapshots", "no requirements", "bad request", "no new tables", "no dropping",
]  # fmt: skip


@dataclass
class AlteredLine:
    """What happens to commits from now on, and the tables that were created so far."""

    uri: str = ""
    change: Change = ""
    created: list[str] = field(default_factory=list)


@contextlib.contextmanager
def altered_line(upstream: str) -> Iterator[AlteredLine]:
    """Serve `upstream` at another address while the block lasts."""
    line = AlteredLine()

    def answer(request: Request) -> Answer:
        *_, kind, name = request.path.partition("?")[0].split("/")
        if request.method == "POST" and name == "tables":
            if line.change == "no new tables":
                return _error(403, "ForbiddenException", "token-1234 may not create tables")
            line.created.append(json.loads(request.body)["name"])
        if request.method == "DELETE" and line.change == "no dropping":
            return _error(403, "ForbiddenException", "not allowed to drop tables")
        if request.method == "POST" and kind == "tables":
            document = json.loads(request.body)
            if line.change == "bad request" and _tags(document["updates"]):
                return _error(400, "BadRequestException", "tags are not supported")
            _alter(document, line.change)
            request = replace(request, body=json.dumps(document).encode())
        return forward(upstream, request)

    with serving(answer) as line.uri:
        yield line


def _error(status: int, kind: str, message: str) -> Answer:
    body = json.dumps({"error": {"message": message, "type": kind, "code": status}}).encode()
    return Answer(status, (("Content-Type", "application/json"),), body)


def _tags(updates: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [update for update in updates if update["action"] == "set-snapshot-ref" and update["type"] == "tag"]


def _alter(document: dict[str, Any], change: Change) -> None:
    updates, tags = document["updates"], _tags(document["updates"])
    snapshots = [update["snapshot"] for update in updates if update["action"] == "add-snapshot"]
    if change == "no tags":
        document["updates"] = [update for update in updates if update not in tags]
    if change == "no ages":
        for tag in tags:
            tag.pop("max-ref-age-ms")
    if change == "no statistics":
        document["updates"] = [update for update in updates if update["action"] != "set-statistics"]
    if change == "no parent":
        for snapshot in snapshots:
            snapshot.pop("parent-snapshot-id", None)
    if change == "another parent" and len(snapshots) == 2:  # of a version and the holder of its pack
        snapshots[1]["parent-snapshot-id"] = snapshots[0]["parent-snapshot-id"]
    if change in ("version current", "pack current") and len(tags) == 2:
        tag = tags[change == "pack current"]
        tag |= {"ref-name": "main", "type": "branch"}
        tag.pop("max-ref-age-ms")
    if change == "no old snapshots" and tags:
        updates.append({"action": "remove-snapshots", "snapshot-ids": [snapshots[0]["parent-snapshot-id"]]})
    if change == "no requirements":
        document["requirements"] = []
