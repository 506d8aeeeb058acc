"""What one look at a table asks for. Pure: facts in, plan out; the sensor and the command line carry it out."""

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Literal

DROPS_PER_TICK = 500


@dataclass(frozen=True, slots=True)
class Watched:
    """A data snapshot that a watched ref descends from."""

    snapshot_id: int
    sequence_number: int
    is_head: bool
    """Whether a watched ref points at it, or at an index snapshot of it."""

    @property
    def key(self) -> str:
        return str(self.snapshot_id)


@dataclass(frozen=True, slots=True)
class Cursor:
    """What the sensor has dealt with: snapshots whose run was requested, or was passed over for a newer one."""

    table_uuid: str = ""
    handled: frozenset[str] = frozenset()
    head: str = ""
    """Where the first watched ref pointed at the last look."""
    returns: int = 0
    """How often it went back, or forward again, to a snapshot that was dealt with before."""

    @classmethod
    def parse(cls, text: str | None, table_uuid: str) -> "Cursor":
        """The cursor of the table with this uuid; a new one where the table was made again under its name."""
        if not text:
            return cls(table_uuid)
        found = json.loads(text)
        if found["table_uuid"] != table_uuid:
            return cls(table_uuid)
        return cls(table_uuid, frozenset(found["handled"]), found["head"], found["returns"])

    def text(self) -> str:
        return json.dumps(
            {
                "table_uuid": self.table_uuid,
                "handled": sorted(self.handled),
                "head": self.head,
                "returns": self.returns,
            }
        )


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known when the sensor looks."""

    watched: Sequence[Watched]
    """In sequence order."""
    head: str
    """Where the first watched ref points; empty for a table without snapshots."""
    existing: Collection[str]
    """Ids of all snapshots in the table's metadata, watched or not."""
    partitions: Sequence[str]
    """Partition keys that Dagster has."""
    recorded: Collection[str]
    """Partitions of the table's own asset that have a materialisation."""
    done: Collection[str]
    """Partitions for which everything derived is materialised."""
    in_flight: bool = False
    """Whether a run for this table is queued or running."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do, in this order: record, add, request; then drop."""

    record: tuple[str, ...] = ()
    add: tuple[str, ...] = ()
    request: tuple[str, ...] = ()
    returned_to: str | None = None
    """A snapshot that the ref came back to: its version exists, and only the tag has to move."""
    drop: tuple[str, ...] = ()
    cursor: Cursor = field(default_factory=Cursor)
    waiting: int = 0
    """Snapshots left for the next look, because of the bound on one or because a run is in flight."""


def plan(facts: Facts, cursor: Cursor, *, policy: Literal["every", "newest"], limit: int) -> Plan:
    """Decide what one look asks for: at most `limit` new snapshots and runs, oldest first.

    A run is requested for a snapshot only once; one that failed is for the op's retries, the nightly schedule, or a
    person. Nothing is lost by stopping anywhere: what was not carried out is planned again from the same facts.
    """
    pending = [item for item in facts.watched if item.key not in cursor.handled]
    now = pending if policy == "newest" else pending[:limit]
    partitions, recorded, done = set(facts.partitions), set(facts.recorded), set(facts.done)
    request = [item.key for item in now if item.key not in done]
    handled = {item.key for item in now}
    if policy == "newest":
        request = [item.key for item in now if item.is_head and item.key not in done]
        if facts.in_flight:
            handled -= set(request)
            request = []
    returned = bool(cursor.head) and facts.head != cursor.head and facts.head in cursor.handled
    return Plan(
        record=tuple(item.key for item in now if item.key not in recorded),
        add=tuple(item.key for item in now if item.key not in partitions),
        request=tuple(request),
        returned_to=facts.head if returned else None,
        drop=tuple(key for key in facts.partitions if key not in facts.existing)[:DROPS_PER_TICK],
        cursor=Cursor(
            cursor.table_uuid,
            frozenset((cursor.handled | handled) & set(facts.existing)),
            facts.head,
            cursor.returns + returned,
        ),
        waiting=len(pending) - len(handled),
    )


def run_key(table_uuid: str, key: str, returns: int = 0) -> str:
    """Dagster starts one run a key, ever. A return to a snapshot is a new reason to run."""
    return f"{table_uuid}:{key}" + (f":{returns}" if returns else "")
