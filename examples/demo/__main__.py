"""The demo, in a folder: `python -m examples.demo [FOLDER]`; without one, in demo-data."""

import sys
from pathlib import Path

from rich.console import Console

from examples.demo.demo_run import run_demo
from icepuffin.ops.errors import IcepuffinError

try:
    run_demo(Path(*sys.argv[1:2] or ["demo-data"]).resolve(), Console())
except (IcepuffinError, OSError) as error:
    sys.exit(f"error: {error}")
