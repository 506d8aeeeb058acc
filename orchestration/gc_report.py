"""A garbage collection in words, for the command line and the log of the maintenance job."""

from collections.abc import Iterator

from icepuffin.ops.index.planning.index_report import GcReport
from icepuffin.ops.messages import listed


def render_gc_report(report: GcReport, *, brief: bool = False) -> Iterator[str]:
    """Lines that name each version, tag and file, then the totals. `brief`: of each kind the first lines alone."""
    shorten = listed if brief else tuple[str, ...]
    would = "would " if report.dry_run else ""
    deleted = "would delete" if report.dry_run else "deleted"
    expired = "would expire" if report.dry_run else "expired"
    yield from shorten(
        [
            f"{expired} {version.name}'s version of snapshot {version.base_snapshot_id}: {version.why}"
            for version in report.retired
        ]
    )
    yield from shorten([f"{would}tag {tag}: its snapshot is tagged" for tag in report.pinned])
    yield from shorten([f"{deleted} {path}" for path in report.deleted])
    files = f"{deleted} files: {len(report.deleted)}, {report.bytes_freed / (1 << 20):,.1f} MiB"
    yield f"{report.table}: {expired} versions: {len(report.retired)}, {files}"
    yield from shorten([f"left for the next time: {why}" for why in report.refused])
    if report.retired_later or report.kept_young:
        yield f"to go after the grace period: versions: {report.retired_later}, files: {report.kept_young}"
