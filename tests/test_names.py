"""Names and descriptions in the code: what each stands for."""

import re

from tests.repository import modules, name_of, scripts
from tests.source_facts import facts


def test_every_module_says_what_it_is() -> None:
    silent = [name_of(path) for path in modules() if facts(path).text.strip() and not facts(path).description]
    assert silent == []


def test_no_module_is_named_for_nothing() -> None:
    empty_names = {"utils", "util", "helpers", "helper", "common", "misc", "tools", "base_utils"}
    assert [path for path in modules() if path.stem in empty_names or path.parent.name in empty_names] == []


def test_a_class_name_stands_for_one_class() -> None:
    """A private name is read as the public one that it resembles."""
    places: dict[str, list[str]] = {}
    for path in modules():
        for line, name in facts(path).classes:
            places.setdefault(name.lstrip("_"), []).append(f"{name_of(path)}:{line}")
    assert {name: where for name, where in places.items() if len(where) > 1} == {}


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
