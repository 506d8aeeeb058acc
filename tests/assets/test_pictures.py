"""What a materialised index shows of itself in the UI."""

import base64
from pathlib import Path

from assets.ann_index import drawn
from ops.graphs.versions import index_snapshot
from ops.resources import Engine
from orchestration.discovery import table_spec
from orchestration.engines import catalogs_of
from orchestration.settings import load
from tests.orchestration.lake import make_lake


def test_a_version_is_drawn_in_its_metadata(tmp_path: Path) -> None:
    lake = make_lake(tmp_path, snapshots=1)
    settings = load(lake.settings_file)
    catalogs = catalogs_of(settings)
    spec = table_spec(settings.tables["packages"], catalogs)
    engine = Engine(spark_conf={}, threads=2, driver_only_rows=1)
    report = index_snapshot(catalogs, engine, spec.catalog, spec.identifier, spec.indexes[0], lake.head())
    (text,) = (str(value.value) for value in drawn(catalogs, spec, spec.indexes[0], report).values())
    assert text.startswith("![index embedding](data:image/png;base64,")
    image = base64.b64decode(text.partition("base64,")[2].rstrip(")"))
    assert image.startswith(b"\x89PNG")
    assert len(image) < 40_000
