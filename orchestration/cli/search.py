"""`icepuffin search`."""

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from icepuffin.ops.model import SnapshotId
from icepuffin.ops.presentation import plain_rows
from icepuffin.ops.rows.element_types import ELEMENT_BITS, OF_COLUMN
from icepuffin.orchestration.cli.output import print_fields, print_grid, print_json, print_lines, print_warnings
from icepuffin.orchestration.cli.table_options import METRICS, TableContext, index_name, options_as, table_command

if TYPE_CHECKING:
    import numpy.typing as npt
    from rich.console import Console

    from icepuffin.ops.index.definitions.index_definition import IndexDefinition
    from icepuffin.ops.search.reader import IndexReader
    from icepuffin.ops.search.result import Certificate, SearchResult

_COUNT = click.IntRange(min=1)
_VALUE_WIDTH = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchArguments:
    """The options of one search."""

    index: str | None
    like_id: str | None
    id_column: str
    vector: str | None
    query_file: Path | None
    text: str | None
    text_weight: float | None
    text_columns: str | None
    k: int
    within: float | None
    snapshot: str | None
    where: str | None
    exact: bool
    vector_column: str | None
    metric: str | None
    element_type: str | None
    stale: str
    search_list: int | None
    shards: int | None
    oversample: int | None
    rerank: bool | None
    target_recall: float | None
    recall_share: float | None
    certified: bool
    per_group: str | None
    diversity: float
    spark: bool
    explain: bool
    columns: str | None

    def check(self) -> None:
        """Raises UsageError for options that do not go together."""
        vectors = 3 - [self.like_id, self.vector, self.query_file].count(None)
        if vectors > 1 or (vectors == 0 and self.text is None):
            raise click.UsageError("give one of --like-id, --vector and --query-file; or --text, alone or with one")
        if self.text_weight is not None and (self.text is None or vectors == 0):
            raise click.UsageError("--text-weight goes with --text and a vector")
        if self.text_columns is not None and self.text is None:
            raise click.UsageError("--text-columns goes with --text")
        if self.text is not None and (self.exact or self.within is not None):
            raise click.UsageError("--text goes without --exact and --within: words are searched for in an index")
        if self.vector_column is None and self.metric is not None:
            raise click.UsageError("--metric goes with --exact --vector-column; an index has a metric of its own")
        if self.vector_column is None and self.element_type is not None:
            raise click.UsageError("--element-type goes with --exact --vector-column; an index has its own")
        if self.vector_column is not None and not (self.exact and self.index is None):
            raise click.UsageError("--vector-column goes with --exact, and without --index")
        if self.certified and (self.exact or self.within is not None):
            raise click.UsageError("--certified goes without --exact and --within, which miss no row anyway")
        if self.within is not None and (self.per_group is not None or self.diversity):
            raise click.UsageError(
                "--per-group and --diversity choose -k rows, and --within takes every row: leave it out"
            )

    @property
    def limits(self) -> dict[str, int] | None:
        """Raises UsageError."""
        if self.per_group is None:
            return None
        column, _, limit = self.per_group.rpartition("=")
        if not column or not limit.isdecimal():
            raise click.UsageError(f"--per-group is {self.per_group!r}: write a column and a limit, such as section=2")
        return {column: int(limit)}

    @property
    def returned_columns(self) -> tuple[str, ...] | None:
        return _names(self.columns)


def _names(text: str | None) -> tuple[str, ...] | None:
    if text is None:
        return None
    return tuple(name.strip() for name in text.split(",")) if text.strip() else ()


@click.command("search")
@table_command
@index_name("The same as INDEX. [default: the table's only index]")
@click.option("--like-id", help="Search with the vector of the only row that has this id.")
@click.option("--id-column", default="id", show_default=True, help="Column of --like-id.")
@click.option("--vector", help="A JSON list of numbers.")
@click.option(
    "--query-file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A .npy of f32[queries, dims], or a JSON list.",
)
@click.option("--text", help="Words to search for in the index's columns of texts, alone or with a vector.")
@click.option(
    "--text-weight",
    type=click.FloatRange(0, 1),
    help="With --text and a vector: the share of the words in the score. [default: by the ranks in both lists]",
)
@click.option("--text-columns", help="Columns of --text, separated by commas. [default: all of the index]")
@click.option("-k", "--k", default=10, show_default=True, type=click.IntRange(1, 10_000), help="Rows per query.")
@click.option("--within", type=float, help="Every row nearer than this, exactly; -k is ignored.")
@click.option("--snapshot", help="Snapshot id, tag, branch or time: search the table as it was. [default: main]")
@click.option("--where", help="Only rows that match, such as \"section = 'database'\".")
@click.option("--exact", is_flag=True, help="Compare with every row: of the index's column, or of --vector-column.")
@click.option("--vector-column", help="With --exact: the column that is searched. It needs no index.")
@click.option("--metric", type=METRICS, help="With --vector-column: the distance. [default: cosine]")
@click.option(
    "--element-type",
    type=click.Choice([*ELEMENT_BITS]),
    help="With --vector-column: what its bytes are, where it is fixed[N] or binary.",
)
@click.option(
    "--stale",
    type=click.Choice(["complete", "exact", "nearest-only", "fail"]),
    default="complete",
    show_default=True,
    help="Where the snapshot has no readable version of its own: nearest version and a scan of what it lacks; "
    "scan every row; nearest version alone (rows may be missing, which the result shows); or an error.",
)
@click.option(
    "--search-list",
    type=_COUNT,
    help="L of the beam search. More: slower, better recall. [default: the index's]",
)
@click.option("--shards", type=_COUNT, help="Probe this many shards, those of the nearest centroids. [default: all]")
@click.option(
    "--oversample",
    type=_COUNT,
    help="Candidates per row to rank by the table's vectors, where shards hold none. [default: 3; with rq4 to rq8: 1]",
)
@click.option(
    "--rerank/--no-rerank",
    default=None,
    help="Rank candidates by the table's vectors where shards hold codes or rounded vectors, or by these alone. "
    "[default: by the table's where --vectors is none]",
)
@click.option(
    "--target-recall",
    type=click.FloatRange(0, 1, min_open=True),
    help="Choose --search-list, --shards and --oversample by the recall measured with the index, such as 0.99.",
)
@click.option(
    "--recall-share",
    type=click.FloatRange(0, 0.99, min_open=True),
    help="With --target-recall: the share of the queries that reach it, by what `icepuffin tune` measured. "
    "[default: their mean reaches it]",
)
@click.option("--certified", is_flag=True, help="Prove the answer: compare every row that the index cannot rule out.")
@click.option("--per-group", help="A column and a limit, such as section=2: of rows with the same value only so many.")
@click.option(
    "--diversity",
    type=click.FloatRange(0, 1),
    default=0.0,
    show_default=True,
    help="Choose rows unlike each other among the max(5 k, 50) nearest: 1 goes by that alone, 0 by distance alone.",
)
@click.option(
    "--spark",
    is_flag=True,
    help="Search an index, and read data files, of more than [spark] in_process_mb by tasks on Spark, not here.",
)
@click.option("--explain", is_flag=True, help="Show how the answer was made: path, parameters, shards, stages, bytes.")
@click.option("--columns", help="Columns to return, separated by commas; '' for none. [default: all but nested ones]")
@options_as(SearchArguments)
def command(context: TableContext, arguments: SearchArguments, /) -> None:
    """Find the nearest rows to a row or a vector, the best by words, or all within a distance, in the table as it is or
    as it was.

    The answer says how it was found: by the snapshot's own index version, by the nearest version and a scan of the rows
    that it lacks, or by an exact scan.

    \b
    Examples:
      icepuffin search demo.packages --index embedding --like-id 48182 -k 10
      icepuffin search demo.packages --like-id 48182 --snapshot 6170229538723520381 --json
      icepuffin search demo.packages --query-file queries.npy --where "section = 'database'"
      icepuffin search demo.packages --like-id 48182 --within 0.2
      icepuffin search demo.packages --text "web server" --like-id 48182
      icepuffin search demo.packages --like-id 48182 --per-group section=2 --diversity 0.3
      icepuffin search demo.packages --like-id 48182 --exact --vector-column embedding --metric cosine
    """
    arguments.check()
    from icepuffin.orchestration.cli.query_vectors import parse_vectors, read_vectors, vector_of_row

    query: npt.NDArray[Any] | None = None
    if arguments.vector is not None:
        query = parse_vectors(arguments.vector, "--vector")
    elif arguments.query_file is not None:
        query = read_vectors(arguments.query_file)
    definition = _definition(context, arguments)
    if definition is None:
        column = context.checked_column(str(arguments.vector_column), arguments.snapshot, arguments.element_type)
    else:
        column = context.vector_column(definition, arguments.snapshot)
    column_of: dict[str, Any] = {
        "element_type": definition.element_type if definition else arguments.element_type or OF_COLUMN,
        "snapshot": arguments.snapshot,
        "storage": context.storage,
    }
    if arguments.like_id is not None:
        id_column, row = arguments.id_column, arguments.like_id
        query = vector_of_row(context.table, column, row, id_column=id_column, **column_of)
    if arguments.exact or definition is None:
        from icepuffin.ops.search.opening import open_exact

        metric = definition.metric if definition else arguments.metric or "cosine"
        reader = open_exact(context.table, column, metric, **column_of)
    else:
        reader = _open_index(context, definition, arguments)
    result = _search(reader, query, arguments)
    if context.as_json:
        index = definition.name if definition else None
        print_json({"table": context.name, "index": index, "column": column, **_document(result, arguments)})
    else:
        _show(context.console, context.name, result, explained=arguments.explain)


def _definition(context: TableContext, arguments: SearchArguments) -> "IndexDefinition | None":
    """The index that says which column is searched, and by which metric; None where options name both."""
    if arguments.vector_column is not None:
        return None
    if arguments.exact and arguments.index is None and not context.indexes:
        raise click.UsageError(f"{context.name} has no index: say what to compare with --vector-column and --metric")
    return context.index(arguments.index)


def _open_index(context: TableContext, definition: "IndexDefinition", arguments: SearchArguments) -> "IndexReader":
    from icepuffin.ops.search.opening import open_index

    session = context.session
    return open_index(
        context.table,
        definition,
        snapshot=arguments.snapshot,
        storage=context.storage,
        stale=arguments.stale,
        threads=session.settings.thread_count,
        runner=session.engine.spark_runner() if arguments.spark else None,
        in_process_mb=session.settings.spark.in_process_mb,
    )


def _search(reader: "IndexReader", query: "npt.NDArray[Any] | None", arguments: SearchArguments) -> "SearchResult":
    columns, where = arguments.returned_columns, arguments.where
    if arguments.within is not None and query is not None:
        return reader.within(query, arguments.within, columns=columns, where=where)
    return reader.search(
        query,
        arguments.k,
        text=arguments.text,
        text_weight=arguments.text_weight,
        text_columns=_names(arguments.text_columns),
        search_list=arguments.search_list,
        shards=arguments.shards,
        oversample=arguments.oversample,
        rerank=arguments.rerank,
        target_recall=arguments.target_recall,
        recall_share=arguments.recall_share,
        certified=arguments.certified,
        columns=columns,
        where=where,
        per_group=arguments.limits,
        diversity=arguments.diversity,
    )


def _document(result: "SearchResult", arguments: SearchArguments) -> dict[str, object]:
    """What JSON has of an answer."""
    from icepuffin.ops.search.result import explain

    profile = result.profile
    return {
        **({"k": arguments.k} if arguments.within is None else {"within": arguments.within}),
        "snapshot_id": str(result.snapshot_id),
        "coverage": str(result.coverage),
        "index_snapshot_id": _id_text(result.index_snapshot_id),
        "base_snapshot_id": _id_text(result.base_snapshot_id),
        "why": profile.why,
        "strategy": profile.strategy,
        "where": arguments.where,
        "matching_rows": profile.matching_rows,
        **({"pruning": asdict(profile.pruning)} if profile.pruning else {}),
        **({"certificate": _proof(profile.certificate)} if profile.certificate else {}),
        "warnings": list(result.warnings),
        **({"explain": dict(explain(result))} if arguments.explain else {}),
        "results": plain_rows(result.rows),
    }


def _proof(certificate: "Certificate") -> dict[str, object]:
    """A certificate with null for infinity, which JSON lacks."""
    bounds = {"last": certificate.last, "pruned_from": certificate.pruned_from}
    finite = {name: [value if math.isfinite(value) else None for value in values] for name, values in bounds.items()}
    return {**finite, "ruled_out": dict(certificate.ruled_out)}


def _id_text(snapshot_id: SnapshotId | None) -> str | None:
    return None if snapshot_id is None else str(snapshot_id)


def _show(console: "Console", table: str, result: "SearchResult", *, explained: bool) -> None:
    from icepuffin.ops.search.result import explain, row_grid

    print_warnings(console, result.warnings)
    if explained:
        print_fields(console, dict(explain(result)))
    title = f"{table} at snapshot {result.snapshot_id}: {result.coverage}"
    if not result:
        print_lines(console, f"{title}: no rows")
        return
    print_grid(console, row_grid(result, title), width=_VALUE_WIDTH)
