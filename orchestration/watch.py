"""What one look at a table asks for. Pure: facts in, plan out; the sensor and the command line carry it out."""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
    """What the sensor has dealt with: snapshots whose run was requested, or was passed over for a newer one.

    Dagster keeps it with every tick, so it names few of them: all that a tip descends from was dealt with too.
    """

    table_uuid: str = ""
    tips: frozenset[str] = frozenset()
    """Dealt with, and so is every snapshot that they descend from."""
    ahead: frozenset[str] = frozenset()
    """Dealt with before one that they descend from."""
    head: str = ""
    """Where the first watched ref pointed at the last look."""
    returns: int = 0
    """How often it went back, or forward again, to a snapshot that was dealt with before."""
    told: Mapping[str, str] = field(default_factory=dict)
    """What the freshness check of each index was told last."""
    merged: str = ""
    """The file of another engine's sketches that a run was last requested for."""
    away_since: float | None = None
    """When the catalog first did not answer; None where it answered last time. Seconds since the epoch."""

    @classmethod
    def parse(cls, text: str | None, table_uuid: str | None = None) -> "Cursor":
        """The cursor of the table with this uuid; a new one where the table was made again under its name.

        Without a uuid, because the catalog did not answer: whatever is there.
        """
        found = json.loads(text) if text else {}
        if not found or table_uuid not in (None, found["table_uuid"]):
            return cls(table_uuid or "")
        return cls(
            found["table_uuid"],
            frozenset(found.get("tips", ())),
            frozenset(found.get("ahead", found.get("handled", ()))),
            found["head"],
            found["returns"],
            found.get("told", {}),
            found.get("merged", ""),
            found.get("away_since"),
        )

    def text(self) -> str:
        return json.dumps(
            {
                "table_uuid": self.table_uuid,
                "tips": sorted(self.tips),
                "ahead": sorted(self.ahead),
                "head": self.head,
                "returns": self.returns,
                "told": dict(self.told),
                "merged": self.merged,
                "away_since": self.away_since,
            }
        )

    def handled(self, parents: Mapping[str, str | None]) -> set[str]:
        """Every snapshot that was dealt with. A tip that has expired tells nothing: run keys keep runs single then."""
        seen: set[str] = set()
        for tip in self.tips:
            at: str | None = tip
            while at is not None and at in parents and at not in seen:
                seen.add(at)
                at = parents[at]
        return seen | self.ahead


def _as_tips(handled: Collection[str], parents: Mapping[str, str | None]) -> tuple[frozenset[str], frozenset[str]]:
    """(tips, ahead) of what was dealt with; `parents` has each snapshot after the one that it descends from."""
    closed: set[str] = set()
    for key, parent in parents.items():
        if key in handled and (parent not in parents or parent in closed):
            closed.add(key)
    tips = closed - {parent for key, parent in parents.items() if key in closed and parent is not None}
    return frozenset(tips), frozenset(key for key in handled if key in parents and key not in closed)


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known when the sensor looks."""

    watched: Sequence[Watched]
    """In commit order."""
    head: str
    """Where the first watched ref points; empty for a table without snapshots."""
    parents: Mapping[str, str | None]
    """Every data snapshot in the table's metadata, watched or not, with the one that it descends from; oldest first."""
    partitions: Sequence[str]
    """Partition keys that Dagster has."""
    recorded: Collection[str]
    """Partitions of the table's own asset that have a materialisation."""
    done: Collection[str]
    """Partitions for which everything derived is materialised."""
    in_flight: bool = False
    """Whether a run for this table is queued or running."""
    overwritten_by: str = ""
    """The file by which another engine replaced the head's sketches, with none of ours; empty where ours are there."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do, in this order: record, add, request; then drop."""

    record: tuple[str, ...] = ()
    add: tuple[str, ...] = ()
    request: tuple[str, ...] = ()
    returned_to: str | None = None
    """A snapshot that the ref came back to: its version exists, and only the tag has to move."""
    merge: str | None = None
    """A snapshot whose sketches another engine has replaced: a run merges the two."""
    drop: tuple[str, ...] = ()
    cursor: Cursor = field(default_factory=Cursor)
    waiting: int = 0
    """Snapshots left for the next look, because of the bound on one or because a run is in flight."""


def plan(facts: Facts, cursor: Cursor, *, policy: Literal["every", "newest"], limit: int) -> Plan:
    """Decide what one look asks for: at most `limit` new snapshots and runs, oldest first; `newest` takes the heads of
    the watched refs before all others, and requests runs for them alone.

    A run is requested for a snapshot only once; one that failed is for the op's retries, the nightly schedule, or a
    person. Nothing is lost by stopping anywhere: what was not carried out is planned again from the same facts.
    """
    before = cursor.handled(facts.parents)
    pending = [item for item in facts.watched if item.key not in before]
    first = {item.key for item in pending[:limit]}
    now = [item for item in pending if item.key in first or (policy == "newest" and item.is_head)]
    partitions, recorded, done = set(facts.partitions), set(facts.recorded), set(facts.done)
    request = [item.key for item in now if item.key not in done and (policy == "every" or item.is_head)]
    handled = {item.key for item in now}
    if policy == "newest" and facts.in_flight:
        handled -= set(request)
        request = []
    returned = bool(cursor.head) and facts.head != cursor.head and facts.head in before
    merge = facts.overwritten_by not in ("", cursor.merged) and facts.head in done and facts.head not in request
    tips, ahead = _as_tips(before | handled, facts.parents)
    return Plan(
        record=tuple(item.key for item in now if item.key not in recorded),
        add=tuple(item.key for item in now if item.key not in partitions),
        request=tuple(request),
        returned_to=facts.head if returned else None,
        merge=facts.head if merge else None,
        drop=tuple(key for key in facts.partitions if key not in facts.parents)[:DROPS_PER_TICK],
        cursor=replace(
            cursor,
            tips=tips,
            ahead=ahead,
            head=facts.head,
            returns=cursor.returns + returned,
            merged=facts.overwritten_by if merge else cursor.merged,
            away_since=None,
        ),
        waiting=len(pending) - len(handled),
    )


def run_key(table_uuid: str, key: str, returns: int = 0, merged: str = "") -> str:
    """Dagster starts one run a key, ever. A return to a snapshot is a new reason to run, and so is a foreign file."""
    reason = f":{returns}" if returns else f":{merged.rpartition('/')[2]}" if merged else ""
    return f"{table_uuid}:{key}{reason}"
