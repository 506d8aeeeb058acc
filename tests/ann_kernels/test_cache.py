"""Numba's cache of compiled kernels, which processes of one machine share."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
USES_KERNELS = """
import json
import numpy as np
from icepuffin.ann_kernels import kmeans
vectors = np.random.default_rng(0).standard_normal((100, 8)).astype(np.float32)
labels, squared = kmeans.assign(vectors, vectors[:5])
hits = sum(sum(kernel.stats.cache_hits.values()) for kernel in (kmeans.nearest_narrow, kmeans._squared_to))
print(json.dumps({"hits": hits, "labels": labels.tolist(), "squared": squared.tolist()}))
"""


def started(cache: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-W", "error", "-c", USES_KERNELS]
    environment = os.environ | {"NUMBA_CACHE_DIR": str(cache)}
    return subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)


def test_processes_that_meet_an_empty_cache_at_once_fill_it_and_agree(tmp_path: Path) -> None:
    at_once = [started(tmp_path) for _ in range(4)]
    answers = [json.loads(process.communicate(timeout=300)[0]) for process in at_once]
    later = json.loads(started(tmp_path).communicate(timeout=300)[0])
    assert later["hits"] == 2
    assert all(answer["labels"] == later["labels"] and answer["squared"] == later["squared"] for answer in answers)
