"""A release of icepuffin in a process of its own: it does what lines of JSON say, by the interface that is kept."""

import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.table import Table

from tests.campaigns.later_release import LaterRelease, bind_later, drop_later
from tests.repository import REPOSITORY

_PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
from tests.campaigns.release_process import serve
serve(is_later=sys.argv[2] == "later")
"""


@dataclass(frozen=True)
class Answer:
    """What a command gave, or the error that it ended with."""

    value: Any = None
    error: str = ""
    """Message of the error; empty where there was none"""
    kinds: tuple[str, ...] = ()
    """Names of the error's class and of those that it derives from"""


class Release:
    """A process with one release; it answers one command after the other."""

    def __init__(self, name: str, site: Path, folder: Path, *, is_later: bool = False) -> None:
        """`site`: folder that has the package `icepuffin`. `folder`: of the shard cache."""
        self._unanswered = 0
        command = [sys.executable, "-c", _PROGRAM, str(site), "later" if is_later else ""]
        environment = {**os.environ, "ICEPUFFIN_SHARD_CACHE": str(folder / name), "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, cwd=REPOSITORY
        )

    def open(self, uri: str, warehouse: str, table: str) -> str:
        """Choose the table of what follows; return where the release lies. What is still asked is forgotten."""
        while self._unanswered:
            self.answer()
        return str(self.do("open", uri=uri, warehouse=warehouse, table=table))

    def ask(self, command: str, **arguments: Any) -> None:
        assert self._process.stdin is not None
        self._unanswered += 1
        print(json.dumps([command, arguments]), file=self._process.stdin, flush=True)

    def answer(self) -> Answer:
        assert self._process.stdout is not None
        self._unanswered -= 1
        return Answer(**json.loads(self._process.stdout.readline()))

    def do(self, command: str, **arguments: Any) -> Any:
        """The value of a command that is to succeed. Raises AssertionError."""
        self.ask(command, **arguments)
        answer = self.answer()
        assert not answer.error, f"{command}: {answer.kinds[0]}: {answer.error}"
        return answer.value

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


class _Served:
    """What a process does with its release. Public methods are commands."""

    def __init__(self) -> None:
        self._icepuffin: Any = import_module("icepuffin")
        self._catalog: Catalog
        self._name = ""

    def open(self, uri: str, warehouse: str, table: str) -> str:
        self._catalog = load_catalog("releases", type="sql", uri=uri, warehouse=warehouse)
        self._name = table
        return str(self._icepuffin.__file__)

    def _table(self) -> Table:
        return self._catalog.load_table(self._name)

    def create(self, index: str, **parameters: Any) -> None:
        self._icepuffin.create_index(
            self._table(), name=index, column="embedding", metric="l2", shards=1, search_list=512, **parameters
        )

    def drop(self, index: str) -> None:
        self._icepuffin.drop_index(self._table(), index)

    def refresh(self, index: str | None, bits: int = 0) -> None:
        """`bits`: feature bits of routing blobs beside those of today."""
        import_module("icepuffin.puffin.blobs.routing_blob").written_bits = bits  # type: ignore[attr-defined]
        self._icepuffin.refresh(self._table(), index, threads=1)

    def plan(self, index: str) -> None:
        self._icepuffin.plan(self._table(), index, threads=1)

    def verify(self, index: str) -> list[str]:
        return list(self._icepuffin.verify(self._table(), index).faults)

    def gc(self, grace_hours: float) -> None:
        self._icepuffin.gc(self._table(), grace_hours=grace_hours)

    def search(self, index: str, query: list[float], k: int) -> tuple[list[int], list[str]]:
        """(ids of the k nearest rows, warnings)."""
        result = self._icepuffin.open_index(self._table(), index, threads=1).search(query, k, columns=["id"])
        return result.rows["id"].to_pylist(), list(result.warnings)

    def ndv(self) -> dict[str, int]:
        """Numbers of distinct values that are those of the head, by column."""
        entries = self._icepuffin.read_ndv(self._table()).entries
        return {name: entry.ndv for name, entry in entries.items() if entry.fresh}

    def bind_later(self) -> int:
        return bind_later(self._table())

    def drop_later(self) -> None:
        drop_later(self._table())


def serve(*, is_later: bool) -> None:
    """Answer each line of the input, which is [command, arguments]."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    os.fsync = lambda _: None  # type: ignore[assignment]  # no test takes the machine's power away
    if is_later:
        sys.meta_path.insert(0, LaterRelease())
    logging.disable()
    served = _Served()
    index_packs = import_module("icepuffin.ops.index.versions.index_packs")
    index_packs.PACK_BYTES = 1  # type: ignore[attr-defined]  small versions share packs, too
    for line in sys.stdin:
        command, arguments = json.loads(line)
        work: Callable[..., Any] = getattr(served, command)
        try:
            answer = {"value": work(**arguments)}
        except Exception as error:
            answer = {"error": str(error), "kinds": [base.__name__ for base in type(error).__mro__]}
        print(json.dumps(answer), file=answers, flush=True)
