"""Checks this folder against Dagster's chart, the API of Kubernetes, and Dagster itself: `check.py CHART`.

CHART is a folder with the chart: `helm pull --untar dagster/dagster`, after `helm repo add dagster
https://dagster-io.github.io/helm`. No cluster is needed. `sh deploy/bootstrap.sh charts CHART` makes the environment.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import dagster as dg
import jsonschema
import kubernetes_validate
import yaml
from dagster_k8s.container_context import K8sContainerContext
from dagster_k8s.job import DagsterK8sJobConfig, construct_dagster_k8s_job, get_user_defined_k8s_config
from kubernetes.client import ApiClient

from icepuffin.assets.table_settings import RUN_NUMBERS, with_numbers

HERE = Path(__file__).resolve().parent
VALUES = HERE / "values.yaml"
MEMORY_MB = 2345
"""What the run of the check needs"""
Document = dict[str, Any]


def rendered(helm: str, chart: Path) -> list[Document]:
    """The chart's manifests. Its own schema is checked apart: parts of that are fetched from a site that is away."""
    command = [helm, "template", "dagster", str(chart), "-n", "dagster", "-f", str(VALUES), "--skip-schema-validation"]
    return documents(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def documents(text: str) -> list[Document]:
    return [document for document in yaml.safe_load_all(text) if document]


def check_values(chart: Path) -> str:
    """The values, over those of the chart, against its schema, but for what that takes from Kubernetes' own."""
    schema = without_references(json.loads((chart / "values.schema.json").read_text(encoding="utf-8")))
    jsonschema.validate(merged(yaml.safe_load((chart / "values.yaml").read_text(encoding="utf-8")), values()), schema)
    return "values fit the chart's schema"


def values() -> Document:
    loaded: Document = yaml.safe_load(VALUES.read_text(encoding="utf-8"))
    return loaded


def without_references(node: Any) -> Any:
    """A schema without references to other sites."""
    if isinstance(node, dict):
        return {key: without_references(value) for key, value in node.items() if not is_remote(key, value)}
    return [without_references(entry) for entry in node] if isinstance(node, list) else node


def is_remote(key: str, value: object) -> bool:
    return key == "$ref" and str(value).startswith("https:")


def merged(below: Any, above: Any) -> Any:
    """As Helm merges values: maps by key, null removes a key, anything else is replaced."""
    if not isinstance(below, dict) or not isinstance(above, dict):
        return above
    both = below | {key: merged(below.get(key), value) for key, value in above.items()}
    return {key: value for key, value in both.items() if value is not None or key not in above}


def check_manifests(manifests: Iterable[Document]) -> str:
    checked = list(manifests)
    for manifest in checked:
        kubernetes_validate.validate(manifest, kubernetes_validate.latest_version(), strict=True)
    return f"{len(checked)} manifests fit the API of Kubernetes {kubernetes_validate.latest_version()}"


def check_instance(manifests: Iterable[Document]) -> str:
    """The dagster.yaml of the ConfigMap opens an instance, on SQLite: its database and its cluster are elsewhere."""
    config = instance_config(manifests)
    for key in ("run_storage", "event_log_storage", "schedule_storage", "run_launcher"):
        config.pop(key)
    with tempfile.TemporaryDirectory() as home:
        (Path(home) / "dagster.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
        with dg.DagsterInstance.from_config(home) as instance:
            limits = instance.get_concurrency_config()
    if limits.pool_config.default_pool_limit != 1 or limits.run_queue_config is None:
        sys.exit(f"the limits did not arrive: {limits}")
    return f"dagster.yaml opens an instance of Dagster {dg.__version__}, with one run per table"


def instance_config(manifests: Iterable[Document]) -> Document:
    (text,) = (item["data"]["dagster.yaml"] for item in manifests if "dagster.yaml" in (item.get("data") or {}))
    config: Document = yaml.safe_load(text)
    return config


def check_run(manifests: list[Document]) -> str:
    """The Job of a run: from the launcher's settings, what the code location hands to its runs, and the run's tag."""
    launcher = instance_config(manifests)["run_launcher"]["config"]
    of_tag = K8sContainerContext(run_k8s_config=get_user_defined_k8s_config({"dagster-k8s/config": run_tag()}))
    context = K8sContainerContext.create_from_config(code_context(manifests)).merge(of_tag)
    settings = (
        "dagster_home",
        "image_pull_policy",
        "service_account_name",
        "instance_config_map",
        "postgres_password_secret",
    )
    job_config = DagsterK8sJobConfig(
        job_image=values()["dagster-user-deployments"]["deployments"][0]["image"]["repository"],
        image_pull_secrets=None,
        env_config_maps=None,
        env_secrets=None,
        **{name: launcher[name] for name in settings},
    )
    job = construct_dagster_k8s_job(job_config, ["dagster"], "run", user_defined_k8s_config=context.run_k8s_config)
    manifest = ApiClient().sanitize_for_serialization(job)
    check_manifests([manifest])
    (container,) = manifest["spec"]["template"]["spec"]["containers"]
    variables = {variable["name"] for variable in container["env"]}
    missing = {"ICEPUFFIN_SETTINGS", "POD_IP", "POD_NAME", "DAGSTER_PG_PASSWORD"} - variables
    mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
    if missing or "/opt/icepuffin/settings" not in mounts:
        sys.exit(f"a run's pod lacks {missing or 'its settings'}")
    memory = {container["resources"][kind]["memory"] for kind in ("requests", "limits")}
    if memory != {f"{MEMORY_MB}Mi"} or not manifest["spec"]["template"]["spec"].get("nodeSelector"):
        sys.exit(f"the run's tag did not arrive: memory {memory}")
    return f"the Job of a run fits, with settings, secrets, its address, and {MEMORY_MB} MiB by the run's tag"


def run_tag() -> str:
    """The tag that the sensor gives to a run by the settings of this folder."""
    settings = tomllib.loads((HERE / "icepuffin.toml").read_text(encoding="utf-8"))
    numbers = dict.fromkeys(RUN_NUMBERS, 1) | {"memory_mb": MEMORY_MB}
    return json.dumps(with_numbers(settings["tables"]["docs"]["run_tags"]["dagster-k8s/config"], numbers))


def code_context(manifests: list[Document]) -> Document:
    """What the code location's pod hands to its runs."""
    (code,) = (
        item for item in manifests if item["kind"] == "Deployment" and item["metadata"]["name"].endswith("-icepuffin")
    )
    (container,) = code["spec"]["template"]["spec"]["containers"]
    by_name = {variable["name"]: variable.get("value") for variable in container["env"]}
    context: Document = json.loads(by_name["DAGSTER_CLI_API_GRPC_CONTAINER_CONTEXT"])
    return context


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("chart", type=Path)
    parser.add_argument("--helm", default="helm", help="the program [helm]")
    options = parser.parse_args()
    manifests = rendered(options.helm, options.chart)
    own = [
        item for name in ("spark-role.yaml", "executor.yaml") for item in documents((HERE / name).read_text("utf-8"))
    ]
    version = yaml.safe_load((options.chart / "Chart.yaml").read_text("utf-8"))["version"]
    checks = (
        f"chart {version}",
        check_values(options.chart),
        check_manifests([*manifests, *own]),
        check_instance(manifests),
        check_run(manifests),
    )
    sys.stdout.write("".join(f"{line}\n" for line in checks))


if __name__ == "__main__":
    main()
