"""Interpreters that lack the packages of some extras."""

from pathlib import Path

EXTRAS = {
    "dagster": "dagster dagster_shared click rich",
    "ui": "dagster_graphql dagster_webserver dagster_postgres",
    "spark": "pyspark py4j dagster_pyspark pandas",
    "sql": "sqlglot",
    "langchain": "langchain_core",
    "mcp": "mcp",
    "s3": "s3fs aiobotocore botocore",
    "gcs": "obstore",
}
"""Packages that are imported where there is an extra; `adls` has those of `gcs`"""


def without_extras(folder: Path, *extras: str) -> dict[str, str]:
    """Variables for a Python that cannot import packages of these extras, nor can what it starts. Writes `folder`."""
    absent = {package for extra in extras for package in EXTRAS[extra].split()}
    (folder / "sitecustomize.py").write_text(
        "import sys, importlib.util\n"
        "from importlib.machinery import PathFinder\n\n\n"
        "class Absent(PathFinder):\n"
        "    @classmethod\n"
        "    def find_spec(cls, name, path=None, target=None):\n"
        f"        return None if name in {absent} else PathFinder.find_spec(name, path, target)\n\n\n"
        "sys.meta_path[sys.meta_path.index(PathFinder)] = Absent\n",
        encoding="utf-8",
    )
    return {"PYTHONPATH": str(folder)}
