"""Names and messages in the descriptions and metadata that the UI takes for Markdown."""

from collections.abc import Iterator

import dagster as dg
import pytest
from markdown_it import MarkdownIt

from icepuffin.assets.metadata import bullet_list, plain_text
from icepuffin.assets.spec import TableSpec
from icepuffin.ops.index.definitions.index_definition import IndexDefinition
from icepuffin.orchestration.engines import Engine
from icepuffin.orchestration.factory import table_definitions
from icepuffin.orchestration.settings import GarbageSettings, TableSettings

ODD = "_a_ *b* __c__ `d` <img src=x> [e](f) ~~g~~ h_i_j \\*"
"""A name with all that Markdown takes for markup"""


def shown(markdown: str) -> str:
    """The text of a rendered document, with the tags that are not of this project's own markup."""
    tokens = MarkdownIt("gfm-like", {"linkify": False}).parse(markdown)
    own = ("paragraph", "bullet_list", "list_item", "inline", "strong", "code_inline", "text", "softbreak")
    parts = [child for token in tokens for child in (token.children or [token])]
    return "".join(child.content if child.type.startswith(own) else f"<{child.type}>" for child in parts)


def descriptions(definitions: dg.Definitions) -> Iterator[str]:
    """All descriptions of some definitions."""
    for asset in definitions.assets or ():
        specs = asset.specs if isinstance(asset, dg.AssetsDefinition) else [asset]
        yield from (str(spec.description) for spec in specs if isinstance(spec, dg.AssetSpec))
    for check in definitions.asset_checks or ():
        yield from (str(spec.description) for spec in check.check_specs)
    for one in (*(definitions.jobs or ()), *(definitions.sensors or ()), *(definitions.schedules or ())):
        yield str(one.description)


@pytest.mark.parametrize("text", [ODD, "a_b", "_", "a._b_.c", "a__b_", "|x|y|", "&lt;", "![x](http://evil.example)"])
def test_a_text_is_shown_as_it_is(text: str) -> None:
    assert shown(f"The table {plain_text(text)}.") == f"The table {text}."


def test_a_name_of_words_is_left_as_it_is() -> None:
    assert plain_text("daily_orders.of_2026") == "daily_orders.of_2026"


def test_names_of_a_table_show_as_they_are_in_all_its_descriptions() -> None:
    table = f"n.{ODD}"
    settings = TableSettings(
        catalog=f"lake {ODD}", name=table, watched_refs=("main", ODD), recall_reports="file:///reports"
    )
    index = IndexDefinition(name="e", column=ODD, target_recall=0.975)
    spec = TableSpec(settings, (index,), note=f"Beware of {ODD}.")
    engine = Engine(spark_conf={}, threads=1, driver_only_rows=0)
    texts = [shown(text) for text in descriptions(table_definitions(spec, GarbageSettings(), engine))]
    assert [text for text in texts if "at least 97.5% of the nearest rows (recall)" in text]
    about = [text for text in texts if ODD in text]
    assert not [text for text in texts if "<" in text.replace(ODD, "")]
    assert len(about) == 8  # the table, its sketches and its index, the sensor and four jobs
    (description,) = [text for text in about if "Iceberg table" in text]
    assert description.count(ODD) == 4  # the table, its catalog, a ref and the note


def test_names_of_a_summary_show_as_they_are() -> None:
    assert shown(bullet_list({ODD: ODD}).value) == f"{ODD}: {ODD}"
