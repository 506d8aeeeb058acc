"""SeaweedFS on loopback and free ports: S3, table buckets, an Iceberg REST catalog, and what maintains its tables."""

import contextlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import requests

from tests.services.glue import catalog_servers
from tests.services.processes import free_port, serving

BUCKET = "lake"
_KEYS = "test", "testsecret"
_JOB = "iceberg_maintenance"
_ROLE = "arn:aws:iam::role/Tables"
_KEY_SECONDS = 900
"""Lifetime of vended keys, the shortest that the server gives"""
_IAM = {
    "sts": {"tokenDuration": "1h", "maxSessionLength": "12h", "issuer": "seaweedfs", "signingKey": "YWJj" * 11},
    "policy": {"defaultEffect": "Deny", "storeType": "memory"},
    "policies": [
        {
            "name": "Tables",
            "document": {
                "Version": "2012-10-17",
                "Statement": [{"Effect": "Allow", "Action": ["s3:*"], "Resource": ["*"]}],
            },
        }
    ],
    "roles": [
        {
            "roleName": "Tables",
            "roleArn": _ROLE,
            "attachedPolicies": ["Tables"],
            "trustPolicy": {
                "Version": "2012-10-17",
                "Statement": [
                    {
                        "Effect": "Allow",
                        "Principal": {"Federated": "iceberg-catalog"},
                        "Action": ["sts:AssumeRoleWithCredentials"],
                    }
                ],
            },
        }
    ],
}
"""Whom the server takes its keys from: the catalog may hand out keys that are good for one table"""
_SECONDS = 120


@dataclass(frozen=True)
class SeaweedFS:
    """A running server with one table bucket."""

    s3: str
    """Endpoint of S3, and of the API of S3 Tables"""
    uri: str
    """Endpoint of the REST catalog"""
    admin: str
    """Endpoint of the admin server, which plans maintenance; a worker of the same process carries it out"""

    @property
    def files(self) -> dict[str, str]:
        """Settings of its S3."""
        return {
            "s3.endpoint": self.s3,
            "s3.access-key-id": _KEYS[0],
            "s3.secret-access-key": _KEYS[1],
            "s3.region": "us-east-1",
            "s3.path-style-access": "true",
        }

    def login(self, bucket: str = f"s3://{BUCKET}") -> dict[str, str]:
        """Settings by which clients of REST catalogs log in to a table bucket, named by location or ARN."""
        return {
            "oauth2-server-uri": f"{self.uri}/v1/oauth/tokens",
            "warehouse": bucket,
            "credential": ":".join(_KEYS),
        }

    def s3_tables(self) -> Any:
        """A client of the API of S3 Tables."""
        import boto3  # type: ignore[import-not-found]  # noqa: PLC0415  of the environment of `make catalogs`

        keys = dict(zip(("aws_access_key_id", "aws_secret_access_key"), _KEYS, strict=True))
        return boto3.client("s3tables", region_name="us-east-1", endpoint_url=self.s3, **keys)

    def maintain(self, namespace: str, table: str, operations: str, **limits: int) -> str:
        """What the server's own maintenance of one table reports, which is run now.

        operations: `compact`, `expire_snapshots`, `remove_orphans`, `rewrite_manifests`, by commas, or `all`.
        """
        job = f"{self.admin}/api/plugin/job-types/{_JOB}"
        config = requests.get(f"{job}/config", timeout=_SECONDS).json()
        config["worker_config_values"]["operations"] = {"string_value": operations}
        config["worker_config_values"] |= {name: {"int64_value": str(limit)} for name, limit in limits.items()}
        filters = {"namespace_filter": namespace, "table_filter": table}
        config["admin_config_values"] |= {name: {"string_value": text} for name, text in filters.items()}
        requests.put(f"{job}/config", json=config, timeout=_SECONDS).raise_for_status()
        before = {item["job_id"] for item in self._jobs()}
        requests.post(f"{job}/run", json={}, timeout=_SECONDS).raise_for_status()
        return "; ".join(item["message"] for item in self._jobs() if item["job_id"] not in before)

    def _jobs(self) -> list[dict[str, Any]]:
        jobs: list[dict[str, Any]] = requests.get(f"{self.admin}/api/plugin/jobs", timeout=_SECONDS).json()
        return [item for item in jobs if item["job_type"] == _JOB]


@contextlib.contextmanager
def seaweedfs(folder: Path) -> Iterator[SeaweedFS]:
    """Run `weed mini`, with the admin server and a worker; its catalog vends keys to clients that want them. Skips the
    test where it is not installed.
    """
    weed = catalog_servers().with_name("weed")
    ports = {name: free_port() for name in ("master.port", "volume.port", "filer.port", "s3.port", "admin.port")}
    catalog, s3 = free_port(), ports["s3.port"]
    command = [str(weed), "mini", f"-dir={folder}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-tableBucket={BUCKET}"]
    command += [f"-{name}={port}" for name, port in ports.items()]
    command += [f"-s3.port.iceberg={catalog}", "-s3.port.lance=0", "-webdav=false", "-master.telemetry=false"]
    (folder / "iam.json").write_text(json.dumps(_IAM))
    command += [f"-s3.iam.config={folder}/iam.json", f"-s3.iceberg.credentialRole={_ROLE}"]
    command += [f"-s3.iceberg.credentialDurationSeconds={_KEY_SECONDS}", f"-s3.externalUrl=http://127.0.0.1:{s3}"]
    keys = dict(zip(("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"), _KEYS, strict=True))
    log = folder / "weed.log"
    with serving(command, lambda: "running and ready" in log.read_text(), log, cwd=folder, env={**os.environ, **keys}):
        yield SeaweedFS(*(f"http://127.0.0.1:{port}" for port in (s3, catalog, ports["admin.port"])))
