"""The names of tables in Dagster, which takes few characters."""

import itertools

import pytest

from icepuffin.assets.spec import TableSpec, node, slug
from icepuffin.orchestration.settings import TableSettings

TABLES = ("n.日本語", "n.中国", "n.données", "n.donn_es", "n.naïve", "n.naive", "n.a b", "ñ.t", "ü.t")


def spec(table: str) -> TableSpec:
    return TableSpec(TableSettings(catalog="l", name=table))


def test_tables_in_other_scripts_have_names_of_their_own() -> None:
    for name in (slug, node):
        for one, other in itertools.combinations(TABLES, 2):
            assert name("l", one) != name("l", other), (one, other)
    assert len({spec(table).theta_key for table in TABLES}) == len(TABLES)
    assert len({spec(table).index_key("e") for table in TABLES}) == len(TABLES)


@pytest.mark.parametrize("table", TABLES)
def test_names_have_what_dagster_takes(table: str) -> None:
    assert slug("l", table).replace("_", "").isalnum()
    assert slug("l", table).isascii()
    assert all(part.isascii() for part in spec(table).theta_key.path)


def test_a_plain_name_stays_as_it_is() -> None:
    assert (slug("my-lake", "n.s.t_1"), node("my-lake", "n.s.t_1")) == ("my_lake_n_s_t_1", "my_lake__n__s__t_1")
    assert spec("n.a-b").theta_key.path == ["l", "n", "a-b", "theta_sketches"]
    assert slug("l", "n.日本語") == "l_n__7709e5d7"
