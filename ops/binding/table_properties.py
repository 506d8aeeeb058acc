"""Properties of a table that runs set."""

from pyiceberg.table import Table
from pyiceberg.table.update import SetPropertiesUpdate

from icepuffin.ops.binding.commit import COMMIT_ATTEMPTS, attempt_commit, commit_attempts, reload_table
from icepuffin.ops.binding.errors import BindingError
from icepuffin.ops.table.snapshots import table_name


def set_property(table: Table, key: str, value: str) -> None:
    """Raises BindingError where no commit succeeds, and what the catalog raises."""
    for attempt in commit_attempts(table, COMMIT_ATTEMPTS):
        reload_table(table, patient=attempt.number > 0)
        if table.properties.get(key) == value:
            return
        if attempt.may_commit:
            attempt_commit(table, (SetPropertiesUpdate(updates={key: value}),), (), attempt.number)
    raise BindingError(
        f"{table_name(table)}: table property {key} could not be set to {value} in {attempt.number} attempts; try again"
    )
