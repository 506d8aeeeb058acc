"""A proxy on loopback in front of a REST catalog, that changes commits as some catalogs do."""

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from tests.services.forwarding import Answer, Request, forward, serving

Change = Literal[
    "", "no tags", "no ages", "no statistics", "a parent", "a parent of a pack", "version current", "pack current",
    "no old snapshots", "no requirements", "bad request", "bad request once", "no new tables", "lost creation",
    "no reading", "no commits", "no purge", "no dropping",
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
        is_new = request.method == "POST" and name == "tables"
        if is_new and line.change != "no new tables":
            line.created.append(json.loads(request.body)["name"])
        if is_new and line.change == "lost creation":
            forward(upstream, request)
        if (refusal := _refusal(line, request, kind, name)) is not None:
            return refusal
        if request.method == "POST" and kind == "tables":
            document = json.loads(request.body)
            _alter(document, line.change)
            request = replace(request, body=json.dumps(document).encode())
        return forward(upstream, request)

    with serving(answer) as line.uri:
        yield line


def _refusal(line: AlteredLine, request: Request, kind: str, name: str) -> Answer | None:
    """The answer to a request that the catalog does not carry out, or whose answer is lost."""
    change, method = line.change, request.method
    tags = _tags(json.loads(request.body)["updates"]) if method == "POST" and kind == "tables" else []
    if tags and change == "bad request once":
        line.change = ""
    refusals = {
        "no new tables": (name == "tables" and method == "POST", 403, "token-1234 may not create tables"),
        "lost creation": (name == "tables" and method == "POST", 504, "no answer in time"),
        "no reading": (name in line.created and method == "GET", 404, "not visible yet"),
        "no commits": (name in line.created and bool(tags), 403, "may not set statistics"),
        "no purge": (method == "DELETE" and "true" in request.path.lower(), 403, "not allowed to purge tables"),
        "no dropping": (method == "DELETE", 403, "not allowed to drop tables"),
        "bad request": (bool(tags), 400, "tags are not supported"),
        "bad request once": (bool(tags), 400, "tags are not supported"),
    }
    refuses, status, message = refusals.get(change, (False, 0, ""))
    kinds = {400: "BadRequestException", 403: "ForbiddenException", 404: "NoSuchTableException", 504: "Timeout"}
    return _error(status, kinds[status], message) if refuses else None


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
    if change in ("a parent", "a parent of a pack") and len(snapshots) == 2:  # of a version, and the holder of its pack
        children = snapshots[change == "a parent of a pack" :]
        children[0]["parent-snapshot-id"] = _base_of(snapshots)
        for snapshot in children:  # the number of one with a parent is over the last, which the next one sets
            snapshot["sequence-number"] += 1
    if change in ("version current", "pack current") and len(tags) == 2:
        tag = tags[change == "pack current"]
        tag |= {"ref-name": "main", "type": "branch"}
        tag.pop("max-ref-age-ms")
    if change == "no old snapshots" and tags:
        updates.append({"action": "remove-snapshots", "snapshot-ids": [_base_of(snapshots)]})
    if change == "no requirements":
        document["requirements"] = []


def _base_of(snapshots: list[dict[str, Any]]) -> int:
    return int(snapshots[0]["summary"]["ann.base-snapshot-id"])
