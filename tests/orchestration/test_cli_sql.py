"""`icepuffin sql`, and `index show` before there is a version, as users type them."""

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest

from icepuffin.ops.binding.bound_versions import index_versions, tagged_version
from icepuffin.ops.spark.spark_runner import SparkRunner
from icepuffin.orchestration.cli import main
from tests.interop.lakes import open_lake
from tests.orchestration.lake import DIMS, make_lake, make_rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NEAR = "cosine_distance(embedding, :q)"
QUERY = f"q={json.dumps([0.5] * DIMS)}"


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a lake that these tests only read."""
    lake = make_lake(tmp_path_factory.mktemp("lake"), snapshots=1)
    numbers = pa.table(
        {
            "a": [math.nan],
            "b": [-math.inf],
            "c": [0.5],
            "d": [0.100000001],
            "e": [1e-7],
            "f": pa.array([0.1], pa.float32()),
            "g": [float(np.float32(0.1))],
            "embedding": make_rows(0, 1)["embedding"],
        }
    )
    lake.catalog.create_table("demo.numbers", numbers.schema).append(numbers)
    return lake.directory


def test_a_plan_is_shown_whole(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    many = ", ".join(str(number) for number in range(60))
    text = f"EXPLAIN SELECT id FROM demo.packages WHERE id IN ({many}) ORDER BY {NEAR} LIMIT 3"
    main(["sql", text, "--param", QUERY, "--dir", str(directory)])
    shown = capsys.readouterr().out
    assert f"id IN ({many})" in shown
    assert "the 3 nearest rows" in shown


def test_a_table_is_of_the_catalog_that_the_settings_have_it_in(
    directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not of the first one, where a table of its name may be another, and where `search` does not look."""
    text = (directory / "icepuffin.toml").read_text(encoding="utf-8")
    first = text[text.index("[catalogs.demo]") : text.index("[spark]")].replace("catalogs.demo", "catalogs.first")
    settings = tmp_path / "two.toml"
    settings.write_text(text.replace("[catalogs.demo]", f"{first}[catalogs.demo]"), encoding="utf-8")
    statement = f"SELECT id FROM demo.packages ORDER BY {NEAR} LIMIT 3"
    main(["sql", statement, "--param", QUERY, "--settings", str(settings), "--json"])
    assert len(json.loads(capsys.readouterr().out)["rows"]) == 3
    with pytest.raises(SystemExit):
        main(["sql", statement, "--param", QUERY, "--settings", str(settings), "--catalog", "first"])
    assert "first: there is no table demo.packages" in capsys.readouterr().err


def test_an_answer_says_how_it_was_found(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = f"SELECT id FROM demo.demo.packages WHERE name = :name ORDER BY {NEAR} LIMIT 2"
    statement = ["sql", text, "--param", QUERY, "--param", "name=package 3", "--dir", str(directory)]
    main([*statement, "--json"])
    document = json.loads(capsys.readouterr().out)
    assert ([row["id"] % 7 for row in document["rows"]], document["warnings"]) == ([3, 3], [])
    assert "exact-scan" in document["how"]
    main(statement)
    assert capsys.readouterr().out.splitlines()[-1] == document["how"]


def test_columns_of_one_name_are_told_apart(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = f"SELECT id, name AS id, id FROM demo.packages ORDER BY {NEAR} LIMIT 1"
    main(["sql", text, "--param", QUERY, "--dir", str(directory), "--json"])
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert row == {"id": row["id"], "id_1": row["id_1"], "id_2": row["id"]}
    assert row["id_1"].startswith("package")
    text = f"SELECT id, id, name AS id_1 FROM demo.packages ORDER BY {NEAR} LIMIT 1"
    main(["sql", text, "--param", QUERY, "--dir", str(directory), "--json"])
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert row == {"id": row["id"], "id_2": row["id"], "id_1": row["id_1"]}
    assert row["id_1"].startswith("package")


def test_numbers_that_json_lacks_are_texts(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = f"SELECT a, b, c FROM demo.numbers ORDER BY {NEAR} LIMIT 1"
    main(["sql", text, "--param", QUERY, "--dir", str(directory), "--json"])
    (row,) = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)["rows"]
    assert row == {"a": "NaN", "b": "-Infinity", "c": 0.5}


@pytest.mark.parametrize("name", ["plan", "result"])
def test_a_column_has_a_header_whatever_its_name(
    directory: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    text = f"SELECT id AS `{name}` FROM demo.packages ORDER BY {NEAR} LIMIT 2"
    main(["sql", text, "--param", QUERY, "--dir", str(directory)])
    assert capsys.readouterr().out.splitlines()[1].split() == [name]


def test_numbers_are_rounded_where_a_person_reads_them(
    directory: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)  # a narrow terminal folds the vector
    text = f"SELECT d, e, f, g, embedding FROM demo.numbers ORDER BY {NEAR} LIMIT 1"
    main(["sql", text, "--param", QUERY, "--dir", str(directory)])
    row = capsys.readouterr().out.splitlines()[3]
    assert row.split()[:4] == ["0.1", "1e-07", "0.1", "0.1"]
    main(["sql", text, "--param", QUERY, "--dir", str(directory), "--json"])
    vector = json.loads(capsys.readouterr().out)["rows"][0]["embedding"]
    shown = row[row.index("[") + 1 :].split(",")[:5]
    assert [float(number) for number in shown] == pytest.approx(vector[:5], abs=1e-6)
    assert [float(number) for number in shown] != vector[:5], "a program gets all digits"
    assert max(len(number) for number in shown) < 14


def test_an_index_without_a_version_is_shown_by_its_definition(
    directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["index", "show", "demo.packages", "--dir", str(directory)])
    assert "target_recall" in capsys.readouterr().out


def test_what_is_wrong_is_one_line(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for text, message in (
        ("SELECT FROM", "cannot be read: Expected table name but got its end"),
        (
            f"SELECT id FROM demo.packages WHERE id < DATE '2026-01-31' ORDER BY {NEAR} LIMIT 3",
            "long and date are not compared here",
        ),
        (f"SELECT id FROM demo.none ORDER BY {NEAR} LIMIT 3", "there is no table demo.none"),
    ):
        with pytest.raises(SystemExit):
            main(["sql", text, "--param", QUERY, "--dir", str(directory)])
        shown = capsys.readouterr().err.splitlines()
        assert len(shown) == 1
        assert message in shown[0]


@pytest.mark.jvm
def test_an_index_of_more_rows_than_the_driver_takes_is_refreshed_on_spark(
    spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lake = make_lake(tmp_path, snapshots=1)
    settings = lake.directory / "icepuffin.toml"
    text = settings.read_text().replace("driver_only_rows = 1000000", "driver_only_rows = 0")
    settings.write_text(text)
    labels, run = [], SparkRunner.run

    def recorded(self: SparkRunner, *arguments: Any, **options: Any) -> Any:
        labels.append(options.get("label"))
        return run(self, *arguments, **options)

    monkeypatch.setattr(SparkRunner, "run", recorded)
    create = "CREATE INDEX i ON demo.packages USING diskann (embedding) WITH (metric = 'cosine', build = false)"
    main(["sql", create, "--dir", str(lake.directory)])
    assert labels == []
    capsys.readouterr()
    main(["sql", "REFRESH INDEX i ON demo.packages", "--dir", str(lake.directory), "--json"])
    (row,) = json.loads(capsys.readouterr().out)["rows"]
    assert row["action"] == "built"
    assert "shard" in " ".join(labels)


@pytest.mark.jvm
def test_spark_reads_the_tables_of_the_catalog_that_is_named(
    spark: "SparkSession", tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of two catalogs with a table of one name; searches by an index read the right one in any case."""
    text = ""
    for name, rows in (("one", 3), ("two", 5)):
        with open_lake(name, f"sqlite:///{tmp_path}/{name}.db", tmp_path / name, spark=spark) as lake:
            lake.catalog.create_namespace("both")
            lake.catalog.create_table("both.t", make_rows(0, rows).schema).append(make_rows(0, rows))
            text += f'[catalogs.{name}]\ntype = "sql"\nuri = "sqlite:///{tmp_path}/{name}.db"\n'
            text += f'warehouse = "file://{tmp_path}/{name}/warehouse"\n'
    (tmp_path / "icepuffin.toml").write_text(text, encoding="utf-8")

    def count(*arguments: str) -> int:
        main(["sql", "SELECT count(*) AS n FROM both.t", "--spark", *arguments, "--json", "--dir", str(tmp_path)])
        return int(json.loads(capsys.readouterr().out)["rows"][0]["n"])

    before = spark.catalog.currentCatalog()
    try:
        assert (count(), count("--catalog", "two"), count("--catalog", "one")) == (3, 5, 3)
        with pytest.raises(SystemExit):
            count("--catalog", "three")
        assert "three" in capsys.readouterr().err
    finally:
        spark.catalog.setCurrentCatalog(before)


@pytest.mark.jvm
def test_a_catalog_that_spark_lacks_is_named_in_one_line(
    spark: "SparkSession", tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Spark's own error names the table alone, after a log of the JVM's whole trace."""
    lake = make_lake(tmp_path, snapshots=1)
    settings = lake.directory / "icepuffin.toml"
    settings.write_text(
        settings.read_text().replace("[catalogs.demo]", "[catalogs.lacking]").replace('"demo"', '"lacking"')
    )
    with pytest.raises(SystemExit):
        main(["sql", "SELECT count(*) FROM demo.nowhere", "--spark", "--dir", str(lake.directory)])
    (line,) = capsys.readouterr().err.splitlines()
    assert "`nowhere` cannot be found" in line
    assert "set spark.sql.catalog.lacking in spark.conf of" in line


def test_statements_build_for_the_branch_that_the_settings_follow(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the head of `main` the version at the branch's head lost its tag, and so its protection from expiry."""
    lake = make_lake(tmp_path, snapshots=1)
    lake.table.manage_snapshots().create_branch(lake.head(), "prod").commit()
    lake.table.refresh().append(make_rows(1_000, 60), branch="prod")
    lake.append()
    lake.write_settings(watched_refs=["prod"])
    for statement in ("CREATE INDEX i ON demo.packages USING diskann (embedding)", "REFRESH INDEX i ON demo.packages"):
        main(["sql", statement, "--dir", str(lake.directory), "--json"])
        capsys.readouterr()
        version = tagged_version(lake.table.refresh(), "i")
        assert version is not None
        assert version.base_snapshot_id == lake.table.metadata.refs["prod"].snapshot_id
    assert len(index_versions(lake.table, "i")) == 1
