"""Numba's cache of compiled kernels, which processes of one machine share."""

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest
from numba import config
from numba.core import event

from icepuffin.ann_kernels import compiled_code
from icepuffin.ann_kernels.compilation import kernel
from icepuffin.ann_kernels.compiled_code import _mark_as_used, kernel_cache, sources_digest
from icepuffin.puffin import varint

ROOT = Path(__file__).parents[2]
USES_KERNELS = """
import json
import numpy as np
from icepuffin.ann_kernels.rows import bitmap
live = bitmap.Bitmap.from_mask(np.random.default_rng(0).random(1_000) < 0.5)
count, rows = live.count(), live.rows().tolist()
hits = sum(sum(kernel.stats.cache_hits.values()) for kernel in (bitmap._count, bitmap.next_rows))
print(json.dumps({"hits": hits, "count": count, "rows": rows}))
"""


def started(cache: Path, launcher: Sequence[str] = (), **variables: str) -> subprocess.Popen[str]:
    command = [*launcher, sys.executable, "-W", "error", "-c", USES_KERNELS]
    environment = os.environ | {"NUMBA_CACHE_DIR": str(cache)} | variables
    return subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_processes_that_meet_an_empty_cache_at_once_fill_it_and_agree(tmp_path: Path) -> None:
    at_once = [started(tmp_path) for _ in range(4)]
    outputs = [process.communicate(timeout=300) for process in at_once]
    answers = [json.loads(text) for text, _ in outputs]
    text, errors = started(tmp_path).communicate(timeout=300)
    later = json.loads(text)
    assert f"kernels are compiled into {tmp_path}" not in errors
    assert later["hits"] == 2
    assert all(answer["count"] == later["count"] and answer["rows"] == later["rows"] for answer in answers)


NOTICE = "kernels are compiled into"


class _CompilationUntilNotice(event.Listener):
    """Makes a compilation last until the notice of it is logged. Those of functions that it calls take no longer."""

    def __init__(self, log: pytest.LogCaptureFixture, *, seconds: float = 60) -> None:
        self._log = log
        self._before = log.text.count(NOTICE)
        self._deadline = time.monotonic() + seconds

    def on_start(self, compilation: Any) -> None:
        del compilation
        while self._log.text.count(NOTICE) == self._before and time.monotonic() < self._deadline:
            time.sleep(0.01)

    def on_end(self, compilation: Any) -> None:
        pass


@pytest.fixture
def own_kernel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """One of the package, of which nothing is compiled, and for which nobody has waited."""
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(compiled_code, "_wait", compiled_code._Wait())
    monkeypatch.setattr(doubled, "__module__", compiled_code.__name__)
    return kernel(doubled)


def test_a_long_wait_for_kernels_is_announced_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, own_kernel: Any
) -> None:
    """Also where others of these sources are kept already: the first refresh of a machine compiled for a minute."""
    monkeypatch.setattr(compiled_code._Wait, "notice_seconds", 0.05)
    with event.install_listener("numba:compile", _CompilationUntilNotice(caplog)):
        own_kernel(np.arange(3))
    assert f"{NOTICE} {own_kernel.stats.cache_path}, once" in caplog.text
    own_kernel(np.arange(3.0))
    assert caplog.text.count(NOTICE) == 1
    monkeypatch.setattr(compiled_code._Wait, "pause_seconds", 0.0)
    with event.install_listener("numba:compile", _CompilationUntilNotice(caplog)):
        own_kernel(np.arange(3, dtype=np.int32))
    assert caplog.text.count(NOTICE) == 2


def test_compilations_add_up_to_one_wait(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, own_kernel: Any
) -> None:
    monkeypatch.setattr(compiled_code._Wait, "notice_seconds", 10_000.0)
    own_kernel(np.arange(3))
    assert not caplog.text
    monkeypatch.setattr(compiled_code._wait, "_seconds", 9_999.9)
    with event.install_listener("numba:compile", _CompilationUntilNotice(caplog)):
        own_kernel(np.arange(3.0))
    assert caplog.text.count(NOTICE) == 1


@pytest.mark.parametrize("module", [__name__, "icepuffin_else.kernels"])
def test_waits_for_kernels_of_others_are_not_announced(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, own_kernel: Any, module: str
) -> None:
    monkeypatch.setattr(doubled, "__module__", module)
    monkeypatch.setattr(compiled_code._Wait, "notice_seconds", 0.0)
    with event.install_listener("numba:compile", _CompilationUntilNotice(caplog, seconds=0.5)):
        own_kernel(np.arange(3))
    assert not caplog.text


CALLS_ANOTHER_MODULE = """
import sys
sys.meta_path = [finder for finder in sys.meta_path if "editable" not in repr(finder)]
sys.path.insert(0, sys.argv[1])
import numpy as np
from icepuffin.ann_kernels.rows import bitmap
assert bitmap.__file__.startswith(sys.argv[1])
print(bitmap.Bitmap.from_mask(np.array([True, True, False, True])).count())
"""


@pytest.mark.parametrize("archived", [False, True])
def test_a_kernel_is_compiled_anew_when_what_it_calls_has_changed(tmp_path: Path, *, archived: bool) -> None:
    """Numba checks a kernel's own file alone: after an upgrade in place the old code of other files went on."""
    installed = tmp_path / "installed" / "icepuffin" / "ann_kernels"
    shutil.copytree(ROOT / "ann_kernels", installed, ignore=shutil.ignore_patterns("__pycache__"))
    caches = {name: str(tmp_path / "cache") for name in ("NUMBA_CACHE_DIR", "XDG_CACHE_HOME")}  # of files, of archives
    environment = os.environ | caches | {"PYTHONDONTWRITEBYTECODE": "1"}

    def answer() -> int:
        place = tmp_path / "installed"
        if archived:  # as Spark ships a package to its executors
            place = Path(shutil.make_archive(str(place), "zip", place))
        command = [sys.executable, "-c", CALLS_ANOTHER_MODULE, str(place)]
        return int(subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, check=True).stdout)

    assert answer() == 3
    callee = installed / "simd" / "bits.py"
    text = callee.read_text(encoding="utf-8")
    changed = text.replace("llvm.ctpop.i64", "llvm.bitreverse.i64")
    assert changed != text
    callee.write_text(changed, encoding="utf-8")
    assert answer() == -3 << 60


def test_what_is_compiled_lies_in_a_folder_of_these_sources(tmp_path: Path) -> None:
    """Kernels whose types have moved to other modules cannot be loaded, not even to see that they are old."""
    started(tmp_path).communicate(timeout=300)
    assert {path.parent.name for path in tmp_path.rglob("*.nb[ic]")} == {sources_digest()}


def test_a_new_folder_takes_the_place_of_those_that_nobody_uses(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each upgrade left one behind for ever."""
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path))
    own = Path(kernel_cache(doubled).cache_path)
    own.rmdir()
    folders = {name: own.with_name(name) for name in ("0123456789abcdef", "fedcba9876543210", "__pycache__", "0123")}
    month_ago = time.time() - 31 * 86_400
    for name, folder in folders.items():
        folder.mkdir()
        (folder / "kernel.nbi").touch()
        if name != "fedcba9876543210":
            os.utime(folder, (month_ago, month_ago))
    kernel_cache(doubled)
    assert {path.name for path in own.parent.iterdir()} == {own.name, *folders} - {"0123456789abcdef"}


@pytest.mark.parametrize("is_filled", [False, True])
def test_a_folder_that_a_process_begins_with_is_in_use(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, is_filled: bool
) -> None:
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path))
    own = Path(kernel_cache(doubled).cache_path)
    if is_filled:
        kernel(doubled)(np.arange(3))
    os.utime(own, (0, 0))
    _mark_as_used.cache_clear()  # as in another process
    kernel_cache(doubled)
    assert own.stat().st_mtime > time.time() - 60


def test_each_version_of_numba_has_its_own_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each starts the list of a kernel's forms anew: in one folder, two would compile at each start for ever."""
    monkeypatch.setattr(numba, "__version__", "1.2.3")
    assert sources_digest.__wrapped__() != sources_digest()


def doubled(values: Any) -> Any:
    return 2 * values


def test_forms_that_two_processes_write_at_once_are_not_exchanged(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Numba numbers the files of a kernel's forms by a list that both have read, and loads a form by its file alone."""
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path))
    first, second = (kernel_cache(doubled)._cache_file for _ in range(2))
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


def test_forms_that_two_processes_write_at_once_are_both_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each read the list of forms, added its own and wrote the list: the one that was later wrote one form alone."""
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path))
    arrays = np.arange(3), np.arange(3.0)
    compiled = numba.njit(doubled)
    for array in arrays:
        compiled(array)
    form, other = compiled.overloads.items()
    cache = kernel_cache(doubled)
    second = threading.Thread(target=kernel_cache(doubled).save_overload, args=other)
    save_list = cache._cache_file._save_index

    def save_after_the_other(forms: Any) -> None:
        second.start()
        second.join(0.3)
        save_list(forms)

    monkeypatch.setattr(cache._cache_file, "_save_index", save_after_the_other)
    cache.save_overload(*form)
    second.join()
    later = kernel(doubled)
    for array in arrays:
        later(array)
    assert sum(later.stats.cache_hits.values()) == 2


def test_kernels_that_read_blobs_have_files_of_their_own_too() -> None:
    assert isinstance(varint._decode_lists._cache._cache_file, type(kernel_cache(doubled)._cache_file))


def emptied(content: bytes) -> bytes:
    return content[:0]


def cut(content: bytes) -> bytes:
    return content[: len(content) // 2]


def one_bit_off(content: bytes) -> bytes:
    half = len(content) // 2
    return content[:half] + bytes([content[half] ^ 1]) + content[half + 1 :]


@pytest.mark.parametrize("ending", ["nbi", "nbc"])
@pytest.mark.parametrize("damage", [emptied, cut, one_bit_off])
def test_a_damaged_file_is_compiled_anew(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    ending: str,
    damage: Callable[[bytes], bytes],
) -> None:
    """After a power failure numba failed at each start, and it ran machine code whatever its bytes were."""
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path))
    values = np.arange(3)
    kernel(doubled)(values)
    (path,) = tmp_path.rglob(f"*.{ending}")
    content = path.read_bytes()
    path.write_bytes(damage(content))
    again = kernel(doubled)
    assert again(values).tolist() == [0, 2, 4]
    assert f"{path} is damaged" in caplog.text
    caplog.clear()
    third = kernel(doubled)
    assert third(values).tolist() == [0, 2, 4]
    assert sum(third.stats.cache_hits.values()) == 1
    assert not caplog.text


def test_a_kernel_runs_where_its_code_cannot_be_kept(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As on a disk that has become full since the start."""
    monkeypatch.setattr(config, "CACHE_DIR", str(tmp_path / "cache"))
    compiled = kernel(doubled)
    shutil.rmtree(tmp_path / "cache")
    (tmp_path / "cache").touch()
    assert compiled(np.arange(3)).tolist() == [0, 2, 4]
    assert compiled(np.arange(3.0)).tolist() == [0, 2, 4]
    assert caplog.text.count("compiled kernels are not kept") == 1


@pytest.mark.parametrize("archived", [False, True])
def test_kernels_run_where_no_folder_is_writable(tmp_path: Path, *, archived: bool) -> None:
    """As in a container without a home: the import failed, and in an archive each kernel at its first call."""
    installed = tmp_path / "installed" / "icepuffin" / "ann_kernels"
    shutil.copytree(ROOT / "ann_kernels", installed, ignore=shutil.ignore_patterns("__pycache__"))
    place = tmp_path / "installed"
    if archived:
        place = Path(shutil.make_archive(str(place), "zip", place))
    for folder in (installed, *(path for path in installed.iterdir() if path.is_dir())):
        (folder / "__pycache__").touch()  # no folder can be there
    environment = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    environment |= {"XDG_CACHE_HOME": os.devnull, "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-c", CALLS_ANOTHER_MODULE, str(place)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout == "3\n", done.stderr
    assert done.stderr.count("compiled kernels are not kept") == 1


@pytest.mark.skipif(os.geteuid() == 0 and not shutil.which("setpriv"), reason="root may write to any folder")
def test_compiled_kernels_are_used_where_they_cannot_be_written(tmp_path: Path) -> None:
    """As of an image, whose files are read-only."""
    obedient = ["setpriv", "--bounding-set=-dac_override"] if os.geteuid() == 0 else []
    cache = tmp_path / "cache"
    started(cache).communicate(timeout=300)
    folders = [cache, *(path for path in cache.rglob("*") if path.is_dir())]
    before = {path: path.stat().st_mtime_ns for path in cache.rglob("*.nb[ic]")}
    for folder in folders:
        folder.chmod(0o555)
    text, errors = started(cache, obedient, XDG_CACHE_HOME=os.devnull).communicate(timeout=300)
    for folder in folders:
        folder.chmod(0o755)
    assert json.loads(text)["hits"] == 2, errors
    assert {path: path.stat().st_mtime_ns for path in cache.rglob("*.nb[ic]")} == before
