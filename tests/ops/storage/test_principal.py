"""Who reads: the same while keys rotate, another where it is somebody else."""

from pathlib import Path

import pytest
from botocore.session import Session

from icepuffin.ops.storage.principal import ambient_identity

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
