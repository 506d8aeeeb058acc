"""A test is skipped where its server was not requested, and never because what the server needs is missing."""

from pathlib import Path

import pytest

from tests.interop.buckets import STORES, bucket_server
from tests.services import adls, gcs


@pytest.mark.parametrize("store", STORES)
def test_without_its_server_a_test_is_skipped(store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv({"gcs": gcs.SERVER, "adls": adls.SERVER}[store], raising=False)
    with pytest.raises(pytest.skip.Exception, match="`make stores` sets it"), bucket_server(store, tmp_path):
        pass


def test_without_node_the_server_for_adls_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(adls.SERVER, str(tmp_path / "main.js"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(RuntimeError, match="node, which runs it, was not found"), bucket_server("adls", tmp_path):
        pass
