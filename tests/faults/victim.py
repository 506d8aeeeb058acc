"""Drivers to be killed: a process that has done the work once, and forks one for each line of its input.

What is loaded at first use, compiled kernels above all, is there then: a child takes 0.2 s instead of 0.8.

In: `<folder of a stage>\t<where to die>`, or `after <seconds>` for where, as the time that its process group is killed.
Out: the signal that ended the driver, 0 where it came to its end, -1 where it failed.
"""

import os
import signal
import sys
import tempfile
import threading
import traceback
from pathlib import Path
from typing import NoReturn

from tests.faults.kills import die_at
from tests.faults.stages import Stage, make_stage

AFTER = "after "


def _killed_after(child: int, seconds: float) -> threading.Timer:
    """A clock at whose end the child's process group is killed."""

    def kill() -> None:
        try:
            os.killpg(child, signal.SIGKILL)
        except ProcessLookupError:  # it is not the leader of a group yet
            os.kill(child, signal.SIGKILL)

    clock = threading.Timer(seconds, kill)
    clock.start()
    return clock


def _work(stage: Stage) -> NoReturn:
    try:
        stage.work()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        make_stage(Path(folder) / "practice", "deletes and an append").work()
    print("ready", flush=True)  # noqa: T201
    for line in sys.stdin:
        folder, kill_at = line.rstrip("\n").split("\t")
        child = os.fork()
        if not child:
            if kill_at.startswith(AFTER):
                os.setsid()
            else:
                die_at(kill_at)
            _work(Stage(Path(folder)))
        clock = _killed_after(child, float(kill_at.removeprefix(AFTER))) if kill_at.startswith(AFTER) else None
        _, status = os.waitpid(child, 0)
        if clock:
            clock.cancel()
            clock.join()
        print(-os.waitstatus_to_exitcode(status), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
