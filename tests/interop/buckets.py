"""The object stores that `make stores` starts, under one protocol."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from tests.services.adls import Adls, adls_server
from tests.services.gcs import Gcs, gcs_server

STORES = ("gcs", "adls")


BucketServer = Gcs | Adls


@contextlib.contextmanager
def bucket_server(store: str, folder: Path) -> Iterator[BucketServer]:
    with (gcs_server if store == "gcs" else adls_server)(folder) as server:
        yield server
