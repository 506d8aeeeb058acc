"""`icepuffin search`, `index show` as users type them."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import icepuffin
from icepuffin.orchestration.cli import main
from tests.orchestration.lake import DIMS, Lake, make_lake, make_rows
from tests.orchestration.test_cli import imports_of

Run = Callable[..., str]
VECTOR = json.dumps([0.5] * DIMS)


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """Two snapshots, the newest indexed."""
    made = make_lake(tmp_path_factory.mktemp("lake"), snapshots=2)
    main(["refresh", "demo.packages", "--json", "--dir", str(made.directory)])
    return made


@pytest.fixture
def run(lake: Lake, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run a command on the lake. Returns stdout."""

    def command(*arguments: str) -> str:
        main([*arguments, "--dir", str(lake.directory)])
        return capsys.readouterr().out

    capsys.readouterr()
    return command


@pytest.mark.parametrize("columns", ["", " "])
def test_no_columns_are_none(run: Run, columns: str) -> None:
    """It was every column, as if the option were not there."""
    exact = ("--exact", "--vector-column", "embedding", "--columns", columns, "--json")
    (row,) = json.loads(run("search", "demo.packages", "--vector", VECTOR, "-k", "1", *exact))["results"]
    assert [*row] == ["query", "rank", "distance"]


def test_all_rows_within_a_distance(run: Run) -> None:
    document = json.loads(run("search", "demo.packages", "--vector", VECTOR, "--within", "0.6", "--json"))
    exact = json.loads(run("search", "demo.packages", "--vector", VECTOR, "--within", "0.6", "--exact", "--json"))
    assert [row["id"] for row in document["results"]] == [row["id"] for row in exact["results"]]
    assert document["results"]
    assert all(row["distance"] < 0.6 for row in document["results"])
    assert document["pruning"]["files"] == 2
    assert "k" not in document


def test_rows_are_limited_per_group_and_unlike_each_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lake = make_lake(tmp_path / "lake", snapshots=1)
    lake.table.append(make_rows(0, 60))  # all that there is, once more

    def ids(*options: str) -> list[int]:
        search = ["search", "demo.packages", "--vector", VECTOR, "-k", "4", "--exact", "--json", *options]
        main([*search, "--dir", str(lake.directory)])
        return [row["id"] for row in json.loads(capsys.readouterr().out)["results"]]

    first, again, second, _ = ids()
    assert first == again
    assert ids("--per-group", "id=1")[:2] == [first, second]
    assert ids("--per-group", "id=2") == ids()
    assert len(set(ids("--diversity", "0.9"))) == 4


def test_words_are_searched_for_in_the_columns_that_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lake = make_lake(tmp_path / "lake", snapshots=0)
    rows = make_rows(0, 3)
    lake.table.update_schema().union_by_name(rows.schema.append(pa.field("about", pa.string()))).commit()
    lake.table.append(rows.append_column("about", pa.array(["red", "blue", "package"])))
    icepuffin.create_index(lake.table, name="words", column="embedding", text=["name", "about"])

    def ids(columns: str) -> list[int]:
        search = ["search", "demo.packages", "words", "--text", "package blue", "--json", "--text-columns", columns]
        main([*search, "--dir", str(lake.directory)])
        return sorted(row["id"] for row in json.loads(capsys.readouterr().out)["results"])

    assert [ids(columns) for columns in ("about", "name", "name, about")] == [[1, 2], [0, 1, 2], [0, 1, 2]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--text-columns", "name"), "--text-columns goes with --text"),
        (("--per-group", "section"), "--per-group is 'section': write a column and a limit, such as section=2"),
        (("--per-group", "=2"), "write a column and a limit"),
        (("--per-group", "section=two"), "write a column and a limit"),
        (("--per-group", "section=2", "--within", "0.5"), "--within takes every row: leave it out"),
        (("--diversity", "0.5", "--within", "0.5"), "--within takes every row: leave it out"),
        (("--diversity", "1.5"), "1.5 is not in the range 0<=x<=1"),
        (("--per-group", "name=2"), "create the index with filters=['name'] and refresh it"),
    ],
)
def test_a_shape_that_cannot_be_is_refused(
    run: Run, capsys: pytest.CaptureFixture[str], options: tuple[str, ...], message: str
) -> None:
    with pytest.raises(SystemExit):
        run("search", "demo.packages", "--vector", VECTOR, *options)
    assert message in " ".join(capsys.readouterr().err.replace("│", " ").split())


def test_a_certified_search_has_the_rows_of_an_exact_one_and_a_proof(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    search = ["search", "demo.packages", "--vector", VECTOR, "-k", "7", "--json"]
    document, exact = json.loads(run(*search, "--certified")), json.loads(run(*search, "--exact"))
    assert [row["id"] for row in document["results"]] == [row["id"] for row in exact["results"]]
    assert document["certificate"]["last"] == [document["results"][-1]["distance"]]
    (pruned_from,) = document["certificate"]["pruned_from"]
    assert (pruned_from is None) == (document["pruning"]["files_pruned"] == 0)
    for other in ("--exact", "--within=0.5"):
        with pytest.raises(SystemExit):
            run(*search, "--certified", other)
        assert "--certified goes without --exact and --within" in capsys.readouterr().err


def test_an_exact_search_needs_no_index(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lake = make_lake(tmp_path / "lake", snapshots=1)
    search = ["search", "demo.packages", "--vector", VECTOR, "--exact", "--json", "--dir", str(lake.directory)]

    def results(*arguments: str) -> list[dict[str, object]]:
        main([*search, *arguments])
        document = json.loads(capsys.readouterr().out)
        assert document["coverage"] == "exact-scan"
        return list(document["results"])

    of_index = results()
    text = lake.settings_file.read_text(encoding="utf-8")
    lake.settings_file.write_text(text[: text.index("[tables.packages.indexes")], encoding="utf-8")
    assert results("--vector-column", "embedding") == of_index
    assert results("--vector-column", "embedding", "--metric", "l2") != of_index
    assert results("--vector-column", "embedding", "--within", "0.5")
    for wrong, document in (
        ([], "demo.packages has no index: say what to compare with --vector-column"),
        (["--metric", "l2"], "--metric goes with --exact --vector-column"),
        (["--element-type", "u8"], "--element-type goes with --exact --vector-column"),
        (["--vector-column", "embedding", "--index", "e"], "--vector-column goes with --exact, and without --index"),
    ):
        with pytest.raises(SystemExit):
            main([*search, *wrong])
        assert document in " ".join(capsys.readouterr().err.split())
    with pytest.raises(SystemExit):
        main([*search, "--vector-column", "nope"])
    assert "has no column 'nope'" in capsys.readouterr().err


def test_a_column_of_bytes_is_searched_by_the_type_of_its_elements(lake: Lake, run: Run) -> None:
    rows = pa.table({"id": [1, 2, 3], "v": [bytes([255, 0]), bytes([3, 4]), bytes([5, 9])]})
    lake.catalog.create_table("demo.octets", rows.schema).append(rows)
    options = ("--exact", "--vector-column", "v", "--metric", "l2", "--json", "--like-id", "1", "--element-type")
    for element_type, nearest in (("u8", [1, 3, 2]), ("i8", [1, 2, 3])):
        document = json.loads(run("search", "demo.octets", *options, element_type))
        assert [row["id"] for row in document["results"]] == nearest
        assert document["results"][0]["distance"] == 0


def test_each_option_of_a_search_reaches_it(run: Run, lake: Lake, capsys: pytest.CaptureFixture[str]) -> None:
    search = ["search", "demo.packages", "--vector", VECTOR]
    walked = json.loads(run(*search, "--search-list", "33", "--shards", "1", "--explain", "--json"))
    assert walked["explain"]["parameters"].startswith("L = 33, ")
    assert "the nearest 1 shard" in walked["explain"]["parameters"]
    assert (walked["k"], walked["index"], walked["where"], walked["matching_rows"]) == (10, "embedding", None, None)
    assert walked["why"]
    assert walked["base_snapshot_id"] == str(lake.head()) != walked["index_snapshot_id"]
    some = [*search, "--where", "id < 3", "--columns", "id", "--json"]
    for option in ("--k=10", "--within=2"):
        found = json.loads(run(*some, option))
        assert [*found["results"][0]] == ["query", "rank", "distance", "id"]
        assert {row["id"] for row in found["results"]} == {0, 1, 2}
        assert (found["where"], found["matching_rows"]) == ("id < 3", 3)
    assert ": no rows" in run(*search, "--where", "id < 0")
    before = [*search, "--snapshot", str(lake.table.snapshots()[0].snapshot_id), "--stale"]
    assert json.loads(run(*before, "exact", "--json"))["coverage"] == "exact-scan"
    assert "nearest-version-only" in run(*before, "nearest-only")
    with pytest.raises(SystemExit):
        run(*before, "fail")
    assert "index embedding has no version of snapshot" in capsys.readouterr().err


def test_what_is_to_run_on_spark_does_not_run_here(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ICEPUFFIN__SPARK__MASTER", "")
    (tmp_path / "queries.json").write_text(f"[{VECTOR}]")
    for command in (("search", "--vector", VECTOR), ("tune", "--dry-run", "--queries", str(tmp_path / "queries.json"))):
        with pytest.raises(SystemExit):
            run(command[0], "demo.packages", *command[1:], "--spark")
        assert "no Spark is set: give master or remote" in " ".join(capsys.readouterr().err.split())


def test_a_search_explains_itself(run: Run) -> None:
    arguments = ("search", "demo.packages", "--vector", VECTOR, "--target-recall", "0.9", "--explain")
    explained = json.loads(run(*arguments, "--json"))["explain"]
    assert "recall 0.9" in explained["parameters"]
    assert "nodes visited" in explained["shard 0"]
    assert "nodes visited" in run(*arguments)


def test_candidates_are_ranked_by_the_tables_vectors_on_demand(lake: Lake, run: Run) -> None:
    lake.catalog.create_table("demo.coded", make_rows(0, 1).schema).append(make_rows(0, 60))
    parameters = ("--name", "e", "--column", "embedding", "--vectors", "rq4", "--metric", "l2")
    run("index", "create", "demo.coded", *parameters)
    run("refresh", "demo.coded", "--json")
    search = ("search", "demo.coded", "--vector", VECTOR, "--json", "--explain")
    exact = json.loads(run(*search, "--exact"))["results"]
    by_codes, by_vectors = (json.loads(run(*search, option))["results"] for option in ("--no-rerank", "--rerank"))
    assert by_vectors == exact != by_codes
    (warning,) = json.loads(run(*search, "--no-rerank", "--oversample", "3"))["warnings"]
    assert "with rerank they are ranked by the table's vectors" in warning
    assert f"warning: {warning}" in run(*search[:4], "--no-rerank", "--oversample", "3")


def test_an_index_is_shown(run: Run) -> None:
    shown = run("index", "show", "demo.packages")
    for part in ("covers  100.0%", "tombstones", "recall@10 by the width"):
        assert part in shown
    order = [shown.index(part) for part in ("tombstones  ", "takes  ", "shards of", "max_degree", "index_snapshot_id")]
    assert order == sorted(order), "what is of interest comes first, ids last"
    first = shown.partition("\n")[0]
    assert re.fullmatch(r"index embedding on demo\.packages\(embedding\): up to date; recall@10 [01]\.\d{4}", first)
    document = json.loads(run("index", "show", "demo.packages", "--json"))
    assert len(document["curve"]) > 3
    assert document["rows_covered"] == document["rows"] == 120


def test_a_report_is_written_where_it_is_asked_for(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    shown = run("report", "demo.packages")
    page = (tmp_path / "demo.packages.html").read_text(encoding="utf-8")
    assert "written to demo.packages.html: 2 snapshots, 1 index\n" in shown
    assert "<h1>demo.packages</h1>" in page
    assert "Index embedding" in page
    (tmp_path / "mine.html").write_text("mine", encoding="utf-8")
    with pytest.raises(SystemExit):
        run("report", "demo.packages", "-o", "mine.html")
    assert "mine.html is there and is no report: delete it, or name another file" in capsys.readouterr().err
    assert (tmp_path / "mine.html").read_text(encoding="utf-8") == "mine"
    monkeypatch.setenv("ICEPUFFIN__TABLES__PACKAGES__INDEXES__OTHER__COLUMN", "embedding")
    document = json.loads(run("report", "demo.packages", "-o", "other.html", "--json"))
    assert (document["table"], document["path"]) == ("demo.packages", "other.html")
    (behind,) = document["behind"]
    assert behind["command"] == "icepuffin refresh demo.packages"
    assert f"behind: {behind['text']} Mend it with: {behind['command']}\n" in run("report", "demo.packages")
    assert "<h1>demo.packages</h1>" in (tmp_path / "other.html").read_text(encoding="utf-8")


def test_stats_of_a_snapshot_say_what_is_there_for_it(run: Run, lake: Lake) -> None:
    before, head = lake.table.snapshots()[0].snapshot_id, lake.head()
    document = json.loads(run("stats", "demo.packages", "--json"))
    assert (document["catalog"], document["snapshot_id"], document["records"]) == ("demo", str(head), 120)
    assert f"metadata/{head}-" in document["statistics_path"]
    index = document["indexes"]["embedding"]
    assert (index["versions"], index["snapshots"], index["lag"]["snapshots"]) == (1, [str(head)], 0)
    assert (index["live_recall"], index["live_recall_why"]) == (None, "")
    earlier = json.loads(run("stats", "demo.packages", "--snapshot", str(before), "--json"))
    assert (earlier["records"], earlier["indexes"]["embedding"]["covers_snapshot"]) == (60, False)
    assert "index embedding: 1 version; it has a version for this snapshot\n" in run("stats", "demo.packages")
    shown = run("stats", "demo.packages", "--snapshot", str(before))
    assert "index embedding: 1 version; it has no version for this snapshot" in shown
    assert f"no sketches; make them with: icepuffin refresh demo.packages --snapshot {before}" in shown


def test_reading_needs_neither_dagster_nor_spark(lake: Lake) -> None:
    commands = [
        (*command, "--dir", str(lake.directory))
        for command in (
            ("search", "demo.packages", "--vector", VECTOR),
            ("sql", "SHOW INDEXES ON demo.packages"),
            ("index", "show", "demo.packages"),
            ("report", "demo.packages", "-o", str(lake.directory / "page.html")),
        )
    ]
    imported = imports_of(commands, {"dagster", "pyspark"})
    assert imported == {" ".join(command): [] for command in commands}


def test_what_a_pipe_gets_is_not_folded(run: Run) -> None:
    output = run("refresh", "demo.packages")
    (path,) = [line.split()[1] for line in output.splitlines() if line.endswith(".puffin")]
    assert path.startswith("file://")
    assert "reused: a version of this snapshot" in output


def test_a_renamed_vector_column_is_searched_by_the_name_it_has_in_the_snapshot(run: Run, lake: Lake) -> None:
    lake.keep()
    before = lake.head()
    with lake.table.update_schema() as change:
        change.rename_column("embedding", "meaning")
    rows = make_rows(500, 20)
    lake.table.append(rows.rename_columns([*rows.column_names[:-1], "meaning"]))
    for snapshot, column in ((str(before), "embedding"), ("main", "meaning")):
        arguments = ("search", "demo.packages", "--like-id", "5", "--snapshot", snapshot, "--json")
        for document in (json.loads(run(*arguments)), json.loads(run(*arguments, "--exact"))):
            assert (document["column"], document["results"][0]["id"]) == (column, 5)
    lake.restore()  # other tests search it, in any order


def test_a_table_that_the_settings_have_in_two_catalogs_is_of_the_one_that_is_named(
    run: Run, lake: Lake, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first was taken, whichever that is: `gc` and `index drop` would work on another table than was meant."""
    text = lake.settings_file.read_text(encoding="utf-8")
    other = text[text.index("[catalogs.demo]") : text.index("[spark]")].replace("catalogs.demo", "catalogs.other")
    entry = text[text.index("[tables.packages]") :].replace("tables.packages", "tables.others")
    entry = entry.replace('"demo"', '"other"')
    settings = tmp_path / "two.toml"
    settings.write_text(f"{text}\n{other}{entry}", encoding="utf-8")
    with pytest.raises(SystemExit):
        main(["stats", "demo.packages", "--settings", str(settings)])
    assert "two.toml has demo.packages in several catalogs: name one with --catalog: demo, other" in (
        " ".join(capsys.readouterr().err.split())
    )
    main(["stats", "demo.packages", "--settings", str(settings), "--catalog", "demo", "--json"])
    assert json.loads(capsys.readouterr().out)["catalog"] == "demo"
    with pytest.raises(SystemExit):
        main(["stats", "demo.packages", "--settings", str(settings), "--catalog", "other"])
    assert "other: there is no table demo.packages" in capsys.readouterr().err


def test_text_of_a_table_is_shown_as_it_is(run: Run, lake: Lake) -> None:
    """Brackets and colons are markup to the terminal's library; control characters are commands to the terminal."""
    texts = ["[/b] closes", "[red]", ":smile:", "a\x1b[31mb\nc"]
    rows = make_rows(0, len(texts)).set_column(1, "text [0]", pa.array(texts))
    lake.catalog.create_table("demo.odd [x]", rows.schema).append(rows)
    run("index", "create", "demo.odd [x]", "--name", "odd", "--column", "embedding")
    shown = (
        run("search", "demo.odd [x]", "--vector", VECTOR, "--columns", "id, text [0]"),
        run(
            "sql",
            f"SELECT id, `text [0]` FROM demo.`odd [x]` ORDER BY l2_distance(embedding, ARRAY({VECTOR[1:-1]})) LIMIT 9",
        ),
    )
    for output in shown:
        assert all(text in output for text in ("text [0]", *texts[:3], "a [31mb c"))
    assert "demo.odd [x]" in shown[0]
    assert "demo.odd [x]" in run("index", "list", "demo.odd [x]")
    run("refresh", "demo.odd [x]")
    assert "text [0]" in run("stats", "demo.odd [x]")


@pytest.mark.parametrize("command", [("index", "list"), ("refresh",), ("plan",), ("gc",), ("stats",)])
def test_a_missing_table_is_reported_once(
    run: Run, command: tuple[str, ...], capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(SystemExit) as exited:
        run(*command, "demo.absent")
    assert exited.value.code == 1
    assert capsys.readouterr().err.count("there is no table demo.absent") == 1
    assert not caplog.records


def test_tuning_is_shown_kept_and_forgotten(
    run: Run, lake: Lake, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    vectors = np.random.default_rng(0).random((60, DIMS)).astype(np.float32)
    np.save(tmp_path / "logged.npy", vectors)
    columns = {"vector": pa.array(vectors.tolist(), pa.list_(pa.float32())), "other": pa.array([[1.0]] * 60)}
    pq.write_table(pa.table({"id": np.arange(60), **columns}), tmp_path / "logged.parquet")
    tuning = ["tune", "demo.packages", "embedding", "--target", "0.9", "--queries"]
    by_array = json.loads(run(*tuning, str(tmp_path / "logged.npy"), "--dry-run", "--json"))
    parquet = [*tuning, str(tmp_path / "logged.parquet")]
    by_column = json.loads(run(*parquet, "--column", "vector", "--json"))
    assert by_array["points"] == by_column["points"]
    assert (by_array["kept"], by_column["kept"], by_column["queries"]) == (False, True, 60)
    assert [(one["k"], one["target"], one["reached"]) for one in by_column["targets"]] == [
        (10, 0.9, True), (100, 0.9, True),
    ]  # fmt: skip
    shown = run(*tuning, str(tmp_path / "logged.npy"))
    assert "60 of 60 queries" in shown
    assert "recall@10 and distances per query" in shown
    assert "what target_recall chooses for 100 rows by the index's own curves, and tuned" in shown
    assert "kept with the table" in shown
    assert "target_recall is chosen by 60 queries" in run("index", "show", "demo.packages")
    document = json.loads(run("index", "show", "demo.packages", "--json"))
    assert document["tuning"]["queries"] == 60
    for wrong, message in (
        (parquet, "name the column of the queries with --column: vector, other"),
        ([*parquet, "--column", "absent"], "has no column 'absent'; it has id, vector, other"),
        ([*parquet, "--column", "other"], f"the query has 1 dimension, the index has {DIMS}"),
        ([*tuning, str(tmp_path / "logged.npy"), "--column", "vector"], "--column goes with a Parquet file"),
        ([*tuning, str(tmp_path / "logged.npy"), "--snapshot", str(lake.table.snapshots()[0].snapshot_id)], "version"),
        (["tune", "demo.packages"], "give --queries, or --forget"),
        (["tune", "demo.packages", "--forget", "--dry-run"], "--dry-run goes with --queries"),
        (["tune", "demo.packages", "--forget", "--snapshot", "main"], "--snapshot goes with --queries"),
        (["tune", "demo.packages", "--forget", "--target", "0.9"], "--target goes with --queries"),
        (["tune", "demo.packages", "--forget", "--column", "vector"], "--column goes with --queries"),
        (["tune", "demo.packages", "--forget", "--spark"], "--spark goes with --queries"),
    ):
        with pytest.raises(SystemExit):
            run(*wrong)
        assert message in capsys.readouterr().err
    assert json.loads(run("tune", "demo.packages", "--forget", "--json"))["forgotten"]
    assert "was not there" in run("tune", "demo.packages", "--forget")
    assert json.loads(run("index", "show", "demo.packages", "--json"))["tuning"] is None
