"""From settings to catalogs and engines. Imports no Dagster, so that the command line starts fast."""

from icepuffin.ops.model import MIB
from icepuffin.ops.resources import Catalogs, Engine
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


def spark_conf(spark: SparkSettings) -> dict[str, str]:
    """Spark properties: Spark Connect where `remote` is set, else `master`; with neither, tasks run in this process."""
    conf = {key: value.get_secret_value() for key, value in spark.conf.items()}
    if spark.remote and (remote := spark.remote.get_secret_value()):
        return {"spark.remote": remote, **conf}
    return {"spark.master": spark.master, **conf} if spark.master else {}
