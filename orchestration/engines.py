"""From settings to what reaches catalogs and engines. Imports no Dagster: the command line starts without."""

from ops.graphs.prices import Prices
from ops.resources import Catalogs, Engine
from orchestration.settings import Settings, SparkSettings


def catalogs_of(settings: Settings) -> Catalogs:
    return Catalogs({name: catalog.properties for name, catalog in settings.catalogs.items()})


def engine_of(settings: Settings) -> Engine:
    return Engine(
        spark_conf=spark_conf(settings.spark),
        threads=settings.thread_count,
        driver_only_rows=settings.spark.driver_only_rows,
        prices=Prices(**settings.prices.model_dump()) if settings.prices else None,
    )


def spark_conf(spark: SparkSettings) -> dict[str, str]:
    """Connect where a remote is set, else the master; neither = this process alone."""
    if spark.remote:
        return {"spark.remote": spark.remote, **spark.conf}
    return {"spark.master": spark.master, **spark.conf} if spark.master else {}
