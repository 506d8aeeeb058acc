"""Settings: read, overridden, refused with words that help, documented."""

import math
import re
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from icepuffin.assets.table_settings import (
    IndexSettings,
    KeepSettings,
    NearPairsSettings,
    StatisticsSettings,
    TableSettings,
)
from icepuffin.ops import cache
from icepuffin.ops.cache import CacheSettings, cache_settings, process_cache
from icepuffin.ops.index.definitions.index_definition import INDEX_PARAMETERS
from icepuffin.ops.model import MAX_GRACE_HOURS
from icepuffin.ops.theta.requested_statistics import RequestedStatistics
from icepuffin.orchestration import overrides
from icepuffin.orchestration import settings as module
from icepuffin.orchestration.engines import engine_of, spark_conf, use_shard_cache
from icepuffin.orchestration.overrides import SettingsError
from icepuffin.orchestration.settings import Settings, find, load

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "settings.md"
MINIMAL = '[catalogs.lake]\ntype = "sql"\nuri = "sqlite:////lake.db"\n'


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "icepuffin.toml"


def loaded(file: Path, text: str) -> Settings:
    file.write_text(text, encoding="utf-8")
    return load(file)


def refusal(file: Path, text: str) -> str:
    with pytest.raises(SettingsError) as caught:
        loaded(file, text)
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_minimal_file_is_enough(file: Path) -> None:
    settings = loaded(
        file, MINIMAL + '[tables.t]\ncatalog = "lake"\nname = "a.b"\n[tables.t.indexes.i]\ncolumn = "v"\n'
    )
    assert settings.tables["t"].watched_refs == ("main",)
    assert settings.tables["t"].indexes["i"].metric == "cosine"


def test_dotted_keys_are_catalog_properties(file: Path) -> None:
    settings = loaded(file, MINIMAL + 's3.endpoint = "http://x"\ns3.force-virtual-addressing = true\n')
    assert settings.catalogs["lake"].properties["s3.endpoint"] == "http://x"
    assert settings.catalogs["lake"].properties["s3.force-virtual-addressing"] == "true"


def test_the_environment_overrides_the_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ICEPUFFIN__SPARK__MASTER", "local[3]")
    monkeypatch.setenv("ICEPUFFIN__TABLES__T__SNAPSHOTS", "newest")
    settings = loaded(file, MINIMAL + '[spark]\nmaster = "yarn"\n[tables.t]\ncatalog = "lake"\nname = "a.b"\n')
    assert settings.spark.master == "local[3]"
    assert settings.tables["t"].snapshots == "newest"
    assert settings.tables["t"].name == "a.b"


@pytest.mark.parametrize(
    ("variable", "message"),
    [
        ("ICEPUFFIN__SPRK__MASTER", "ICEPUFFIN__SPRK__MASTER names no setting; there are ICEPUFFIN__CATALOGS"),
        ("ICEPUFFIN__SPARK__CONF", "is not valid JSON"),
        ("ICEPUFFIN__THREADS", "variable ICEPUFFIN__THREADS: threads: takes a whole number of at least 0"),
    ],
)
def test_a_wrong_variable_is_refused(file: Path, monkeypatch: pytest.MonkeyPatch, variable: str, message: str) -> None:
    monkeypatch.setenv(variable, "some")
    file.write_text(MINIMAL, encoding="utf-8")
    with pytest.raises(SettingsError, match=re.escape(message)):
        load(file)


def test_secrets_come_from_the_environment_and_never_show(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKE_TOKEN", "hunter2")
    settings = loaded(file, MINIMAL + 'token = "${LAKE_TOKEN}"\n')
    assert settings.catalogs["lake"].properties["token"] == "hunter2"
    for shown in (repr(settings), str(settings), repr(settings.catalogs["lake"])):
        assert "hunter2" not in shown
        assert "lake.db" not in shown


def test_an_unset_variable_is_named(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LAKE_TOKEN", raising=False)
    message = refusal(file, MINIMAL + 'token = "${LAKE_TOKEN}"\n')
    assert "catalogs.lake.token" in message
    assert "LAKE_TOKEN is not set; set it and start again" in message


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", "catalogs: is missing"),
        ("[catalogs]\n", "no catalog is set"),
        (MINIMAL + "[spark]\nmastr = 'x'\n", "spark.mastr: no such setting"),
        (MINIMAL + "[tables.t]\ncatalog = 'other'\nname = 'a.b'\n", "tables.t.catalog is 'other'"),
        (MINIMAL + "[tables.t]\ncatalog = 'lake'\nname = 'b'\n", "tables.t.name"),
        (
            MINIMAL + "[tables.t]\ncatalog = 'lake'\nname = 'a.b'\nnightly = 'daily'\n",
            "write five cron fields (minute, hour, day of month, month, day of week) or off",
        ),
        (MINIMAL + "[tables.t]\ncatalog = 'lake'\nname = 'a.b'\nnightly = '99 2 * * *'\n", "tables.t.nightly: is no"),
        (
            MINIMAL + "[tables.t]\ncatalog = 'lake'\nname = 'a.b'\nmaintenance = '@daily'\n",
            "tables.t.maintenance: is no",
        ),
        (
            MINIMAL + "[tables.t]\ncatalog = 'lake'\nname = 'a.b'\n[tables.t.indexes]\n"
            "'x.y' = {column = 'v'}\nx_y = {column = 'v'}\n",
            "tables.t.indexes: 'x.y' and 'x_y' would be one",
        ),
        (
            MINIMAL + "[tables.t]\ncatalog = 'lake'\nname = 'a.b'\n[tables.u]\ncatalog = 'lake'\nname = 'a.b'\n",
            "tables.t and tables.u are the same table: leave one of them out",
        ),
        (MINIMAL + "[tables.t]\ncatalog = 'lake'\nname = 'a.b'\nwatched_refs = ['ann_i']\n", "'ann_i' is a tag that"),
        (
            MINIMAL + "[tables.t]\ncatalog = 'lake'\nname = 'a.b'\nwatched_refs = ['theta_sketches']\n",
            "writes itself; watch branches and tags of your own",
        ),
        (MINIMAL + "[tables.t]\ncatalog = 'lake'\nname = 'a.b'\nwatched_refs = []\n", "usually 'main'"),
        (MINIMAL + "[tables.t]\ncatalog = 'lake'\nname = 'a.b'\nsnapshots = 'some'\n", "'every' or 'newest'"),
        (
            MINIMAL + "[tables.t]\ncatalog = 'lake'\nname = 'a.b'\n[tables.t.indexes.'a/b']\ncolumn = 'v'\n",
            "cannot name an index",
        ),
        (
            MINIMAL
            + "[tables.t]\ncatalog = 'lake'\nname = 'a.b'\n[tables.t.indexes.i]\ncolumn = 'v'\ntarget_recall = 2\n",
            "tables.t.indexes.i.target_recall",
        ),
        ("threads = [", "not valid TOML"),
    ],
)
def test_a_bad_file_is_refused_by_key(file: Path, text: str, names: str) -> None:
    assert names in refusal(file, text)


TABLE = {"catalog": "lake", "name": "a.b"}
NEAR_PAIRS = {"table": "a.b", "within": 0.1, "columns": ["id"]}
LIMITS: list[tuple[type[BaseModel], dict[str, Any], str, list[Any], list[Any]]] = [
    (TableSettings, TABLE, "sensor_interval_seconds", [1, 86_400], [0, 86_401]),
    (TableSettings, TABLE, "runs_ahead", [1, 1000], [0, 1001]),
    (TableSettings, TABLE, "max_runtime_seconds", [60], [59]),
    (TableSettings, TABLE, "retries", [0, 10], [-1, 11]),
    (TableSettings, TABLE, "retry_delay_seconds", [0], [-0.1]),
    (TableSettings, TABLE, "nightly", ["30 2 * * *", "off"], ["30 2 * *", "0 30 2 * * *"]),
    (TableSettings, TABLE, "max_freshness_lag", [0], [-1]),
    (TableSettings, TABLE, "max_freshness_minutes", [0], [-0.1]),
    (KeepSettings, {}, "last", [1], [0]),
    (NearPairsSettings, NEAR_PAIRS, "within", [1e-9], [0]),
    (NearPairsSettings, NEAR_PAIRS, "limit", [1], [0]),
    (NearPairsSettings, NEAR_PAIRS, "table", ["a.b"], ["b", "a."]),
    (KeepSettings, {}, "days", [0.01], [0]),
    (module.GarbageSettings, {}, "garbage_grace_hours", [0, MAX_GRACE_HOURS], [-0.1, MAX_GRACE_HOURS + 1, math.nan]),
    (module.SparkSettings, {}, "driver_only_rows", [0], [-1]),
    (module.SparkSettings, {}, "in_process_mb", [0], [-1]),
    (module.ShardCacheSettings, {}, "disk_mb", [0], [-1]),
    (module.ShardCacheSettings, {}, "memory_mb", [0], [-1]),
    (module.ShardCacheSettings, {}, "tail_mb", [0], [-1]),
    (module.ShardCacheSettings, {}, "rows_mb", [0], [-1]),
    (Settings, {"catalogs": {"lake": {"type": "sql"}}}, "threads", [0], [-1]),
]
"""(section, what it needs beside, a setting, its limits, the next values beyond them)"""


@pytest.mark.parametrize(("section", "others", "name", "taken", "refused"), LIMITS, ids=lambda part: str(part)[:40])
def test_a_setting_takes_its_limits_and_nothing_beyond(
    section: type[BaseModel], others: dict[str, Any], name: str, taken: list[Any], refused: list[Any]
) -> None:
    for value in taken:
        assert getattr(section.model_validate({**others, name: value}), name) == value
    for value in refused:
        with pytest.raises(ValidationError) as caught:
            section.model_validate({**others, name: value})
        assert [fault["loc"] for fault in caught.value.errors()] == [(name,)]


def test_the_cache_has_the_defaults_of_its_settings_where_none_are_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a section [cache] that sets nothing, and without it: the same budgets and the same layout."""
    used: list[CacheSettings] = []
    monkeypatch.setattr(cache, "use_settings", used.append)
    use_shard_cache(Settings.model_validate({"catalogs": {"lake": {"type": "sql"}}, "cache": {}}))
    use_shard_cache(Settings.model_validate({"catalogs": {"lake": {"type": "sql"}}}))
    assert used == [CacheSettings()]


def test_a_missing_file_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(
        SettingsError,
        match=r"make it with `icepuffin init`, or name another with --settings or ICEPUFFIN_SETTINGS$",
    ):
        load(tmp_path / "none.toml")


def test_a_refused_value_is_not_repeated(file: Path) -> None:
    assert "hunter2" not in refusal(file, MINIMAL + "[spark]\npassword = 'hunter2'\n")


def test_the_file_is_found_by_option_folder_variable_or_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ICEPUFFIN_SETTINGS", "/named.toml")
    assert find(Path("given.toml"), Path("folder")) == Path("given.toml")
    assert find(None, Path("folder")) == Path("folder/icepuffin.toml")
    assert find() == Path("/named.toml")
    monkeypatch.delenv("ICEPUFFIN_SETTINGS")
    assert find() == tmp_path / "icepuffin.toml"


SECTIONS: dict[str, type[BaseModel]] = {
    "Top level": Settings,
    "[tables.<key>]": TableSettings,
    "[tables.<key>.indexes.<name>]": IndexSettings,
    "[tables.<key>.indexes.<name>.near_pairs]": NearPairsSettings,
    "[tables.<key>.keep]": KeepSettings,
    "[tables.<key>.statistics]": StatisticsSettings,
    "[spark]": module.SparkSettings,
    "[cache]": module.ShardCacheSettings,
    "[retention]": module.GarbageSettings,
}


@pytest.mark.parametrize("section", SECTIONS)
def test_every_setting_is_documented_with_its_default(section: str) -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    start = re.search(rf"^## `?{re.escape(section)}`?$", text, re.MULTILINE)
    assert start is not None, section
    body = text[start.end() :].split("\n## ")[0]
    rows = dict(re.findall(r"^\| `([a-z_]+)` \| (.*?) \| .{20,} \|$", body, re.MULTILINE))
    own = {"spark", "cache", "retention"}
    fields = {name: field for name, field in SECTIONS[section].model_fields.items() if name not in own}
    assert set(rows) == set(fields)
    for name, field in fields.items():
        assert _matches(rows[name], field), f"{section} {name}: the document says {rows[name]}"


def _matches(documented: str, field: object) -> bool:
    required = field.is_required()  # type: ignore[attr-defined]
    default = field.get_default(call_default_factory=True)  # type: ignore[attr-defined]
    if required:
        return documented == "required"
    if default is None or default == {} or isinstance(default, BaseModel):
        return not documented.startswith("`")
    text = str(default).lower() if isinstance(default, bool) else repr(default)
    return documented.strip("`") in {
        text,
        text.replace("'", '"'),
        str(list(default) if isinstance(default, tuple) else 0).replace("'", '"'),
    }


def test_an_index_is_set_by_the_parameters_of_its_definition(file: Path) -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    own = {"column", "filters", "include", "text", "keep", "near_pairs"}
    assert set(IndexSettings.model_fields) == own | set(INDEX_PARAMETERS)
    assert IndexSettings(column="v").model_dump(exclude=own) == {
        name: parameter.default for name, parameter in INDEX_PARAMETERS.items()
    }
    index = MINIMAL + '[tables.t]\ncatalog = "lake"\nname = "a.b"\n[tables.t.indexes.i]\ncolumn = "v"\n'
    for name, parameter in INDEX_PARAMETERS.items():
        assert re.search(rf"^\| `{name}` \| [^|]+ \| {re.escape(parameter.takes)} \| ", text, re.MULTILINE), name
        for value in map(repr, parameter.choices or (parameter.low, parameter.high)):
            loaded(file, f"{index}{name} = {value}\n")
        for value in map(repr, ("other", 5) if parameter.choices else (parameter.low - 1, parameter.high + 1)):
            assert f"tables.t.indexes.i.{name}" in refusal(file, f"{index}{name} = {value}\n")


def test_the_example_of_the_document_loads(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LAKE_TOKEN", "S3_KEY", "S3_SECRET"):
        monkeypatch.setenv(name, "x")
    example = re.search(r"```toml\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)
    assert example is not None
    settings = loaded(file, example.group(1))
    assert settings.tables["packages"].indexes["embedding"].target_recall == 0.95
    assert spark_conf(settings.spark)["spark.executor.memory"] == "8g"


def test_a_table_from_the_environment_is_json_and_is_merged(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ICEPUFFIN__SPARK__CONF", '{"spark.executor.memory": "2g"}')
    settings = loaded(file, MINIMAL + '[spark.conf]\n"spark.driver.memory" = "1g"\n')
    conf = {"spark.driver.memory": "1g", "spark.executor.memory": "2g"}
    assert spark_conf(settings.spark) == {"spark.master": "local[*]", **conf}


def test_the_shard_cache_is_where_the_settings_say(file: Path, tmp_path: Path) -> None:
    text = f'[cache]\ndirectory = "{tmp_path}/shards"\nmemory_mb = 3\nlayout = "compact"\nprefetch = "never"\n'
    use_shard_cache(loaded(file, MINIMAL + text))
    used = process_cache().settings
    assert (used.folder, used.memory_bytes) == (tmp_path / "shards", 3 << 20)
    assert (used.layout, used.prefetch) == ("compact", "never")


def test_the_engine_is_as_the_settings_say(file: Path) -> None:
    text = '[spark]\nremote = "sc://a"\ndriver_only_rows = 7\nconf = { "spark.remote" = "sc://b" }\n'
    engine = engine_of(loaded(file, f"threads = 3\n{MINIMAL}{text}"))
    assert repr(engine) == "Engine(sc://b, 3 threads, driver only under 7 rows)"


@pytest.mark.parametrize(
    "text", ["1e5", "2E06", "1.10", "null", "NaN", "true", "007", "{", '"x"', "12345678901234567890"]
)
def test_a_text_from_the_environment_is_not_changed(file: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("ICEPUFFIN__CATALOGS__LAKE__TOKEN", text)
    monkeypatch.setenv("ICEPUFFIN__CATALOGS__LAKE__S3.SECRET-ACCESS-KEY", text)
    monkeypatch.setenv("ICEPUFFIN__SPARK__CONF__spark.some.Password", text)
    monkeypatch.setenv("ICEPUFFIN__SPARK__REMOTE", text)
    settings = loaded(file, MINIMAL + 's3.secret-access-key = "of the file"\n')
    properties = settings.catalogs["lake"].properties
    assert (properties["token"], properties["s3.secret-access-key"]) == (text, text)
    assert spark_conf(settings.spark) == {"spark.remote": text, "spark.some.Password": text}


def test_numbers_in_the_file_are_texts_as_they_were_written(file: Path) -> None:
    properties = loaded(file, MINIMAL + "token = 1e5\ns3.region = 1.10\n").catalogs["lake"].properties
    assert (properties["token"], properties["s3.region"]) == ("1e5", "1.10")


def test_a_variable_means_the_table_of_its_name_whatever_the_case(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ICEPUFFIN__TABLES__DOCS__RUNS_AHEAD", "7")
    monkeypatch.setenv("ICEPUFFIN__TABLES__Docs__WATCHED_REFS", '["prod", "main"]')
    monkeypatch.setenv("ICEPUFFIN__TABLES__docs__INDEXES__I__SHARDS", "3")
    monkeypatch.setenv("ICEPUFFIN__TABLES__DOCS__INDEXES__I__TARGET_RECALL", "0.5")
    monkeypatch.setenv("ICEPUFFIN__TABLES__DOCS__STATISTICS__NDV", "off")
    text = '[tables.Docs]\ncatalog = "lake"\nname = "a.b"\n[tables.Docs.indexes.i]\ncolumn = "v"\n'
    settings = loaded(file, MINIMAL + text)
    assert list(settings.tables) == ["Docs"]
    table = settings.tables["Docs"]
    assert (table.runs_ahead, table.watched_refs, table.statistics.ndv) == (7, ("prod", "main"), "off")
    assert (table.indexes["i"].shards, table.indexes["i"].target_recall) == (3, 0.5)


@pytest.mark.parametrize(
    ("text", "keeps", "columns"),
    [("*", True, None), ("off", False, None), ('["id", "na[me"]', True, ("id", "na[me"))],
)
def test_a_kind_of_statistics_takes_all_columns_none_or_names(
    file: Path, monkeypatch: pytest.MonkeyPatch, text: str, keeps: bool, columns: tuple[str, ...] | None
) -> None:
    table = MINIMAL + "[tables.t]\ncatalog = 'lake'\nname = 'a.b'\n"
    written = text if text.startswith("[") else f'"{text}"'
    in_file = loaded(file, f"{table}[tables.t.statistics]\nndv = {written}\n").tables["t"].statistics
    monkeypatch.setenv("ICEPUFFIN__TABLES__T__STATISTICS__NDV", text)
    of_variable = loaded(file, table).tables["t"].statistics
    assert in_file == of_variable
    assert (in_file.keeps_ndv, in_file.requested.ndv) == (keeps, columns)


def test_each_kind_of_statistics_is_read_from_file_and_environment(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = {
        "ndv": '["id"]',
        "histogram": '["price", "day"]',
        "size": "*",
        "frequent": '["country"]',
        "joint": '[["country", "city"], ["a", "b", "c"]]',
        "drift": '{"price": 0.1, "*": 1}',
    }
    toml = {**values, "size": '"*"', "drift": '{price = 0.1, "*" = 1}'}
    table = MINIMAL + "[tables.t]\ncatalog = 'lake'\nname = 'a.b'\n"
    written = "".join(f"{key} = {value}\n" for key, value in toml.items())
    in_file = loaded(file, f"{table}[tables.t.statistics]\n{written}").tables["t"].statistics
    for key, value in values.items():
        monkeypatch.setenv(f"ICEPUFFIN__TABLES__T__STATISTICS__{key.upper()}", value)
    assert loaded(file, table).tables["t"].statistics == in_file
    assert in_file.requested == RequestedStatistics(
        ndv=("id",),
        histogram=("price", "day"),
        size="*",
        frequent=("country",),
        joint=(("country", "city"), ("a", "b", "c")),
    )
    assert in_file.drift == {"price": 0.1, "*": 1}


def test_json_from_the_environment_is_merged_with_the_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ICEPUFFIN__SPARK__CONF", '{"spark.a": "x", "spark.b": 1e5}')
    settings = loaded(file, MINIMAL + '[spark.conf]\nspark.a = "file"\nspark.c = "file"\n')
    assert spark_conf(settings.spark) == {
        "spark.master": "local[*]",
        "spark.a": "x",
        "spark.b": "1e5",
        "spark.c": "file",
    }


def test_tables_in_json_are_merged_with_those_of_the_file_at_every_depth(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ICEPUFFIN__TABLES", '{"t": {"retries": 2, "indexes": {"i": {"shards": 3}}}}')
    text = '[tables.t]\ncatalog = "lake"\nname = "a.b"\nretries = 1\n[tables.t.indexes.i]\ncolumn = "v"\n'
    table = loaded(file, MINIMAL + text).tables["t"]
    assert (table.name, table.retries) == ("a.b", 2)
    assert (table.indexes["i"].column, table.indexes["i"].shards) == ("v", 3)


def test_the_longer_of_two_variables_for_one_value_wins_and_is_blamed(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = {"ICEPUFFIN__SPARK": '{"in_process_mb": 8}', "ICEPUFFIN__SPARK__IN_PROCESS_MB": "9"}
    for names in ([*texts], [*reversed(texts)]):
        for name in names:
            monkeypatch.delenv(name, raising=False)
        for name in names:
            monkeypatch.setenv(name, texts[name])
        assert loaded(file, MINIMAL).spark.in_process_mb == 9, "whichever was set first"
    monkeypatch.setenv("ICEPUFFIN__SPARK__IN_PROCESS_MB", "many")
    with pytest.raises(SettingsError, match=r"^the environment variable ICEPUFFIN__SPARK__IN_PROCESS_MB: "):
        loaded(file, MINIMAL)


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("ICEPUFFIN__SPARK__CONF", '{"spark.a": null}', "spark.a is null"),
        ("ICEPUFFIN__THREADS__X", "1", "ICEPUFFIN__THREADS__X names no setting"),
        ("ICEPUFFIN__SPARK__MASTR", "x", "spark.mastr: no such setting"),
        (
            "ICEPUFFIN__TABLES__T__WATCHED_REFS",
            "main",
            'ICEPUFFIN__TABLES__T__WATCHED_REFS is not valid JSON: write a list, such as ["a", "b"]',
        ),
        (
            "ICEPUFFIN__CATALOGS",
            "lake",
            'ICEPUFFIN__CATALOGS is not valid JSON: write an object, such as {"key": "value"}',
        ),
        ("ICEPUFFIN__TABLES__T__STATISTICS__NDV", '["id"', 'NDV is not valid JSON: write a list, such as ["a", "b"]'),
    ],
)
def test_a_wrong_variable_is_named(
    file: Path, monkeypatch: pytest.MonkeyPatch, variable: str, value: str, message: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(SettingsError, match=re.escape(message)):
        loaded(file, MINIMAL)


@pytest.mark.parametrize(
    ("variable", "message"),
    [
        ("ICEPUFFIN_CACHE__DIRR", "names no setting: write ICEPUFFIN__CACHE__DIRR"),
        ("ICEPUFFIN__CACHE__DIRR", "cache.dirr: no such setting (there is directory)"),
        ("ICEPUFFIN__TABLES__PACKAGES__INDEXES__E__METRIK", "no such setting (there is metric)"),
        ("ICEPUFFIN_THREADS", "names no setting: write ICEPUFFIN__THREADS"),
        ("Icepuffin_Spark_Master", "names no setting: write ICEPUFFIN__SPARK__MASTER"),
        ("ICEPUFFIN_CATALOGS_LAKE_URI", "names no setting: write ICEPUFFIN__CATALOGS__LAKE__URI"),
        ("ICEPUFFIN_TABLES_PACKAGES_KEEP_LAST", "names no setting: write ICEPUFFIN__TABLES__PACKAGES__KEEP__LAST"),
        ("ICEPUFFIN_SETTING", "is not read; correct it to ICEPUFFIN_SETTINGS"),
        ("ICEPUFFIN_SHARD_CACHE_DISC_MB", "is not read; correct it to ICEPUFFIN_SHARD_CACHE_DISK_MB"),
        ("icepuffin_shard_cache_tail_mb", "is not read; correct it to ICEPUFFIN_SHARD_CACHE_TAIL_MB"),
        ("ICEPUFFIN_SHARD_CACHE_TALL_MB", "is not read; correct it to ICEPUFFIN_SHARD_CACHE_TAIL_MB"),
    ],
)
def test_a_variable_that_nearly_names_a_setting_is_not_ignored(
    file: Path, monkeypatch: pytest.MonkeyPatch, variable: str, message: str
) -> None:
    monkeypatch.setenv(variable, "1")
    text = '[tables.packages]\ncatalog = "lake"\nname = "a.b"\n[tables.packages.indexes.e]\ncolumn = "v"\n'
    with pytest.raises(SettingsError, match=re.escape(message)) as caught:
        loaded(file, MINIMAL + text)
    assert f"the environment variable {variable}" in str(caught.value)


def test_no_variable_of_the_shard_cache_is_taken_for_a_slip() -> None:
    read = {value for value in vars(cache_settings).values() if str(value).startswith("ICEPUFFIN_")}
    assert {"ICEPUFFIN_SETTINGS", *read} == {*overrides._VARIABLES}


def test_variables_of_others_may_begin_with_the_name_of_the_package(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("CACHE", "BROWSER", "OFFLINE", "PORT", "SERVICE_HOST", "SPARK_SERVICE_HOST", "SHARD_CACHE"):
        monkeypatch.setenv(f"ICEPUFFIN_{variable}", "tcp://10.0.0.1:80")
    assert loaded(file, MINIMAL) == loaded(file, MINIMAL)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("threads = 1.5\n", "threads: takes a whole number of at least 0"),
        ("[retention]\ndry_run = 'maybe'\n", "retention.dry_run: takes true or false"),
        ("[retention]\ngarbage_grace_hours = -1\n", "garbage_grace_hours: takes a number from 0 to 876600"),
        ("[retention]\ngarbage_grace_hours = inf\n", "garbage_grace_hours: takes a number from 0 to 876600"),
        ("[tables.t]\ncatalog='lake'\nname='a.b'\nkeep.days=0\n", "tables.t.keep.days: takes a number over 0"),
        ("[tables.t]\ncatalog='lake'\nname='a.b'\nretries=11\n", "retries: takes a whole number from 0 to 10"),
        ("[tables.t]\ncatalog='lake'\nname='a.b'\nsnapshots='all'\n", "snapshots: takes 'every' or 'newest'"),
        ("[tables.t]\ncatalog='lake'\nname='a.b'\nwatched_refs='main'\n", "watched_refs: takes a list"),
        ("[tables.t]\ncatalog='lake'\nname='a.b'\nwatched_refs=[]\n", "at least one ref must be watched"),
        ("[tables.t]\ncatalog='lake'\nname='a.b'\n[tables.t.indexes.e]\ncolumn='v'\npq_nbits=5\n", "takes 4, 8"),
        ("[tables.t]\ncatalog='lake'\nname=1\n", "tables.t.name: takes a text"),
        *(
            (
                f"[tables.t]\ncatalog='lake'\nname='a.b'\nstatistics.ndv={value}\n",
                'tables.t.statistics.ndv: takes "*", "off", or a list of names of columns',
            )
            for value in ("true", "'id'", "[]", "[1]", "''", "{}")
        ),
        ("[tables.t]\ncatalog='lake'\nname='a.b'\nstatistics.hist='*'\n", "statistics.hist: no such setting"),
        *(
            (f"[tables.t]\ncatalog='lake'\nname='a.b'\nstatistics.joint={value}\n", 'joint: takes "off", or a list of')
            for value in ("'*'", "['id']", "[['id']]", "[['id', 'id']]", "[]")
        ),
        *(
            (f"[tables.t]\ncatalog='lake'\nname='a.b'\nstatistics.drift={value}\n", f"drift{words}")
            for value, words in (
                ("0.1", ": takes a table of settings"),
                *((f"{{id={wrong}}}", ".id: Input should be ") for wrong in ("0", "-1", "true", "'1'", "nan")),
            )
        ),
        *(
            (
                f"[tables.t]\ncatalog='lake'\nname='a.b'\nstatistics={{ndv='off', {other}}}\n",
                f"tables.t.statistics: {other.partition('=')[0]} needs ndv of one column at least",
            )
            for other in ("size='*'", "joint=[['a', 'b']]", "drift={id=1}")
        ),
        ("spark = 'local'\n", "spark: takes a table of settings"),
        ("dagster_home = ''\n", "dagster_home: is empty: name a folder, or leave it out"),
        ("[cache]\ndirectory = ''\n", "cache.directory: is empty: name a folder, or leave it out"),
        ("[cache]\ndirectory = 1\n", "cache.directory: takes a path"),
    ],
)
def test_a_wrong_value_says_what_the_setting_takes(file: Path, text: str, message: str) -> None:
    assert message in refusal(file, MINIMAL + text if text.startswith("[") else text + MINIMAL)


def test_a_variable_with_the_wrong_name_of_a_table_is_blamed_and_not_the_file(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ICEPUFFIN__TABLES__PACKAGE__NAME", "a.c")
    message = (
        "the environment variable ICEPUFFIN__TABLES__PACKAGE__NAME: tables.package.catalog: is missing; "
        f"{file} has no tables.package: correct the variable's name"
    )
    with pytest.raises(SettingsError, match=re.escape(message)):
        loaded(file, MINIMAL + '[tables.packages]\ncatalog = "lake"\nname = "a.b"\n')
    monkeypatch.delenv("ICEPUFFIN__TABLES__PACKAGE__NAME")
    with pytest.raises(SettingsError, match=rf"^{re.escape(str(file))}: tables.packages.catalog: is missing; set it"):
        loaded(file, MINIMAL + '[tables.packages]\nname = "a.b"\n')


def test_a_file_without_a_catalog_says_how_to_add_one(file: Path) -> None:
    for text, message in (("", "catalogs: is missing"), ("[catalogs]", "no catalog is set")):
        with pytest.raises(SettingsError, match=re.escape(f"{file}: {message}; set catalogs.<name>")):
            loaded(file, text)


def test_a_folder_in_place_of_the_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        SettingsError, match=re.escape(f"{tmp_path} cannot be read: Is a directory; name a file with --settings")
    ):
        load(tmp_path)


def test_a_file_that_is_no_text_is_named(file: Path) -> None:
    file.write_bytes(b"threads = 2 # \xff")
    with pytest.raises(SettingsError, match=re.escape(f"{file} is no text in UTF-8, as TOML is")):
        load(file)


@pytest.mark.parametrize(
    ("text", "variable", "value", "message"),
    [
        ("", "ICEPUFFIN__THREADS", "x", "the environment variable ICEPUFFIN__THREADS: threads: "),
        (
            "",
            "icepuffin__spark__In_Process_mb",
            "x",
            "the environment variable icepuffin__spark__In_Process_mb: spark.",
        ),
        ("", "ICEPUFFIN__SPARK", '{"mastr": 1}', "the environment variable ICEPUFFIN__SPARK: spark.mastr: no such"),
        ("[spark]\nmastr = 1\n", "ICEPUFFIN__SPARK", '{"master": "local"}', "icepuffin.toml: spark.mastr: no such"),
        ("", "ICEPUFFIN__TABLES", '{"t": {"name": "a.b"}}', "icepuffin.toml: tables.t.catalog: is missing"),
        (
            "",
            "ICEPUFFIN__TABLES",
            '{"t": {"name": "a.b", "catalog": "lake", "watched_refs": [1]}}',
            "the environment variable ICEPUFFIN__TABLES: tables.t.watched_refs.0: ",
        ),
    ],
)
def test_a_bad_value_is_reported_with_its_place(
    file: Path, monkeypatch: pytest.MonkeyPatch, text: str, variable: str, value: str, message: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(SettingsError) as caught:
        loaded(file, MINIMAL + text)
    assert message in str(caught.value)
    assert (str(file) in str(caught.value)) == ("icepuffin.toml" in message)


def test_faults_of_the_file_and_of_a_variable_are_both_reported(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ICEPUFFIN__THREADS", "x")
    message = refusal(file, MINIMAL + "[spark]\nmastr = 1\n")
    assert f"{file}: spark.mastr: no such setting" in message
    assert "the environment variable ICEPUFFIN__THREADS: threads: " in message


def test_the_size_of_a_probe_here_has_the_name_of_the_paper_too(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = MINIMAL + "[spark]\ncoordinator_ann_probe_threshold_mb = 7\n"
    assert loaded(file, text).spark.in_process_mb == 7
    assert "are the same setting" in refusal(file, text + "in_process_mb = 8\n")
    monkeypatch.setenv("ICEPUFFIN__SPARK__COORDINATOR_ANN_PROBE_THRESHOLD_MB", "9")
    assert loaded(file, MINIMAL).spark.in_process_mb == 9
