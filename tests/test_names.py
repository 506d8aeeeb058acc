"""Names and descriptions in the code: what each stands for, in the words of the glossary."""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.repository import PACKAGES, REPOSITORY, modules, name_of, scripts, tracked
from tests.source_facts import Name, facts, literals
from tests.vocabulary import ACTIVITIES, BRIEF_NAMES, SPEAKING_WITH_ANOTHER, VAGUE_NAMES, plainer


def python_files() -> Iterator[Path]:
    """All that are tracked, or would be."""
    return (path for path in tracked() if path.suffix == ".py")


def test_every_module_says_what_it_is() -> None:
    silent = [name_of(path) for path in modules() if facts(path).text.strip() and not facts(path).description]
    assert silent == []


def test_no_module_is_named_for_nothing() -> None:
    empty_names = {"utils", "util", "helpers", "helper", "common", "misc", "tools", "base_utils"}
    assert [path for path in modules() if path.stem in empty_names or path.parent.name in empty_names] == []


def test_a_module_is_named_by_a_noun() -> None:
    """The last word of its name is no participle, no verb and no preposition; `ACTIVITIES` are nouns of the field."""
    others = re.compile(r".*(?:ed|ing|ize)|warm|evaluate|create|drop|load|open|find|make|by|of|at|on|in|to|for|with")
    words = {path: path.stem.strip("_").rsplit("_", 1)[-1] for path in modules()}
    assert [path for path, word in words.items() if others.fullmatch(word) and word not in ACTIVITIES] == []


def test_a_class_name_stands_for_one_class() -> None:
    """A private name is read as the public one that it resembles."""
    places: dict[str, list[str]] = {}
    for path in modules():
        for line, name, kind in facts(path).names:
            if kind == "class":
                places.setdefault(name.lstrip("_"), []).append(f"{name_of(path)}:{line}")
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


def test_no_class_is_named_by_a_participle() -> None:
    """`ChangedTable`, not `Changed`."""
    names = [
        f"{name_of(path)}:{line}: {name}"
        for path in python_files()
        for line, name, kind in facts(path).names
        if kind == "class" and words_of(name).endswith("ed")
    ]
    assert names == []


def test_the_description_of_an_attribute_is_a_noun_phrase() -> None:
    """One that a reader understands without the line above it: none that begins with "Of" or a verb, or points at the
    attribute before it by "these" or "of it".
    """
    dependent = re.compile(
        r"(?:Of|That|Theirs|Whose|By|For|Where|When|Why|Under|Or|As|Those|These|Likewise|The same|Its?|Nothing"
        r"|Not|Empty|None|True|False|Relative to|May|Is|Has|Stands|Starts|Ends|Gives|Takes|Waits|Called|Scan|Read)\b"
        r"|[^.;:,]*\b(?:these\b|those (?:columns|files|nodes|queries|rows|searches|shards)\b"
        r"|(?:of|in|by) (?:it|them)(?=$|[.,;:]))"
    )
    fragments = [
        f"{name_of(path)}:{line}: {text}"
        for path in (*modules(), *scripts())
        for line, text in facts(path).attribute_texts
        if dependent.match(text)
    ]
    assert fragments == []


def test_the_description_of_a_function_is_no_fragment() -> None:
    """It names what is returned or done. "Of one table." needs the name before it."""
    dependent = re.compile(
        r"(?:Of|That|Theirs|Whose|By|For which|Under|Or|As|Those|Likewise|Such as|Its|Their|Without)\b"
    )
    fragments = [
        f"{name_of(path)}:{line}: {name}: {text}"
        for path in modules()
        for line, name, text in facts(path).descriptions
        if dependent.match(text)
    ]
    assert fragments == []


def test_a_name_says_what_it_holds() -> None:
    allowed = {"variable": {*BRIEF_NAMES, "gone"}, "parameter": set(BRIEF_NAMES)}  # "gone" is a key of JSON reports
    names = [
        f"{name_of(path)}:{line}: {name}"
        for path in modules()
        for line, name, kind in facts(path).names
        if kind != "keyword" and name.lstrip("_") in set(VAGUE_NAMES) - allowed.get(kind, set())
    ]
    assert names == []


def test_a_vague_name_lives_for_three_lines_at_most() -> None:
    """Outside of the packages, too. A name of a comprehension lives within it. `left` is a side, beside `right`."""
    lasting = [
        f"{name_of(path)}:{first}-{last}: {name}"
        for path in python_files()
        for first, last, name in facts(path).vague_names
        if last > first + 2
        if name != "left" or not re.search(r"\bright\b|\bleft side\b", facts(path).text)
    ]
    assert lasting == []


@cache
def words_of(name: str) -> str:
    """`LostRaceError` and `lost_race_error` as "lost race error"."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name).replace("_", " ").lower().strip()


@cache
def plainer_name(name: str) -> list[str]:
    """As `plainer`: many places have the same name."""
    return plainer(words_of(name))


def identifiers(path: Path) -> list[Name]:
    """What a file names, each once a line."""
    return sorted(set(facts(path).names))


def test_no_identifier_has_a_private_idiom() -> None:
    """Names of tests are read as sentences, and so are held to the words of sentences."""
    idioms = [
        f"{name_of(path)}:{line}: {name}: write {plain}"
        for path in python_files()
        for line, name, _ in identifiers(path)
        for plain in plainer_name(name)
    ]
    assert idioms == []


def test_no_part_of_a_name_is_vague() -> None:
    """`found_files` leaves open which files they are. In the names of tests such words are verbs."""
    vague = set(VAGUE_NAMES) - SPEAKING_WITH_ANOTHER
    parts = [
        f"{name_of(path)}:{line}: {name}"
        for path in python_files()
        for line, name, _ in identifiers(path)
        if not name.startswith("test_") and " " in words_of(name) and not vague.isdisjoint(words_of(name).split())
    ]
    assert parts == []


def test_the_rules_show_the_list_of_vague_names() -> None:
    rules = (REPOSITORY / "CONTRIBUTING.md").read_text(encoding="utf-8")
    listed = re.search(r"^- A value is named for its content\..*?(?=^- )", rules, re.MULTILINE | re.DOTALL)
    assert listed is not None
    never, _, briefly = listed[0].partition("three lines")
    assert sorted(re.findall(r"`(\w+)`", never)) == sorted(VAGUE_NAMES)
    assert sorted(re.findall(r"`(\w+)`", briefly)) == sorted(BRIEF_NAMES)


def test_the_prose_of_code_has_no_private_idiom() -> None:
    """Comments, descriptions and messages. Keys that others read are words of their own: `told` in the cursor."""
    idioms = [
        f"{name_of(path)}:{line}: write {plain}: {text}"
        for path in (*modules(), *scripts())
        if path.name != "vocabulary.py"
        for line, text in literals(path)
        if " " in text
        for plain in plainer(without_code(" ".join(text.split())))
    ]
    assert idioms == []


def without_code(text: str) -> str:
    """A text without what stands in backticks."""
    return re.sub(r"`[^`]*`", " ", text) if "`" in text else text


def test_comments_are_none_within_texts_nor_texts_within_comments(tmp_path: Path) -> None:
    file = tmp_path / "module.py"
    file.write_text("""one = rb'# "' # it's "one"\ntwo = f\'\'\'a'\\\'#{one}\n\'\'\', "\\"#"\nthree = ''#\n""")
    assert literals(file) == (
        (1, "'# \"'"),
        (1, '# it\'s "one"'),
        (2, "'''a'\\'#{one}\n'''"),
        (3, '"\\"#"'),
        (4, "''"),
        (4, "#"),
    )


def test_the_comments_of_configuration_have_no_private_idiom() -> None:
    kinds = {".cfg", ".ini", ".sh", ".toml", ".yaml", ".yml"}
    idioms = [
        f"{name_of(path)}:{number}: write {plain}: {comment[0]}"
        for path in tracked()
        if path.suffix in kinds or path.name in {"Dockerfile", "Makefile", "run"}
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if (comment := re.search(r"(?:^|\s)#.*", line))
        for plain in plainer(without_code(comment[0]))
    ]
    assert idioms == []


def test_a_description_has_no_arrow() -> None:
    """An arrow is the notation of types. A description says what a function returns."""
    arrows = [
        f"{name_of(path)}:{line}: {name}"
        for path in (*modules(), *scripts())
        for line, name, text in facts(path).descriptions
        if re.search(r"(?:^|[;.]\s+)-> ", text)
    ]
    assert arrows == []


def test_a_module_is_named_from_the_root() -> None:
    """`icepuffin.ops.search`, as it is imported: whoever reads an error or a description has not seen the folders."""
    bare = re.compile(rf"`(?:{'|'.join(PACKAGES)})\.\w[^`]*`")
    names = [
        f"{name_of(path)}:{line}: {name[0]}"
        for path in (*modules(), *scripts())
        for line, text in literals(path)
        if (name := bare.search(text))
    ]
    assert names == []
