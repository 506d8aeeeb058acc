"""Files of tests, again and again beside two busy loops on the same core: `make flaky FILES="tests/test_names.py" N=20`

What waits for an event passes there; what counts on a duration fails. Ends with 1 where a run failed.
"""

import argparse
import os
import re
import subprocess
import sys
import time
from collections import Counter

from tests.repository import REPOSITORY

_BUSY_LOOPS = 2
_LOOP = "import os; parent = os.getppid()\nwhile os.getppid() == parent: pass"
"""Program of a busy loop, which ends with the process that started it"""
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.flaky", description=__doc__)
    parser.add_argument("files", nargs="+", help="files of tests; further options go to pytest")
    parser.add_argument("--times", type=int, default=20, help="runs [default: 20]")
    parser.add_argument("--core", type=int, default=max(os.sched_getaffinity(0)), help="[default: the last one]")
    arguments, of_pytest = parser.parse_known_args()
    os.sched_setaffinity(0, {arguments.core})  # all processes that are started below are there, too
    loops = [subprocess.Popen([sys.executable, "-c", _LOOP]) for _ in range(_BUSY_LOOPS)]
    failures, failed_runs = Counter[str](), 0
    try:
        for number in range(1, arguments.times + 1):
            begun = time.monotonic()
            command = [sys.executable, "-m", "pytest", "--numprocesses", "0", "-q", *of_pytest, *arguments.files]
            done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
            tests = {*_FAILED.findall(done.stdout)}
            last = (done.stdout.splitlines() or ["no output"])[-1]
            print(f"run {number} of {arguments.times}, {time.monotonic() - begun:.0f} s: {last}", flush=True)
            if done.returncode:
                failed_runs += 1
                if not tests or tests - failures.keys():  # shown once
                    print(done.stdout[-8_000:], done.stderr[-2_000:], flush=True)
                failures.update(tests)
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()
    for test, count in failures.most_common():
        print(f"{count} of {arguments.times} runs failed in {test}")
    print(f"{failed_runs} of {arguments.times} runs failed beside {_BUSY_LOOPS} busy loops on core {arguments.core}")
    return 1 if failed_runs else 0


if __name__ == "__main__":
    sys.exit(main())
