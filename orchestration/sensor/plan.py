"""What one evaluation of the sensor asks for. Pure: facts in, plan out; `evaluate` carries it out."""

import json
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

_log = logging.getLogger(__name__)

Policy = Literal["every", "newest"]


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
    heads: frozenset[str] = frozenset()
    """Where any watched ref pointed at the last look, if that was dealt with."""
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
        """The cursor of the table with this uuid; a new one where the table was made again under its name, and where
        the text is no cursor: somebody's hand or another release wrote it. Run keys keep runs single then.

        Without a uuid, because the catalog did not answer: whatever is there.
        """
        try:
            found = _CursorText.model_validate_json(text or "{}")
        except ValidationError as error:
            _log.warning("the sensor starts anew, its cursor is none: %s", error.errors(include_input=False)[0]["msg"])
            return cls(table_uuid or "")
        if table_uuid not in (None, found.table_uuid):
            return cls(table_uuid or "")
        return cls(**{field.name: getattr(found, field.name) for field in fields(cls)})

    def text(self) -> str:
        return json.dumps(
            {
                "table_uuid": self.table_uuid,
                "tips": sorted(self.tips),
                "ahead": sorted(self.ahead),
                "head": self.head,
                "heads": sorted(self.heads),
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

    def joined(self, other: "Cursor") -> "Cursor":
        """What either has dealt with, and the rest as this one says: of two who look at one table."""
        return replace(self, tips=self.tips | other.tips, ahead=self.ahead | other.ahead)


class _CursorText(BaseModel):
    """A cursor as it is kept, checked: fields that are not there have their defaults."""

    model_config = ConfigDict(strict=True)

    table_uuid: str = ""
    tips: frozenset[str] = frozenset()
    ahead: frozenset[str] = frozenset()
    head: str = ""
    heads: frozenset[str] = frozenset()
    returns: int = 0
    told: dict[str, str] = {}
    merged: str = ""
    away_since: float | None = None


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
    """Which of the pending snapshots, and of the head if there is news of it, the table's own asset has."""
    done: Collection[str]
    """For which of them everything derived is materialised."""
    in_place: bool = False
    """Whether each index's tag is on a version of the head."""
    asked: bool = False
    """Whether Dagster has a run of the head's run key, and so starts no other one of that key."""
    returns: int = 0
    """How many returns Dagster has run keys of already; asked for a cursor that knows of no head yet."""
    in_flight: int = 0
    """Runs of this table that are queued or running."""
    waits_for: str = ""
    """The oldest of them, in words."""
    overwritten_by: str = ""
    """The file by which another engine replaced the head's sketches, with none of ours; empty where ours are there."""

    @property
    def visible(self) -> set[str]:
        """Snapshots that Dagster shows: recorded, and partitions."""
        return set(self.partitions) & set(self.recorded)


@dataclass(frozen=True, slots=True)
class Plan:
    """Which runs one look asks for."""

    request: tuple[str, ...] = ()
    returned_to: str | None = None
    """A snapshot that the ref came to and that was dealt with before: the tag has to move, and its version to be made
    again where it went meanwhile.
    """
    merge: str | None = None
    """A snapshot whose sketches another engine has replaced: a run merges the two."""
    cursor: Cursor = field(default_factory=Cursor)
    waiting: int = 0
    """Snapshots left for later looks: not recorded yet, or runs of the table have to end before."""

    @property
    def runs(self) -> tuple[str, ...]:
        """Every snapshot for which a run is asked for, whatever the reason."""
        return tuple(dict.fromkeys((*self.request, *filter(None, (self.returned_to, self.merge)))))


def pending(facts: Facts, cursor: Cursor, policy: Policy) -> tuple[str, ...]:
    """Snapshots that were not dealt with, in turn."""
    return tuple(item.key for item in _in_turn(facts, _dealt_with(facts, cursor, policy), policy))


def unseen(facts: Facts, cursor: Cursor, policy: Policy) -> tuple[str, ...]:
    """Snapshots that Dagster does not show yet, in the order in which they should come to be shown."""
    visible = facts.visible
    left = _in_turn(facts, _dealt_with(facts, cursor, policy), policy)
    return tuple(item.key for item in left if item.key not in visible)


def expired(facts: Facts) -> tuple[str, ...]:
    """Partitions whose snapshot the table has no more."""
    return tuple(key for key in facts.partitions if key not in facts.parents)


def _dealt_with(facts: Facts, cursor: Cursor, policy: Policy) -> set[str]:
    """Snapshots of which nothing is owed. Under `newest` a further ref may have come to one that was passed over: as a
    head it is owed a run after all. (Where the first ref has come to, `plan` looks for itself.)
    """
    handled = cursor.handled(facts.parents)
    if policy == "newest":
        handled -= {item.key for item in facts.watched if item.is_head} - cursor.heads - {facts.head}
    return handled


def _in_turn(facts: Facts, handled: Collection[str], policy: Policy) -> list[Watched]:
    """What was not dealt with: oldest first; for `newest` the heads of the watched refs before all others."""
    pending = [item for item in facts.watched if item.key not in handled]
    return pending if policy == "every" else sorted(pending, key=lambda item: not item.is_head)


def plan(facts: Facts, cursor: Cursor, *, policy: Policy, runs_ahead: int) -> Plan:
    """Decide which runs one look asks for, among the snapshots that Dagster shows.

    `every`: oldest first, until `runs_ahead` runs of the table are unfinished. `newest`: the heads, once none is.

    A run is requested for a snapshot only once, and once more whenever the head comes back to it; one that failed is
    for the op's retries, the nightly schedule, or a person. Nothing is lost by stopping anywhere: what was not carried
    out is planned again from the same facts.
    """
    before, visible, done = cursor.handled(facts.parents), facts.visible, set(facts.done)
    left = _in_turn(facts, _dealt_with(facts, cursor, policy), policy)
    room = runs_ahead - facts.in_flight if policy == "every" else 0 if facts.in_flight else len(left)
    request: list[str] = []
    handled: set[str] = set()
    for item in left:
        if item.key not in visible:
            break  # what is dealt with stays without gaps, and the cursor short
        if item.key not in done and (policy == "every" or item.is_head):
            if len(request) < room:
                request.append(item.key)
            elif policy == "every":
                break
            else:
                continue
        handled.add(item.key)
    moved = facts.head in visible and facts.head != cursor.head
    again = facts.asked or facts.head in before or facts.head in done
    known = bool(cursor.head) or facts.head in before  # not so at the first look of all
    returned = moved and known and again and not (facts.in_place and facts.head in done)
    if returned:  # whatever is known of it is from before: its version may have gone, and its run key is spent
        request = [key for key in request if key != facts.head]
        handled.add(facts.head)
    merge = facts.overwritten_by not in ("", cursor.merged) and facts.head in done and facts.head not in request
    tips, ahead = _as_tips(before | handled, facts.parents)
    owed = {item.key for item in left} - handled
    return Plan(
        request=tuple(request),
        returned_to=facts.head if returned else None,
        merge=facts.head if merge else None,
        cursor=replace(
            cursor,
            tips=tips,
            ahead=ahead,
            head=facts.head if moved else cursor.head,
            heads=frozenset(item.key for item in facts.watched if item.is_head and item.key not in owed),
            returns=max(cursor.returns, facts.returns) + returned,
            merged=facts.overwritten_by if merge else cursor.merged,
            away_since=None,
        ),
        waiting=len(owed),
    )


def run_key(table_uuid: str, key: str, returns: int = 0, merged: str = "") -> str:
    """Dagster starts one run a key, ever. A return to a snapshot is a new reason to run, and so is a foreign file."""
    reason = f":{returns}" if returns else f":{merged.rpartition('/')[2]}" if merged else ""
    return f"{table_uuid}:{key}{reason}"
