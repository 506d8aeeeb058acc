"""Two live sets compared. No ancestry: it works across rollbacks, branches and expired parents."""

from ops.catalog.deletes import fingerprint
from ops.model import LiveFiles, SnapshotDiff
from ops.storage import normalize


def diff(base: LiveFiles, target: LiveFiles) -> SnapshotDiff:
    """What `target` has that `base` has not, and the other way round. A path names one file for ever."""
    before = {normalize(file.path): file for file in base.files}
    after = {normalize(file.path): file for file in target.files}
    kept = {path: file for path, file in after.items() if path in before}
    return SnapshotDiff(
        base_snapshot_id=base.snapshot_id,
        target_snapshot_id=target.snapshot_id,
        kept=tuple(kept.values()),
        deletes_changed=tuple(
            file.path for path, file in kept.items() if fingerprint(file) != fingerprint(before[path])
        ),
        added=tuple(file for path, file in after.items() if path not in before),
        removed=tuple(file for path, file in before.items() if path not in after),
    )
