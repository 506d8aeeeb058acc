"""Drivers to be killed: a process that has loaded everything, and forks one for each line of its input.

In: `<folder of a stage>\t<value of ICEPUFFIN_KILL_AT>`. Out: the signal that ended the driver, or 0.
"""

import os
import sys
from pathlib import Path

from ann_kernels import warm
from ops.steps import KILL_AT
from tests.faults.stages import Stage


def main() -> None:
    warm.main()
    print("ready", flush=True)  # noqa: T201
    for line in sys.stdin:
        folder, kill_at = line.rstrip("\n").split("\t")
        child = os.fork()
        if not child:
            os.environ[KILL_AT] = kill_at
            try:
                Stage(Path(folder)).work()
            finally:
                os._exit(0)
        _, status = os.waitpid(child, 0)
        print(os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0, flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
