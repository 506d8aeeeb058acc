"""From settings to catalogs and engines. Imports no Dagster, so that the command line starts fast."""

from typing import Any

from icepuffin.ops.model import MIB
from icepuffin.ops.resources import Catalogs, Engine
from icepuffin.orchestration.overrides import SettingsError
from icepuffin.orchestration.settings import Settings, SparkSettings


def catalogs_of(settings: Settings) -> Catalogs:
    return Catalogs({name: catalog.properties for name, catalog in settings.catalogs.items()})


def use_shard_cache(settings: Settings) -> None:
    """Apply `[cache]` of the settings, if set, to this process and to the executors that it sends tasks to."""
    if settings.cache is None:  # the environment variables apply then
        return
    from icepuffin.ops.cache import CacheSettings, use_settings  # noqa: PLC0415  imports kernels

    cache = settings.cache
    use_settings(
        CacheSettings(
            directory=cache.directory,
            disk_bytes=cache.disk_mb * MIB,
            memory_bytes=cache.memory_mb * MIB,
            layout=cache.layout,
            tail_bytes=cache.tail_mb * MIB,
            rows_bytes=cache.rows_mb * MIB,
            prefetch=cache.prefetch,
        )
    )


def engine_of(settings: Settings) -> Engine:
    return Engine(
        spark_conf=spark_conf(settings.spark),
        threads=settings.thread_count,
        driver_only_rows=settings.spark.driver_only_rows,
    )


def engine_on(key: str, resource: Any, engine: Engine) -> Engine:
    """The engine with the session of a project's resource. Raises SettingsError where that has none, or might write
    credentials that tasks carry to Spark's local disks without saying so.
    """
    from dagster_pyspark import LazyPySparkResource, PySparkResource  # noqa: PLC0415  imports pyspark

    if not isinstance(resource, LazyPySparkResource | PySparkResource):
        raise SettingsError(
            f"spark_resource is '{key}', which is of type {type(resource).__name__} here: "
            "name a PySparkResource or LazyPySparkResource of dagster_pyspark"
        )
    conf = spark_conf(SparkSettings(conf=resource.spark_config))
    if not conf.get("spark.remote") and "spark.io.encryption.enabled" not in conf:
        raise SettingsError(
            f"the resource '{key}' has no spark.io.encryption.enabled, and tasks with credentials lie on Spark's local "
            'disks: set it in spark_config to "true", or to "false" where nobody else reads these disks'
        )
    return Engine(spark_conf=conf, threads=engine.threads, driver_only_rows=engine.driver_only_rows, resource=resource)


def spark_conf(spark: SparkSettings) -> dict[str, str]:
    """Spark properties: Spark Connect where `remote` is set, else `master`; with neither, tasks run in this process."""
    conf = {key: value.get_secret_value() for key, value in spark.conf.items()}
    if spark.remote and (remote := spark.remote.get_secret_value()):
        return {"spark.remote": remote, **conf}
    return {"spark.master": spark.master, **conf} if spark.master else {}
