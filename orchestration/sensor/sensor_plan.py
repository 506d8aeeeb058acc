"""Which runs one evaluation of the sensor requests. Pure: facts in, plan out; `evaluate` carries it out."""

import json
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter, ValidationError

from icepuffin.ops.model import SnapshotId

_log = logging.getLogger(__name__)

Policy = Literal["every", "newest"]


@dataclass(frozen=True, slots=True)
class WatchedSnapshot:
    """A data snapshot that is the head of a watched ref, or an ancestor of it."""

    snapshot_id: SnapshotId
    sequence_number: int
    is_head: bool
    """Whether a watched ref points at it, or at an index snapshot of it."""

    @property
    def key(self) -> str:
        return str(self.snapshot_id)


@dataclass(frozen=True, slots=True)
class SensorCursor:
    """Which snapshots are processed: their run was requested, or they were skipped for a newer one.

    Dagster stores the cursor with every tick. It is short because it names only the newest processed snapshots of each
    line of descent: their ancestors are processed too.
    """

    table_uuid: str = ""
    tips: frozenset[str] = frozenset()
    """Processed snapshots whose ancestors are all processed as well."""
    ahead: frozenset[str] = frozenset()
    """Processed snapshots with an ancestor that is not processed yet."""
    head: str = ""
    """The head of the first watched ref at the last evaluation."""
    heads: frozenset[str] = frozenset()
    """The processed heads of all watched refs at the last evaluation."""
    returns: int = 0
    """Number of times that the first watched ref returned to a processed snapshot, backward or forward."""
    freshness: Annotated[Mapping[str, str], Field(validation_alias="told")] = field(default_factory=dict)
    """The state that the freshness check of each index reported last, by index name."""
    merged: str = ""
    """What the head was last made again for: see `TableFacts.made_again_for`."""
    away_since: float | None = None
    """Time since which the catalog does not answer, in seconds since the epoch; None while it answers."""

    @classmethod
    def parse(cls, text: str | None, table_uuid: str | None = None) -> "SensorCursor":
        """Read a stored cursor.

        A new cursor where the table was created again under its name (another uuid), and where the text is no cursor,
        because another release or a person wrote it. No run starts twice then: Dagster starts one run per run key.
        Without a uuid, because the catalog does not answer, the stored cursor as it is.
        """
        try:
            cursor = _CURSOR.validate_json(text or "{}", strict=True)
        except ValidationError as error:
            _log.warning("the sensor starts anew: no cursor (%s)", error.errors(include_input=False)[0]["msg"])
            return cls(table_uuid or "")
        return cls(table_uuid or "") if table_uuid not in (None, cursor.table_uuid) else cursor

    def text(self) -> str:
        """The cursor as Dagster stores it: equal cursors have equal text."""
        values = {_KEYS.get(item.name, item.name): getattr(self, item.name) for item in fields(self)}
        return json.dumps({key: sorted(item) if isinstance(item, frozenset) else item for key, item in values.items()})

    def processed(self, parents: Mapping[str, str | None]) -> set[str]:
        """Every processed snapshot that the metadata still has. The ancestors of an expired tip are unknown, so they do
        not count; Dagster's run keys keep their runs from starting twice.
        """
        processed: set[str] = set()
        for tip in self.tips:
            ancestor: str | None = tip
            while ancestor is not None and ancestor in parents and ancestor not in processed:
                processed.add(ancestor)
                ancestor = parents[ancestor]
        return processed | self.ahead


_CURSOR = TypeAdapter(SensorCursor)
_KEYS = {"freshness": "told"}
"""Stored names that differ from the field's: stored cursors outlive releases."""


def _as_tips(processed: Collection[str], parents: Mapping[str, str | None]) -> tuple[frozenset[str], frozenset[str]]:
    """(tips, ahead) of processed snapshots; `parents` lists each snapshot after its parent."""
    closed: set[str] = set()
    for key, parent in parents.items():
        if key in processed and (parent not in parents or parent in closed):
            closed.add(key)
    tips = closed - {parent for key, parent in parents.items() if key in closed and parent is not None}
    return frozenset(tips), frozenset(key for key in processed if key in parents and key not in closed)


@dataclass(frozen=True, slots=True)
class TableFacts:
    """What an evaluation knows of one table, from its metadata and from Dagster."""

    watched: Sequence[WatchedSnapshot]
    """Data snapshots of all watched refs, in commit order."""
    head: str
    """The head of the first watched ref; empty for a table without snapshots."""
    parents: Mapping[str, str | None]
    """Every data snapshot in the metadata and its parent, watched or not, oldest first."""
    partitions: Sequence[str]
    """Partition keys in Dagster."""
    recorded: Collection[str]
    """Pending snapshots that the table's own asset has; a head that is new counts as pending."""
    done: Collection[str]
    """Pending snapshots for which everything derived is materialised."""
    index_tags_at_head: bool = False
    """Whether the tag of each index is on a version of the head."""
    head_requested: bool = False
    """Whether Dagster has a run with the head's run key, and so starts no other one with this key."""
    returns: int = 0
    """Highest number of a return in Dagster's run keys; looked up only for a cursor without a head."""
    in_flight: int = 0
    """Runs of this table that are queued or running."""
    oldest_unfinished_run: str = ""
    """Id and status of the oldest unfinished run of the table, in words."""
    made_again_for: str = ""
    """What the head's run is to be repeated for: the file of its statistics, where these are outdated, or a layout of
    its versions that was given up; empty where there is nothing.
    """
    failed_run: str = ""
    """Id of the head's last run, where that failed and nothing has made since what it was to make."""
    was_killed: bool = False
    """Whether no step of `failed_run` failed, so that its process was lost, for the first time in a row."""

    @property
    def visible(self) -> set[str]:
        """Snapshots that Dagster shows: recorded, and partitions."""
        return set(self.partitions) & set(self.recorded)


@dataclass(frozen=True, slots=True)
class RunPlan:
    """Which runs one evaluation requests."""

    request: tuple[str, ...] = ()
    """Snapshots whose first run is requested."""
    returned_to: str | None = None
    """A processed snapshot that is the head again: its run moves the tag back, and builds its version if it is gone."""
    again: str | None = None
    """The head, where another engine has replaced its sketches, or the layout of its versions was given up."""
    killed: str | None = None
    """The head, where the process of its run was lost and Dagster does not try it again."""
    cursor: SensorCursor = field(default_factory=SensorCursor)
    waiting: int = 0
    """Snapshots left for later evaluations: not recorded yet, or waiting for runs of the table to end."""


def pending_snapshots(facts: TableFacts, cursor: SensorCursor, policy: Policy) -> tuple[str, ...]:
    """Snapshots that are not processed yet, in the order in which the policy takes them."""
    return tuple(item.key for item in _in_turn(facts, _processed(facts, cursor, policy), policy))


def snapshots_to_record(facts: TableFacts, cursor: SensorCursor, policy: Policy) -> tuple[str, ...]:
    """Pending snapshots that Dagster does not show yet, in the order in which to record them."""
    visible = facts.visible
    return tuple(key for key in pending_snapshots(facts, cursor, policy) if key not in visible)


def expired_partitions(facts: TableFacts) -> tuple[str, ...]:
    """Partitions whose snapshot is no longer in the metadata."""
    return tuple(key for key in facts.partitions if key not in facts.parents)


def _processed(facts: TableFacts, cursor: SensorCursor, policy: Policy) -> set[str]:
    """Snapshots that need no run. Under `newest` another ref may have moved to a snapshot that was skipped: as a head
    it needs a run after all. (`plan_runs` itself handles the head of the first ref.)
    """
    processed = cursor.processed(facts.parents)
    if policy == "newest":
        processed -= {item.key for item in facts.watched if item.is_head} - cursor.heads - {facts.head}
    return processed


def _in_turn(facts: TableFacts, processed: Collection[str], policy: Policy) -> list[WatchedSnapshot]:
    """Snapshots that are not processed, oldest first; for `newest` the heads of the watched refs before all others."""
    pending = [item for item in facts.watched if item.key not in processed]
    return pending if policy == "every" else sorted(pending, key=lambda item: not item.is_head)


def plan_runs(facts: TableFacts, cursor: SensorCursor, *, policy: Policy, runs_ahead: int) -> RunPlan:
    """Decide which runs to request, among the snapshots that Dagster shows.

    `every`: oldest first, until `runs_ahead` runs of the table are unfinished. `newest`: the heads, once no run of the
    table is unfinished.

    A run is requested once per snapshot, once more whenever the head returns to it, and once more for the head where
    its process was killed. A run whose step failed is left to the op's retries, the nightly schedule, or a person.
    Nothing is lost when an evaluation stops half-way: the same facts give the same plan again.
    """
    before, visible, done = cursor.processed(facts.parents), facts.visible, set(facts.done)
    unprocessed = _in_turn(facts, _processed(facts, cursor, policy), policy)
    room = runs_ahead - facts.in_flight if policy == "every" else 0 if facts.in_flight else len(unprocessed)
    request: list[str] = []
    processed: set[str] = set()
    for snapshot in unprocessed:
        if snapshot.key not in visible:
            break  # processed snapshots stay without gaps, which keeps the cursor short
        if snapshot.key not in done and (policy == "every" or snapshot.is_head):
            if len(request) < room:
                request.append(snapshot.key)
            elif policy == "every":
                break
            else:
                continue
        processed.add(snapshot.key)
    moved = facts.head in visible and facts.head != cursor.head
    again = facts.head_requested or facts.head in before or facts.head in done
    not_first = bool(cursor.head) or facts.head in before
    returned = moved and not_first and again and not (facts.index_tags_at_head and facts.head in done)
    if returned:  # Dagster's records are from the earlier visit: the version may be gone, and the run key is used up
        request = [key for key in request if key != facts.head]
        processed.add(facts.head)
    is_due = facts.made_again_for not in ("", cursor.merged) and facts.head in done
    killed = facts.was_killed and not (is_due or returned or facts.head in request)
    tips, ahead = _as_tips(before | processed, facts.parents)
    owed = {snapshot.key for snapshot in unprocessed} - processed
    return RunPlan(
        request=tuple(request),
        returned_to=facts.head if returned else None,
        again=facts.head if is_due and not returned else None,  # one run does both
        killed=facts.head if killed else None,
        cursor=replace(
            cursor,
            tips=tips,
            ahead=ahead,
            head=facts.head if moved else cursor.head,
            heads=frozenset(
                snapshot.key for snapshot in facts.watched if snapshot.is_head and snapshot.key not in owed
            ),
            returns=max(cursor.returns, facts.returns) + returned,
            merged=facts.made_again_for if is_due else cursor.merged,
            away_since=None,
        ),
        waiting=len(owed),
    )


def run_key(table_uuid: str, key: str, returns: int = 0, reason: str = "") -> str:
    """Dagster starts one run per run key, ever. A return to a snapshot, and a `reason`, are new keys: the name of a
    foreign file to merge, the format of versions, or the id of a killed run.
    """
    reason = f":{returns}" if returns else f":{reason}" if reason else ""
    return f"{table_uuid}:{key}{reason}"
