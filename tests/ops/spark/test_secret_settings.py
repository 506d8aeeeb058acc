"""A session that an engine starts shows no secret: as a process, in Spark's event log, in its UI, on its disks."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark import SparkConf, SparkContext

from icepuffin.ops.errors import IcepuffinError
from icepuffin.ops.spark import secret_settings
from icepuffin.ops.spark.secret_settings import REDACTION, redacted, start_jvm

CANARY = "canary0sings"
SECRETS = {
    "spark.hadoop.fs.s3a.secret.key": CANARY,
    "spark.hadoop.fs.azure.account.key.lake.dfs.core.windows.net": CANARY,
    "spark.hadoop.fs.s3a.encryption.key": CANARY,
    "spark.hadoop.fs.azure.sas.lake.account.blob.core.windows.net": f"?sv=2024-11-04&sp=rl&sig={CANARY}",
    "spark.sql.catalog.lake.adls.connection": f"BlobEndpoint=https://a.b;SharedAccessSignature=sv=x&sig={CANARY}",
    "spark.sql.catalog.lake.credential": f"{CANARY}:{CANARY}",
    "spark.sql.catalog.lake.uri": f"https://user:{CANARY}@catalog.example.org/lake",
    "spark.sql.catalog.lake.header.Authorization": f"Basic {CANARY}",
    "spark.executorEnv.AWS_ACCESS_KEY_ID": CANARY,
    "spark.executorEnv.PGPASSWORD": CANARY,
    "spark.lake.api-key": CANARY,
    "spark.lake.pin": CANARY,  # by a pattern of the user's
}
DEFAULTS = {REDACTION: "(?i)lake[.]code", "spark.lake.code": CANARY}
"""What spark-defaults.conf has"""
PLAIN = {
    "spark.hadoop.fs.s3a.endpoint": "http://127.0.0.1:9000",
    "spark.hadoop.fs.s3a.aws.credentials.provider": "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider",
    "spark.sql.catalog.lake.warehouse": "abfss://lake@account.dfs.core.windows.net/warehouse",
    "spark.sql.shuffle.partitions": "3",
    "spark.driver.memory": "700m",
}
PROGRAM = """
import json, sys, urllib.request
from pathlib import Path
from icepuffin.ops.resources import Engine
from icepuffin.ops.spark import spark_runner as runner

engine = Engine(spark_conf=json.loads(sys.stdin.read()), threads=1, driver_only_rows=0)
session = engine.session
context = session.sparkContext
task = context.getConf().get("spark.lake.api-key")
lengths = engine.spark_runner().run(len, [task, task], label="tasks with credentials")
runner.CARRIED_BYTES = 0  # these are shuffled, and lie on the disks
lengths += engine.spark_runner().run(len, [task, task], label="tasks with credentials")
local = Path(context.getConf().get("spark.local.dir"))
port = context.uiWebUrl.rpartition(":")[2]
address = f"http://127.0.0.1:{port}/api/v1/applications/{context.applicationId}/environment"
process = context._jvm.java.lang.ProcessHandle.current().pid()
report = {
    "command": Path(f"/proc/{process}/cmdline").read_bytes().decode(),
    "lengths": lengths,
    "shuffled": len(list(local.rglob("shuffle_*.data"))),
    "local": b"".join(path.read_bytes() for path in local.rglob("*") if path.is_file()).decode("latin-1"),
    "ui": urllib.request.urlopen(address, timeout=30).read().decode(),
    "in use": {key: context.getConf().get(key) for key in json.loads(sys.argv[1])},
    "option": context._jvm.java.lang.System.getProperty("lake.token.kind"),
    "megabytes": context._jvm.java.lang.Runtime.getRuntime().maxMemory() >> 20,
}
session.stop()
print(json.dumps(report))
"""


@pytest.mark.jvm
def test_spark_shows_no_secret_of_its_configuration(tmp_path: Path) -> None:
    logs = tmp_path / "events"
    logs.mkdir()
    defaults = tmp_path / "spark-defaults.conf"
    defaults.write_text("".join(f"{key} {value}\n" for key, value in DEFAULTS.items()))
    conf = {
        "spark.master": "local[1]",
        "spark.ui.port": "0",
        "spark.driver.host": "127.0.0.1",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": logs.as_uri(),
        "spark.eventLog.compress": "false",
        "spark.local.dir": str(tmp_path / "local"),
        "spark.driver.extraJavaOptions": "-Dlake.token.kind=short",
        REDACTION: "(?i)lake[.]pin",
        **SECRETS,
        **PLAIN,
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(list(SECRETS))],
        input=json.dumps(conf),
        env={
            **os.environ,
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_CONF_DIR": str(tmp_path),
            "JAVA_TOOL_OPTIONS": "-XX:+UseG1GC -XX:TieredStopAtLevel=1",  # whose largest heap is the one set
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["in use"] == SECRETS
    assert (report["megabytes"], report["option"]) == (700, "short"), "what the JVM is started with"
    assert "spark.sql.shuffle.partitions=3" in report["command"]
    assert (report["lengths"], report["shuffled"] > 0) == ([len(CANARY)] * 4, True)
    for place in (report["command"], report["ui"], report["local"], done.stderr):
        assert CANARY not in place
    events = "".join(path.read_text() for path in logs.rglob("*") if path.is_file())
    assert CANARY not in events
    (environment,) = [line for line in events.splitlines() if '"SparkListenerEnvironmentUpdate"' in line]
    shown = json.loads(environment)["Spark Properties"]
    assert {key: shown[key] for key in PLAIN} == PLAIN
    assert {*SECRETS, "spark.lake.code"} <= set(shown)


def test_patterns_of_the_settings_and_of_spark_defaults_are_both_kept() -> None:
    """Java reads the whole: Python takes no flags within a pattern."""
    pattern = redacted({REDACTION: "lake[.]pin"}, "lake[.]code")[REDACTION]
    assert pattern.startswith("(?:(?i)secret|token|")
    assert pattern.endswith("|(?:lake[.]pin)|(?:lake[.]code)")


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, str]]:
    """Configurations that JVMs would be started with; none is."""
    configurations: list[dict[str, str]] = []

    def start(conf: SparkConf) -> None:
        configurations.append(dict(conf.getAll()))

    monkeypatch.setattr(secret_settings, "launch_without_noise", start)
    monkeypatch.setattr(SparkContext, "_gateway", None)
    monkeypatch.setattr(SparkContext, "_ensure_initialized", lambda gateway: gateway)
    return configurations


@pytest.mark.parametrize("more", [{}, {REDACTION: "(?i)lake[.]pin"}, {REDACTION: CANARY}])
def test_the_jvm_is_started_with_what_is_no_secret(started: list[dict[str, str]], more: dict[str, str]) -> None:
    """A secret is one by its key or by its value, and a pattern of the user may name it."""
    start_jvm({**SECRETS, **PLAIN, **more})
    assert started == [PLAIN if more else {**PLAIN, "spark.lake.pin": CANARY}]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("spark.lake.oauth.TOKEN", CANARY),
        ("spark.ssl.passphrase", CANARY),
        ("spark.lake.private-key", CANARY),
        ("spark.lake.accountKey", CANARY),
        ("spark.lake.header", f"Bearer {CANARY}"),
        ("spark.lake.url", f"https://a.b/c?Signature={CANARY}"),
        ("spark.lake.credentials", CANARY),
    ],
)
def test_a_secret_is_known_by_each_of_its_names(started: list[dict[str, str]], key: str, value: str) -> None:
    plain = {
        "spark.lake.credential.provider": "p",
        "spark.lake.credentialsprovider": "p",
        "spark.lake.sort": "by_sig=1",
    }
    start_jvm({key: value, **plain})
    assert started == [plain]


def test_a_jvm_that_runs_is_not_started_again(started: list[dict[str, str]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SparkContext, "_gateway", "running")
    start_jvm(PLAIN)
    assert not started


def test_a_pattern_of_the_user_adds_to_ours() -> None:
    assert redacted({REDACTION: "pin"})[REDACTION] == f"{redacted({})[REDACTION]}|(?:pin)"


def test_a_pattern_that_cannot_be_read_is_refused_before_anything_starts() -> None:
    with pytest.raises(IcepuffinError, match=r"spark\.redaction\.regex in the settings is no"):
        start_jvm({REDACTION: "(", "spark.some.key": CANARY})


def test_settings_that_act_when_the_jvm_starts_reach_it_and_are_warned_of(
    started: list[dict[str, str]], caplog: pytest.LogCaptureFixture
) -> None:
    """Spark reads them nowhere else: without them classes are not found, or stores not trusted."""
    of_the_start = {
        "spark.jars": "/opt/tokens/lake.jar",
        "spark.jars.packages": "org.example:keyvault-secrets:1.0",
        "spark.driver.extraJavaOptions": "-Djavax.net.ssl.trustStorePassword=changeit",
        "spark.kerberos.access.token": "changeit",
        "spark.submit.secret": "changeit",
    }
    start_jvm({**of_the_start, **SECRETS, **PLAIN, REDACTION: "(?i)lake[.]pin"})
    assert started == [{**of_the_start, **PLAIN}]
    assert "changeit" not in caplog.text
    (message,) = caplog.messages
    assert all(key in message for key in of_the_start)
