"""Join a Spark DataFrame with its nearest rows in an indexed table: a package, and others like it."""

from lake import packages
from pyspark.sql import SparkSession

import icepuffin


def main() -> None:
    table = packages()
    spark = SparkSession.builder.master("local[2]").appName("knn_join").getOrCreate()
    editors = table.scan("section = 'editors'", selected_fields=("name", "embedding")).to_arrow()
    queries = spark.createDataFrame(editors.rename_columns(["editor", "vector"]))

    reader = icepuffin.open_index(table)
    join = icepuffin.knn_join(queries, reader, on="vector", k=4, columns=["name", "section"])
    print(f"snapshot {join.snapshot_id}, {join.coverage}; warnings: {join.warnings or 'none'}")
    join.rows.where("name != editor").select("editor", "rank", "distance", "name").orderBy("editor", "rank").show(12)

    icepuffin.register_vector_search(spark, table.catalog)
    spark.sql(
        "SELECT name, distance FROM vector_search('demo.packages', 'embedding', "
        "(SELECT first(vector) FROM {queries} WHERE editor = 'vim'), 5)",
        queries=queries,
    ).show()
    spark.stop()


if __name__ == "__main__":
    main()
