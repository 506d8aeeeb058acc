"""The rules of the house that no tool checks by itself: layers, documents that tell the truth, nothing private."""

import ast
import importlib
import io
import pkgutil
import re
import shutil
import subprocess
import sys
import tokenize
import tomllib
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import click
import pytest

from icepuffin.orchestration.cli import group
from tests.vocabulary import BRIEF_NAMES, IDIOMS, VAGUE_NAMES

REPOSITORY = Path(__file__).resolve().parents[1]
PACKAGES = ("orchestration", "assets", "ops", "puffin", "ann_kernels")
DOCUMENTS = sorted(
    path.relative_to(REPOSITORY).as_posix()
    for pattern in ("*.md", "docs/**/*.md", "deploy/*.md", "examples/**/*.md")
    for path in REPOSITORY.glob(pattern)
)
PAGE_WIDTH = 120
CELL_WIDTH = 100
_UNIT = r"(?:ms|[µun]s|s|(?:core-)?seconds?|minutes?|[KMG]i?B|%|per second|times|x)"
_NUMBER = rf"(?<![\w.-])\d[\d,.]*(?: to \d[\d,.]*)? ?{_UNIT}(?![\w-])"
FIGURE = re.compile(rf"{_NUMBER}|^\|.*\d")
MEASURED = re.compile(rf"\b(?:took|takes?|loads? in|p50|median|measured|faster|slower)\b.*{_NUMBER}|^\|.*{_NUMBER}")
LIMIT = re.compile(r"\b(?:at most|up to|at least|requests? (?:of|per)|within|every|more than)\b|\*\*Machines?\*\*")
MEASURING = re.compile(
    r"\bpython -m (?:benchmarks|icepuffin|pytest)\b|`benchmarks\.\w|(?:^|`)(?:make|sh|du|podman build) "
    r"|`tests/[\w/]+\.py`"
)
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
_SHELLS = {"sh", "bash", "console", ""}
_COMMANDS = r"(?:make|sh|icepuffin|dagster[a-z-]*|dg) [^`]+|python -m benchmarks\b[^`]*"
_SENTENCE_END = re.compile(r"(?<=[a-z0-9)\]`*\"'%])[.?!][\"'*)]* +(?=[A-Z`*\[(\"])")
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def tracked() -> Iterator[Path]:
    """Files that git has, or would take."""
    if not (REPOSITORY / ".git").exists() or not shutil.which("git"):
        pytest.skip("only git knows what is tracked: install git, and run this in a clone")
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=REPOSITORY,
        capture_output=True,
        check=True,
    )
    for name in listed.stdout.decode().split("\0"):
        if name and (REPOSITORY / name).is_file():
            yield REPOSITORY / name


def modules() -> list[Path]:
    return [path for package in PACKAGES for path in sorted((REPOSITORY / package).rglob("*.py"))]


def scripts() -> list[Path]:
    """Python files outside of the packages."""
    folders = ("benchmarks", "deploy", "docs", "examples", "icepuffin", "tests")
    return [path for folder in folders for path in sorted((REPOSITORY / folder).rglob("*.py"))]


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)


def test_imports_go_down_only() -> None:
    namespace = REPOSITORY / ".cache" / "namespace"
    if not namespace.exists():
        pytest.skip("`sh deploy/bootstrap.sh test` makes the folder in which import-linter finds the packages")
    command = [str(Path(sys.executable).with_name("lint-imports")), "--config", str(REPOSITORY / "pyproject.toml")]
    done = subprocess.run(command, cwd=namespace, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("imported", "absent"),
    [
        (("icepuffin.ops.tasks",), ("dagster", "pyspark", "py4j")),
        (("icepuffin.puffin", "icepuffin.ann_kernels"), ("dagster", "pyspark", "pyiceberg", "icepuffin.ops")),
        (tuple(f"icepuffin.ops.{room}" for room in ("index", "search", "theta", "catalog")), ("dagster", "pyspark")),
        (("icepuffin.orchestration.definitions",), ("pyspark", "py4j")),
    ],
    ids=["executors", "leaves", "library", "definitions"],
)
def test_a_room_imports_only_what_it_may(imported: tuple[str, ...], absent: tuple[str, ...]) -> None:
    """By a fresh interpreter that imports every module of the rooms: what import-linter reads, seen to happen."""
    program = (
        "import importlib, pkgutil, sys\n"
        f"for name in {imported}:\n"
        "    room = importlib.import_module(name)\n"
        "    for item in pkgutil.walk_packages(getattr(room, '__path__', []), name + '.'):\n"
        "        importlib.import_module(item.name)\n"
        f"print(sorted(set({absent}) & set(sys.modules)))\n"
    )
    done = run(sys.executable, "-c", program)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("modules", "absent"),
    [
        (("ann_kernels.metric", "ann_kernels.theta_estimates", "ann_kernels.errors"), ("numba", "pyiceberg")),
        (("assets.table_settings", "orchestration.cli.index"), ("numba", "pyiceberg")),
        (("ops.index.ddl", "ops.catalog.bound_versions"), ("numba",)),
        (("ops.theta.statistics_slot", "ops.theta.build_id", "ops.theta.estimate", "ops.theta.ndv"), ("numba",)),
        (("ops.search.overview",), ("numba", "icepuffin.ops.search.reader")),
        (("ops.runs.maintenance",), ("numba",)),
        (("ops.runs.index", "ops.runs.sketches"), ("numba",)),
    ],
    ids=["definitions of kernels", "settings", "lists of indexes", "statistics", "overviews", "garbage", "plans"],
)
def test_metadata_is_read_without_kernels(modules: tuple[str, ...], absent: tuple[str, ...]) -> None:
    """Commands that read metadata alone must start fast, and numba takes a third of a second."""
    imports = ", ".join(f"icepuffin.{module}" for module in modules)
    done = run(sys.executable, "-c", f"import sys, {imports}\nprint(sorted(set({absent}) & set(sys.modules)))")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def test_all_folders_are_installed_as_one_package() -> None:
    setuptools = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    inits = [path for room in PACKAGES for path in (REPOSITORY / room).rglob("__init__.py")]
    packages = {".".join(("icepuffin", *path.parent.relative_to(REPOSITORY).parts)) for path in inits}
    assert set(setuptools["packages"]) == packages | {"icepuffin"}
    assert setuptools["package-dir"] == {"icepuffin": "icepuffin"} | {f"icepuffin.{room}": room for room in PACKAGES}


def test_nobody_imports_a_folder_by_its_bare_name() -> None:
    bare = re.compile(rf"^\s*(?:from|import) (?:{'|'.join(PACKAGES)})\b")
    named = [
        f"{path.relative_to(REPOSITORY)}:{number}"
        for path in tracked()
        if path.suffix in {".py", ".md", ".sh"}
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if bare.search(line)
    ]
    assert named == []


def test_every_module_says_what_it_is() -> None:
    silent = [
        str(path.relative_to(REPOSITORY))
        for path in modules()
        if not ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
        and path.read_text(encoding="utf-8").strip()
    ]
    assert silent == []


def test_no_module_is_named_for_nothing() -> None:
    empty_names = {"utils", "util", "helpers", "helper", "common", "misc", "tools", "base_utils"}
    assert [path for path in modules() if path.stem in empty_names or path.parent.name in empty_names] == []


def test_a_class_name_stands_for_one_class() -> None:
    places: dict[str, list[str]] = {}
    for path in modules():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(f"{path.relative_to(REPOSITORY)}:{node.lineno}")
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


def test_the_description_of_an_attribute_is_a_noun_phrase() -> None:
    """One that a reader understands without the line above it, so none that begins with "Of" or "That"."""
    dependent = re.compile(r"(?:Of|That|Theirs|Whose|By|For which|Where|Under|Or|As|Those|These|Likewise)\b")
    fragments = [
        f"{path.relative_to(REPOSITORY)}:{text.lineno}: {text.value.value}"
        for path in modules()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        for before, text in pairwise(node.body if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) else ())
        if isinstance(before, ast.Assign | ast.AnnAssign) and isinstance(text, ast.Expr)
        if isinstance(text.value, ast.Constant) and isinstance(text.value.value, str)
        if dependent.match(text.value.value)
    ]
    assert fragments == []


def test_the_description_of_a_function_is_no_fragment() -> None:
    """It names what is returned or done. "Of one table." needs the name before it."""
    dependent = re.compile(
        r"(?:Of|That|Theirs|Whose|By|For which|Under|Or|As|Those|Likewise|Such as|Its|Their|Without)\b"
    )
    fragments = [
        f"{path.relative_to(REPOSITORY)}:{node.lineno}: {node.name}: {text}"
        for path in modules()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        if (text := ast.get_docstring(node)) and dependent.match(text)
    ]
    assert fragments == []


def test_a_name_says_what_it_holds() -> None:
    names = []
    for path in modules():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            name, allowed = "", set[str]()
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                name, allowed = node.id, {*BRIEF_NAMES, "gone"}  # a key of JSON reports
            elif isinstance(node, ast.arg):
                name, allowed = node.arg, set(BRIEF_NAMES)
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                name = node.name
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                name = node.attr
            if name.lstrip("_") in set(VAGUE_NAMES) - allowed:
                names.append(f"{path.relative_to(REPOSITORY)}:{node.lineno}: {name}")
    assert names == []


def test_a_vague_name_lives_for_three_lines_at_most() -> None:
    """Outside of the packages, too. A name of a comprehension lives within it. `left` is a side, beside `right`."""
    scopes = (
        ast.Module,
        ast.FunctionDef,
        ast.AsyncFunctionDef,
        ast.Lambda,
        ast.ListComp,
        ast.SetComp,
        ast.DictComp,
        ast.GeneratorExp,
    )
    lasting = [
        f"{path.relative_to(REPOSITORY)}:{first}-{last}: {name}"
        for path in tracked()
        if path.suffix == ".py"
        for scope in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(scope, scopes)
        for name, first in bound_names(scope, scopes)
        if name in VAGUE_NAMES and (last := last_line_of(name, scope)) > first + 2
        if name != "left" or not re.search(r"\bright\b|\bleft side\b", path.read_text(encoding="utf-8"))
    ]
    assert lasting == []


def test_the_rules_show_the_list_of_vague_names() -> None:
    rules = (REPOSITORY / "CONTRIBUTING.md").read_text(encoding="utf-8")
    listed = re.search(r"^- A value is named for its content\..*?(?=^- )", rules, re.MULTILINE | re.DOTALL)
    assert listed is not None
    never, _, briefly = listed[0].partition("three lines")
    assert sorted(re.findall(r"`(\w+)`", never)) == sorted(VAGUE_NAMES)
    assert sorted(re.findall(r"`(\w+)`", briefly)) == sorted(BRIEF_NAMES)


def bound_names(scope: ast.AST, scopes: tuple[type[ast.AST], ...]) -> Iterator[tuple[str, int]]:
    """(name, line) of each variable and parameter of a scope, without those of the scopes within it."""
    for node in ast.iter_child_nodes(scope):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno
        elif not isinstance(node, scopes):
            yield from bound_names(node, scopes)


def last_line_of(name: str, scope: ast.AST) -> int:
    return max(
        node.lineno
        for node in ast.walk(scope)
        if (isinstance(node, ast.Name) and node.id == name) or (isinstance(node, ast.arg) and node.arg == name)
    )


@pytest.mark.parametrize("what", PRIVATE)
def test_nothing_private_is_committed(what: str) -> None:
    matches = []
    for path in tracked():
        if path == Path(__file__).resolve():
            continue  # it names what it looks for
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        matches += [
            f"{path.relative_to(REPOSITORY)}:{number}: {line.strip()[:100]}"
            for number, line in enumerate(text.splitlines(), start=1)
            if re.search(PRIVATE[what], line)
        ]
    assert matches == []


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_lead_somewhere(document: str) -> None:
    path = REPOSITORY / document
    text = path.read_text(encoding="utf-8")
    for target in _LINK.findall(text):
        if target.startswith(("http://", "https://", "mailto:")):
            continue
        name, _, anchor = target.partition("#")
        file = (path.parent / name).resolve() if name else path
        assert file.exists(), f"{document}: {target}"
        assert REPOSITORY in file.parents or file == REPOSITORY
        if anchor:
            headings = re.findall(r"^#+ (.+)$", file.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in {_anchor(heading) for heading in headings}, f"{document}: {target}"


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def lines_of(document: str) -> Iterator[tuple[int, str, str]]:
    """(number, kind, line) of every line; kinds: prose, table, and the language of a block of code ("" for none)."""
    language: str | None = None
    for number, line in enumerate((REPOSITORY / document).read_text(encoding="utf-8").splitlines(), start=1):
        if line.startswith("```"):
            language = line[3:].strip() if language is None else None
        elif language is not None:
            yield number, language, line
        elif line.startswith("    ") and line.strip():
            yield number, "", line
        else:
            yield number, "table" if line.startswith("|") else "prose", line


@pytest.mark.parametrize("document", DOCUMENTS)
def test_a_document_fits_its_page(document: str) -> None:
    """Lines of prose and code have 120 characters at most. A row of a table cannot be broken: its cells have 100."""
    wide = [
        f"{document}:{number}: {len(line)} characters"
        for number, kind, line in lines_of(document)
        if (
            max(len(cell.strip()) for cell in re.split(r"(?<!\\)\|", line)) > CELL_WIDTH
            if kind == "table"
            else len(line) > PAGE_WIDTH
        )
    ]
    assert wide == []


@pytest.mark.parametrize("document", DOCUMENTS)
def test_a_line_of_a_document_has_one_sentence(document: str) -> None:
    """So that a change of a sentence is a change of its lines alone."""
    several = [
        f"{document}:{number}: {line}"
        for number, kind, line in lines_of(document)
        if kind == "prose" and _SENTENCE_END.search(re.sub(r"^(?:#+|\s*) ?\d+\. ", "", line))
    ]
    assert several == []


@pytest.mark.parametrize("document", DOCUMENTS)
def test_a_document_has_no_private_idiom(document: str) -> None:
    """CONTRIBUTING.md, "Words"."""
    idioms = [
        f"{document}:{number}: write {plain}: {line.strip()}"
        for number, kind, line in lines_of(document)
        if kind in {"prose", "table"}
        for plain, idiom in IDIOMS.items()
        if re.search(idiom, re.sub(r"`[^`]*`", "", line))
    ]
    assert idioms == []


def test_the_prose_of_code_has_no_private_idiom() -> None:
    """Comments, descriptions and messages. Keys that others read are words of their own: `told` in the cursor."""
    texts = [
        (path, token.start[0], re.sub(r"`[^`]*`|^[^ ]*$|\s+", " ", token.string))
        for path in (*modules(), *scripts())
        if path.name != "vocabulary.py"
        for token in tokenize.generate_tokens(io.StringIO(path.read_text(encoding="utf-8")).readline)
        if token.type in {tokenize.COMMENT, tokenize.STRING}
    ]
    idioms = [
        f"{path.relative_to(REPOSITORY)}:{number}: write {plain}: {text}"
        for path, number, text in texts
        for plain, idiom in IDIOMS.items()
        if re.search(idiom, text)
    ]
    assert idioms == []


def test_the_glossary_is_short() -> None:
    glossary = REPOSITORY / "docs" / "glossary.md"
    terms = re.findall(r"^\*\*(.+?)\*\*", glossary.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(terms) == len(set(terms))
    assert 20 < len(terms) <= 45


@pytest.mark.parametrize("document", DOCUMENTS)
def test_files_and_modules_that_a_document_names_exist(document: str) -> None:
    text = (REPOSITORY / document).read_text(encoding="utf-8")
    folders = "|".join((*PACKAGES, "tests", "benchmarks", "deploy", "docs", "examples", "requirements"))
    files = re.findall(rf"(?<![\w./-])((?:{folders})/[\w./-]*\w)", text)
    made_by_the_reader = {"deploy/.env"}
    assert [file for file in files if not (REPOSITORY / file).exists() and file not in made_by_the_reader] == []
    for name in re.findall(rf"\bicepuffin\.(?:{'|'.join(PACKAGES)})(?:\.\w+)*", text):
        assert pkgutil.resolve_name(name)


def test_the_runbook_quotes_messages_that_there_are() -> None:
    """Somebody who is on call looks for the words that they see; `...` stands for what differs."""
    literals = "\n".join(
        node.value
        for path in modules()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )
    of_the_system = {"No space left", "File too large", "Input/output error"}
    headings = [line for _, kind, line in lines_of("docs/operations.md") if kind == "prose" and line.startswith("**")]
    messages = [message for line in headings for message in re.findall(r"(?<!\w)_([^_]+)_(?!\w)", line)]
    assert len(messages) > 20
    parts = {part.strip(" ,") for message in messages for part in message.split("...")} - of_the_system
    assert [part for part in sorted(parts) if part not in literals] == []


def commands_of_documents() -> list[tuple[str, str]]:
    """(document, command line) of every command that a document tells the reader to type."""
    matches = []
    for document in DOCUMENTS:
        text = (REPOSITORY / document).read_text(encoding="utf-8")
        lines = [line.strip() for _, kind, line in lines_of(document) if kind in _SHELLS]
        lines += re.findall(rf"`({_COMMANDS})`", text)
        matches += [(document, re.split(r"\s{2,}#|\s#\s", line)[0].strip()) for line in lines]
    return [(document, line) for document, line in matches if re.match(_COMMANDS, line)]


def test_the_documents_tell_commands() -> None:
    assert len(commands_of_documents()) > 10


@pytest.mark.parametrize(("document", "line"), commands_of_documents())
def test_a_command_that_a_document_names_exists(
    document: str, line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program, *words = line.split()
    if program == "make":
        targets = re.search(r"^\.PHONY: (.+)$", (REPOSITORY / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
        assert targets is not None
        assert words[0] in targets[1].split()
    elif program == "sh":
        script = (REPOSITORY / words[0]).read_text(encoding="utf-8")
        assert re.search(rf"^    (?:\S+ \| )*{words[1]}(?: \| \S+)*\)", script, re.MULTILINE) or words[1] == "help"
    elif program == "icepuffin":
        assert_options_exist(words)
    elif program == "python":
        name = words[1] if "." in words[1] else "benchmarks.kernels"  # whose options `benchmarks` takes
        monkeypatch.setattr(sys, "argv", [name, "--help"])
        with pytest.raises(SystemExit) as ended:
            importlib.import_module(name).main()
        assert ended.value.code == 0
        options = set(re.findall(r"^ +(--[\w-]+)", capsys.readouterr().out, re.MULTILINE))
        assert {word for word in words[2:] if word.startswith("--")} <= options
    else:
        assert Path(sys.executable).with_name(program).exists()


def assert_options_exist(words: list[str]) -> None:
    """Walk down the command groups, then look each option up."""
    command: click.Command = group
    options = {option for item in group.params for option in item.opts}
    for word in words:
        if isinstance(command, click.Group) and not word.startswith("-"):
            found = command.get_command(click.Context(command), word)
            assert found is not None, f"there is no command {word}"
            command = found
            options |= {option for item in command.get_params(click.Context(command)) for option in item.opts}
        elif re.match(r"-{1,2}[a-z]", word):
            assert word in options, f"there is no option {word}"


def test_every_benchmark_is_imported() -> None:
    for path in (REPOSITORY / "benchmarks").glob("*.py"):
        importlib.import_module(f"benchmarks.{path.stem}")


@pytest.mark.parametrize("document", DOCUMENTS)
def test_a_measured_figure_stands_beside_the_command_that_gives_it(document: str) -> None:
    """In the same section. A limit ("at most 5 MB") is no measurement; pages of measurements have no other figures."""
    level, is_measurement = (2, FIGURE) if document.startswith("docs/performance/") else (3, MEASURED)
    without = []
    for heading, lines in sections_of(document, level):
        figures = [line for line in lines if is_measurement.search(line) and not LIMIT.search(line)]
        if figures and not any(MEASURING.search(line) for line in lines):
            without.append(f"{heading}: {figures[0]}")
    assert without == []


def sections_of(document: str, level: int) -> Iterator[tuple[str, list[str]]]:
    """(heading, lines) of each section down to a level of headings, the command lines of its code among them."""
    heading, section = document, list[str]()
    for _, kind, line in lines_of(document):
        if kind == "prose" and re.match(rf"#{{1,{level}}} ", line):
            yield heading, section
            heading, section = line, []
        elif kind in {"prose", "table"} or MEASURING.search(line):
            section.append(line)
    yield heading, section


@pytest.mark.parametrize(
    ("line", "is_measured"),
    [
        ("Definitions of 200 tables load in 2.1 s.", True),
        ("| queries per second | 34,500 |", False),  # a table of figures has units in its head: see `FIGURE`
        ("It takes 4.4 to 5.7 s.", True),
        ("A catalog has 4 s to answer.", False),
        ("A search takes at most 4 s.", False),
        ("the gate took 12 % of the build", True),
    ],
)
def test_measurements_are_told_from_settings(line: str, is_measured: bool) -> None:
    assert bool(MEASURED.search(line) and not LIMIT.search(line)) is is_measured


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


def test_the_lock_holds_what_is_asked_for() -> None:
    lock = (REPOSITORY / "requirements" / "lock.txt").read_text(encoding="utf-8")
    pinned = set(re.findall(r"^([a-z0-9._-]+)(?:\[[^]]+\])?==", lock, re.MULTILINE))
    for name in ("runtime.in", "dev.in", "examples.in"):
        for line in (REPOSITORY / "requirements" / name).read_text(encoding="utf-8").splitlines():
            wanted = re.match(r"[A-Za-z0-9._-]+", line)
            assert wanted is not None
            assert wanted[0].lower() in pinned, f"{line} is not in the lock"


def test_ci_runs_the_command_that_the_documents_name() -> None:
    assert "exec sh deploy/bootstrap.sh test" in (REPOSITORY / ".ci" / "run").read_text(encoding="utf-8")
    for document in ("README.md", "CONTRIBUTING.md"):
        assert "make test" in (REPOSITORY / document).read_text(encoding="utf-8")


def test_markers_are_used_and_declared() -> None:
    declared = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
    names = {line.split(":")[0] for line in declared["tool"]["pytest"]["ini_options"]["markers"]}
    markers = set()
    for path in (REPOSITORY / "tests").rglob("*.py"):
        markers |= set(re.findall(r"pytest\.mark\.(\w+)", path.read_text(encoding="utf-8")))
    builtin = {"parametrize", "skipif", "skip", "filterwarnings", "usefixtures", "timeout", "xfail"}
    assert markers - builtin <= names
