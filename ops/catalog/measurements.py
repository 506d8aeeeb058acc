"""What making a version took: noted in its snapshot's summary, for whoever asks later how long such work takes."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from icepuffin.ops.catalog.bound_versions import DerivedVersion

EARLIER_VERSIONS = 5
"""So many notes, the last ones, are what an estimate learns from."""
_OWN = ("action", "runner", "threads", "seconds", "recall")


@dataclass(frozen=True, slots=True)
class Took:
    """One version's note."""

    runner: str
    """Class of the task runner: threads of one process and Spark have rates of their own."""
    threads: int
    seconds: float
    amounts: Mapping[str, int]
    """What seconds follow."""
    action: str = ""
    recall: float | None = None

    def text(self) -> str:
        """JSON, for the summary."""
        told = {
            "action": self.action,
            "runner": self.runner,
            "threads": self.threads,
            "seconds": round(self.seconds, 3),
        }
        recall = {} if self.recall is None else {"recall": round(self.recall, 5)}
        return json.dumps({**told, **recall, **self.amounts}, separators=(",", ":"))

    @classmethod
    def parse(cls, text: str) -> "Took | None":
        """None of what was not noted, or noted in another way: by another release, or by hand."""
        try:
            told = json.loads(text)
            return cls(
                runner=str(told["runner"]),
                threads=max(1, int(told["threads"])),
                seconds=float(told["seconds"]),
                amounts={name: int(value) for name, value in told.items() if name not in _OWN},
                action=str(told.get("action", "")),
                recall=float(told["recall"]) if "recall" in told else None,
            )
        except (AttributeError, KeyError, TypeError, ValueError):
            return None


def notes(known: Iterable[DerivedVersion]) -> Iterator[tuple[DerivedVersion, Took]]:
    """Of those versions that have one, in their order."""
    for version in known:
        note = Took.parse(version.took)
        if note is not None:
            yield version, note


def last(what: str, count: int) -> str:
    """In words, for an estimate that says what it learned from."""
    return f"the last {what}" if count == 1 else f"the last {count} {what}s"
