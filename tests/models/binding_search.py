"""A search of all that can happen in the model of bindings, within bounds.

`python -m tests.models.binding_search` searches the full bounds, on each kind of server.
"""

import sys
from itertools import product

from tests.models.binding import (
    SERVERS,
    BrokenLawError,
    Left,
    Model,
    State,
    require_laws,
    require_no_way_back,
)


def search(model: Model, bound: Left) -> tuple[int, list[str]]:
    """(states, steps to a broken law; none where every state keeps the laws). Of known states the hashes are kept."""
    if model.server == "lax":  # until the next version its last number is wrong where a run dies before it mends it
        bound = bound._replace(crashes=0, losses=0)
    first = State(bound)
    before: dict[int, tuple[int, str]] = {hash(first): (0, "")}
    frontier = [first]
    while frontier:
        reached: list[State] = []
        for state in frontier:
            label = ""
            try:
                for label, step in model.steps(state):
                    after = step.in_order()
                    if hash(after) not in before:
                        before[hash(after)] = hash(state), sys.intern(label)
                        require_laws(after)
                        if not bound.rollbacks:
                            require_no_way_back(state, after)
                        reached.append(after)
            except BrokenLawError as error:
                return len(before), [*_path(before, hash(state)), label, str(error)]
        frontier = reached
    return len(before), []


def _path(before: dict[int, tuple[int, str]], key: int) -> list[str]:
    steps: list[str] = []
    while before[key][1]:
        key, label = before[key]
        steps.insert(0, label)
    return steps


_NUMBERS = Left(refreshes=1, writes=1, staged=1, expiries=1)
_LOSSES = Left(refreshes=2, drops=1, losses=1)
_PACKS = Left(refreshes=1, writes=1, drops=1, losses=1, expiries=1)
_SWEEPS = Left(refreshes=2, expiries=1, sweeps=1)
_RACES = Left(refreshes=2, writes=1)
_DROPS = Left(refreshes=2, drops=1)
_ROLLBACKS = Left(refreshes=1, writes=1, rollbacks=1, losses=1)
SMALL = _NUMBERS, _LOSSES, _PACKS, _SWEEPS, _RACES, _ROLLBACKS
"""Bounds that are searched within a second each"""
_MOST = Left(refreshes=3, expiries=2, crashes=1)
FULL = (
    _MOST,
    _MOST._replace(writes=1),
    _MOST._replace(staged=1),
    _MOST._replace(drops=1),
    _MOST._replace(losses=1),
    _MOST._replace(sweeps=1),
)
MUTANTS = {
    "next number": _NUMBERS,
    "no numbers compared": _NUMBERS,
    "no branches asserted": _NUMBERS,
    "no mending": _NUMBERS,
    "pack keeps no tag": _NUMBERS,
    "no tag asserted": _RACES,
    "no packs asserted": _PACKS,
    "pack tagged later": _PACKS,
    "sweep asserts no refs": _SWEEPS,
    "no side tag": _SWEEPS,
    "metadata read before the list of files": _SWEEPS,
    "lost race deletes what may land": _LOSSES,
    "the answer to the first part alone is lost": _LOSSES,
    "a lost part takes the others' files": _DROPS,
}
"""Faults of the past, and each part of the protocol left out; the bound within which it is found"""

if __name__ == "__main__":
    for bound, server in product(FULL, SERVERS):
        states, steps = search(Model(server), bound)
        sys.stdout.write(f"{server}, {bound}: {states:,} states\n" + "".join(f"  {step}\n" for step in steps))
        sys.stdout.flush()
