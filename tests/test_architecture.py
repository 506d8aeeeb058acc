"""Layers, packages and what is committed: the rules of the house that no tool checks by itself."""

import ast
import importlib
import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.repository import PACKAGES, REPOSITORY, modules, name_of, run, scripts, tracked
from tests.source_facts import facts

SUBJECT_WIDTH = 72
FIRST_CHECKED_AFTER = "8b2cc263f334"
"""Some commits up to this one have no body"""
PRIVATE = {
    "a path of somebody's machine": r"(?<![\w/])/(?:work|root|Users|home)/(?!icepuffin\b)\w",
    "a registry or its mirror": "|".join(
        re.escape(host)
        for host in (
            "pypi.org",
            "files.pythonhosted",
            "repo.maven",
            "repo1.maven",
            "deb.debian.org",
            "pkg.dev",
            "npmjs",
        )
    ),
    "a key": r"-----BEGIN [A-Z ]*PRIVATE KEY|AKIA[0-9A-Z]{16}|ghp_[A-Za-z0-9]{30}",
}


def test_imports_go_down_only() -> None:
    done = run(str(Path(sys.executable).with_name("lint-imports")))
    assert done.returncode == 0, done.stdout


@dataclass(frozen=True)
class ImportStage:
    """Modules, or all modules of packages, that an interpreter imports after those of the stages before."""

    imported: tuple[str, ...]
    """Without `icepuffin.` before them"""
    absent: tuple[str, ...]
    """What must not have been imported by then"""


LIGHT_STAGES = {
    "definitions of kernels": ImportStage(
        ("ann_kernels.metric", "ann_kernels.sketches.theta_estimates", "ann_kernels.errors"), ("numba", "pyiceberg")
    ),
    "settings": ImportStage(("assets.table_settings", "orchestration.cli.index"), ("numba", "pyiceberg")),
    "lists of indexes": ImportStage(("ops.index.definitions.ddl", "ops.binding.bound_versions"), ("numba",)),
    "statistics": ImportStage(
        ("ops.theta.statistics_slot", "ops.theta.build_id", "ops.theta.theta_estimate", "ops.theta.ndv"), ("numba",)
    ),
    "overviews": ImportStage(("ops.search.overview",), ("numba", "icepuffin.ops.search.reader")),
    "garbage": ImportStage(("ops.runs.maintenance",), ("numba",)),
    "runs": ImportStage(("ops.runs.index_runs", "ops.runs.snapshot"), ("numba",)),
    "Dagster": ImportStage(("orchestration.definitions",), ("numba", "pyspark", "py4j")),
}
LAYER_STAGES = {
    "leaves": ImportStage(("puffin", "ann_kernels"), ("dagster", "pyspark", "pyiceberg", "icepuffin.ops")),
    "executors": ImportStage(("ops.tasks",), ("dagster", "pyspark", "py4j")),
    "library": ImportStage(
        ("ops.index", "ops.search", "ops.theta", "ops.catalog", "ops.binding", "ops.table", "ops.filters"),
        ("dagster", "pyspark"),
    ),
}


@cache
def early_imports(*stages: ImportStage, whole: bool) -> dict[ImportStage, list[str]]:
    """What a fresh interpreter has imported, of what must be absent, after each stage: one for all stages, as each of
    them takes a second. What is absent after several stages is so after each.

    whole: import all modules of the packages, too
    """
    program = (
        "import importlib, json, pkgutil, sys\n"
        f"for names, absent in {[(stage.imported, stage.absent) for stage in stages]}:\n"
        "    for name in names:\n"
        "        module = importlib.import_module(f'icepuffin.{name}')\n"
        f"        path = getattr(module, '__path__', []) if {whole} else []\n"
        "        for inner in pkgutil.walk_packages(path, f'icepuffin.{name}.'):\n"
        "            importlib.import_module(inner.name)\n"
        "    print(json.dumps(sorted(set(absent) & set(sys.modules))))\n"
    )
    done = run(sys.executable, "-c", program)
    assert done.returncode == 0, done.stderr
    return dict(zip(stages, map(json.loads, done.stdout.splitlines()), strict=True))


@pytest.mark.parametrize("name", LAYER_STAGES)
def test_a_package_imports_only_what_it_may(name: str) -> None:
    """All of its modules: what import-linter reads, seen to happen."""
    assert early_imports(*LAYER_STAGES.values(), whole=True)[LAYER_STAGES[name]] == []


@pytest.mark.parametrize("name", LIGHT_STAGES)
def test_metadata_is_read_without_kernels(name: str) -> None:
    """Commands, runs without work and Dagster's processes must start fast, and numba takes a third of a second."""
    assert early_imports(*LIGHT_STAGES.values(), whole=False)[LIGHT_STAGES[name]] == []


def test_an_early_import_is_seen() -> None:
    stages = (
        ImportStage(("ann_kernels.metric",), ("numba",)),
        ImportStage(("puffin.blobs",), ("icepuffin.puffin", "numba")),
    )
    assert list(early_imports(*stages, whole=False).values()) == [[], ["icepuffin.puffin"]]


def test_all_folders_are_installed_as_one_package() -> None:
    setuptools = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    inits = [path for package in PACKAGES for path in (REPOSITORY / package).rglob("__init__.py")]
    packages = {".".join(("icepuffin", *path.parent.relative_to(REPOSITORY).parts)) for path in inits}
    assert set(setuptools["packages"]) == packages | {"icepuffin"}
    assert setuptools["package-dir"] == {"icepuffin": "icepuffin"} | {
        f"icepuffin.{package}": package for package in PACKAGES
    }
    for package in PACKAGES:  # by which tools that read sources find the package
        assert (REPOSITORY / "icepuffin" / package).readlink() == Path("..") / package


def test_a_folder_can_be_held_in_mind() -> None:
    """At most twenty modules in a folder, twelve about conditions, and eight that lie loose in `ops/`, each with its
    reason on the page on architecture. In all folders of searches thirty-two.
    """
    rooms = Counter(path.parent for path in modules() if path.name != "__init__.py")
    assert {name_of(room): count for room, count in rooms.items() if count > 20} == {}
    ops = REPOSITORY / "ops"
    assert rooms[ops / "filters"] <= 12
    assert sum(count for room, count in rooms.items() if ops / "search" in (room, *room.parents)) <= 32
    page = (REPOSITORY / "docs" / "architecture.md").read_text(encoding="utf-8")
    reasons = re.findall(r"^- `(ops/\w+\.py)`: ", page, re.MULTILINE)
    assert sorted(reasons) == [name_of(path) for path in sorted(ops.glob("*.py")) if path.name != "__init__.py"]
    assert rooms[ops] == len(reasons) <= 8


def test_a_module_has_a_name_of_its_own() -> None:
    """But for commands, whose modules have their names."""
    named = [path for path in modules() if path.parent.name != "cli" and path.name not in {"__init__.py", "errors.py"}]
    assert [name for name, count in Counter(path.name for path in named).items() if count > 1] == []


def test_every_folder_stands_in_the_page_on_architecture() -> None:
    page = (REPOSITORY / "docs" / "architecture.md").read_text(encoding="utf-8")
    rooms = {name_of(path.parent) for path in modules() if path.name == "__init__.py"} - {*PACKAGES, "icepuffin"}
    assert set(re.findall(r"^\| `([\w/]+)` \|", page, re.MULTILINE)) == rooms


def test_a_name_stands_in_the_file_where_the_page_on_architecture_has_it() -> None:
    page = (REPOSITORY / "docs" / "architecture.md").read_text(encoding="utf-8")
    placed = re.findall(r"`(\w+)` in `([\w/]+\.py)`", page)
    assert placed
    assert [item for item in placed if not re.search(rf"\b{item[0]}\b", text_of(REPOSITORY / item[1]))] == []


def test_what_is_borrowed_from_inside_pyiceberg_is_written_down() -> None:
    """In calls, imports and overrides, and in classes of it that are changed."""
    private = re.compile(r"^    _\w+,$|from pyiceberg\S* import .*\b_\w+|# noqa: SLF001", re.MULTILINE)
    changed = re.compile(r"super\(\)\._[a-z]|\.model_fields\[|setattr\(Client")
    its_own = re.compile(r"^ *from (?:pyiceberg|hive_metastore)\b", re.MULTILINE)
    catalog = [path for path in modules() if path.parent.name in {"catalog", "binding", "table"}]
    borrowing = {name_of(path) for path in catalog if private.search(text_of(path))}
    others = {path for path in modules() if its_own.search(text_of(path))}
    borrowing |= {name_of(path) for path in others if changed.search(text_of(path))}
    page = (REPOSITORY / "docs" / "upstream.md").read_text(encoding="utf-8")
    assert borrowing == set(re.findall(r"^\| `([\w/.]+)`", page, re.MULTILINE))


def test_nobody_imports_a_folder_by_its_bare_name() -> None:
    bare = re.compile(rf"^[ \t]*(?:from|import) (?:{'|'.join(PACKAGES)})\b", re.MULTILINE)
    named = [line for path in tracked() if path.suffix in {".py", ".md", ".sh"} for line in matches_in(path, bare)]
    assert named == []


def matches_in(path: Path, pattern: re.Pattern[str]) -> Iterator[str]:
    """`file:line: text` for each match in a file, if that is text."""
    text = text_of(path)
    for match in pattern.finditer(text):
        yield f"{name_of(path)}:{text.count(chr(10), 0, match.start()) + 1}: {match[0].strip()[:100]}"


@cache
def text_of(path: Path) -> str:
    """Contents of a file; of one that is no text, nothing."""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return ""


def test_only_tests_name_what_is_private_to_dagster() -> None:
    """Neither in an import nor in a text that names a module, such as a class in `dagster.yaml`."""
    private = re.compile(r"\bdagster\w*(?:\.\w+)*\._[a-z]|\bdagster_shared\b|\bfrom dagster\b.*\bimport .*\b_[a-z]")
    assert private.search("from dagster._core.errors import DagsterError")
    assert private.search("from dagster import _check as check")
    assert not private.search("from dagster.components import DefsStateConfig")
    named = [
        line
        for path in tracked()
        if path.suffix in {".py", ".md", ".sh", ".yaml", ".toml"} and "tests" not in path.relative_to(REPOSITORY).parts
        for line in matches_in(path, private)
    ]
    assert named == []


def test_no_modules_import_each_other() -> None:
    """Not by way of others, either, nor within functions, nor for types alone."""
    TopologicalSorter(import_graph()).prepare()  # CycleError names the modules of a circle


def test_a_circle_of_imports_is_seen() -> None:
    graph = import_graph()
    assert "icepuffin.ops.index.stages" in graph["icepuffin.ops.index.planning.rates"], "an import for types"
    graph["icepuffin.ops.index.stages"].add("icepuffin.ops.index.planning.rates")
    with pytest.raises(CycleError):
        TopologicalSorter(graph).prepare()


def import_graph() -> dict[str, set[str]]:
    """Modules of the packages that each of them imports, anywhere in it."""
    names = {}
    for path in modules():
        parts = path.relative_to(REPOSITORY).with_suffix("").parts
        parts = parts[: -1 if path.stem == "__init__" else None]
        names[".".join(parts if parts[0] == "icepuffin" else ("icepuffin", *parts))] = path
    graph: dict[str, set[str]] = {}
    for name, path in names.items():
        imports = graph[name] = set()
        for module, taken in facts(path).imports:
            within = {f"{module}.{each}" for each in taken}
            imports |= {inner if inner in names else module for inner in within} if taken else {module}
        imports &= names.keys() - {name}
    return graph


def test_a_constant_has_one_home() -> None:
    """No two modules give one name the same value: the second imports it. The leaves do not import each other."""
    own_to_each = re.compile(r"_?(?:log|VERSION|ONE|ZERO)|__all__")  # 1 and 0 as kernels need them
    values: dict[str, list[tuple[Path, ast.expr]]] = {}
    for path in modules():
        for name, value in facts(path).constants:
            if not own_to_each.fullmatch(name):
                values.setdefault(name.lstrip("_"), []).append((path, value))
    places: dict[tuple[str, str], list[Path]] = {}
    for name, uses in values.items():
        for path, value in uses if len(uses) > 1 else ():
            if not (text := ast.unparse(value)).startswith("TypeVar("):
                places.setdefault((name, text), []).append(path.relative_to(REPOSITORY))
    leaves = {"puffin", "ann_kernels"}
    repeated = {
        f"{name} = {value}": [str(path) for path in paths]
        for (name, value), paths in places.items()
        if len(paths) > 1 and (len(paths) > 2 or {path.parts[0] for path in paths} != leaves)
    }
    assert repeated == {}


def test_every_benchmark_is_imported() -> None:
    for path in (REPOSITORY / "benchmarks").glob("*.py"):
        importlib.import_module(f"benchmarks.{path.stem}")


@pytest.mark.parametrize("what", PRIVATE)
def test_nothing_private_is_committed(what: str) -> None:
    private = re.compile(PRIVATE[what])
    itself = Path(__file__).resolve()  # names what it looks for
    matches = [line for path in tracked() if path != itself for line in matches_in(path, private)]
    assert matches == []


def git(*arguments: str) -> subprocess.CompletedProcess[str]:
    return run("git", *arguments)


def test_a_commit_says_what_it_does_and_why() -> None:
    """Of all commits after `FIRST_CHECKED_AFTER`, which a shallow clone does not have, nor an unpacked archive."""
    if not shutil.which("git") or git("merge-base", "--is-ancestor", FIRST_CHECKED_AFTER, "HEAD").returncode:
        pytest.skip("the history is not here")
    log = git("log", "--no-merges", "-z", "--format=%h%n%B", f"{FIRST_CHECKED_AFTER}..HEAD").stdout
    assert [commit for message in filter(None, log.split("\0")) for commit in faults_of_message(message)] == []


def faults_of_message(message: str) -> list[str]:
    """What is wrong with a commit: its short hash is the first line, its subject the second."""
    name, subject, *body = message.splitlines()
    trailer = re.compile(r"[A-Za-z-]+(?:-by)?: \S.*|\s*")
    wrong = {
        f"{len(subject)} characters in the subject, 72 at most": len(subject) > SUBJECT_WIDTH,
        "no body that says why (git commit --amend)": all(trailer.fullmatch(line) for line in body),
        "text in the line after the subject": bool(body and body[0].strip()),
        "a subject that begins in lower case or ends with a full stop": subject[:1].islower() or subject.endswith("."),
    }
    return [f"{name} {subject!r}: {fault}" for fault, is_so in wrong.items() if is_so]


@pytest.mark.parametrize(
    ("message", "fault"),
    [
        ("abc\nSay why\n\nBecause.", ""),
        ("abc\nSay why", "no body"),
        ("abc\nSay why\n\nSigned-off-by: A <a@b>", "no body"),
        ("abc\nSay why\nBecause.", "line after the subject"),
        (f"abc\nSay {'x' * 69}\n\nBecause.", "73 characters"),
        ("abc\nsay why\n\nBecause.", "lower case"),
    ],
)
def test_the_fault_of_a_message_is_named(message: str, fault: str) -> None:
    faults = faults_of_message(message)
    assert (len(faults) == 1 and fault in faults[0]) if fault else faults == []


def test_the_lock_holds_every_requirement() -> None:
    lock = (REPOSITORY / "requirements" / "lock.txt").read_text(encoding="utf-8")
    pinned = set(re.findall(r"^([a-z0-9._-]+)(?:\[[^]]+\])?==", lock, re.MULTILINE))
    for path in (REPOSITORY / "requirements").glob("*.in"):
        if path.with_suffix(".txt").exists():  # a lock file of its own
            continue
        for line in path.read_text(encoding="utf-8").splitlines():
            wanted = re.match(r"[A-Za-z0-9._-]+", line)
            assert wanted is not None
            assert wanted[0].lower() in pinned, f"{line} is not in the lock"


def test_ci_runs_the_command_that_the_documents_name() -> None:
    assert "exec sh deploy/bootstrap.sh test" in (REPOSITORY / ".ci" / "run").read_text(encoding="utf-8")
    for document in ("README.md", "CONTRIBUTING.md"):
        assert "make test" in (REPOSITORY / document).read_text(encoding="utf-8")


def test_markers_are_used_and_declared() -> None:
    settings = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
    declared = {re.split(r"[:(]", line)[0] for line in settings["tool"]["pytest"]["ini_options"]["markers"]}
    assert unlike_markers("\n".join(map(text_of, scripts())), declared) == set()


def unlike_markers(text: str, declared: set[str]) -> set[str]:
    """Markers that are used and not declared, or declared and not used."""
    builtin = {"parametrize", "skipif", "skip", "filterwarnings", "usefixtures", "timeout", "xfail"}
    return (set(re.findall(r"pytest\.mark\.(\w+)", text)) - builtin) ^ declared


def test_a_marker_that_is_only_used_or_only_declared_is_named() -> None:
    text = "@pytest.mark.jvm\npytestmark = [pytest.mark.skipif(True), pytest.mark.trino]\n"
    assert unlike_markers(text, {"jvm", "slow"}) == {"trino", "slow"}


FOLDERS = "|".join((*PACKAGES, "tests", "benchmarks", "deploy", "docs", "examples", "requirements"))
OUR_FILES = re.compile(
    rf"(?<![\w./{{}}-])(?:(?:\./|icepuffin/)?(?:{FOLDERS})/[\w./*-]*\w\*?(?:\.\w+)?|icepuffin/\w+\.py)(?![\w{{]|-\{{)"
)
NOT_OURS = {"deploy/.env", "tests/conformance/fixtures/PROVENANCE.md"}
"""What its reader writes, and a list of files of other repositories"""
WITH_TREES_OF_THEIR_OWN = {"tests/test_architecture.py", "tests/test_durations.py"}
"""Tests that make up files"""


def absent_files(text: str) -> list[str]:
    """Files of ours that a text names, by their paths from the root, and that are not there. A path may have a `*`."""
    paths = {match[0] for match in OUR_FILES.finditer(text)} - NOT_OURS
    return sorted(path for path in paths if not any(REPOSITORY.glob(path)))


def test_the_files_of_ours_that_are_named_exist() -> None:
    """In documents, comments, texts of code, and settings."""
    kinds = {".cfg", ".in", ".ini", ".md", ".sh", ".toml", ".yaml", ".yml"}
    texts = {
        path: text_of(path)
        for path in tracked()
        if path.suffix in {*kinds, ".py"} or path.name in {"Dockerfile", "Makefile", "run"}
        if name_of(path) not in NOT_OURS | WITH_TREES_OF_THEIR_OWN
    }
    assert len(texts) > 900
    absent = {name_of(path): paths for path, text in texts.items() if (paths := absent_files(text))}
    assert absent == {}


def test_a_file_that_is_named_and_not_there_is_seen() -> None:
    assert absent_files("`ops/index/`, docs/search.md, tests/interop/engine*.py, icepuffin/rows, deploy/.env") == []
    assert absent_files("x/ops/y.py, tests/{name}.py, benchmarks/requirements-{name}.txt") == []
    assert absent_files("See tests/ops/none.py, (docs/no*.md).") == ["docs/no*.md", "tests/ops/none.py"]
    assert absent_files("./deploy/none.sh, icepuffin/ops/none.py, icepuffin/ops/model.py") == [
        "./deploy/none.sh", "icepuffin/ops/none.py",
    ]  # fmt: skip


SHOWN_NAMES = re.compile(
    r"(?<![\w./-])(?:(?:tests|benchmarks|deploy|docs|examples|requirements)/\w|README|[\w-]+\.md\b)"
)
"""Folders and pages of this repository that pip does not install"""


def shown_texts(source: str) -> Iterator[str]:
    """The texts of a module but its docstrings and those of attributes: what users may be shown."""
    tree = ast.parse(source)
    notes = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    texts = (node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in notes)
    yield from (node.value for node in texts if isinstance(node.value, str))


def test_no_text_that_is_shown_names_a_file_that_pip_does_not_install() -> None:
    found = {(path.name, text) for path in modules() for text in shown_texts(text_of(path)) if SHOWN_NAMES.search(text)}
    assert found == set()
    assert [*filter(SHOWN_NAMES.search, shown_texts('"""See docs/a.md."""\nX = "see docs/a.md"\nY = f"{X} a.md"'))] == [
        "see docs/a.md",
        " a.md",
    ]
