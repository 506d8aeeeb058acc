"""What is derived from a table's snapshots, as assets: what those of all kinds have in common."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import dagster as dg

from icepuffin.assets.partitions import snapshot_of, snapshot_partitions
from icepuffin.assets.pools import limit_pool
from icepuffin.assets.spec import TableSpec
from icepuffin.ops.errors import IcepuffinError
from icepuffin.ops.resources import Engine
from icepuffin.ops.tasks.task_runner import RunContext

Make = Callable[[dg.AssetExecutionContext, RunContext, Engine], dg.MaterializeResult[Any]]
"""Function that makes what is derived from the snapshot of a run"""


def derived_asset(spec: TableSpec, key: dg.AssetKey, make: Make, **options: Any) -> dg.AssetsDefinition:
    """An asset with a partition per snapshot, whose runs take turns with all other work on the table.

    `options`: others of `dagster.asset`, such as `deps` in place of the table.
    """

    decorate: Any = dg.asset(
        key=key,
        kinds=set(spec.attributes.kinds or ("python", "puffin")),
        owners=spec.attributes.owners,
        tags=spec.attributes.tags,
        partitions_def=snapshot_partitions(spec),
        group_name=spec.group,
        automation_condition=spec.attributes.automation,
        required_resource_keys={spec.resources.catalogs, spec.resources.engine},
        pool=spec.pool,
        retry_policy=spec.retry_policy,
        **{"deps": [spec.key], **options},
    )

    @no_vain_retries()
    def derived(context: dg.AssetExecutionContext) -> dg.MaterializeResult:  # type: ignore[type-arg]  # dagster tells checks from outputs by the bare class
        snapshot_id = snapshot_of(context)
        limit_pool(context.instance, spec.pool)
        engine = spec.resources.engine_of(context)
        table = spec.resources.catalogs_of(context).table(spec.catalog, spec.identifier)
        run = engine.run_on(table, snapshot_id, spec.first_ref)
        result: dg.MaterializeResult[Any] = spec.attributes.execute(context, partial(make, context, run, engine))
        return result

    made: dg.AssetsDefinition = decorate(derived)
    return made


def check_per_snapshot(spec: TableSpec, key: dg.AssetKey, name: str, description: str) -> dg.AssetCheckSpec:
    """A check with a result per snapshot. Dagster calls partitions of checks a preview, and warns."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dg.PreviewWarning)
        return dg.AssetCheckSpec(name, asset=key, description=description, partitions_def=snapshot_partitions(spec))


@contextmanager
def no_vain_retries() -> Iterator[None]:
    """Fail the step without retries for an error that would occur again, such as a missed recall target."""
    try:
        yield
    except IcepuffinError as error:
        if error.retryable:
            raise
        raise dg.Failure(str(error), allow_retries=False) from error
