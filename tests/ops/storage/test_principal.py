"""Who reads: the same while keys rotate, another where it is somebody else."""

import os
from importlib import import_module
from pathlib import Path

import pytest
from botocore.session import Session

from icepuffin.ops.model import Grant, StorageConfig, VendedGrants
from icepuffin.ops.storage.principal import ambient_identity, principal

_NEW_KEYS = """#!/bin/sh
echo '{"Version": 1, "AccessKeyId": "'$(date +%N)'", "SecretAccessKey": "s", "SessionToken": "t", "Expiration": "2099-01-01T00:00:00Z"}'
"""  # noqa: E501  JSON of one line


@pytest.fixture
def rotating(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_keys: None) -> None:
    """Two profiles whose keys are other ones each time that they are requested."""
    script = tmp_path / "new-keys"
    script.write_text(_NEW_KEYS)
    script.chmod(0o700)
    config = "".join(f"[profile {name}]\ncredential_process = {script}\n" for name in ("ann", "bob"))
    (tmp_path / "config").write_text(config)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))


@pytest.mark.usefixtures("rotating")
def test_keys_that_rotate_are_identified_by_their_origin(monkeypatch: pytest.MonkeyPatch) -> None:
    matches = {}
    for name in ("ann", "bob"):
        monkeypatch.setenv("AWS_PROFILE", name)
        keys = {Session().get_credentials().get_frozen_credentials().access_key for _ in range(2)}
        assert len(keys) == 2
        matches[name] = ambient_identity()
        assert matches[name] == ambient_identity()
    assert matches["ann"] != matches["bob"]


@pytest.mark.usefixtures("rotating")
@pytest.mark.parametrize(
    "variable",
    ["AWS_ROLE_ARN", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI"],
)
def test_a_role_that_the_environment_names_is_part_of_who_has_its_keys(
    monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv("AWS_PROFILE", "ann")
    before = ambient_identity()
    monkeypatch.setenv(variable, "bob")
    assert ambient_identity() != before


@pytest.mark.usefixtures("no_keys")
def test_lasting_keys_are_identified_by_all_their_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "s", "AWS_SESSION_TOKEN": "t"}
    for name, value in keys.items():
        monkeypatch.setenv(name, value)
    assert ambient_identity() == ["a", "s", "t"]


@pytest.mark.usefixtures("no_keys")
def test_where_there_are_no_keys_nobody_is_identified() -> None:
    assert ambient_identity() == []


def test_a_folder_of_settings_is_no_file_of_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    location = "abfss://c@account.dfs.core.windows.net/a"
    before = principal(location, StorageConfig())
    monkeypatch.setenv("AZURE_CONFIG_DIR", str(tmp_path))
    assert principal(location, StorageConfig()) != before


def test_who_needs_no_keys_of_the_machine_is_not_identified_by_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys of the settings count, and who reads anonymously is the same user for everybody."""
    module = import_module("icepuffin.ops.storage.principal")
    for settings in ({"s3.anonymous": "true"}, {"s3.access-key-id": "k"}):
        found = set()
        for user in ("ann", "bob"):
            monkeypatch.setattr(module, "ambient_identity", lambda user=user: [user])
            module._s3_principal.cache_clear()
            found.add(principal("s3://lake/a", StorageConfig(settings)))
        assert len(found) == 1
    module._s3_principal.cache_clear()


@pytest.mark.usefixtures("rotating")
def test_a_profile_that_gets_its_keys_elsewhere_is_another_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_PROFILE", "ann")
    before = ambient_identity()
    config = tmp_path / "config"
    config.write_text(config.read_text().replace("new-keys", "new-keys bob"))
    assert ambient_identity() != before


def test_vended_keys_are_of_the_catalogs_user_where_they_open_the_file_and_there_alone() -> None:
    grants = (Grant("s3://lake/t", {"s3.access-key-id": "a"}),)
    config = StorageConfig({"s3.access-key-id": "own"}, vended=VendedGrants("lake", "ns.t", "ann", grants, tuple))
    assert principal("s3://lake/t/a", config) == "ann"
    assert principal("s3://lake/other", config) == principal("s3://lake/other", StorageConfig(config.properties))


@pytest.mark.parametrize("location", ["gs://lake/a", "abfss://c@acc.dfs.core.windows.net/a"])
def test_two_users_of_a_machine_are_two_users_of_a_bucket(location: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = principal(location, StorageConfig())
    monkeypatch.setattr(os, "geteuid", lambda: 12_345)
    assert principal(location, StorageConfig()) != before


def test_a_file_is_read_by_the_user_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    users = []
    for user in (1, 2, 1):
        monkeypatch.setattr(os, "geteuid", lambda user=user: user)
        users.append(principal("/lake/a", StorageConfig()))
    assert users[0] == users[2] != users[1]
