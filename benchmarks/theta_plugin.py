"""Our rows for a benchmark of theta sketching: `SYSTEMS` for a loop that times many systems alike.

A system is a class with `start()` (not timed) and `many(columns) -> {column: (estimate, image or None)}` (timed).

icepuffin         what the product runs: `count_theta_sketches` on an Iceberg table that holds the file, in the
                  driver's threads. Both commits, the statistics file and the sketches per data file are in the time.
icepuffin-count   only the reading, hashing and uniting of it.

`start` registers the file with as many tables as there will be calls (`calls` of the specification, else 24), since a
second call on one table is a no-op.
"""

import importlib
from pathlib import Path
from typing import Any


class Icepuffin:
    """Theta sketches of a snapshot, from nothing to their commit."""

    packages = ("icepuffin", "numba", "pyarrow", "pyiceberg")
    kind = "theta"
    one_pass = True

    def __init__(self, spec: dict[str, Any]) -> None:
        self.spec = spec

    def start(self) -> None:
        """Load the code, make the tables, and warm the compiled kernels on the first rows."""
        from pyiceberg.catalog.sql import SqlCatalog  # noqa: PLC0415

        self.theta: Any = importlib.import_module("icepuffin.ops.theta.theta_materialization")
        self.model: Any = importlib.import_module("icepuffin.ops.model")
        self.tasks: Any = importlib.import_module("icepuffin.ops.tasks.task_runner")
        self.runner = self.tasks.LocalRunner(self.spec["threads"])
        folder = Path(self.spec["scratch"])
        self.catalog = SqlCatalog("bench", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}/wh")
        self.catalog.create_namespace("db")
        self.unused = [self._table(number) for number in range(self.tables_needed())]

    def tables_needed(self) -> int:
        """One per call."""
        return int(self.spec.get("calls", 24))

    def _table(self, number: int) -> Any:
        import pyarrow.parquet as pq  # noqa: PLC0415

        table = self.catalog.create_table(f"db.t{number}", pq.read_schema(self.spec["parquet"]))
        table.add_files([self.spec["parquet"]])
        return table

    def many(self, columns: list[str]) -> dict[str, tuple[float, bytes | None]]:
        """Materialise the sketches of some columns of a table that has none."""
        table = self.unused.pop()
        run = self.tasks.RunContext(table, self.model.StorageConfig({}), self.runner)
        requested: Any = importlib.import_module("icepuffin.ops.theta.requested_statistics")
        wanted = requested.RequestedStatistics(ndv=tuple(columns))
        report = self.theta.count_theta_sketches(run, table.current_snapshot().snapshot_id, requested=wanted).publish()
        assert report.outcome == "written"
        return {c: (float(report.ndv[c]), image) for c, image in self._images(table, report).items()}

    def _images(self, table: Any, report: Any) -> dict[str, bytes]:
        puffin: Any = importlib.import_module("icepuffin.puffin")
        reader = puffin.PuffinReader(
            puffin.BytesSource(Path(report.statistics_path.removeprefix("file://")).read_bytes())
        )
        return {table.schema().find_column_name(b.fields[0]): reader.read_blob(b) for b in reader.footer.blobs}


class IcepuffinCount(Icepuffin):
    """Reading, hashing and uniting alone."""

    def tables_needed(self) -> int:
        """One, to which nothing is written."""
        return 1

    def many(self, columns: list[str]) -> dict[str, tuple[float, bytes | None]]:
        """Run the tasks of some columns, unite what they return; write nothing."""
        file_sketches: Any = importlib.import_module("icepuffin.ops.theta.file_sketches")
        live: Any = importlib.import_module("icepuffin.ops.table.live_files")
        tasks: Any = importlib.import_module("icepuffin.ops.tasks.sketches.theta_task")
        planning: Any = importlib.import_module("icepuffin.ops.tasks.sketches.sketch_plan")
        blob: Any = importlib.import_module("icepuffin.puffin.blobs.theta_blob")
        kernels: Any = importlib.import_module("icepuffin.ann_kernels.sketches.theta")
        estimates: Any = importlib.import_module("icepuffin.ann_kernels.sketches.theta_estimates")
        table = self.unused[0]
        (file,) = live.live_files(table, table.current_snapshot().snapshot_id).files
        schema = table.schema()
        of: Any = importlib.import_module("icepuffin.ops.tasks.sketches.statistic")
        fields = [schema.find_field(name) for name in columns]
        chosen = (of.SketchedColumn(field.field_id, field.name, str(field.field_type)) for field in fields)
        wanted = tuple(of.Statistic(of.Kind.NDV, (column,)) for column in chosen)
        parts = -(-file.record_count // file_sketches.PART_ROWS)
        shares = [tasks.FilePart(file, wanted, part, parts) for part in range(parts)]
        runner = self.runner
        todo = planning.plan_tasks(
            shares,
            self.model.StorageConfig({}),
            schema,
            parallelism=runner.parallelism,
            threads=runner.task_threads,
            image_bytes=file_sketches.BUDGET_BYTES,
        )
        results = [result for done in runner.run(tasks.sketch_files, todo, label="count") for result in done.files]
        estimate_and_image: dict[str, tuple[float, bytes | None]] = {}
        for i, column in enumerate(columns):
            sketches = [blob.decode(result.images[i]) for result in results]
            theta, hashes = kernels.union((s.theta, s.hashes) for s in sketches)
            image = blob.encode(blob.ThetaSketch(theta, hashes))
            estimate_and_image[column] = estimates.estimate(theta, len(hashes)), image
        return estimate_and_image


SYSTEMS = {"icepuffin": Icepuffin, "icepuffin-count": IcepuffinCount}
