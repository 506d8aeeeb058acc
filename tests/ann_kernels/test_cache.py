"""Numba's cache of compiled kernels, which processes of one machine share."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from numba import config

from icepuffin.ann_kernels.compiled_code import KernelCache, sources_digest

ROOT = Path(__file__).parents[2]
USES_KERNELS = """
import json
import numpy as np
from icepuffin.ann_kernels import kmeans
vectors = np.random.default_rng(0).standard_normal((100, 8)).astype(np.float32)
labels, squared = kmeans.assign(vectors, vectors[:5])
hits = sum(sum(kernel.stats.cache_hits.values()) for kernel in (kmeans.nearest_narrow, kmeans.squared_to_own))
print(json.dumps({"hits": hits, "labels": labels.tolist(), "squared": squared.tolist()}))
"""


def started(cache: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-W", "error", "-c", USES_KERNELS]
    environment = os.environ | {"NUMBA_CACHE_DIR": str(cache)}
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_processes_that_meet_an_empty_cache_at_once_fill_it_and_agree(tmp_path: Path) -> None:
    at_once = [started(tmp_path) for _ in range(4)]
    outputs = [process.communicate(timeout=300) for process in at_once]
    answers = [json.loads(text) for text, _ in outputs]
    text, errors = started(tmp_path).communicate(timeout=300)
    later = json.loads(text)
    notice = f"kernels are compiled into {tmp_path}"
    assert max(printed.count(notice) for _, printed in outputs) == 1
    assert notice not in errors
    assert later["hits"] == 2
    assert all(answer["labels"] == later["labels"] and answer["squared"] == later["squared"] for answer in answers)


CALLS_ANOTHER_MODULE = """
import sys
sys.meta_path = [finder for finder in sys.meta_path if "editable" not in repr(finder)]
sys.path.insert(0, sys.argv[1])
import numpy as np
from icepuffin.ann_kernels import exact_distances
from icepuffin.ann_kernels.metric import Metric
assert exact_distances.__file__.startswith(sys.argv[1])
first = np.zeros(1, np.int64)
print(*exact_distances.pair_distances(np.ones((1, 4)), np.ones((1, 4)), first, first, Metric.INNER_PRODUCT))
"""


@pytest.mark.parametrize("archived", [False, True])
def test_a_kernel_is_compiled_anew_when_what_it_calls_has_changed(tmp_path: Path, *, archived: bool) -> None:
    """Numba checks a kernel's own file alone: after an upgrade in place the old code of other files went on."""
    installed = tmp_path / "installed" / "icepuffin" / "ann_kernels"
    shutil.copytree(ROOT / "ann_kernels", installed, ignore=shutil.ignore_patterns("__pycache__"))
    caches = {name: str(tmp_path / "cache") for name in ("NUMBA_CACHE_DIR", "XDG_CACHE_HOME")}  # of files, of archives
    environment = os.environ | caches | {"PYTHONDONTWRITEBYTECODE": "1"}

    def answer() -> float:
        place = tmp_path / "installed"
        if archived:  # as Spark ships a package to its executors
            place = Path(shutil.make_archive(str(place), "zip", place))
        command = [sys.executable, "-c", CALLS_ANOTHER_MODULE, str(place)]
        return float(subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, check=True).stdout)

    assert answer() == -4
    callee = installed / "double_sums.py"
    text = callee.read_text(encoding="utf-8")
    changed = text.replace("total += np.float64(vectors[node, i]) * query[i]", "total += 3 * query[i]")
    assert changed != text
    callee.write_text(changed, encoding="utf-8")
    assert answer() == -12


def test_what_is_compiled_lies_in_a_folder_of_these_sources(tmp_path: Path) -> None:
    """Kernels whose types have moved to other modules cannot be loaded, not even to see that they are old."""
    started(tmp_path).communicate(timeout=300)
    assert {path.parent.name for path in tmp_path.rglob("*.nb[ic]")} == {sources_digest()}


def doubled(values: Any) -> Any:
    return 2 * values


def test_forms_that_two_processes_write_at_once_are_not_exchanged(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Numba numbers the files of a kernel's forms by a list that both have read, and loads a form by its file alone."""
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path))
    first, second = (KernelCache(doubled)._cache_file for _ in range(2))
    save_form = first._save_data

    def save_after_the_other(name: str, form: str) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(second, "_load_index", dict)  # it has read the list before `first` wrote to it
            second.save("form B", "code B")
        save_form(name, form)

    monkeypatch.setattr(first, "_save_data", save_after_the_other)
    first.save("form A", "code A")
    assert second.load("form B") == "code B"
    assert second.load("form A") in ("code A", None)
