"""Drivers to be killed: a process that has done the work once, and forks one for each line of its input.

What is loaded at first use, compiled kernels above all, is there then: a child takes 0.2 s instead of 0.8.

In: `<folder of a stage>\t<where to die>`. Out: the signal that ended the driver, or 0.
"""

import os
import sys
import tempfile
from pathlib import Path

from tests.faults.kills import die_at
from tests.faults.stages import Stage, make_stage


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        make_stage(Path(folder) / "practice", "deletes and an append").work()
    print("ready", flush=True)  # noqa: T201
    for line in sys.stdin:
        folder, kill_at = line.rstrip("\n").split("\t")
        child = os.fork()
        if not child:
            die_at(kill_at)
            try:
                Stage(Path(folder)).work()
            finally:
                os._exit(0)
        _, status = os.waitpid(child, 0)
        print(os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0, flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
