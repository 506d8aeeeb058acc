"""`icepuffin search`."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from icepuffin.orchestration.cli.session import Session, cell, print_json
from icepuffin.orchestration.cli.table_options import OnTable, on_table

if TYPE_CHECKING:
    from icepuffin.ops.index.definition import IndexDefinition


@click.command("search")
@on_table
@click.option("--index", "index", help="[default: the table's only index]")
@click.option("--like-id", help="Search with the vector of the row that has this id. The row itself is rank 1.")
@click.option("--id-column", default="id", show_default=True)
@click.option("--vector", help="A JSON list of numbers.")
@click.option(
    "--query-file", type=click.Path(exists=True, path_type=Path), help="A .npy of f32[queries, dims], or a JSON list."
)
@click.option("-k", "k", default=10, show_default=True, type=click.IntRange(1, 10_000), help="Rows a query.")
@click.option("--within", type=float, help="Every row nearer than this, exactly; -k is not looked at.")
@click.option("--snapshot", help="Snapshot id, tag, branch or time: search the table as it was. [default: main]")
@click.option("--where", help="Only rows that match, such as \"section = 'database'\".")
@click.option("--exact", is_flag=True, help="Compare with every row: of the index's column, or of --vector-column.")
@click.option("--vector-column", help="With --exact: the column that is searched. It needs no index.")
@click.option(
    "--metric", type=click.Choice(["cosine", "l2", "ip"]), help="With --vector-column: the distance. [default: cosine]"
)
@click.option(
    "--stale",
    type=click.Choice(["complete", "exact", "nearest-only", "fail"]),
    default="complete",
    show_default=True,
    help="Where the snapshot has no readable version of its own: nearest version and a scan of what it lacks; "
    "scan every row; nearest version alone (rows may be missing, and the answer says so); or an error.",
)
@click.option(
    "--search-list", type=int, help="L of the beam search. More: slower, better recall. [default: the index's]"
)
@click.option("--shards", type=int, help="Probe only so many shards, the nearest ones. [default: all]")
@click.option("--oversample", type=int, help="Candidates a row that lean shards rank again. [default: 3]")
@click.option(
    "--target-recall", type=float, help="Choose these three by the curve measured with the index, such as 0.99."
)
@click.option(
    "--spark", is_flag=True, help="Search an index of more than [spark] in_process_mb by tasks on Spark, not here."
)
@click.option("--explain", is_flag=True, help="Say how the answer came about: path, knobs, shards, stages, bytes.")
@click.option("--columns", help="Columns to return, by commas. [default: all but nested ones]")
def command(
    on: OnTable,
    /,
    index: str | None,
    k: int,
    snapshot: str | None,
    vector_column: str | None,
    metric: str | None,
    **query: Any,
) -> None:
    """Find the nearest rows to a row or a vector, or all within a distance, in the table as it is or as it was.

    The answer says how it was found: by the snapshot's own index version, by the nearest version and a scan of the rows
    that it lacks, or by an exact scan.

    \b
    Examples:
      icepuffin search demo.packages --index embedding --like-id 48182 -k 10
      icepuffin search demo.packages --like-id 48182 --snapshot 6170229538723520381 --json
      icepuffin search demo.packages --query-file queries.npy --where "section = 'database'"
      icepuffin search demo.packages --like-id 48182 --within 0.2
      icepuffin search demo.packages --like-id 48182 --exact --vector-column embedding --metric cosine
    """
    definition = _definition(on, index, vector_column, metric, exact=query["exact"])
    column = on.vector_column(definition, snapshot)
    vectors = _vectors(on.loaded, column, snapshot, query)
    answer = _search(on, definition, vectors, k, snapshot, {**query, "column": column})
    asked = {"k": k} if query["within"] is None else {"within": query["within"]}
    told = {"table": on.name, "index": None if vector_column else definition.name, "column": column, **asked, **answer}
    if on.as_json:
        print_json(told)
        return
    _show(on.session, told)


def _definition(
    on: OnTable, index: str | None, vector_column: str | None, metric: str | None, *, exact: bool
) -> "IndexDefinition":
    """What says which column is searched, and by which metric: an index, or the options that stand for one."""
    from icepuffin.ops.index.definition import IndexDefinition

    if vector_column is None:
        if metric is not None:
            raise click.UsageError("--metric goes with --exact --vector-column; an index has a metric of its own")
        if exact and index is None and not on.indexes:
            raise click.UsageError(f"{on.name} has no index: say what to compare with --vector-column and --metric")
        return on.index(index)
    if not exact or index is not None:
        raise click.UsageError("--vector-column goes with --exact, and without --index")
    return IndexDefinition(name="none", column=vector_column, metric=metric or "cosine")


def _vectors(table: Any, column: str, snapshot: str | None, query: dict[str, Any]) -> Any:
    import numpy as np

    from icepuffin.orchestration.cli.query_vectors import vector_of_row

    given = [name for name in ("like_id", "vector", "query_file") if query[name] is not None]
    if len(given) != 1:
        raise click.UsageError("give one of --like-id, --vector and --query-file")
    if query["like_id"] is not None:
        return vector_of_row(table, column, query["like_id"], id_column=query["id_column"], snapshot=snapshot)
    try:
        if query["vector"] is not None:
            found = np.asarray(json.loads(query["vector"]), np.float64)
        elif query["query_file"].suffix == ".npy":
            found = np.load(query["query_file"], allow_pickle=False)
        else:
            found = np.asarray(json.loads(query["query_file"].read_text(encoding="utf-8")), np.float64)
    except (ValueError, TypeError) as error:
        raise click.ClickException(
            f"the query is no vector: {error}; give a JSON list of numbers, or a .npy file"
        ) from error
    return np.ascontiguousarray(np.atleast_2d(found))


def _search(
    on: OnTable, definition: "IndexDefinition", vectors: Any, k: int, snapshot: str | None, query: dict[str, Any]
) -> dict[str, Any]:
    from icepuffin.ann_kernels.metric import Metric
    from icepuffin.ops.search import StalePolicy, open_exact, open_index
    from icepuffin.ops.search.result import explain

    metric = Metric.parse(str(definition.metric))
    columns = tuple(name.strip() for name in query["columns"].split(",")) if query["columns"] else None
    shared: dict[str, Any] = {"columns": columns, "where": query["where"]}
    if query["exact"]:
        reader = open_exact(on.loaded, query["column"], metric, snapshot=snapshot, storage=on.storage)
    else:
        reader = open_index(
            on.loaded,
            definition,
            snapshot=snapshot,
            storage=on.storage,
            stale=StalePolicy(query["stale"]),
            threads=on.session.settings.thread_count,
            runner=on.session.engine.spark_runner() if query["spark"] else None,
            in_process_mb=on.session.settings.spark.in_process_mb,
        )
    if query["within"] is None:
        knobs = {name: query[name] for name in ("search_list", "shards", "oversample", "target_recall")}
        found = reader.search(vectors, k, **knobs, **shared)
    else:
        found = reader.within(vectors, query["within"], **shared)
    return {
        "snapshot_id": str(found.snapshot_id),
        "coverage": str(found.coverage),
        "index_snapshot_id": _text(found.index_snapshot_id),
        "base_snapshot_id": _text(found.base_snapshot_id),
        "why": found.profile.why,
        "strategy": found.profile.strategy,
        "where": query["where"],
        "matching_rows": found.profile.matching_rows,
        **({"pruning": asdict(found.profile.pruning)} if found.profile.pruning else {}),
        "warnings": list(found.warnings),
        **({"explain": dict(explain(found))} if query["explain"] else {}),
        "results": found.rows.to_pylist(),
    }


def _text(value: int | None) -> str | None:
    return None if value is None else str(value)


def _show(session: Session, told: dict[str, Any]) -> None:
    from rich.table import Column, Table

    session.warn(told["warnings"])
    for part, text in told.get("explain", {}).items():
        session.console.print(f"{part:>10}  {text}", highlight=False, markup=False)
    results = told["results"]
    title = f"{told['table']} at snapshot {told['snapshot_id']}: {told['coverage']}"
    if not results:
        session.console.print(f"{title}: no rows", markup=False)
        return
    several = results[-1]["query"] > 0
    columns = [name for name in results[0] if several or name != "query"]
    shown = Table(*(Column(cell(name, 60)) for name in columns), title=cell(title, 200))
    for row in results:
        shown.add_row(*(cell(format(row[name], ".4f") if name == "distance" else row[name], 60) for name in columns))
    session.console.print(shown)
