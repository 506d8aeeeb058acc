"""A garbage collection in words, for the command line and the log of the maintenance job."""

from collections.abc import Iterator

from icepuffin.ops.index.report import GcReport


def render_gc_report(report: GcReport) -> Iterator[str]:
    """Lines that name each version, tag and file, then the totals."""
    would = "would " if report.dry_run else ""
    deleted = "would delete" if report.dry_run else "deleted"
    expired = "would expire" if report.dry_run else "expired"
    for version in report.retired:
        yield f"{expired} {version.name}'s version of snapshot {version.base_snapshot_id}: {version.why}"
    for tag in report.pinned:
        yield f"{would}tag {tag}: its snapshot is tagged"
    for path in report.deleted:
        yield f"{deleted} {path}"
    files = f"{deleted} files: {len(report.deleted)}, {report.bytes_freed / (1 << 20):,.1f} MiB"
    yield f"{report.table}: {expired} versions: {len(report.retired)}, {files}"
    for why in report.refused:
        yield f"left for the next time: {why}"
    if report.retired_later or report.kept_young:
        yield f"to go after the grace period: versions: {report.retired_later}, files: {report.kept_young}"
