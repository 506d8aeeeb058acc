"""Documents: their form, and that what they say of files, commands, links and figures is so."""

import importlib
import pkgutil
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from tests.repository import DOCUMENTS, PACKAGES, REPOSITORY, modules
from tests.source_facts import facts

PAGE_WIDTH = 120
CELL_WIDTH = 100
_UNIT = r"(?:ms|[µun]s|s|(?:core-)?seconds?|minutes?|[KMG]i?B|%|per second|times|x)"
_NUMBER = rf"(?<![\w.-])\d[\d,.]*(?: to \d[\d,.]*)? ?{_UNIT}(?![\w-])"
FIGURE = re.compile(rf"{_NUMBER}|^\|.*\d")
MEASURED = re.compile(rf"\b(?:took|takes?|loads? in|p50|median|measured|faster|slower)\b.*{_NUMBER}|^\|.*{_NUMBER}")
LIMIT = re.compile(r"\b(?:at most|up to|at least|requests? (?:of|per)|within|every|more than)\b|\*\*Machines?\*\*")
MEASURING = re.compile(
    r"\bpython -m (?:benchmarks|icepuffin|pytest)\b|`benchmarks\.\w|(?:^|`)(?:make|sh|du|podman build) "
    r"|`tests/[\w/]+\.py`|^python deploy/\w+\.py\b"
)
_SHELLS = {"sh", "bash", "console", ""}
_COMMANDS = r"(?:make|sh|icepuffin|dagster[a-z-]*|dg) [^`]+|python -m benchmarks\b[^`]*"
PROGRAMS = {
    "icepuffin": "icepuffin.orchestration.cli:group",
    "dg": "dagster_dg_cli.cli:cli",
    "dagster": "dagster._cli:cli",
    "dagster-daemon": "dagster._daemon.cli:cli",
    "dagster-webserver": "dagster_webserver.cli:dagster_webserver",
}
"""The command of click behind each program that documents name"""
_SENTENCE_END = re.compile(r"(?<=[a-z0-9)\]`*\"'%])[.?!][\"'*)]* +(?=[A-Z`*\[(\"])")
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


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
def test_files_and_modules_that_a_document_names_exist(document: str) -> None:
    text = (REPOSITORY / document).read_text(encoding="utf-8")
    folders = "|".join((*PACKAGES, "tests", "benchmarks", "deploy", "docs", "examples", "requirements"))
    files = re.findall(rf"(?<![\w./-])((?:{folders})/[\w./-]*\w)", text)
    files_of_the_reader = {"deploy/.env"}
    assert [file for file in files if not (REPOSITORY / file).exists() and file not in files_of_the_reader] == []
    for name in re.findall(rf"\bicepuffin\.(?:{'|'.join(PACKAGES)})(?:\.\w+)*", text):
        assert pkgutil.resolve_name(name)


def test_the_runbook_quotes_messages_that_there_are() -> None:
    """Somebody who is on call looks for the words that they see; `...` stands for what differs."""
    literals = "\n".join(text for path in modules() for text in facts(path).texts)
    of_the_system = {"No space left", "File too large", "Input/output error"}
    headings = [line for _, kind, line in lines_of("docs/operations.md") if kind == "prose" and line.startswith("**")]
    messages = [message for line in headings for message in re.findall(r"(?<!\w)_([^_]+)_(?!\w)", line)]
    assert len(messages) > 20
    parts = {part.strip(" ,") for message in messages for part in message.split("...")} - of_the_system
    assert [part for part in sorted(parts) if part not in literals] == []


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("dg docs serve", "no command docs"),
        ("dagster run remove", "no command remove"),
        ("icepuffin refresh --quickly", "no option --quickly"),
    ],
)
def test_a_command_that_does_not_exist_is_named(line: str, fault: str) -> None:
    program, *words = line.split()
    with pytest.raises(AssertionError, match=fault):
        assert_options_exist(words, pkgutil.resolve_name(PROGRAMS[program]))


def commands_of_documents() -> list[tuple[str, str]]:
    """(document, command line) of every command that a document tells the reader to type."""
    matches = []
    for document in DOCUMENTS:
        text = (REPOSITORY / document).read_text(encoding="utf-8")
        lines = [line.strip() for _, kind, line in lines_of(document) if kind in _SHELLS]
        lines += re.findall(rf"`({_COMMANDS})`", text)
        matches += [(document, re.split(r"\s{2,}#|\s#\s", line)[0].strip()) for line in lines]
    return [(document, line) for document, line in matches if re.match(_COMMANDS, line)]


def test_the_documents_have_commands() -> None:
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
    elif program in PROGRAMS:
        assert Path(sys.executable).with_name(program).exists()
        assert_options_exist(words, pkgutil.resolve_name(PROGRAMS[program]))
    elif program == "python":
        name = words[1] if "." in words[1] else "benchmarks.kernels"  # whose options `benchmarks` takes
        monkeypatch.setattr(sys, "argv", [name, "--help"])
        with pytest.raises(SystemExit) as ended:
            importlib.import_module(name).main()
        assert ended.value.code == 0
        options = set(re.findall(r"^ +(--[\w-]+)", capsys.readouterr().out, re.MULTILINE))
        assert {word for word in words[2:] if word.startswith("--")} <= options
    else:
        pytest.fail(f"{program} is none of {', '.join(PROGRAMS)}")


def test_a_release_runs_every_command_that_ci_leaves_out() -> None:
    """All targets that the Makefile has beside CI's and those that only measure."""
    targets = re.search(r"^\.PHONY: (.+)$", (REPOSITORY / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert targets is not None
    left_out = set(targets[1].split()) - {
        "help",
        "setup",
        "demo",
        "lint",
        "quick",
        "durations",
        "bench",
        "mutants",
        "clauses",
        "flaky",
        "fuzz",
    }
    (release,) = ["\n".join(lines) for heading, lines in sections_of("CONTRIBUTING.md", 2) if heading == "## A release"]
    assert {f"make {target}" for target in left_out} <= set(re.findall(r"`(make \w+)`", release))
    others = ("tests/orchestration/test_merged_packages.py", "deploy/try_containers.py", "bootstrap.sh charts")
    assert [command for command in others if command not in release] == []


def assert_options_exist(words: list[str], command: click.Command) -> None:
    """Walk down the command groups, then look each option up."""
    options = {option for item in command.params for option in item.opts}
    for word in words:
        if isinstance(command, click.Group) and "." in word:
            break  # a component, which Dagster looks up in a project
        if isinstance(command, click.Group) and not word.startswith("-"):
            found = command.get_command(click.Context(command), word)
            assert found is not None, f"there is no command {word}"
            command = found
            context = click.Context(command, help_option_names=["-h", "--help"])  # click keeps the first that is asked
            options |= {option for item in command.get_params(context) for option in item.opts}
        elif re.match(r"-{1,2}[a-z]", word):
            assert word in options, f"there is no option {word}"


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
def test_measurements_are_told_apart_from_settings(line: str, is_measured: bool) -> None:
    assert bool(MEASURED.search(line) and not LIMIT.search(line)) is is_measured


KIB, MIB, GIB, TIB = 2**10, 2**20, 2**30, 2**40
_IN_WORDS = {5: "five", 8: "eight", 10: "tenth", 16: "sixteenth"}
CONSTANTS: tuple[tuple[str, str, str, str, float], ...] = (
    ("changing-the-model.md", "- {} % of the rows lie in other files", "ops.index.vain_builds", "OTHER_ROWS", 0.01),
    (
        "how-a-search-works.md",
        "up to one place for {} rows of the shard",
        "ann_kernels.graphs.graph_search",
        "_WALKED_WHERE_LOST",
        1,
    ),
    ("how-a-search-works.md", "fewer than {} rows for each centroid", "ops.search.tuning", "_ROWS_PER_CENTROID", 1),
    (
        "concepts.md",
        "covers each of the other shards once in {} refreshes",
        "ops.index.verify.proof",
        "CHECK_INTERVAL",
        1,
    ),
    (
        "concepts.md",
        "covers a {} of the bytes that were written for the version",
        "ops.index.verify.proof",
        "_ONE_BYTE_IN",
        1,
    ),
    ("concepts.md", "Up to {} rows of each of four data files are read", "ops.index.verify.proof", "_ROWS", 1),
    ("concepts.md", "exact search on a sample: {} rows at k = 10", "ops.recall.curves", "GATE_QUERIES", 1),
    ("concepts.md", "up to a {} of the bytes that stay", "ops.index.masked_recall", "_ONE_BYTE_IN", 1),
    ("concepts.md", "of the bytes that stay, {} MiB at least", "ops.index.masked_recall", "_ALWAYS_MEASURED", MIB),
    ("concepts.md", "by {} to 64 rows each", "ops.index.masked_recall", "_MIN_QUERIES", 1),
    (
        "concepts.md",
        "with the values of included columns, of {} MiB and more",
        "ops.index.versions.index_packs",
        "PACK_BYTES",
        MIB,
    ),
    ("concepts.md", "{}/128 of their bytes is enough", "ops.index.versions.index_packs", "WORTH_SHARE", 1 / 128),
    (
        "concepts.md",
        "More than {} TiB, or than an upload takes",
        "ops.index.versions.index_packs",
        "MAX_PACK_BYTES",
        TIB,
    ),
    ("concepts.md", "an upload takes in {} parts", "ops.index.versions.index_packs", "MAX_PACK_PARTS", 1),
    ("concepts.md", "pieces would be of less than {} KiB", "ops.shards.vector_runs", "MIN_BYTES", KIB),
    ("concepts.md", "From {} runs on", "ops.shards.vector_runs", "MAX_RUNS", 1),
    ("concepts.md", "of their longest files alone, up to [{} MiB]", "ops.theta.file_sketches", "BUDGET_BYTES", MIB),
    (
        "concepts.md",
        "(#packs-files-that-versions-share), too, from {} KiB on",
        "ops.theta.sketch_packs",
        "PACK_BYTES",
        KIB,
    ),
    ("concepts.md", "once for each factor of {} in size", "ops.theta.sketch_packs", "_CLASS", 1),
    ("how-a-search-works.md", "at most 128 cells, and {} MiB.", "ops.shards.cell_rows", "MAX_BYTES", MIB),
    ("operations.md", "and the shards: at most {},", "assets.metadata", "MAX_TABLE_ROWS", 1),
    ("operations.md", "is {} MiB for the process", "ops.tasks.task_runner", "PROCESS_MEMORY", MIB),
    ("operations.md", "takes {} times the mean shard as the largest", "ops.index.planning.sizes", "IMBALANCE", 1),
    ("operations.md", "{} bytes per row of a shard and thread", "ops.runs.requirements", "_NODE_BYTES", 1),
    ("operations.md", "{} bytes per row that is new or deleted", "ops.runs.requirements", "_ROW_BYTES", 1),
    (
        "operations.md",
        "| {} times the largest shard: one is read now and then",
        "ops.runs.requirements",
        "_SEARCH_FACTOR",
        1,
    ),
    (
        "operations.md",
        "sketches of all files and columns, [{} MiB at most]",
        "ops.runs.requirements",
        "_MAX_SKETCHES",
        MIB,
    ),
    ("operations.md", "{} bytes per row and column of `filters`", "ops.runs.requirements", "_VALUE_BYTES", 1),
    ("operations.md", "of `filters`, or {} of lists", "ops.runs.requirements", "_LIST_BYTES", 1),
    ("operations.md", "called again every {} s *by one of the tables*", "ops.resources", "AWAY_SECONDS", 1),
    ("operations.md", "After {} minutes of that", "orchestration.sensor.sensor_definition", "_AWAY_MINUTES", 1),
    (
        "operations.md",
        "median error of the last {} versions of this index",
        "ops.binding.measurements",
        "EARLIER_VERSIONS",
        1,
    ),
    ("operations.md", "Its log names the first {} versions", "ops.messages", "MAX_LISTED", 1),
    ("operations.md", "S3 is sent up to {} names in one request", "ops.storage.base", "DELETIONS", 1),
    ("operations.md", "snapshot keeps them for {} days", "ops.table.blob_kind", "SIDE_TAG_AGE_MS", 86_400_000),
    ("operations.md", "A file over {} MiB is therefore uploaded", "ops.storage.buckets", "_PART", MIB),
    ("operations.md", "or an {}th of an index file", "ops.storage.buckets", "_PARTS", 1),
    (
        "dagster.md",
        "the materialised ones among more than {} partitions",
        "orchestration.sensor.facts",
        "_MAX_NAMED_PARTITIONS",
        1,
    ),
    ("settings.md", "{} minutes before they expire, or when a quarter", "ops.storage.credentials", "_EARLY_MS", 60_000),
    ("settings.md", "every {} minutes where there is a token", "ops.storage.credentials", "_RENEWAL_MS", 60_000),
    ("settings.md", "refused is sent again, up to {} times", "ops.binding.commit", "COMMIT_ATTEMPTS", 1),
    (
        "performance/scale.md",
        "writes into Dagster for {} s of the clock",
        "orchestration.sensor.sensor_definition",
        "WRITING_SECONDS",
        1,
    ),
    ("frameworks.md", "An answer has at most {} rows", "orchestration.cli.mcp", "_MAX_ANSWER", 1),
    ("frameworks.md", "a text in a call at most {} letters", "orchestration.cli.mcp", "_MAX_LETTERS", 1),
)
"""(page, words with a gap for a number, module, its constant, the unit that the number is in)"""


@pytest.mark.parametrize(
    ("page", "words", "module", "name", "unit"), CONSTANTS, ids=lambda part: str(part).split(".")[-1]
)
def test_a_limit_that_a_page_states_is_that_of_the_code(
    page: str, words: str, module: str, name: str, unit: float
) -> None:
    number = getattr(importlib.import_module(f"icepuffin.{module}"), name) / unit
    text = (REPOSITORY / "docs" / page).read_text(encoding="utf-8")
    in_digits = f"{number:,.1f}".removesuffix(".0")
    assert any(words.replace("{}", it) in text for it in (in_digits, _IN_WORDS.get(number, in_digits))), in_digits
