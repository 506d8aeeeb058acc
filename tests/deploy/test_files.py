"""The files of `deploy/` load where they are loaded, and agree with each other and with the project."""

import re
import runpy
import shutil
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import dagster as dg
import pytest
import sqlalchemy
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from icepuffin.orchestration.factory import build
from icepuffin.orchestration.instance import WORKSPACE_YAML
from icepuffin.orchestration.overrides import SettingsError
from icepuffin.orchestration.request_guard import MODULE
from icepuffin.orchestration.settings import load
from tests.deploy.wheel import build_wheel, copied_sources
from tests.services.jars import ICEBERG_SPARK

REPOSITORY = Path(__file__).resolve().parents[2]
DEPLOY = REPOSITORY / "deploy"
PASSWORD = "n@t/a#secret"
KUBERNETES_FILES = ("Dockerfile", "executor.yaml", "icepuffin.toml", "values.yaml")
DOCKERFILE = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
    return loaded


@pytest.fixture(scope="module")
def login() -> dict[str, Any]:
    """compose.login.yaml; `!reset []`, which takes a list away, is read as a word."""
    text = (DEPLOY / "compose.login.yaml").read_text(encoding="utf-8")
    loaded: dict[str, Any] = yaml.safe_load(text.replace("!reset []", "reset"))
    return loaded


@pytest.fixture
def environment(compose: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What compose.yaml gives to the code location, in this process."""
    environment = {name: str(value) for name, value in compose["services"]["code"]["environment"].items()}
    assert environment["PGPASSWORD"] == environment["DAGSTER_POSTGRES_PASSWORD"]
    environment |= dict.fromkeys(("PGPASSWORD", "DAGSTER_POSTGRES_PASSWORD"), PASSWORD)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    return environment


def test_every_service_says_whether_it_is_well(compose: dict[str, Any]) -> None:
    assert set(compose["services"]) == {
        "postgres", "code", "webserver", "daemon", "metrics", "spark-master", "spark-worker",
    }  # fmt: skip
    for name, service in compose["services"].items():
        assert service["healthcheck"]["test"][0] == "CMD", name
        assert service["restart"] == "unless-stopped", name
        for other, condition in service.get("depends_on", {}).items():
            assert condition == {"condition": "service_healthy"}
            assert other in compose["services"]


def test_no_service_is_open_to_the_network_or_holds_a_secret(compose: dict[str, Any]) -> None:
    for name, service in compose["services"].items():
        for port in service.get("ports", []):
            assert port.startswith("127.0.0.1:"), name
        for key, value in service.get("environment", {}).items():
            if "PASSWORD" in key:
                assert value.startswith("${POSTGRES_PASSWORD:?"), name


def test_every_command_is_a_program_of_the_environment(compose: dict[str, Any]) -> None:
    for service in compose["services"].values():
        for command in (service.get("command"), service["healthcheck"]["test"][1:]):
            if command and command[0] not in {"pg_isready", "python"}:
                assert Path(sys.executable).with_name(command[0]).exists(), command


def test_every_file_that_compose_mounts_exists(compose: dict[str, Any], login: dict[str, Any]) -> None:
    assert "configs" not in compose, "podman-compose ignores them"
    for service in [*compose["services"].values(), login["services"]["proxy"]]:
        assert "configs" not in service
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            if source.startswith("./"):
                assert (DEPLOY / source).is_file(), source
                assert volume.endswith(":ro")
            elif not source.startswith("${ICEPUFFIN_LOGIN"):
                assert source in compose["volumes"]


def test_every_service_has_a_limit_of_memory(compose: dict[str, Any], login: dict[str, Any]) -> None:
    for name, service in (compose["services"] | {"proxy": login["services"]["proxy"]}).items():
        assert re.search(r"\d[mg]\}?$", service["deploy"]["resources"]["limits"]["memory"]), name


def test_with_the_proxy_the_webserver_has_no_port_of_its_own(login: dict[str, Any]) -> None:
    assert login["services"]["webserver"] == {"ports": "reset"}
    (port,) = login["services"]["proxy"]["ports"]
    assert port.endswith(":8443")
    conf = (DEPLOY / "nginx.conf").read_text(encoding="utf-8")
    assert conf.index("listen 8443 ssl;") < conf.index("auth_basic_user_file") < conf.index("location /")
    listening = re.findall(r"^ *listen ", conf, re.MULTILINE)
    assert len(listening) == conf.count("server {") == 1, "nothing is served without the log-in"


def test_a_guard_stands_before_the_webserver_that_gets_the_host_that_the_browser_sent(compose: dict[str, Any]) -> None:
    guard = ["-P", "-m", MODULE, "webserver"]
    assert compose["services"]["webserver"]["command"][1:5] == guard
    local = (DEPLOY / "local.sh").read_text(encoding="utf-8")
    assert f'launch webserver "$python" {" ".join(guard)} -h "$host"' in local
    assert "proxy_set_header Host $http_host;" in (DEPLOY / "nginx.conf").read_text(encoding="utf-8")


def test_the_environment_has_the_variables_that_the_files_name(environment: dict[str, str]) -> None:
    variables = set(re.findall(r"env: (\w+)", (DEPLOY / "dagster.yaml").read_text(encoding="utf-8")))
    variables |= set(re.findall(r"env: (\w+)", (DEPLOY / "workspace.yaml").read_text(encoding="utf-8")))
    settings = re.sub("^#.*", "", (DEPLOY / "icepuffin.toml").read_text(encoding="utf-8"), flags=re.MULTILINE)
    variables |= set(re.findall(r"\$\{(\w+)\}", settings))
    assert variables <= set(environment)


def test_the_example_settings_load_and_define_the_assets(environment: dict[str, str]) -> None:
    settings = load(DEPLOY / "icepuffin.toml")
    assert settings.spark.master == "spark://spark-master:7077"
    assert settings.spark.conf["spark.driver.host"].get_secret_value() == "code"
    url = sqlalchemy.make_url(settings.catalogs["lake"].properties["uri"])
    assert (url.host, url.password) == (environment["DAGSTER_POSTGRES_HOST"], None), "one with @ would be cut in two"
    connection, given = sqlalchemy.create_engine(url).dialect.create_connect_args(url)
    assert (connection, "password" in given) == ([], False), "so that the client takes PGPASSWORD"
    assert environment["PGPASSWORD"] == PASSWORD
    assert PASSWORD not in repr(settings)
    keys = build(settings).resolve_asset_graph().get_all_asset_keys()  # the catalog is away: the settings' own indexes
    assert dg.AssetKey(["lake", "demo", "packages", "ann_index", "embedding"]) in keys


def test_the_example_settings_name_a_missing_secret(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DAGSTER_POSTGRES_USER")
    with pytest.raises(SettingsError, match="DAGSTER_POSTGRES_USER is not set"):
        load(DEPLOY / "icepuffin.toml")


@pytest.fixture
def database(environment: dict[str, str], postgres_uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new database of a real server, named by the environment as compose.yaml names its own."""
    url = sqlalchemy.make_url(postgres_uri)
    engine = sqlalchemy.create_engine(url, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(sqlalchemy.text("CREATE DATABASE dagster_deploy"))
    engine.dispose()
    values = {
        "HOST": url.host,
        "PORT": url.port,
        "USER": url.username,
        "PASSWORD": url.password,
        "DB": "dagster_deploy",
    }
    for name, value in values.items():
        assert f"DAGSTER_POSTGRES_{name}" in environment
        monkeypatch.setenv(f"DAGSTER_POSTGRES_{name}", str(value))


@pytest.mark.services
@pytest.mark.usefixtures("database")
def test_the_instance_keeps_everything_in_postgres(tmp_path: Path) -> None:
    shutil.copy(DEPLOY / "dagster.yaml", tmp_path)
    with dg.DagsterInstance.from_config(str(tmp_path)) as instance:
        stores = (instance.run_storage, instance.event_log_storage, instance.schedule_storage)
        assert {type(store).__name__.removeprefix("Postgres") for store in stores} == {
            "RunStorage", "EventLogStorage", "ScheduleStorage",
        }  # fmt: skip
        instance.report_runless_asset_event(dg.AssetMaterialization("a", partition="1"))
        assert instance.get_materialized_partitions(dg.AssetKey("a")) == {"1"}
        concurrency = instance.get_concurrency_config()
        assert concurrency.pool_config.default_pool_limit == 1
        assert concurrency.run_queue_config is not None
        assert concurrency.run_queue_config.max_concurrent_runs == 4
        assert instance.run_monitoring_enabled
        assert instance.run_monitoring_max_runtime_seconds == 86_400
        assert instance.run_retries_enabled
        assert not instance.telemetry_enabled


def test_the_run_queue_knows_a_table_by_the_tag_that_runs_carry() -> None:
    from icepuffin.orchestration.sensor.facts import TABLE_TAG  # noqa: PLC0415  named beside its use

    limits = yaml.safe_load((DEPLOY / "dagster.yaml").read_text(encoding="utf-8"))["concurrency"]["runs"]
    assert [item["key"] for item in limits["tag_concurrency_limits"]] == [TABLE_TAG]


def test_the_image_holds_every_package_of_the_project() -> None:
    sources = copied_sources()
    for source in sources:
        assert (REPOSITORY / source).exists(), source
    assert set(package_folders().values()) <= set(sources)
    kept = {line[1:] for line in (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines() if line.startswith("!")}
    assert {source.split("/")[0] for source in sources} <= kept


def test_packages_of_the_image_are_installed_anew_only_where_their_pins_change() -> None:
    """Any file that a stage has copied before it installs them makes it install them again."""
    (stage,) = (part for part in re.split(r"^FROM ", DOCKERFILE, flags=re.MULTILINE) if "-r runtime.txt" in part)
    before = stage.partition("-r runtime.txt")[0]
    assert re.findall(r"^COPY (.+)$", before, re.MULTILINE) == ["--from=lock /lock/runtime.txt /lock/setuptools.txt ./"]


def test_what_the_image_copies_installs_as_icepuffin_and_nothing_else(tmp_path: Path) -> None:
    expected = {
        f"{package.replace('.', '/')}/{path.relative_to(REPOSITORY / folder)}"
        for package, folder in package_folders().items()
        for path in (REPOSITORY / folder).rglob("*.py")
    }
    with ZipFile(build_wheel(tmp_path)) as wheel:
        installed = {name for name in wheel.namelist() if ".dist-info/" not in name}
        (top_level,) = (name for name in wheel.namelist() if name.endswith("/top_level.txt"))
        assert wheel.read(top_level).decode().split() == ["icepuffin"]
    assert installed == expected | {"icepuffin/py.typed"}


def package_folders() -> dict[str, str]:
    """Package -> its folder in the repository."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
    folders: dict[str, str] = project["tool"]["setuptools"]["package-dir"]
    return folders


def test_the_code_location_has_one_name_however_dagster_is_started() -> None:
    """Dagster keeps sensors' switches and cursors by it."""
    files = [(folder / "workspace.yaml").read_text(encoding="utf-8") for folder in (REPOSITORY, DEPLOY)] + [
        WORKSPACE_YAML
    ]
    entries = [entry for text in files for item in yaml.safe_load(text)["load_from"] for entry in item.values()]
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
    named = [entry["location_name"] for entry in entries]
    named.append(project["tool"]["dg"]["project"]["code_location_name"])
    assert named == ["icepuffin"] * 4


def test_image_spark_settings_and_tests_name_the_same_iceberg() -> None:
    group, artifact, version = ICEBERG_SPARK.split(":")
    assert f"ARG ICEBERG={artifact}\nARG ICEBERG_VERSION={version}\n" in DOCKERFILE
    assert f"-dependency {group} " in DOCKERFILE
    assert ICEBERG_SPARK in (DEPLOY / "spark-defaults.conf").read_text(encoding="utf-8")


def test_spark_reads_its_settings() -> None:
    lines = (DEPLOY / "spark-defaults.conf").read_text(encoding="utf-8").splitlines()
    pairs = [line.split(None, 1) for line in lines if line and not line.startswith("#")]
    assert all(len(pair) == 2 and pair[0].startswith("spark.") for pair in pairs)
    assert len({key for key, _ in pairs}) == len(pairs)


def test_the_runtime_part_of_the_lock_is_complete_and_no_more() -> None:
    program = [sys.executable, str(DEPLOY / "runtime_lock.py")]
    printed = subprocess.run(program, capture_output=True, text=True, check=True).stdout
    names = {canonicalize_name(name) for name in re.findall(r"^([A-Za-z0-9._-]+)==", printed, re.MULTILINE)}
    for name in names:
        for line in metadata.requires(name) or ():
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                assert canonicalize_name(requirement.name) in names, f"{name} needs {line}"
    assert names & {"pytest", "ruff", "mypy", "duckdb", "polars"} == set()
    assert printed.count("--hash=sha256:") >= len(names)


def test_the_image_leaves_out_only_what_is_there() -> None:
    """The build ends where a pattern matches nothing: a release that moves its files is noticed here first."""
    site = Path(str(metadata.distribution("pyspark").locate_file("")))
    for package, patterns in runpy.run_path(str(DEPLOY / "slim.py"))["UNUSED"].items():
        for pattern in patterns:
            assert list((site / package).glob(pattern)), f"{package}/{pattern}"


def test_the_slim_build_removes_what_is_listed_and_fails_where_nothing_is(tmp_path: Path) -> None:
    slim = runpy.run_path(str(DEPLOY / "slim.py"))
    (tmp_path / "tests" / "data").mkdir(parents=True)
    (tmp_path / "module.py").touch()
    slim["remove"](list(tmp_path.glob("tests")), "tests")
    assert [path.name for path in tmp_path.iterdir()] == ["module.py"]
    with pytest.raises(SystemExit, match="nothing is named tests any more"):
        slim["remove"](list(tmp_path.glob("tests")), "tests")


def test_images_of_compose_kubernetes_and_the_trial_have_one_version() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))
    version = project["project"]["version"]
    for file in (
        "compose.yaml",
        "try_containers.py",
        "Dockerfile",
        *(f"kubernetes/{name}" for name in KUBERNETES_FILES),
    ):
        named = re.findall(
            r"icepuffin(?:-kubernetes)?(?::|, tag: \")(\d+\.\d+\.\d+(?:\.dev\d+)?)",
            (DEPLOY / file).read_text(encoding="utf-8"),
        )
        assert set(named) == {version}, file


def test_pods_of_kubernetes_run_as_the_image_s_user_and_read_the_settings_that_are_mounted() -> None:
    values = yaml.safe_load((DEPLOY / "kubernetes" / "values.yaml").read_text(encoding="utf-8"))
    (code,) = values["dagster-user-deployments"]["deployments"]
    user = re.search(r"^USER (\d+):", DOCKERFILE, re.MULTILINE)
    assert user is not None
    assert code["podSecurityContext"]["runAsUser"] == int(user[1])
    executor = yaml.safe_load((DEPLOY / "kubernetes" / "executor.yaml").read_text(encoding="utf-8"))
    assert executor["spec"]["securityContext"]["runAsUser"] == int(user[1])
    (mount,) = code["volumeMounts"]
    variables = {variable["name"]: variable for variable in code["env"]}
    assert variables["ICEPUFFIN_SETTINGS"]["value"] == f"{mount['mountPath']}/icepuffin.toml"
    settings = (DEPLOY / "kubernetes" / "icepuffin.toml").read_text(encoding="utf-8")
    assert set(re.findall(r"\$\{(\w+)\}", settings)) <= variables.keys()
    commands = (DEPLOY / "kubernetes" / "Dockerfile").read_text(encoding="utf-8")
    (container,) = executor["spec"]["containers"]
    assert container["command"] == ["/opt/icepuffin/kubernetes/executor.sh"]
    assert "deploy/kubernetes/executor.sh /opt/icepuffin/kubernetes/" in commands
    assert f'"{container["name"]}"' in settings


def test_dagster_on_kubernetes_has_the_limits_of_the_deployment_by_compose() -> None:
    """The chart's own run queue must be empty beside them: Dagster takes one of both."""
    values = yaml.safe_load((DEPLOY / "kubernetes" / "values.yaml").read_text(encoding="utf-8"))
    ours = yaml.safe_load((DEPLOY / "dagster.yaml").read_text(encoding="utf-8"))["concurrency"]
    limits = values["additionalInstanceConfig"]["concurrency"]
    assert limits["pools"] == ours["pools"]
    assert limits["runs"]["tag_concurrency_limits"] == ours["runs"]["tag_concurrency_limits"]
    queue = values["dagsterDaemon"]["runCoordinator"]["config"]["queuedRunCoordinator"]
    assert not any(queue.values())
