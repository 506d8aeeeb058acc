"""kill -9 at a named step: for this process alone, which requests it itself."""

import itertools
import os
import signal

from icepuffin.ops import steps
from icepuffin.ops.steps import RunStep


def die_at(kill_at: str) -> None:
    """`<step>#<n>:<note>`: this process kills itself when it comes to the step for the n-th time from now.

    Once: it makes the file <note> first, and a process that finds it lives on.
    """
    name, _, note = kill_at.partition(":")
    name, _, number = name.partition("#")
    times = itertools.count(1)

    def observer(step: RunStep) -> None:
        if step != name or next(times) < int(number or 1):
            return
        try:
            os.close(os.open(note, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        os.kill(os.getpid(), signal.SIGKILL)

    steps.observer = observer
