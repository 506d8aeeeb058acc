"""Index parameters have one list of names, defaults and limits, wherever they are set."""

from dataclasses import fields, replace
from typing import Any

import pytest

from icepuffin.ops.index.definitions.index_definition import (
    INDEX_PARAMETERS,
    DefinitionError,
    IndexDefinition,
    IndexParameter,
    LaterDefinitionError,
    find_name_clash,
    from_properties,
    validate_name,
)

OWN = ("name", "column", "field_id", "filters", "filter_ids", "include", "include_ids", "text", "text_ids")
INDEX = IndexDefinition(name="e", column="v", field_id=7)


def test_every_field_but_name_and_column_is_a_parameter() -> None:
    assert [field.name for field in fields(IndexDefinition)] == [*OWN, *INDEX_PARAMETERS]
    assert all(getattr(INDEX, name) == parameter.default for name, parameter in INDEX_PARAMETERS.items())


def test_the_headline_has_what_is_not_the_default() -> None:
    assert INDEX.headline() == "name='e', column='v', metric='cosine'"
    assert replace(INDEX, max_degree=8).headline() == "name='e', column='v', max_degree=8, metric='cosine'"


def test_defaults_are_those_that_the_documents_measure() -> None:
    """R = 64, L = 100, alpha = 1.2."""
    assert (INDEX.max_degree, INDEX.search_list, INDEX.alpha) == (64, 100, 1.2)


@pytest.mark.parametrize("parameter", INDEX_PARAMETERS.values(), ids=INDEX_PARAMETERS)
def test_a_parameter_takes_its_limits_and_nothing_beyond(parameter: IndexParameter) -> None:
    of_bits = replace(INDEX, element_type="bit") if parameter.name == "metric" else INDEX  # hamming is for bits alone
    for value in parameter.choices or (parameter.low, parameter.high):
        assert getattr(replace(of_bits, **{parameter.name: value}), parameter.name) == value
    if parameter.value_type is int:
        with pytest.raises(DefinitionError, match=f"{parameter.name} is .*; it takes {parameter.takes}"):
            replace(INDEX, **{parameter.name: float(parameter.choices[0] if parameter.choices else parameter.high)})
    for value in ("other", 5) if parameter.choices else (parameter.low - 1, parameter.high + 1, float("nan")):
        with pytest.raises(DefinitionError, match=f"index e: {parameter.name} is .*; it takes {parameter.takes}"):
            replace(INDEX, **{parameter.name: value})


def test_properties_give_back_the_definition_that_wrote_them() -> None:
    set_by_hand = replace(
        INDEX, metric="ip", alpha=1.5, vectors="none", shards=3, max_deltas=0, delta_share=0.5, rebuild_ratio=0.3
    )
    assert from_properties(INDEX.to_properties() | {"owner": "somebody"}) == (INDEX,)
    assert from_properties(set_by_hand.to_properties()) == (set_by_hand,)
    with_filters = replace(INDEX, filters=("a", "b, c", "[d"), filter_ids=(3, 1, 2))
    assert from_properties(with_filters.to_properties()) == (with_filters,)
    assert IndexDefinition.from_json(with_filters.to_json()) == with_filters
    assert "filter" not in repr(INDEX.to_properties())


@pytest.mark.parametrize("filters", ["a, b", '["a", "b"]', ["a", "b"], ("a", "b")])
def test_filters_are_names_in_any_form(filters: object) -> None:
    assert replace(INDEX, filters=filters).filters == ("a", "b")  # type: ignore[arg-type]
    if isinstance(filters, str):
        (made,) = from_properties({**INDEX.to_properties(), "ann.index.e.filters": filters})
        assert made.filters == ("a", "b")


@pytest.mark.parametrize("filters", ["a", "a, b, c", "", None])
def test_ids_that_are_of_other_filters_do_not_count(filters: str | None) -> None:
    """Of filters that were set in the table's properties without their ids, or were taken out there."""
    properties = replace(INDEX, filters=("a", "b"), filter_ids=(3, 1)).to_properties()
    del properties["ann.index.e.filters"]
    (definition,) = from_properties(properties | ({} if filters is None else {"ann.index.e.filters": filters}))
    assert definition == replace(INDEX, filters=filters or ())


@pytest.mark.parametrize("filters", ["a, a", "[a", [1], 7, [""]])
def test_filters_that_are_no_names_are_refused(filters: object) -> None:
    with pytest.raises(DefinitionError, match="index e: filters"):
        replace(INDEX, filters=filters)  # type: ignore[arg-type]


@pytest.mark.parametrize("text", ["a,b", " a , b ", '["a", "b"]', "['a', 'b']"])
def test_columns_are_named_by_texts_as_by_lists(text: str) -> None:
    assert replace(INDEX, include=text).include == ("a", "b")  # type: ignore[arg-type]


@pytest.mark.parametrize(("parameter", "value"), [("pq_nbits", 4), ("element_type", "i8")])
def test_a_choice_is_in_every_form_of_a_definition(parameter: str, value: object) -> None:
    chosen = replace(INDEX, **{parameter: value})  # type: ignore[arg-type]
    assert from_properties(chosen.to_properties()) == (chosen,)
    assert IndexDefinition.from_json(chosen.to_json()) == chosen
    assert chosen.graph_identity() == {**INDEX.graph_identity(), parameter: value}


def test_an_index_without_graphs_depends_on_the_element_type() -> None:
    balls = replace(INDEX, method="centroid")
    assert set(balls.graph_identity()) == {"method", "field_id", "metric", "seed", "element_type"}
    assert replace(balls, element_type="u8").graph_identity() == {**balls.graph_identity(), "element_type": "u8"}


@pytest.mark.parametrize(
    ("parameter", "value"),
    [
        *(("vectors", "rq4"), ("max_degree", 16), ("search_list", 50), ("alpha", 1.0), ("pq_m", 8), ("pq_nbits", 4)),
        *(("shards", 2), ("rebuild_ratio", 0.5), ("max_deltas", 0), ("delta_share", 0.5)),
    ],
)
def test_parameters_of_graphs_mean_nothing_without_graphs(parameter: str, value: object) -> None:
    odd = replace(INDEX, method="centroid", **{parameter: value})  # type: ignore[arg-type]
    with pytest.raises(DefinitionError, match=f"index e: {parameter} = {value} is for graphs.* take method diskann"):
        odd.require_meaning()
    replace(odd, method="diskann").require_meaning()
    IndexDefinition(name="e", column="v", method="centroid", target_recall=0.5, seed=3).require_meaning()


@pytest.mark.parametrize(
    "change",
    [
        *({"filters": ("a",), "filter_ids": (3,)}, {"include": ("a",), "include_ids": (3,)}),
        *({"name": "f"}, {"column": "w"}, {"target_recall": 0.5}, {"rebuild_ratio": 0.5}, {"max_deltas": 0}),
        *({"delta_share": 0.5}, {"build_anew_rows": 5}, {"blob_names": "community"}),
    ],
    ids=str,
)
def test_graphs_do_not_depend_on_names_other_columns_and_upkeep(change: dict[str, Any]) -> None:
    """Else an index could not take over what is changed with `replace`."""
    assert replace(INDEX, **change).graph_identity() == INDEX.graph_identity()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"max_degree": None}, "max_degree is None; it takes 4 to 512"),
        ({"max_deltas": True}, "max_deltas is True; it takes 0 to 64"),
        ({"alpha": True}, "alpha is True"),
        ({"metric": "hamming"}, "metric hamming counts bits that differ, so it needs element_type bit, not column"),
        ({"element_type": "bit", "vectors": "rq4"}, "rq4 has more bits per dimension than elements of one bit"),
        ({"method": "centroid", "metric": "ip"}, "method centroid rules out files by the triangle inequality"),
    ],
    ids=str,
)
def test_parameters_that_cannot_be_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(DefinitionError, match=f"index e: {message}"):
        replace(INDEX, **change)


def test_bits_of_codes_are_those_that_shards_have() -> None:
    coded = replace(INDEX, vectors="rq5", cells="sq4")
    assert (coded.code_bits, coded.cell_bits, replace(coded, cells="sq8").cell_bits) == (5, 4, 8)
    without_graphs = replace(coded, method="centroid")  # as somebody may have set it in the table's properties
    assert (without_graphs.code_bits, without_graphs.cell_bits) == (0, 0)
    holding = [value for value in INDEX_PARAMETERS["vectors"].choices if replace(INDEX, vectors=value).holds_vectors]
    assert holding == ["f16", "f32"]


def test_graphs_are_built_with_the_parameters_of_the_definition() -> None:
    params = replace(INDEX, max_degree=8, search_list=20, alpha=1.5, seed=7).params
    assert (params.max_degree, params.search_list, params.alpha, params.seed) == (8, 20, 1.5, 7)


def test_the_parameters_that_have_a_value_are_shown() -> None:
    shown = replace(INDEX, include=("a", "b"), filter_ids=()).fields()
    assert shown["include"] == "a, b"
    assert shown.keys().isdisjoint({"filters", "filter_ids", "include_ids", "shards"})


def test_definitions_are_read_by_name_and_words_in_any_case() -> None:
    others = {f"ann.index.d.{key}": value for key, value in (("column", "w"), ("vectors", "RQ4"), ("metric", "L2"))}
    first, second = from_properties(replace(INDEX, include=("a",), include_ids=(9,)).to_properties() | others)
    assert (first.name, first.vectors, first.metric) == ("d", "rq4", "l2")
    assert (second.name, second.include, second.include_ids) == ("e", ("a",), (9,))


def test_a_definition_of_a_later_release_is_told_from_a_broken_one() -> None:
    with pytest.raises(LaterDefinitionError, match="a later one wrote it, with depth, width"):
        IndexDefinition.from_json('{"name": "e", "column": "v", "width": 1, "depth": 2}')


@pytest.mark.parametrize(
    ("names", "clash"),
    [
        (("a.b", "a_b"), ("a.b", "a_b")),
        (("e", "e_freshness"), ("e", "e_freshness")),
        (("e.live_recall", "e"), ("e.live_recall", "e")),
        (("e", "f", "e_fresh"), None),
    ],
)
def test_names_that_are_one_in_dagster_are_found(names: tuple[str, ...], clash: tuple[str, str] | None) -> None:
    assert find_name_clash(names) == clash


@pytest.mark.parametrize(
    ("parameter", "value", "message"),
    [
        ("max-degree", "many", "ann.index.e.max-degree: max_degree is 'many'; it takes 4 to 512"),
        ("max-degree", "3", "index e: max_degree is 3; it takes 4 to 512"),
        ("field-id", "v", "ann.index.e.field-id: invalid literal"),
        ("name", "x", "'ann.index.e.name' is no parameter of an index; there are column, field-id"),
    ],
)
def test_a_property_that_is_wrong_is_named(parameter: str, value: str, message: str) -> None:
    with pytest.raises(DefinitionError, match=message):
        from_properties(INDEX.to_properties() | {f"ann.index.e.{parameter}": value})


def test_an_index_without_a_column_is_named() -> None:
    properties = INDEX.to_properties() | {"ann.index.f.metric": "l2"}
    with pytest.raises(DefinitionError, match=r"index f: table property ann\.index\.f\.column is missing"):
        from_properties(properties)


def test_as_many_ids_as_columns_are_needed() -> None:
    assert replace(INDEX, filter_ids=()).filter_ids is None, "as without any"
    with pytest.raises(DefinitionError, match=r"index e: filter_ids has 1 ids for \('a', 'b'\)"):
        replace(INDEX, filters=("a", "b"), filter_ids=(3,))
    with pytest.raises(DefinitionError, match=r"index e: include_ids has 2 ids for \('a',\)"):
        replace(INDEX, include=("a",), include_ids=(3, 4))


@pytest.mark.parametrize("text", ["[" * 5_000, "[" + "-" * 100_000 + "1]", "[{[]: 1}]", "[" + "9" * 5_000 + "]"])
def test_a_list_of_columns_that_no_parser_reads_is_named(text: str) -> None:
    words = r'index x: filters is .{1,90}, which is no list: write \["a", "b"\], or a,b$'
    with pytest.raises(DefinitionError, match=words) as caught:
        from_properties({"ann.index.x.column": "embedding", "ann.index.x.filters": text})
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("text", [r'["a", "\ud800"]', r"['\udfff']"])
def test_a_name_that_is_no_text_is_shown_as_it_is_written(text: str) -> None:
    with pytest.raises(DefinitionError, match=r"index x: filters is .*\\ud") as caught:
        from_properties({"ann.index.x.column": "embedding", "ann.index.x.filters": text})
    assert str(caught.value).isascii()


@pytest.mark.parametrize("text", ["[" * 100_000, "9" * 5_000, "7", "[[]]", "[1e400]"])
def test_a_text_that_is_no_definition_is_named(text: str) -> None:
    with pytest.raises(DefinitionError, match="not an index definition"):
        IndexDefinition.from_json(text)
    with pytest.raises(DefinitionError, match=r"table property ann\.index\.x\.filter-ids"):
        from_properties({"ann.index.x.column": "e", "ann.index.x.filters": "a", "ann.index.x.filter-ids": text})


@pytest.mark.parametrize(
    ("name", "is_name"),
    [("a", True), ("7", True), (64 * "a", True), ("a_.", True), (65 * "a", False), ("_a", False), (".a", False)]
    + [(name, False) for name in ("", "a-b", "a b", "ä")],
)
def test_a_name_begins_with_a_letter_or_digit_and_has_64_characters_at_most(name: str, is_name: bool) -> None:
    if is_name:
        validate_name(name)
    else:
        with pytest.raises(DefinitionError, match="cannot name an index: use 1 to 64 letters"):
            validate_name(name)


def test_an_index_has_no_name_under_which_reports_have_the_sketches() -> None:
    with pytest.raises(DefinitionError, match="'theta_sketches' cannot name an index: reports have"):
        IndexDefinition(name="theta_sketches", column="e")
